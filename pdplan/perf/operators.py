"""Times of single operators; section numbers refer to docs/explanation/latency-model.md.

An operator is reduced once per layout to coefficients, so that evaluating it for many batches is a handful of
array operations. All arrays are (C,) over layouts; what an evaluation is given has shape (..., C). A multiply-add
counts as 2 FLOP.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdplan.perf.constants import WEIGHT_BYTES, Hardware

__all__ = [
    "AllReduce",
    "Grouped",
    "RowCost",
    "all_reduce",
    "all_to_all",
    "elementwise",
    "gemm",
    "grouped_gemm",
    "mean_capped",
    "quadrature",
]

Floats = NDArray[np.float64]

ALL_REDUCE_RAMP_SQRT_S = 2.0e-3
"""Bandwidth ramp between latency- and bandwidth-bound sizes, s**0.5: NCCL from 256 B to 512 MB on H100, B200 (2.8)."""
CROSS_DOMAIN_LATENCY_FACTOR = 2.5
"""All-reduce latency outside the scale-up domain over inside (2.8)."""
CROSS_DOMAIN_EXCHANGE_FACTOR = 1.5
"""All-to-all latency outside the scale-up domain over inside (2.8)."""
NIC_EXCHANGE_EFFICIENCY = 0.7
"""Share of the NIC an all-to-all reaches (2.8)."""


def quadrature(a: ArrayLike, b: ArrayLike) -> Floats:
    """Overlap of two resources near the ridge, sqrt(a^2 + b^2) (2.1): free exponents of 1.5 to 2.5 fit best.

    Examples
    --------
    >>> float(quadrature(3.0, 4.0))
    5.0
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    result: Floats = np.sqrt(a * a + b * b)  # faster than np.hypot, and nothing here under- or overflows
    return result


@dataclass(frozen=True, slots=True)
class RowCost:
    r"""Time as a function of the number of rows m.

    .. math:: t(m) = f + p m + \sum_i \mathrm{hyp}(c_i m, w_i)
    """

    fixed_s: Floats
    per_row_s: Floats
    terms: tuple[tuple[Floats, Floats], ...] = ()
    """Pairs (c_i, w_i): seconds of compute per row, seconds to stream the weights."""

    def __add__(self, other: RowCost) -> RowCost:
        return RowCost(self.fixed_s + other.fixed_s, self.per_row_s + other.per_row_s, self.terms + other.terms)

    def times(self, count: float) -> RowCost:
        """The same operator `count` times in a row."""
        return RowCost(
            self.fixed_s * count, self.per_row_s * count, tuple((c * count, w * count) for c, w in self.terms)
        )

    def time_s(self, rows: Floats) -> Floats:
        """Seconds for `rows`, shape (..., C)."""
        total = self.per_row_s * rows
        total += self.fixed_s
        for compute, weights in self.terms:
            total += quadrature(compute * rows, weights)
        return total


def gemm(hw: Hardware, n: ArrayLike, k: ArrayLike, precision: str) -> RowCost:
    r"""An (m x k) . (k x n) GEMM (2.1).

    .. math:: t = \mathrm{hyp}(2mnk / e_c P,\; nkb / e_m W) + t_0 + \kappa k + 2(mk + mn) / e_a W

    Parameters
    ----------
    hw : Hardware
        Cards, (C,).
    n, k : array_like
        Columns and depth on one card; broadcast to (C,).
    precision : str
        Format of the weights.
    """
    n, k = np.asarray(n, dtype=np.float64), np.asarray(k, dtype=np.float64)
    c = hw.constant
    compute = 2 * n * k / (hw.efficiency[precision] * hw.peak_flop_per_s[precision])
    memory = n * k * WEIGHT_BYTES[precision] / (c["memory_efficiency"] * hw.hbm_bandwidth)
    return RowCost(
        c["kernel_latency_us"] + c["accumulation_latency_ns"] * k,
        2 * (k + n) / (c["activation_efficiency"] * hw.hbm_bandwidth),
        ((compute, memory),),
    )


