"""What each kind of token mixer costs: projections, attention over the cache, recurrent state.

One function per kind, registered in :data:`MIXER_COSTS`. All of them fill the same record, so the assembly in
:mod:`pdplan.perf.model` knows nothing of kinds. Section numbers refer to docs/explanation/latency-model.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pdplan.catalog.specs import Mixer
from pdplan.perf.constants import WEIGHT_BYTES, Hardware
from pdplan.perf.layout import Layouts, Precision
from pdplan.perf.operators import RowCost, gemm, mean_capped, quadrature

__all__ = ["MIXER_COSTS", "STATE_BYTES", "KeyRange", "MixerCost", "key_range", "mixer_cost"]

Floats = NDArray[np.float64]

ABSORBED_COMPUTE_EFFICIENCY = 0.4
"""Share of the bf16 peak of the small per-head products of absorbed latent attention (2.5)."""
STATE_BYTES = 4.0
"""Recurrent states are kept in fp32."""
STATE_LATENCY_S = 4e-6
"""Launch of the state update of one decode step (2.6)."""
CONV_LATENCY_S = 3e-6
"""Launch of the short convolution before it (2.6)."""
SCAN_COMPUTE_EFFICIENCY = 0.05
"""Share of the bf16 peak of the chunked prefill scan: .04 to .06 (2.6)."""
SCAN_ACTIVATION_EFFICIENCY = 0.4
"""Share of the memory bandwidth of its inputs and outputs: .25 to .65 (2.6)."""
SCAN_LATENCY_S = 20e-6
"""Launches of the prefill scan: 18 to 22 us (2.6)."""
SCAN_CHUNK = 128
"""Tokens that the scan treats by matrix products at a time (2.6)."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Which keys a query at context length x sees: min(x, window) + min(x / ratio, top_k).

    Full attention is window = inf without a second part; a sliding window caps the first; compressed or
    sparse attention has a second part.
    """

    window: float = math.inf
    ratio: float = math.inf
    top_k: float = math.inf

    def at(self, context: Floats) -> Floats:
        """Keys seen with `context` tokens in the cache."""
        keys: Floats = np.minimum(context, self.window) if math.isfinite(self.window) else context
        if math.isfinite(self.ratio):
            keys = keys + np.minimum(context / self.ratio, self.top_k)
        return keys

    def mean(self, start: Floats, count: Floats) -> Floats:
        """Mean over `count` causal queries that follow `start` cached tokens."""
        keys = mean_capped(start, count, self.window)
        if math.isfinite(self.ratio):
            keys = keys + mean_capped(start / self.ratio, count / self.ratio, self.top_k)
        return keys


@dataclass(frozen=True, slots=True, kw_only=True)
class MixerCost:
    """Coefficients of one layer's mixer; arrays are (C,)."""

    keys: KeyRange
    projections: RowCost
    """Both phases; rows are the new tokens of the rank."""
    decode_only: RowCost | None = None
    prefill_only: RowCost | None = None
    decode_compute_s_per_pair: Floats
    """Per query-key pair of the rank."""
    decode_cache_s_per_key: Floats
    """Per cached key read, per sequence of the rank."""
    prefill_compute_s_per_pair: Floats
    prefill_cache_s_per_key: Floats
    attention_latency_s: Floats
    state_s_per_sequence: Floats
    """Recurrent state read and written per sequence and decode step."""
    scan_s_per_token: Floats
    """Prefill scan."""
    decode_state_latency_s: float = 0.0
    prefill_state_latency_s: float = 0.0
    index_keys: KeyRange = KeyRange()
    index_compute_s_per_pair: Floats | None = None
    """Sparse attention's scan over all keys that chooses which ones to attend to."""
    index_cache_s_per_key: Floats | None = None

    def decode_s(self, rows: Floats, sequences: Floats, context: Floats) -> Floats:
        """Attention and state of one decode step, projections excluded.

        Parameters
        ----------
        rows : ndarray, shape (..., C)
            New tokens on the rank (drafts included).
        sequences, context : ndarray, shape (..., C)
            Sequences on the rank and their mean context.
        """
        keys = self.keys.at(context)
        time = quadrature(
            self.decode_compute_s_per_pair * (rows * keys), self.decode_cache_s_per_key * (sequences * keys)
        )
        time += self.state_s_per_sequence * sequences
        time += self.attention_latency_s + self.decode_state_latency_s
        if self.decode_only is not None:
            time += self.decode_only.time_s(rows)
        if self.index_compute_s_per_pair is not None and self.index_cache_s_per_key is not None:
            scanned = self.index_keys.at(context)
            time += quadrature(
                self.index_compute_s_per_pair * (rows * scanned), self.index_cache_s_per_key * (sequences * scanned)
            )
        return time

    def prefill_s(self, rows: Floats, sequences: Floats, cached: Floats, new: Floats) -> Floats:
        """Attention and scan of a prefill pass, projections excluded; `cached` and `new` are per request."""
        keys = self.keys.mean(cached, new)
        time = quadrature(
            self.prefill_compute_s_per_pair * (rows * keys), self.prefill_cache_s_per_key * (sequences * keys)
        )
        time += self.scan_s_per_token * rows
        time += self.attention_latency_s + self.prefill_state_latency_s
        if self.prefill_only is not None:
            time += self.prefill_only.time_s(rows)
        if self.index_compute_s_per_pair is not None:
            time += self.index_compute_s_per_pair * (rows * self.index_keys.mean(cached, new))
        return time


