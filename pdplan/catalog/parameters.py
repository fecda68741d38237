"""Parameters, cache and state of each kind of layer, counted from its dimensions.

One function per kind of mixer and one for the feed-forward half; counts include biases and per-head
norms inside the block, not the two layer norms around it. Checked against every shipped model's
published count in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pdplan.catalog.specs import Ffn, Mixer

__all__ = ["MIXERS", "ffn_of", "mixer_of"]

Spec = Mapping[str, Any]


def _indexer(spec: Spec, hidden: int) -> int:
    """Weights of the lightning indexer of sparse attention (DeepSeek-V3.2, GLM-5)."""
    indexer = spec.get("indexer")
    if not indexer:
        return 0
    heads, dim = int(indexer["heads"]), int(indexer["dim"])
    query_in: int = spec.get("q_lora_rank") or hidden
    return query_in * heads * dim + hidden * (dim + heads) + dim * (2 if indexer.get("k_norm_bias", True) else 1)


def _gqa(spec: Spec, hidden: int) -> tuple[int, float, int]:
    heads, kv_heads, dim = spec["heads"], spec["kv_heads"], spec["head_dim"]
    v_dim = spec.get("v_head_dim", dim)
    count = (
        hidden * heads * dim * (2 if spec.get("output_gate") else 1) + hidden * kv_heads * dim + heads * v_dim * hidden
    )
    if not spec.get("k_eq_v"):
        count += hidden * kv_heads * v_dim
    if spec.get("qkv_bias"):
        count += heads * dim + kv_heads * (dim + v_dim)
    if spec.get("o_bias"):
        count += hidden
    count += {"head": 2 * dim, "full": (heads + kv_heads) * dim}.get(spec.get("qk_norm", ""), 0)
    if spec.get("sinks"):
        count += heads
    return count + _indexer(spec, hidden), kv_heads * (dim + v_dim), 0


def _mla(spec: Spec, hidden: int) -> tuple[int, float, int]:
    heads, rank, query_rank = spec["heads"], spec["kv_lora_rank"], spec.get("q_lora_rank") or 0
    nope, rope, v_dim = spec["qk_nope_head_dim"], spec["qk_rope_head_dim"], spec["v_head_dim"]
    query = heads * (nope + rope)
    count = (hidden * query_rank + query_rank + query_rank * query) if query_rank else hidden * query
    count += hidden * (rank + rope) + rank + rank * heads * (nope + v_dim) + heads * v_dim * hidden
    if spec.get("output_gate"):
        count += hidden * heads * v_dim
    indexer = spec.get("indexer")
    return count + _indexer(spec, hidden), rank + rope + (indexer["dim"] if indexer else 0), 0


def _dsv4(spec: Spec, hidden: int) -> tuple[int, float, int]:
    """DeepSeek-V4: one shared KV head, grouped low-rank output projection, compressed context."""
    heads, dim, rank = spec["heads"], spec["head_dim"], spec["q_lora_rank"]
    groups, out_rank, ratio = spec["o_groups"], spec["o_lora_rank"], spec.get("compress_ratio", 0)
    count = heads + hidden * rank + rank + rank * heads * dim + hidden * dim + dim
    count += out_rank * heads * dim + hidden * groups * out_rank
    cache = 0.0
    if ratio:
        width = dim * (2 if spec.get("overlap") else 1)
        count += ratio * width + 2 * hidden * width + dim
        cache = dim / ratio
        if indexer := spec.get("indexer"):
            size = indexer["dim"]
            count += 2 * ratio * size + 4 * hidden * size + size + (rank * size + hidden) * indexer["heads"]
            cache += size / ratio
    return count, cache, 0


def _gated_deltanet(spec: Spec, hidden: int) -> tuple[int, float, int]:
    key, value = spec["key_heads"] * spec["key_dim"], spec["value_heads"] * spec["value_dim"]
    count = hidden * 2 * (key + value + spec["value_heads"]) + (2 * key + value) * spec["conv"]
    count += 2 * spec["value_heads"] + spec["value_dim"] + value * hidden
    return count, 0, value * spec["key_dim"] + (2 * key + value) * (spec["conv"] - 1)


def _kda(spec: Spec, hidden: int) -> tuple[int, float, int]:
    heads, dim, conv = spec["heads"], spec["head_dim"], spec["conv"]
    width = heads * dim
    low_rank = hidden * dim + dim * width
    count = 4 * hidden * width + 3 * width * conv + low_rank + width + heads + hidden * heads + dim
    count += hidden * width if spec.get("full_rank_gate") else low_rank
    return count, 0, width * dim + 3 * width * (conv - 1)


def _lightning(spec: Spec, hidden: int) -> tuple[int, float, int]:
    width = spec["heads"] * spec["head_dim"]
    return 5 * hidden * width + width, 0, width * spec["head_dim"]


def _mamba2(spec: Spec, hidden: int) -> tuple[int, float, int]:
    inner = spec["heads"] * spec["head_dim"]
    channels = inner + 2 * spec["groups"] * spec["state"]
    count = hidden * (inner + channels + spec["heads"]) + channels * (spec["conv"] + 1) + 3 * spec["heads"]
    return count + inner * (1 + hidden), 0, inner * spec["state"] + channels * (spec["conv"] - 1)


def _none(spec: Spec, hidden: int) -> tuple[int, float, int]:
    return 0, 0, 0


MIXERS: dict[str, Callable[[Spec, int], tuple[int, float, int]]] = {
    "gqa": _gqa,
    "mla": _mla,
    "dsv4": _dsv4,
    "gated_deltanet": _gated_deltanet,
    "kda": _kda,
    "lightning": _lightning,
    "mamba2": _mamba2,
    "none": _none,
}
"""Kind of mixer -> (parameters, cache elements per token, state elements per sequence)."""

_RENAMED = {"window": "window_tokens", "key_dim": "key_dim"}


def mixer_of(spec: Spec, hidden: int) -> Mixer:
    """A :class:`Mixer` from the block's dimensions.

    Raises
    ------
    ValueError
        Unknown kind or missing dimension.
    """
    kind = spec.get("type")
    if kind not in MIXERS:
        raise ValueError(f"mixer type {kind!r} is not known; accepted: {', '.join(MIXERS)}")
    try:
        parameters, cache, state = MIXERS[kind](spec, hidden)
    except KeyError as missing:
        raise ValueError(f"a {kind} mixer needs {missing.args[0]}") from None
    known = {name for name in Mixer.__slots__ if name not in ("type", "extra", "parameters", "kv_elements_per_token")}
    fields = {_RENAMED.get(key, key): value for key, value in spec.items()}
    values: dict[str, Any] = {key: value or 0 for key, value in fields.items() if key in known}
    window = int(spec.get("window") or spec.get("local_window") or 0)
    extra = {key: float(value) for key, value in fields.items() if key not in known and isinstance(value, int | float)}
    if isinstance(indexer := spec.get("indexer"), Mapping):
        extra |= {f"indexer_{key}": float(value) for key, value in indexer.items() if isinstance(value, int | float)}
    if kind == "gated_deltanet":
        values |= {"key_heads": spec["key_heads"], "value_heads": spec["value_heads"]}
    values["window_tokens"] = window if kind != "dsv4" else 0
    values["state_elements"] = state
    return Mixer(type=kind, parameters=parameters, kv_elements_per_token=cache, extra=extra, **values)


def ffn_of(spec: Spec, hidden: int) -> Ffn:
    """An :class:`Ffn` from its dimensions.

    Raises
    ------
    ValueError
        Unknown kind or missing dimension.
    """
    kind = spec.get("type")
    try:
        if kind == "none":
            return Ffn(type="none")
        if kind in ("gated", "plain"):
            matrices, size = (3 if kind == "gated" else 2), spec["size"]
            bias = (size * (matrices - 1) + hidden) if spec.get("bias") else 0
            return Ffn(type=kind, dense_size=size, gated=kind == "gated", parameters=matrices * hidden * size + bias)
        if kind != "moe":
            raise ValueError(f"ffn type {kind!r} is not known; accepted: gated, plain, moe, none")
        gated = bool(spec.get("gated", True))
        matrices, experts, latent = (3 if gated else 2), spec["experts"], spec.get("latent_size") or 0
        expert = matrices * (latent or hidden) * spec["expert_size"]
        if spec.get("expert_bias"):
            expert += 2 * spec["expert_size"] + hidden
        total = experts * expert + hidden * experts + (experts if spec.get("router_bias") else 0)
        if latent:
            total += 2 * hidden * latent + (latent if spec.get("latent_norm") else 0)
        total += matrices * hidden * spec.get("shared_size", 0) + (hidden if spec.get("shared_gate") else 0)
        dense = spec.get("parallel_dense") or 0
        if dense:  # Gemma 4: a dense FFN beside the experts, with its norms and per-expert scales
            total += 3 * hidden * dense + 4 * hidden + experts
        return Ffn(
            type="moe",
            dense_size=dense,
            experts=experts,
            top_k=spec["top_k"],
            expert_size=spec["expert_size"],
            shared_size=spec.get("shared_size", 0),
            gated=gated,
            latent_size=latent,
            parameters=total,
            routed_parameters=experts * expert,
        )
    except KeyError as missing:
        raise ValueError(f"a {kind} ffn needs {missing.args[0]}") from None