@dataclass(frozen=True, slots=True)
class Grouped:
    """The expert GEMMs of one rank (2.2), as a function of the tokens of the whole expert-parallel group."""

    rows_per_token: Floats
    """Token-expert rows of a mean rank, per token of the group: k / ep."""
    imbalance: Floats
    """Hottest rank over mean."""
    experts_per_rank: Floats
    miss_log: Floats
    """Log of the chance that one token misses a given expert, times the routing correlation."""
    compute_s_per_row: Floats
    memory_s_per_expert: Floats
    fixed_s: Floats
    activation_s_per_row: Floats

    def distinct(self, tokens: Floats) -> Floats:
        """Local experts that at least one token is routed to."""
        touched = self.experts_per_rank * -np.expm1(tokens * self.miss_log)
        return np.maximum(touched, np.minimum(1.0, tokens * self.rows_per_token))

    def time_s(self, tokens: Floats) -> Floats:
        """Seconds for `tokens` in the group, shape (..., C)."""
        hot = tokens * (self.rows_per_token * self.imbalance)
        time = quadrature(self.compute_s_per_row * hot, self.memory_s_per_expert * self.distinct(tokens))
        time += self.activation_s_per_row * hot
        time += self.fixed_s
        return time


def grouped_gemm(
    hw: Hardware,
    *,
    experts: int,
    top_k: int,
    hidden: float,
    width: ArrayLike,
    ep: ArrayLike,
    precision: str,
    imbalance: float,
    correlation: float,
    gated: bool = True,
) -> Grouped:
    """Coefficients of the expert GEMMs (2.2).

    Parameters
    ----------
    hw : Hardware
        Cards, (C,).
    experts, top_k : int
        Experts of the layer, and how many a token is routed to.
    precision : str
        Format of the experts' weights.
    gated : bool
        Three matrices instead of two.
    hidden, width : float, array_like
        Model width and expert width on one card (the expert tensor-sharded within its group).
    ep : array_like
        Expert-parallel ranks.
    imbalance : float
        Excess load of the hottest rank as ep grows without bound; 0 is perfect balance.
    correlation : float
        Tokens of one batch choose alike: T tokens touch as many experts as `correlation` * T independent ones.
    """
    width, ep = np.asarray(width, dtype=np.float64), np.asarray(ep, dtype=np.float64)
    matrices, c = 3 if gated else 2, hw.constant
    miss = np.log1p(-min(top_k / experts, 1 - 1e-12)) * correlation
    return Grouped(
        rows_per_token=top_k / ep,
        imbalance=np.where(ep > 1, 1 + imbalance * (1 - 1 / ep), 1.0),
        experts_per_rank=experts / ep,
        miss_log=np.broadcast_to(miss, ep.shape),
        compute_s_per_row=2
        * matrices
        * hidden
        * width
        / (hw.moe_efficiency[precision] * hw.peak_flop_per_s[precision]),
        memory_s_per_expert=matrices
        * hidden
        * width
        * WEIGHT_BYTES[precision]
        / (c["moe_memory_efficiency"] * hw.hbm_bandwidth),
        fixed_s=hw.moe_latency_s[precision],
        activation_s_per_row=(4 * hidden + 2 * matrices * width) / (c["activation_efficiency"] * hw.hbm_bandwidth),
    )


def elementwise(hw: Hardware, hidden: float, passes: float, launches: float = 1.0) -> RowCost:
    """Norms, residuals, rotary embedding, routing and quantisation of one layer (2.7).

    `launches` is the launch time over that of a layer with latent attention and experts.
    """
    c = hw.constant
    return RowCost(
        launches * c["elementwise_latency_us"], hidden * 2 * passes / (c["activation_efficiency"] * hw.hbm_bandwidth)
    )


@dataclass(frozen=True, slots=True)
class AllReduce:
    r"""All-reduce of an activation tensor (2.8), as a function of its rows.

    .. math:: V = 2\frac{n-1}{n}\frac{S}{L},\quad t = \alpha\sqrt{n/8}\,r + V/\eta + c\sqrt{V}
    """

    latency_s: Floats
    volume_s_per_row: Floats
    efficiency: Floats

    def time_s(self, rows: Floats) -> Floats:
        """Seconds for `rows`, shape (..., C)."""
        volume = self.volume_s_per_row * rows
        time = np.sqrt(volume)
        time *= ALL_REDUCE_RAMP_SQRT_S
        time += volume / self.efficiency
        time += self.latency_s
        return time