def key_range(mixer: Mixer) -> KeyRange:
    """Keys a query of this mixer sees."""
    top_k = mixer.extra.get("indexer_top_k") or math.inf
    if mixer.type == "dsv4":
        ratio = mixer.extra.get("compress_ratio") or math.inf
        return KeyRange(window=mixer.extra.get("local_window") or 128.0, ratio=ratio, top_k=top_k)
    if mixer.window_tokens:
        return KeyRange(window=float(mixer.window_tokens))
    return KeyRange(window=top_k)


def _attention_rate(hw: Hardware, precision: str) -> Floats:
    result: Floats = hw.constant["attention_compute_efficiency"] * hw.peak_flop_per_s[precision]
    return result


def _cache_rate(hw: Hardware) -> Floats:
    result: Floats = hw.constant["kv_memory_efficiency"] * hw.hbm_bandwidth
    return result


def _index(
    mixer: Mixer, hw: Hardware, precision: Precision, ratio: float
) -> tuple[KeyRange, Floats | None, Floats | None]:
    """Lightning indexer: every head scores every (compressed) key; each rank does all of it."""
    heads, dim = mixer.extra.get("indexer_heads", 0.0), mixer.extra.get("indexer_dim", 0.0)
    if not heads:
        return KeyRange(), None, None
    flop_per_pair = 2 * heads * dim
    return (
        KeyRange(window=0.0, ratio=ratio),
        flop_per_pair / _attention_rate(hw, "fp8"),
        dim * WEIGHT_BYTES[precision.kv_cache] / _cache_rate(hw),
    )


def _gqa(mixer: Mixer, hidden: int, hw: Hardware, layouts: Layouts, precision: Precision) -> MixerCost:
    """MHA, MQA, GQA with or without window (2.3, 2.4); more ranks than KV heads replicate the cache."""
    heads = mixer.heads / layouts.tp
    kv_heads = np.maximum(mixer.kv_heads / layouts.tp, 1.0)
    dim, v_dim = mixer.head_dim, mixer.v_head_dim or mixer.head_dim
    gate = 1.0 if mixer.extra.get("output_gate") else 0.0
    width = heads * dim * (1 + gate) + kv_heads * (dim + v_dim)
    compute = 2 * heads * (dim + v_dim) / _attention_rate(hw, "bf16")
    cache = kv_heads * (dim + v_dim) * WEIGHT_BYTES[precision.kv_cache] / _cache_rate(hw)
    zero = np.zeros_like(heads)
    index_keys, index_compute, index_cache = _index(mixer, hw, precision, 1.0)
    return MixerCost(
        keys=key_range(mixer),
        projections=gemm(hw, width, hidden, precision.attention_weights)
        + gemm(hw, hidden, heads * v_dim, precision.output_projection),
        decode_compute_s_per_pair=compute,
        decode_cache_s_per_key=cache,
        prefill_compute_s_per_pair=compute,
        prefill_cache_s_per_key=cache,
        attention_latency_s=hw.constant["attention_latency_us"],
        state_s_per_sequence=zero,
        scan_s_per_token=zero,
        index_keys=index_keys,
        index_compute_s_per_pair=index_compute,
        index_cache_s_per_key=index_cache,
    )


