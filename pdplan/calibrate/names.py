"""Names as benchmark files write them -> ids of the catalog: tolerant of case, vendor prefixes and checkpoint suffixes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from pdplan.catalog.load import Catalog
from pdplan.errors import InputError, unknown_name
from pdplan.serving.deployments import ENGINE_OF, NODE_OF

__all__ = ["EngineMatch", "engine_of", "model_id_of", "node_id_of", "precision_label"]

_SUFFIX = re.compile(
    r"[-_](fp8|fp4|nvfp4|mxfp4|int4|int8|bf16|fp16|awq|gptq|w4a16|w4afp8|w8a8|kv|block|dynamic|instruct|chat|hf|it|thinking|base|tput"
    r"|preview|v\d|0\d{3}|1[0-2]\d{2}|2[45]\d{2})$"
)
"""Parts of a checkpoint's name that say format, date or tuning, not architecture."""

_SHORT_MODELS: Mapping[str, str] = {
    "dsr1": "deepseek-r1", "r1": "deepseek-r1", "dsv3": "deepseek-v3", "dsv32": "deepseek-v3.2", "dsv4": "deepseek-v4-pro",
    "dsv4pro": "deepseek-v4-pro", "dsv4flash": "deepseek-v4-flash", "deepseekv4": "deepseek-v4-pro",
    "deepseekv3r1": "deepseek-v3", "gptoss": "gpt-oss-120b",
    "llama70b": "llama-3.3-70b", "llama8b": "llama-3.1-8b", "llama405b": "llama-3.1-405b", "qwen3235b": "qwen3-235b-a22b",
    "qwen35": "qwen3.5-397b-a17b", "qwen330b": "qwen3-30b-a3b", "kimik2": "kimi-k2", "glm5": "glm-5",
    "minimax": "minimax-m2.5", "llama4": "llama-4-maverick", "llama4maverick17b128e": "llama-4-maverick",
    "llama4scout17b16e": "llama-4-scout", "bloom": "bloom-176b",
}  # fmt: skip
"""Abbreviations of public benchmarks, letters and digits only."""

_HARDWARE_NOISE = re.compile(
    r"(nvidia|amd|google|huawei|intel|instinct|tesla|sxm\d?|oam|hbm3e?|pcie\d?|nvl\d+|hgx|dgx|superpod|x?8x?$|\d+ ?gb(?=$|[-_ ])|pcap)"
)


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _stems(name: str) -> list[str]:
    """The name without organisation, then with one suffix of format, date or tuning less at a time, all plain."""
    stem = name.strip().lower().split("/")[-1].replace("_", "-").replace(" ", "-")
    found = [_plain(stem)]
    while (shorter := _SUFFIX.sub("", stem)) != stem:
        stem = shorter
        found.append(_plain(stem))
    return found


@cache
def _known_models(catalog: Catalog) -> dict[str, str]:
    """Plain names under which each model is known -> id; whole names win over shortened ones."""
    names: dict[str, list[str]] = {}
    for entry in catalog.ids("models"):
        raw = catalog.raw("models", entry)
        names[entry] = [str(n) for n in (entry, *(raw.get("aliases") or []), raw.get("hf_id")) if n]
    known: dict[str, str] = {}
    for shortened in (False, True):
        for entry, all_names in names.items():
            for name in all_names:
                stems = _stems(name)
                for stem in stems[1:] if shortened else stems[:1]:
                    known.setdefault(stem, entry)
    return known


@cache
def model_id_of(name: str, catalog: Catalog) -> str:
    """Catalog id of a model by id, alias, Hugging Face id or a checkpoint's name.

    Raises
    ------
    InputError
        Nothing in the catalog has that name.
    """
    if not name.strip():
        raise InputError("model: is blank; give a catalog id or a Hugging Face id")
    ids = catalog.ids("models")
    if name in ids:
        return name
    known = _known_models(catalog)
    whole = name.strip().lower()
    stems = [*_stems(whole), *(stem for part in whole.split("/")[:-1] for stem in _stems(part))]
    for stem in [*stems, _plain(whole)]:
        for table in (known, _SHORT_MODELS):
            if stem in table and table[stem] in ids:
                return table[stem]
    for stem in stems:
        longer = sorted({entry for key, entry in known.items() if len(stem) >= 5 and key.startswith(stem)})
        if len(longer) == 1:
            return longer[0]
        shorter = [key for key in known if len(key) >= 6 and stem.startswith(key)]
        if shorter:
            return known[max(shorter, key=len)]
    raise InputError(f"model: {unknown_name('model', name, ids)}")


