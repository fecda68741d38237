"""Which precision a released checkpoint is stored in, from its quantisation fields."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from pdplan.catalog.hf_fields import Fields

__all__ = ["native_precision"]

_ATTENTION = re.compile(r"attn|attention|[qkvo]_proj|mixer\.(in|out)_proj")
_NOT_LINEAR = re.compile(r"norm|indexer|rotary|sink|conv1d|vision|visual|_bias")
_LAYER = re.compile(r"\.(\d+)(?:\D|$)")


def native_precision(c: Fields, quantization: dict[str, Any] | None, layers: int) -> dict[str, str]:
    """Precision of weights, attention and, where given, the KV cache.

    Parameters
    ----------
    c : Fields
        The config, for its `expert_dtype` and for messages.
    quantization : dict or None
        ``quantization_config`` of the config, or ``quantization`` of a sibling hf_quant_config.json.
    layers : int
        Number of layers: an exception for a few of them does not change the answer.

    Returns
    -------
    dict
        ``weights`` is the precision of the feed-forward halves (most of the weights); ``attention`` is
        given where it differs.

    Raises
    ------
    InputError
        An unknown method.
    """
    if not quantization:
        return {"weights": "bf16"}
    q = Fields(quantization, c.file, "quantization.")
    weights, attention = _method(q)
    if str(c.get("expert_dtype", default="")).lower() in ("fp4", "mxfp4", "nvfp4"):
        weights, attention = "fp4", weights
    attention = attention or weights
    excluded = _excluded(quantization)
    if attention != "bf16" and _covers_attention(excluded, layers):
        attention = "bf16"
    result = {"weights": weights}
    if attention != weights:
        result["attention"] = attention
    if _mentions(quantization.get("kv_cache_quant_algo") or quantization.get("kv_cache_scheme"), "8"):
        result["kv_cache"] = "fp8"
    return result


def _method(q: Fields) -> tuple[str, str]:
    """Precision of the weights, and of attention where the method itself says."""
    algorithm = str(q.get("quant_algo", default="")).upper()
    method = str(q.get("quant_method", default="")).lower().replace("_", "-")
    if algorithm == "MIXED_PRECISION":
        return _mixed(q)
    if algorithm:
        return _algorithm(q, algorithm), ""
    groups = q.get("config_groups")
    if isinstance(groups, dict) and groups:
        return _groups(q, groups), ""
    if method in ("fp8", "fbgemm-fp8"):
        return "fp8", ""
    if method == "mxfp4":
        return "fp4", ""
    if method == "mxfp8":
        return "fp8", ""
    bits = q.get("bits", "w_bit", "num_bits", "weight_bits")
    if q.get("load_in_4bit") is True:
        bits = 4
    if q.get("load_in_8bit") is True:
        bits = 8
    if method in ("awq", "gptq", "auto-round", "bitsandbytes", "hqq", "quark", "") and bits in (4, 8):
        return f"int{bits}", ""
    raise q.fault(
        "quant_method" if method else "bits",
        f"{method or bits!r} is not supported; accepted are fp8, mxfp4, awq, gptq (4 or 8 bits), bitsandbytes, "
        f"compressed-tensors and modelopt",
    )


def _algorithm(q: Fields, name: str) -> str:
    if "FP4" in name:
        return "fp4"
    if "INT4" in name or "W4A16" in name or "W4A8" in name:
        return "int4"
    if "FP8" in name:
        return "fp8"
    if "INT8" in name or "W8A8" in name or "W8A16" in name:
        return "int8"
    raise q.fault("quant_algo", f"{name!r} is not supported; accepted are NVFP4, MXFP4, FP8, MXFP8, INT4_AWQ, W8A8 ...")


def _mixed(q: Fields) -> tuple[str, str]:
    """modelopt's list of layers with an algorithm each: the commonest of experts or mlp, and of attention."""
    layers = q.get("quantized_layers")
    if not isinstance(layers, dict) or not layers:
        raise q.fault("quantized_layers", "is missing although quant_algo is MIXED_PRECISION")
    votes: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for name, entry in layers.items():
        algorithm = str(entry.get("quant_algo", "") if isinstance(entry, dict) else "").upper()
        votes[bool(_ATTENTION.search(name))][_algorithm(q, algorithm)] += 1
    weights = (votes[False] or votes[True]).most_common(1)[0][0]
    # layers that are not listed keep the format of the checkpoint this one was made from
    unlisted = "fp8" if _mentions(q.get("fmt"), "e4m3") else "bf16"
    attention = votes[True].most_common(1)[0][0] if votes[True] else unlisted
    return weights, attention


def _groups(q: Fields, groups: dict[str, Any]) -> str:
    """compressed-tensors: the narrowest group, which holds the feed-forward halves."""
    found = []
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, dict) else None
        bits = (weights or {}).get("num_bits")
        kind = str((weights or {}).get("type", "int"))
        if bits not in (4, 8):
            raise q.fault(f"config_groups.{name}.weights.num_bits", f"{bits!r} is not supported; 4 or 8 is expected")
        found.append((bits, ("fp" if kind == "float" else "int") + str(bits)))
    return min(found)[1]


def _excluded(quantization: dict[str, Any]) -> list[str]:
    names: list[str] = []
    for key in ("exclude_modules", "ignore", "modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules"):
        value = quantization.get(key)
        if isinstance(value, list):
            names += [str(item) for item in value]
    return names


def _covers_attention(excluded: list[str], layers: int) -> bool:
    """Whether attention as a whole is left unquantised: a pattern without a layer number, or half the layers."""
    seen: set[str] = set()
    for name in excluded:
        if not _ATTENTION.search(name) or _NOT_LINEAR.search(name) or "mtp" in name:
            continue
        number = _LAYER.search(name)
        if number is None:
            return True
        seen.add(number.group(1))
    # hybrids have attention in few layers, and list every one of those
    return len(seen) >= max(min(layers // 2, 4), 1)


def _mentions(value: object, part: str) -> bool:
    return value is not None and part in str(value)
