"""What physics allows at best: FLOPs, memory bytes and link bytes of a pass at datasheet peaks.

Counted independently of the operators in :mod:`pdplan.perf.operators`, so that a slip there shows. Efficiencies,
launch times and skew do not enter; a prediction below these bounds is a fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pdplan.catalog.specs import Ffn, Mixer, ModelSpec
from pdplan.perf.constants import WEIGHT_BYTES, Hardware
from pdplan.perf.layout import Layouts, Precision
from pdplan.perf.mixers import STATE_BYTES, key_range

__all__ = ["Resources", "decode_resources", "prefill_resources"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Seconds that each resource of a mean card needs at its peak; shape (..., C)."""

    flop_s: Floats
    hbm_s: Floats
    link_s: Floats


def _products(mixer: Mixer) -> tuple[float, float]:
    """FLOP per query-key pair over all heads: expanded form (prefill), absorbed form (decode of latent attention)."""
    if mixer.type == "mla":
        expanded = 2.0 * mixer.heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim)
        absorbed = 2.0 * mixer.heads * (2 * mixer.kv_lora_rank + mixer.qk_rope_head_dim)
        return expanded, absorbed
    pair = 2.0 * mixer.heads * (mixer.head_dim + (mixer.v_head_dim or mixer.head_dim))
    return pair, pair


def _projection_weights(mixer: Mixer, hidden: int) -> float:
    """Weights that every token multiplies and TP divides, elements; a lower bound where layers differ in detail."""
    if mixer.type in ("mla", "dsv4"):  # low-rank inputs are on every rank, the output projection is divided
        return float(mixer.heads * mixer.v_head_dim * hidden)
    return 0.98 * mixer.parameters  # less norms, biases, convolutions


def _ffn_weights(ffn: Ffn, hidden: int) -> tuple[float, float]:
    """(weights every token multiplies, weights of one routed expert), elements."""
    matrices = 3 if ffn.gated else 2
    if not ffn.experts:
        return matrices * float(hidden) * ffn.dense_size, 0.0
    shared = matrices * float(hidden) * (ffn.shared_size + ffn.dense_size) + 2.0 * hidden * ffn.latent_size
    return shared, matrices * float(ffn.latent_size or hidden) * ffn.expert_size