@cache
def node_id_of(name: str, catalog: Catalog) -> str:
    """Catalog id of a node by id, accelerator or the hardware name of a benchmark (the common node of that card).

    Benchmarks append the name of a cluster to that of the card (``h100-cluster7``): what follows the card is dropped, word
    by word, where the whole name is not known.

    Raises
    ------
    InputError
        Nothing in the catalog has that name.
    """
    label = name.strip().lower()
    if not label:
        raise InputError("hardware: is blank; give a catalog id of a node or an accelerator")
    nodes = catalog.ids("nodes")
    if label in nodes:
        return label
    plain = _plain(_HARDWARE_NOISE.sub("", label.replace("_", "-")))
    for alias, node in NODE_OF.items():
        if plain == _plain(alias) and node in nodes:
            return node
    cards = {_plain(_HARDWARE_NOISE.sub("", card)): card for card in reversed(catalog.ids("accelerators"))}
    exact = {_plain(card): card for card in catalog.ids("accelerators")}
    card = exact.get(_plain(label)) or cards.get(plain)
    if card is not None:
        having = [node for node in nodes if catalog.raw("nodes", node).get("accelerator") == card]
        eights = [node for node in having if int(catalog.raw("nodes", node).get("cards") or 0) == 8]
        if having:
            return min(eights or having, key=lambda node: (len(node), node))
    shorter = re.split(r"[-_ ./]", label)[:-1]
    if shorter:
        with contextlib.suppress(InputError):
            return node_id_of("-".join(shorter), catalog)
    raise InputError(f"hardware: {unknown_name('hardware', name, [*NODE_OF, *catalog.ids('accelerators')])}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMatch:
    """The engine constants a row is predicted with."""

    id: str
    stands_in: str = ""
    """Why the constants are those of another engine; empty where they are its own."""


def engine_of(framework: str, hardware: str, *, disaggregated: bool, catalog: Catalog) -> EngineMatch:
    """Engine constants for a framework name; never fails, but says what stands in for what."""
    label = framework.strip().lower().replace("_", "-").replace("tensorrt-llm", "trtllm").replace("tensorrt", "trt")
    amd = hardware.strip().lower().startswith(("mi", "amd"))
    ids = catalog.ids("engines")
    if label == "sglang" and amd:
        return EngineMatch(id="sglang-mori" if disaggregated else "sglang-amd")
    known = ENGINE_OF.get(label) or (label if label in ids else "")
    if known and not disaggregated and known.endswith(("-dynamo", "-mori")):
        return EngineMatch(id=known)
    if known in ("trtllm", "sglang") and disaggregated:
        return EngineMatch(id=f"{known}-dynamo")
    if known:
        mixed = label.startswith("dynamo-") and known == "vllm"
        return EngineMatch(id=known, stands_in="disaggregated vLLM has no constants of its own" if mixed else "")
    for word, engine, apart in (
        ("trt", "trtllm", "trtllm-dynamo"),
        ("mori", "sglang-mori", "sglang-mori"),
        ("sglang", "sglang-amd" if amd else "sglang", "sglang-mori" if amd else "sglang-dynamo"),
        ("vllm", "vllm", "vllm"),
        ("atom", "atom", "atom"),
    ):
        if word in label:
            found = apart if disaggregated else engine
            return EngineMatch(id=found, stands_in=f"{framework} is predicted with the constants of {found}")
    what = f"{framework!r} is not in the catalog" if label else "the engine is not stated"
    return EngineMatch(id="generic", stands_in=f"{what}; the generic engine's constants are used")


_PRECISIONS = {
    "bf16": "bf16", "fp16": "bf16", "float16": "bf16", "bfloat16": "bf16", "16": "bf16", "fp8": "fp8", "fp8block": "fp8",
    "fp8e4m3": "fp8", "w8a8fp8": "fp8", "fp4": "fp4", "nvfp4": "fp4", "mxfp4": "fp4", "int4": "int4", "w4a16": "int4", "int4wo": "int4",
    "awq": "int4", "gptq": "int4", "int8": "int8", "w8a8": "int8",
}  # fmt: skip


def precision_label(text: str) -> str:
    """Number format of the weights: bf16, fp8, fp4, int8 or int4; empty for a blank.

    The first word counts: ``nvfp4 moe + fp8 attention`` is fp4.

    Raises
    ------
    InputError
        The format is not known.
    """
    words = text.strip().lower().split()
    if not words:
        return ""
    found = _PRECISIONS.get(_plain(words[0]))
    if found is None:
        raise InputError(f"precision: {text!r} is not known; accepted are {', '.join(sorted(set(_PRECISIONS)))}")
    return found
