"""One forward pass out of its operators: coefficients per layout, then times per batch (section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pdplan.catalog.specs import Ffn, Mixer, ModelSpec
from pdplan.perf.constants import Hardware
from pdplan.perf.layout import Layouts, Precision
from pdplan.perf.mixers import MixerCost, mixer_cost
from pdplan.perf.operators import AllReduce, Grouped, RowCost, all_reduce, all_to_all, elementwise, gemm, grouped_gemm

__all__ = ["Assembly", "assemble"]

Floats = NDArray[np.float64]
T = TypeVar("T", Mixer, Ffn)

ACTIVATION_BYTES = 2.0
DISPATCH_BYTES = 1.0
"""Tokens travel to their experts in fp8 ..."""
COMBINE_BYTES = 2.0
"""... and come back in bf16 (2.8)."""
PIPELINE_HOP_S = 10e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """Coefficients of a whole pass; arrays are (C,), tuples run over distinct kinds of layers."""

    hardware: Hardware
    layouts: Layouts
    layers: int
    mixers: tuple[tuple[float, MixerCost], ...]
    """(count, cost)."""
    dense: tuple[tuple[float, RowCost], ...]
    """Dense feed-forward layers."""
    routed: tuple[tuple[float, Grouped], ...]
    beside_experts: tuple[tuple[float, RowCost], ...]
    """Router, shared experts, latent projections and dense branches, per rank row."""
    elementwise: RowCost
    tp_reduce: AllReduce
    tp_reduces: Floats
    """All-reduces over the tensor-parallel group per pass."""
    group_reduce: AllReduce
    group_reduces: Floats
    """All-gather and reduce-scatter pairs over the whole stage, charged as one all-reduce each."""
    exchange_decode: RowCost
    exchange_prefill: RowCost
    exchange_overlap_frac: float
    """Share of the exchange that computation hides, at most all of the computation."""
    head: RowCost
    hidden: int

    def hop_s(self, tokens: Floats) -> Floats:
        """Time to hand a pass of `tokens` to the next pipeline stage."""
        hw, stage = self.hardware, self.layouts.tp * self.layouts.attention_dp
        bandwidth = np.where(stage * self.layouts.pp <= hw.domain, hw.link_bandwidth, hw.nic_bandwidth)
        result: Floats = PIPELINE_HOP_S + tokens * self.hidden * ACTIVATION_BYTES / bandwidth
        return result

    def _row_parts(self, tokens: Floats, rows: Floats, exchange: RowCost) -> dict[str, Floats]:
        """Components that depend on rows alone: `tokens` of the whole stage, `rows` of the hottest rank."""
        parts = {"elementwise": self.elementwise.time_s(rows)}
        for count, cost in self.dense:
            parts["dense_ffn"] = parts.get("dense_ffn", 0.0) + count * cost.time_s(rows)
        for count, grouped in self.routed:
            parts["experts"] = parts.get("experts", 0.0) + count * grouped.time_s(tokens)
        for count, cost in self.beside_experts:
            parts["beside_experts"] = parts.get("beside_experts", 0.0) + count * cost.time_s(rows)
        parts["exchange"] = exchange.time_s(rows)
        communication = np.zeros(())
        if np.any(self.tp_reduces):
            communication = communication + self.tp_reduces * self.tp_reduce.time_s(rows)
        if np.any(self.group_reduces):
            communication = communication + self.group_reduces * self.group_reduce.time_s(tokens)
        parts["communication"] = communication
        return parts

    def decode_parts(
        self, sequences: Floats, context: Floats, tokens_each: float, hot_rank_factor: float
    ) -> tuple[Floats, dict[str, Floats]]:
        """Sequences on a mean attention rank, and the seconds of each component of one decode pass."""
        ranks = self.layouts.attention_dp
        mean = sequences / ranks
        # sequences fall on ranks like balls into bins (3.9)
        hot = 1.0 + np.where(ranks > 1, hot_rank_factor * np.sqrt(2 * np.log(np.maximum(ranks, 1)) / mean), 0.0)
        local = mean * hot
        rows = local * tokens_each
        parts = self._row_parts(sequences * tokens_each, rows, self.exchange_decode)
        attention = np.zeros(())
        for count, mixer in self.mixers:
            attention = attention + count * (mixer.projections.time_s(rows) + mixer.decode_s(rows, local, context))
        parts["attention"] = attention
        parts["head"] = self.head.time_s(local)
        self._hide_exchange(parts)
        return mean, parts

    def _hide_exchange(self, parts: dict[str, Floats]) -> None:
        """Two half batches in turn: the exchange of one runs beside the computation of the other (2.8)."""
        exchange = parts.pop("exchange")
        if self.exchange_overlap_frac:
            beside = sum((parts[k] for k in _COMPUTATION if k in parts), start=np.zeros(()))
            exchange = exchange - self.exchange_overlap_frac * np.minimum(exchange, beside)
        parts["communication"] = parts["communication"] + exchange

    def prefill_parts(self, new: Floats, cached: Floats, requests: Floats) -> dict[str, Floats]:
        """Seconds of each component of one prefill pass of `requests` requests."""
        local = np.maximum(requests / self.layouts.attention_dp, np.where(self.layouts.attention_dp > 1, 1.0, 0.0))
        rows = local * new
        parts = self._row_parts(new * requests, rows, self.exchange_prefill)
        attention = np.zeros(())
        for count, mixer in self.mixers:
            attention = attention + count * (mixer.projections.time_s(rows) + mixer.prefill_s(rows, local, cached, new))
        parts["attention"] = attention
        parts["head"] = self.head.time_s(np.minimum(local, rows))
        self._hide_exchange(parts)
        return parts

    def stage_imbalance_s(self, parts: Mapping[str, Floats]) -> Floats:
        """What a decode step loses because the slowest pipeline stage sets the pace of all of them."""
        stages = self.layouts.pp
        body = sum((v for k, v in parts.items() if k not in ("head", "pipeline_hops")), start=np.zeros(()))
        per_layer = body / self.layers
        most, least = np.ceil(self.layers / stages), np.floor(self.layers / stages)
        slowest = np.maximum(most * per_layer, least * per_layer + parts["head"])
        return np.where(stages > 1, stages * slowest - body - parts["head"], 0.0)


_COMPUTATION = ("elementwise", "dense_ffn", "experts", "beside_experts", "attention")


def _grouped_by(pairs: list[tuple[int, T]]) -> list[tuple[float, T]]:
    """Counts of equal layers, summed; the order of first appearance is kept."""
    found: list[tuple[float, T]] = []
    for count, item in pairs:
        for i, (known, other) in enumerate(found):
            if other == item:
                found[i] = (known + count, other)
                break
        else:
            found.append((float(count), item))
    return found


def _dense_ffn(hw: Hardware, hidden: int, size: Floats, precision: str, *, gated: bool) -> RowCost:
    """Up (and gate) and down projection of width `size` on one card."""
    return gemm(hw, size * (2 if gated else 1), hidden, precision) + gemm(hw, hidden, size, precision)


def _beside_experts(ffn: Ffn, hw: Hardware, hidden: int, layouts: Layouts, precision: Precision) -> RowCost:
    """Router, shared experts, a dense branch, and the projections of latent experts."""
    cost = gemm(hw, float(ffn.experts), hidden, "bf16")
    for size in (ffn.shared_size, ffn.dense_size):
        if size:
            cost += _dense_ffn(hw, hidden, size / layouts.tp, precision.weights, gated=ffn.gated)
    if ffn.latent_size:
        cost += gemm(hw, float(ffn.latent_size), hidden, precision.weights)
        cost += gemm(hw, float(hidden), float(ffn.latent_size), precision.weights)
    return cost


def assemble(
    model: ModelSpec,
    hw: Hardware,
    layouts: Layouts,
    precision: Precision,
    engine: Mapping[str, float],
    general: Mapping[str, float],
) -> Assembly:
    """Coefficients of a forward pass of `model` on every layout.

    Parameters
    ----------
    model : ModelSpec
        Its blocks are grouped by equal halves first.
    hw : Hardware
        Gathered for `layouts`.
    layouts : Layouts
        C layouts.
    precision : Precision
        Number formats.
    engine : mapping
        Engine constants, SI.
    general : mapping
        :data:`pdplan.perf.constants.GENERAL`, overrides applied.
    """
    tp, ep, ranks = (np.asarray(v, dtype=np.float64) for v in (layouts.tp, layouts.ep, layouts.attention_dp))
    stage = tp * ranks
    zero = np.zeros(len(layouts))
    mixers = _grouped_by([(b.count, b.mixer) for b in model.blocks if b.mixer.type != "none"])
    ffns = _grouped_by([(b.count, b.ffn) for b in model.blocks if b.ffn.type != "none"])
    dense, routed, beside = [], [], []
    # one all-reduce after each mixer and each feed-forward half; with attention-DP the experts' one becomes
    # an exchange (ep > 1) or an all-gather and reduce-scatter over the stage (ep = 1)
    tp_reduces = zero + sum(count for count, _ in mixers)
    group_reduces, exchange_decode, exchange_prefill = zero, RowCost(zero, zero), RowCost(zero, zero)
    for count, ffn in ffns:
        if not ffn.experts:
            dense.append((count, _dense_ffn(hw, model.hidden, ffn.dense_size / tp, precision.weights, gated=ffn.gated)))
            tp_reduces = tp_reduces + count
            continue
        width = ffn.latent_size or model.hidden
        routed.append(
            (
                count,
                grouped_gemm(
                    hw,
                    experts=ffn.experts,
                    top_k=ffn.top_k,
                    hidden=width,
                    width=ffn.expert_size * ep / stage,
                    ep=ep,
                    precision=precision.weights,
                    imbalance=general["expert_imbalance"] * engine["expert_imbalance_factor"],
                    correlation=general["expert_correlation"],
                    gated=ffn.gated,
                ),
            )
        )
        beside.append((count, _beside_experts(ffn, hw, model.hidden, layouts, precision)))
        by_rank, exchanged = ranks > 1, np.where((ranks > 1) & (ep > 1), count, 0.0)
        tp_reduces = tp_reduces + np.where(by_rank, 0.0, count)
        group_reduces = group_reduces + np.where(by_rank & (ep == 1), count, 0.0)
        for kind in ("decode", "prefill"):
            latency = engine["all_to_all_latency_us"]
            if kind == "prefill":
                latency = max(latency, general["a2a_latency_floor_us"] * 1e-6)
            once = kind == "prefill"
            both = all_to_all(hw, width * DISPATCH_BYTES, ep, ffn.top_k, latency, once_per_node=once)
            both += all_to_all(hw, width * COMBINE_BYTES, ep, ffn.top_k, latency, once_per_node=once)
            cost = RowCost(both.fixed_s * exchanged, both.per_row_s * exchanged)
            if kind == "prefill":
                exchange_prefill += cost
            else:
                exchange_decode += cost
    halves = sum(count for count, _ in mixers) + sum(count for count, _ in ffns)
    # plain attention and dense feed-forward halves launch fewer small kernels than latent attention and routing
    launches = sum(n * (1.0 if m.type in ("mla", "dsv4") else general["gqa_latency_factor"]) for n, m in mixers)
    # sparse attention chooses its keys by a chain of small kernels
    launches += general["indexer_latency_factor"] * sum(n for n, m in mixers if m.extra.get("indexer_heads"))
    launches += sum(n * (1.0 if f.experts else general["dense_latency_factor"]) for n, f in ffns)
    # the latency includes the skew between ranks, most of which experts cause
    expert_layers = sum(n for n, f in ffns if f.experts) / max(sum(n for n, _ in ffns), 1.0)
    skew = expert_layers + (1 - expert_layers) * general["dense_collective_factor"]
    return Assembly(
        hardware=hw,
        layouts=layouts,
        layers=model.layers,
        mixers=tuple((count, mixer_cost(m, model.hidden, hw, layouts, precision)) for count, m in mixers),
        dense=tuple(dense),
        routed=tuple(routed),
        beside_experts=tuple(beside),
        elementwise=elementwise(hw, model.hidden, general["elementwise_passes"], launches / max(halves, 1.0)).times(
            halves / 2
        ),
        tp_reduce=all_reduce(hw, model.hidden * ACTIVATION_BYTES, tp, skew),
        tp_reduces=np.where(tp > 1, tp_reduces, 0.0),
        group_reduce=all_reduce(hw, model.hidden * ACTIVATION_BYTES, stage),
        group_reduces=np.where(stage > 1, group_reduces, 0.0),
        exchange_decode=exchange_decode,
        exchange_prefill=exchange_prefill,
        exchange_overlap_frac=engine["exchange_overlap_frac"],
        head=gemm(hw, model.vocab / tp, float(model.hidden), "bf16"),
        hidden=model.hidden,
    )
