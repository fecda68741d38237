"""Any Hugging Face ``config.json`` as a model: read, never executed.

The config becomes the same description as a file under catalogs/models/ and is counted by the same
code; a config that cannot be read gets one sentence naming file and field.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from pdplan.catalog.hf_architectures import ARCHITECTURES, Parts, parts_of
from pdplan.catalog.hf_fields import Fields
from pdplan.catalog.hf_quantization import native_precision
from pdplan.catalog.models import model_of
from pdplan.catalog.reader import Reader
from pdplan.catalog.specs import ModelSpec
from pdplan.errors import InputError
from pdplan.files import read_text, write_atomic

__all__ = ["description_of", "import_config", "model_from_config"]

MAX_CONFIG_BYTES = 64_000_000
"""The largest public config lists every quantised layer in 2.4 MB."""

_INNER = ("text_config", "llm_config", "language_config", "language_model_config", "thinker_config")
_TOWERS = ("vision_config", "audio_config", "visual", "vision_tower", "mm_vision_tower", "img_processor")
_ACCEPTED = ("CausalLM", "ConditionalGeneration", "LMHeadModel", "ImageTextToText")
SOURCE = "own_config"
"""Source id of models read from a config; see sources.yaml."""


def model_from_config(path: Path) -> ModelSpec:
    """A model from its config.json, or the folder that holds it.

    Raises
    ------
    InputError
        Not JSON, a missing field, an unsupported architecture or quantisation.
    """
    description = description_of(path)
    reader = Reader(_file(path), description)
    model = model_of(reader)
    reader.done()
    return model


def import_config(path: Path, overlay: Path, name: str = "") -> tuple[Path, ModelSpec]:
    """Write ``<overlay>/models/<name>.yaml`` from a config.

    Raises
    ------
    InputError
        As :func:`model_from_config`, or an unusable name.
    """
    import yaml

    description = description_of(path)
    if name:
        description["id"] = name
    if not re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", description["id"]):
        raise InputError(f"--id: {description['id']!r} is not lower-case words joined by '-', for example my-model-8b")
    target = overlay / "models" / f"{description['id']}.yaml"
    reader = Reader(target, description)
    model = model_of(reader)
    reader.done()
    text = yaml.safe_dump(description, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
    write_atomic(target, text)
    return target, model


def _file(path: Path) -> Path:
    return path / "config.json" if path.is_dir() else path


def _load(path: Path) -> dict[str, Any]:
    text = read_text(path, max_bytes=MAX_CONFIG_BYTES)
    try:
        data = json.loads(text)
    except json.JSONDecodeError as fault:
        raise InputError(f"{path}: line {fault.lineno}, column {fault.colno} is not JSON: {fault.msg}") from None
    except RecursionError:
        raise InputError(f"{path}: is nested too deeply") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: a JSON object is expected, as in a Hugging Face config.json")
    return data


def _quantization(file: Path, config: dict[str, Any], inner: dict[str, Any]) -> dict[str, Any] | None:
    """The config's own entry and, over it, a sibling hf_quant_config.json."""
    given = config.get("quantization_config") or inner.get("quantization_config") or config.get("compression_config")
    sibling = file.with_name(file.name.replace("config.json", "hf_quant_config.json"))
    merged: dict[str, Any] = dict(given) if isinstance(given, dict) else {}
    if sibling != file and sibling.is_file():
        other = _load(sibling)
        entry = other.get("quantization", other)
        if isinstance(entry, dict):
            merged |= {key: value for key, value in entry.items() if value is not None}
    elif isinstance(merged.get("quantization"), dict):
        merged |= merged["quantization"]
    return merged or None