def _mla(mixer: Mixer, hidden: int, hw: Hardware, layouts: Layouts, precision: Precision) -> MixerCost:
    """Latent attention (2.5): absorbed products in decode, expanded keys in prefill; TP does not divide the cache."""
    heads = mixer.heads / layouts.tp
    rank, rope, nope, v_dim = mixer.kv_lora_rank, mixer.qk_rope_head_dim, mixer.qk_nope_head_dim, mixer.v_head_dim
    weights, c = precision.attention_weights, hw.constant
    if mixer.q_lora_rank:
        projections = gemm(hw, float(mixer.q_lora_rank + rank + rope), hidden, weights)
        projections += gemm(hw, heads * (nope + rope), float(mixer.q_lora_rank), weights)
    else:
        projections = gemm(hw, heads * (nope + rope) + rank + rope, hidden, weights)
    projections += gemm(hw, hidden, heads * v_dim, precision.output_projection)
    absorbed = RowCost(
        2 * c["kernel_latency_us"],
        np.zeros_like(heads),
        (
            (
                4 * heads * nope * rank / (ABSORBED_COMPUTE_EFFICIENCY * hw.peak_flop_per_s["bf16"]),
                4 * heads * nope * rank / (c["memory_efficiency"] * hw.hbm_bandwidth),
            ),
        ),
    )
    cached_bytes = WEIGHT_BYTES[precision.kv_cache]
    # a one-byte cache is multiplied in FP8, a wider one in bf16
    absorbed_precision = "bf16" if cached_bytes > 1 else "fp8"
    zero = np.zeros_like(heads)
    index_keys, index_compute, index_cache = _index(mixer, hw, precision, 1.0)
    return MixerCost(
        keys=key_range(mixer),
        projections=projections,
        decode_only=absorbed,
        prefill_only=gemm(hw, heads * (nope + v_dim), float(rank), weights),
        decode_compute_s_per_pair=2 * heads * (2 * rank + rope) / _attention_rate(hw, absorbed_precision),
        decode_cache_s_per_key=(rank + rope) * cached_bytes / _cache_rate(hw),
        prefill_compute_s_per_pair=2 * heads * (nope + rope + v_dim) / _attention_rate(hw, "bf16"),
        prefill_cache_s_per_key=zero,
        attention_latency_s=c["attention_latency_us"],
        state_s_per_sequence=zero,
        scan_s_per_token=zero,
        index_keys=index_keys,
        index_compute_s_per_pair=index_compute,
        index_cache_s_per_key=index_cache,
    )


def _dsv4(mixer: Mixer, hidden: int, hw: Hardware, layouts: Layouts, precision: Precision) -> MixerCost:
    """DeepSeek-V4 (not validated): one shared KV head, a local window plus a compressed context, low-rank output."""
    heads, dim = mixer.heads / layouts.tp, mixer.head_dim
    rank, weights = float(mixer.q_lora_rank), precision.attention_weights
    out_rank, groups = mixer.extra["o_lora_rank"], mixer.extra["o_groups"]
    ratio = mixer.extra.get("compress_ratio", 0.0)
    compressor = 2.0 * dim * (2 if mixer.extra.get("overlap") else 1) if ratio else 0.0
    projections = gemm(hw, rank + dim + compressor, hidden, weights) + gemm(hw, heads * dim, rank, weights)
    projections += gemm(hw, out_rank, heads * dim, precision.output_projection)
    projections += gemm(hw, hidden, groups * out_rank / layouts.tp, precision.output_projection)
    compute = 4 * heads * dim / _attention_rate(hw, "bf16")
    cache = dim * WEIGHT_BYTES[precision.kv_cache] / _cache_rate(hw)
    zero = np.zeros_like(heads)
    index_keys, index_compute, index_cache = _index(mixer, hw, precision, ratio or math.inf)
    return MixerCost(
        keys=key_range(mixer),
        projections=projections,
        decode_compute_s_per_pair=compute,
        decode_cache_s_per_key=cache + zero,
        prefill_compute_s_per_pair=compute,
        prefill_cache_s_per_key=cache + zero,
        attention_latency_s=hw.constant["attention_latency_us"],
        state_s_per_sequence=zero,
        scan_s_per_token=zero,
        index_keys=index_keys,
        index_compute_s_per_pair=index_compute,
        index_cache_s_per_key=index_cache,
    )