def all_reduce(hw: Hardware, bytes_per_row: float, ranks: ArrayLike, latency_factor: float = 1.0) -> AllReduce:
    """Coefficients of an all-reduce over `ranks` cards; `latency_factor` scales the family's latency.

    Inside the scale-up domain it runs on the scale-up link; beyond it on the NIC, with 2.5 times the latency.
    """
    n = np.maximum(np.asarray(ranks, dtype=np.float64), 1.0)
    inside = n <= hw.domain
    bandwidth = np.where(inside, hw.link_bandwidth, hw.nic_bandwidth)
    latency = hw.constant["all_reduce_latency_us"] * latency_factor * np.sqrt(n / 8)
    return AllReduce(
        latency_s=np.where(n > 1, latency * np.where(inside, 1.0, CROSS_DOMAIN_LATENCY_FACTOR), 0.0),
        volume_s_per_row=2 * (n - 1) / n * bytes_per_row / bandwidth,
        efficiency=hw.constant["link_efficiency"],
    )


def all_to_all(
    hw: Hardware,
    bytes_per_row: float,
    ranks: ArrayLike,
    top_k: int,
    latency_s: ArrayLike,
    *,
    once_per_node: bool = False,
) -> RowCost:
    """One way of the expert exchange, dispatch or combine (2.8), as a function of the tokens on one rank.

    Parameters
    ----------
    hw : Hardware
        Cards, (C,).
    top_k : int
        Experts of a token; copies to one rank travel once.
    bytes_per_row : float
        Bytes of one token's activations.
    ranks : array_like
        Expert-parallel ranks; 1 costs nothing.
    latency_s : array_like
        Latency of the engine's exchange kernel at 8 ranks.
    once_per_node : bool
        Whether a token crosses the network once per scale-up domain that has experts of it and is passed on inside, as kernels
        for large batches (prefill) do, instead of once per rank.
    """
    n = np.maximum(np.asarray(ranks, dtype=np.float64), 1.0)
    remote = n * (1 - (1 - 1 / n) ** top_k) * (n - 1) / n
    outside = np.where(n > hw.domain, 1 - hw.domain / n, 0.0)
    latency = np.asarray(latency_s) * (n / 8) ** 0.3 * np.where(n > hw.domain, CROSS_DOMAIN_EXCHANGE_FACTOR, 1.0)
    per_row = (
        bytes_per_row
        * remote
        * (
            (1 - outside) / (hw.constant["link_efficiency"] * hw.link_bandwidth)
            + outside / (NIC_EXCHANGE_EFFICIENCY * hw.nic_bandwidth)
        )
    )
    if once_per_node:
        domains = np.maximum(n / hw.domain, 1.0)
        crossing = domains * (1 - (1 - 1 / domains) ** top_k) * (domains - 1) / domains
        forwarded = bytes_per_row * (
            remote / (hw.constant["link_efficiency"] * hw.link_bandwidth)
            + crossing / (NIC_EXCHANGE_EFFICIENCY * hw.nic_bandwidth)
        )
        per_row = np.where(n > hw.domain, np.minimum(forwarded, per_row), per_row)
    return RowCost(np.where(n > 1, latency, 0.0), np.where(n > 1, per_row, 0.0))


def mean_capped(start: Floats, count: Floats, cap: float) -> Floats:
    """Mean of min(x, cap) for x uniform on (start, start + count): keys a causal window of `cap` lets a query see.

    Examples
    --------
    >>> float(mean_capped(np.array(0.0), np.array(100.0), 1e9))
    50.0
    >>> float(mean_capped(np.array(0.0), np.array(100.0), 50.0))
    37.5
    """
    if not np.isfinite(cap):
        result: Floats = start + count / 2
        return result
    below = np.clip(cap - start, 0.0, count)
    total = below * (np.minimum(start, cap) + below / 2) + (count - below) * cap
    return np.asarray(total / np.maximum(count, 1e-300))