def _pass(
    model: ModelSpec,
    hw: Hardware,
    layouts: Layouts,
    precision: Precision,
    general: Mapping[str, float],
    *,
    tokens: Floats,
    sequences: Floats,
    mean_keys: Mapping[int, Floats],
    decode: bool,
) -> Resources:
    tp, ranks, ep = (np.asarray(v, dtype=np.float64) for v in (layouts.tp, layouts.attention_dp, layouts.ep))
    stage = tp * ranks
    rows = tokens / ranks  # of a mean attention rank
    local = sequences / ranks
    weights, attention = precision.weights, precision.attention_weights
    fastest = max((precision.output_projection, attention), key=lambda p: hw.peak_flop_per_s[p].max())
    thinnest = min(WEIGHT_BYTES[precision.output_projection], WEIGHT_BYTES[attention])
    kv_bytes = WEIGHT_BYTES[precision.kv_cache]
    flop_s = np.zeros(np.broadcast_shapes(np.shape(tokens), tp.shape))
    hbm_bytes, link_bytes = flop_s.copy(), flop_s.copy()
    for index, block in enumerate(model.blocks):
        mixer, ffn, count = block.mixer, block.ffn, block.count
        if mixer.type != "none":
            gemm = _projection_weights(mixer, model.hidden) / tp
            flop_s = flop_s + count * 2 * rows * gemm / hw.peak_flop_per_s[fastest]
            hbm_bytes = hbm_bytes + count * gemm * thinnest
            expanded, absorbed = _products(mixer)
            if mixer.type in ("gqa", "mla", "dsv4"):
                pairs = rows * mean_keys[index]
                peak = hw.peak_flop_per_s["fp8" if mixer.type == "mla" and decode and kv_bytes <= 1 else "bf16"]
                flop_s = flop_s + count * pairs * (absorbed if decode else expanded) / tp / peak
                # sparse and compressed caches are read in part only: left out of the bound
                if decode and mixer.type != "dsv4" and not mixer.extra.get("indexer_top_k"):
                    share = 1.0 if mixer.type == "mla" else np.maximum(mixer.kv_heads / tp, 1.0) / mixer.kv_heads
                    cache = mixer.kv_elements_per_token * share * kv_bytes
                    hbm_bytes = hbm_bytes + count * local * mean_keys[index] * cache
            if decode:
                hbm_bytes = hbm_bytes + count * local * 2 * mixer.state_elements * STATE_BYTES / tp
            link_bytes = link_bytes + count * 2 * (tp - 1) / tp * rows * model.hidden * 2
        if ffn.type == "none":
            continue
        always, expert = _ffn_weights(ffn, model.hidden)
        flop_s = flop_s + count * 2 * rows * always / tp / hw.peak_flop_per_s[weights]
        hbm_bytes = hbm_bytes + count * always / tp * WEIGHT_BYTES[weights]
        if not ffn.experts:
            link_bytes = link_bytes + count * 2 * (tp - 1) / tp * rows * model.hidden * 2
            continue
        shards = stage / ep
        flop_s = flop_s + count * 2 * (tokens * ffn.top_k / ep) * expert / shards / hw.peak_flop_per_s[weights]
        miss = np.log1p(-min(ffn.top_k / ffn.experts, 1 - 1e-12)) * general["expert_correlation"]
        touched = ffn.experts / ep * -np.expm1(tokens * miss)
        hbm_bytes = hbm_bytes + count * touched * expert / shards * WEIGHT_BYTES[weights]
        link_bytes = link_bytes + np.where(ranks > 1, 0.0, count * 2 * (tp - 1) / tp * rows * model.hidden * 2)
    head = model.hidden * model.vocab / tp
    flop_s = flop_s + 2 * np.minimum(local, rows) * head / hw.peak_flop_per_s["bf16"]
    hbm_bytes = hbm_bytes + head * 2.0
    link = np.where(tp <= hw.domain, hw.link_bandwidth, hw.nic_bandwidth)
    return Resources(flop_s=flop_s, hbm_s=hbm_bytes / hw.hbm_bandwidth, link_s=link_bytes / link)


def decode_resources(
    model: ModelSpec,
    hw: Hardware,
    layouts: Layouts,
    precision: Precision,
    general: Mapping[str, float],
    batch: Floats,
    context: Floats,
    tokens_each: float,
) -> Resources:
    """Resources of one decode step of `batch` sequences, each verifying `tokens_each` tokens."""
    shape = np.broadcast_shapes(np.shape(batch), np.shape(context), layouts.tp.shape)
    # micro-batches of a pipeline: every stage runs pp passes per step, each over its own layers
    sequences = np.broadcast_to(np.maximum(batch / layouts.pp, 1.0), shape)
    keys = {i: key_range(b.mixer).at(np.broadcast_to(context, shape)) for i, b in enumerate(model.blocks)}
    return _pass(
        model, hw, layouts, precision, general,
        tokens=sequences * tokens_each, sequences=sequences, mean_keys=keys, decode=True,
    )  # fmt: skip


def prefill_resources(
    model: ModelSpec,
    hw: Hardware,
    layouts: Layouts,
    precision: Precision,
    general: Mapping[str, float],
    new: Floats,
    cached: Floats,
    requests: Floats,
) -> Resources:
    """Resources of one prefill pass."""
    shape = np.broadcast_shapes(np.shape(new), np.shape(cached), np.shape(requests), layouts.tp.shape)
    new, cached, requests = (np.broadcast_to(v, shape) for v in (new, cached, requests))
    keys = {i: key_range(b.mixer).mean(cached, new) for i, b in enumerate(model.blocks)}
    return _pass(
        model, hw, layouts, precision, general,
        tokens=new * requests, sequences=requests, mean_keys=keys, decode=False,
    )  # fmt: skip