def description_of(path: Path) -> dict[str, Any]:
    """The config as the plain data of a model file (see catalogs/README.md).

    Raises
    ------
    InputError
        As :func:`model_from_config`.
    """
    file = _file(path)
    config = _load(file)
    inner, prefix = config, ""
    for name in _INNER:
        if isinstance(config.get(name), dict):
            inner, prefix = config[name], f"{name}."
            break
    c = Fields(inner, str(file), prefix)
    outer = Fields(config, str(file))
    _refuse(outer)
    kind = inner.get("model_type") or config.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise outer.fault("model_type", "is missing; a Hugging Face config.json names its architecture there")
    parts = parts_of(c, kind)
    if not parts.layers:
        raise c.fault("num_hidden_layers", "no layers")
    quantization = _quantization(file, config, inner)
    hidden, vocab = c.integer("hidden_size", "n_embd", "d_model"), c.integer("vocab_size")
    name = _name(file, config)
    description: dict[str, Any] = {
        "id": _slug(name),
        "name": name.rsplit("/", 1)[-1],
        "hf_id": name if "/" in name else "",
        "family": kind,
        "released": "",
        "hidden": hidden,
        "vocab": vocab,
        "tied_embeddings": _tied(c, outer, kind),
        "max_context_tokens": c.integer(
            "max_position_embeddings", "n_positions", "seq_length", "max_sequence_length", "model_max_length"
        ),
        "native_precision": native_precision(c, quantization, len(parts.layers)),
        **_blocks(parts),
        **parts.extra,
    }
    if mtp := _mtp(parts):
        description["mtp"] = mtp
    description["source"] = [SOURCE]
    notes = list(parts.notes)
    if any(tower in config for tower in _TOWERS):
        notes.append("the vision or audio tower is left out: only the language model is planned")
    if notes:
        description["notes"] = notes
    return description


def _refuse(outer: Fields) -> None:
    if outer.get("is_encoder_decoder") is True:
        raise outer.fault(
            "is_encoder_decoder", "encoder-decoder models are not supported; a decoder-only model is expected"
        )
    names = outer.get("architectures", default=[])
    if isinstance(names, list) and names and not any(part in str(names[0]) for part in _ACCEPTED):
        raise outer.fault("architectures", f"{names[0]!r} does not generate text; a ...ForCausalLM model is expected")


def _blocks(parts: Parts) -> dict[str, Any]:
    counts = Counter(parts.layers)
    used_mixers = {mixer for mixer, _ in counts}
    used_ffns = {ffn for _, ffn in counts}
    blocks = []
    for (mixer, ffn), count in counts.items():
        block = {"count": count, "mixer": mixer, "ffn": ffn}
        halves = (parts.mixers[mixer]["type"] != "none") + (parts.ffns[ffn]["type"] != "none")
        if halves < 2 and "norms_per_layer" not in parts.extra:  # a missing half has no norm
            block["norms"] = halves
        blocks.append(block)
    return {
        "blocks": blocks,
        "mixers": {name: spec for name, spec in parts.mixers.items() if name in used_mixers},
        "ffns": {name: spec for name, spec in parts.ffns.items() if name in used_ffns},
    }


def _mtp(parts: Parts) -> dict[str, Any] | None:
    """Multi-token-prediction layers repeat the last layer with growing cache."""
    if not parts.mtp_layers:
        return None
    state_only = ("gated_deltanet", "kda", "lightning", "mamba2", "none")
    mixer, ffn = next(
        (pair for pair in reversed(parts.layers) if parts.mixers[pair[0]]["type"] not in state_only), parts.layers[-1]
    )
    return {"count": parts.mtp_layers, "mixer": mixer, "ffn": ffn}


def _tied(c: Fields, outer: Fields, kind: str) -> bool:
    default = kind.removesuffix("_text") in ("gemma4", "opt", "bloom", "gpt2")
    traits = ARCHITECTURES.get(kind.removesuffix("_text"))
    if traits is not None:
        default = traits.tied
    if "tie_word_embeddings" in c.data:
        return c.flag("tie_word_embeddings", default=default)
    return outer.flag("tie_word_embeddings", default=default)


def _name(file: Path, config: dict[str, Any]) -> str:
    given = config.get("_name_or_path")
    if isinstance(given, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", given):
        return given
    stem = file.resolve().parent.name if file.name == "config.json" else file.stem
    stem = re.sub(r"[_-]?config$", "", stem) or file.resolve().parent.name
    return stem.replace("--", "/", 1)


def _slug(name: str) -> str:
    slug = re.sub(r"[^a-z0-9.]+", "-", name.rsplit("/", 1)[-1].lower())
    return re.sub(r"\.(?![0-9])|(?<![0-9])\.|^[-.]+|[-.]+$", "", slug) or "model"