def _recurrent(
    mixer: Mixer,
    hidden: int,
    hw: Hardware,
    layouts: Layouts,
    precision: Precision,
    *,
    heads: int,
    key_dim: float,
    value_dim: float,
    in_width: float,
    out_width: float,
) -> MixerCost:
    """A mixer with a fixed state per sequence (2.6); the prefill scan is rough (20 to 46 % median error)."""
    local = heads / layouts.tp
    zero = np.zeros_like(local)
    bandwidth, share = hw.hbm_bandwidth, in_width / layouts.tp
    state_bytes = mixer.state_elements / layouts.tp * STATE_BYTES
    flop_per_token = local * (4 * key_dim * value_dim + SCAN_CHUNK * (key_dim + value_dim))
    scan = flop_per_token / (SCAN_COMPUTE_EFFICIENCY * hw.peak_flop_per_s["bf16"])
    scan += 2 * (share + out_width / layouts.tp) / (SCAN_ACTIVATION_EFFICIENCY * bandwidth)
    return MixerCost(
        keys=KeyRange(window=0.0),
        projections=gemm(hw, share, hidden, precision.attention_weights)
        + gemm(hw, hidden, out_width / layouts.tp, precision.output_projection),
        decode_compute_s_per_pair=zero,
        decode_cache_s_per_key=zero,
        prefill_compute_s_per_pair=zero,
        prefill_cache_s_per_key=zero,
        attention_latency_s=zero,
        state_s_per_sequence=2 * state_bytes / (hw.constant["memory_efficiency"] * bandwidth),
        scan_s_per_token=scan,
        decode_state_latency_s=STATE_LATENCY_S + CONV_LATENCY_S,
        prefill_state_latency_s=SCAN_LATENCY_S,
    )


def _gated_deltanet(mixer: Mixer, hidden: int, hw: Hardware, layouts: Layouts, precision: Precision) -> MixerCost:
    key, value = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
    return _recurrent(
        mixer, hidden, hw, layouts, precision, heads=mixer.value_heads, key_dim=mixer.key_dim,
        value_dim=mixer.value_dim, in_width=2.0 * (key + value + mixer.value_heads), out_width=value,
    )  # fmt: skip


def _kda(mixer: Mixer, hidden: int, hw: Hardware, layouts: Layouts, precision: Precision) -> MixerCost:
    width = mixer.heads * mixer.head_dim
    return _recurrent(
        mixer, hidden, hw, layouts, precision, heads=mixer.heads, key_dim=mixer.head_dim, value_dim=mixer.head_dim,
        in_width=3.0 * width + 2 * mixer.head_dim + mixer.heads, out_width=width,
    )  # fmt: skip


def _lightning(mixer: Mixer, hidden: int, hw: Hardware, layouts: Layouts, precision: Precision) -> MixerCost:
    width = mixer.heads * mixer.head_dim
    return _recurrent(
        mixer, hidden, hw, layouts, precision, heads=mixer.heads, key_dim=mixer.head_dim, value_dim=mixer.head_dim,
        in_width=4.0 * width, out_width=width,
    )  # fmt: skip


def _mamba2(mixer: Mixer, hidden: int, hw: Hardware, layouts: Layouts, precision: Precision) -> MixerCost:
    inner, state = mixer.heads * mixer.head_dim, mixer.extra["state"]
    return _recurrent(
        mixer, hidden, hw, layouts, precision, heads=mixer.heads, key_dim=state, value_dim=mixer.head_dim,
        in_width=2.0 * inner + 2 * mixer.extra["groups"] * state + mixer.heads, out_width=inner,
    )  # fmt: skip


MIXER_COSTS: dict[str, Callable[[Mixer, int, Hardware, Layouts, Precision], MixerCost]] = {
    "gqa": _gqa,
    "mla": _mla,
    "dsv4": _dsv4,
    "gated_deltanet": _gated_deltanet,
    "kda": _kda,
    "lightning": _lightning,
    "mamba2": _mamba2,
}
"""Kind of mixer -> its cost; `none` has none."""


def mixer_cost(mixer: Mixer, hidden: int, hw: Hardware, layouts: Layouts, precision: Precision) -> MixerCost:
    """Coefficients of one mixer layer on every layout."""
    return MIXER_COSTS[mixer.type](mixer, hidden, hw, layouts, precision)
