"""Percentiles of a fleet as planned: TTFT, TPOT and end to end, and the share of requests that meet both targets.

These functions take a rate and replica counts and give numbers; the capacity functions beside them invert the same
distributions. TTFT and TPOT of one request are taken as independent when prefill and decode are separate machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdplan.serving import colocated as co
from pdplan.serving import decode as de
from pdplan.serving import prefill as pre

__all__ = ["Latencies", "Percentiles", "Service", "colocated_latencies", "decode_tpot_tail", "disaggregated_latencies"]

Floats = NDArray[np.float64]
QUANTILES = (0.5, 0.9, 0.95, 0.99)
_NODES = ((0.1127016653792583, 5 / 18), (0.5, 8 / 18), (0.8872983346207417, 5 / 18))
"""Three-point Gauss-Legendre rule in probability: TPOT levels and weights for sums with it."""


class Percentiles(NamedTuple):
    """One latency of one pool pair, seconds."""

    mean_s: float
    quantile_s: dict[float, float]
    """From q to seconds; infinite when the pool cannot keep up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """What users see."""

    ttft: Percentiles
    tpot: Percentiles
    e2e: Percentiles
    itl_max_s: float
    """Largest gap between tokens in ordinary operation."""
    attainment_frac: float
    """Share of requests that meet every limit given (1 where none is)."""
    prefill_utilisation: float
    decode_batch: float
    decode_load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One layout pair's service times over K support points."""

    prefill_s: Floats
    """(K,) pass time alone in its pass."""
    weight: Floats
    """(K,)"""
    decode_tokens: Floats
    """(K,) output tokens made by decode."""
    batch: Floats
    """(M,) batches of the step time."""
    step_time_s: Floats
    """(M,)"""
    extra_s: ArrayLike = 0.0
    """Scalar or (K,): after the prefill pass (transfer, first decode step, network)."""
    tokens_per_step: float = 1.0
    arrival_cv2: float = 1.0


def decode_tpot_tail(limit_s: float, state: de.DecodeState, tokens_per_step: float = 1.0) -> Floats:
    """P(TPOT > limit) by bisection of the quantile function, to 1e-5."""
    low = np.full(state.base_s.shape, 1e-5)
    high = 1 - low
    for _ in range(20):
        middle = (low + high) / 2
        in_time = _tpot_at(middle, state, tokens_per_step) <= limit_s
        low, high = np.where(in_time, middle, low), np.where(in_time, high, middle)
    return np.where(state.stable, np.where(low >= 1 - 2e-5, 0.0, np.where(low <= 1e-5, 1.0, 1 - low)), 1.0)


def _tpot_at(q: Floats, state: de.DecodeState, tokens_per_step: float) -> Floats:
    """TPOT at one quantile per candidate."""
    level = de.negbin_quantile(q, state.mean_batch, state.batch_variance)
    return de.tpot_at_batch_s(level, state, tokens_per_step)


def _quantiles(quantiles: Sequence[float], at: object) -> dict[float, float]:
    return {float(q): float(np.ravel(at(q))[0]) for q in quantiles}  # type: ignore[operator]


def disaggregated_latencies(
    rate_req_per_s: float,
    prefill_replicas: int,
    decode_replicas: int,
    service: Service,
    *,
    quantiles: Sequence[float] = QUANTILES,
    ttft_limit_s: float = np.inf,
    tpot_limit_s: float = np.inf,
) -> Latencies:
    """Latencies of one prefill pool feeding one decode pool.

    `ttft_limit_s` and `tpot_limit_s` are what `attainment_frac` counts against.
    """
    weight = service.weight / service.weight.sum()
    prefill = pre.PrefillService(service_s=service.prefill_s[:, None], weight=weight, arrival_cv2=service.arrival_cv2)
    extra = np.broadcast_to(np.asarray(service.extra_s, dtype=np.float64), service.prefill_s.shape)[:, None]

    def ttft(q: float, more: Floats | float = 0.0) -> Floats:
        return pre.ttft_quantile_s(q, rate_req_per_s, prefill_replicas, prefill, extra_s=extra + more)

    mean_ttft = float(pre.ttft_mean_s(rate_req_per_s, prefill_replicas, prefill, extra_s=extra)[0])
    state = de.decode_state(
        rate_req_per_s / decode_replicas,
        service.batch,
        service.step_time_s[:, None],
        max(float(weight @ service.decode_tokens), 1e-9),
        service.tokens_per_step,
    )
    mean_tpot = float(de.tpot_mean_s(state, service.tokens_per_step)[0])
    levels = [(float(de.tpot_quantile_s(u, state, service.tokens_per_step)[0]), w) for u, w in _NODES]

    def e2e(q: float) -> float:
        """Quantile of TTFT + tokens x TPOT, the two independent: the support is widened by three levels of TPOT."""
        if not np.isfinite(mean_ttft + mean_tpot):
            return float("inf")
        wide = np.concatenate([extra + (service.decode_tokens * level)[:, None] for level, _ in levels])
        many = np.concatenate([weight * share for _, share in levels])
        repeated = pre.PrefillService(
            service_s=np.concatenate([prefill.service_s] * len(levels)), weight=many, arrival_cv2=service.arrival_cv2
        )
        return float(pre.ttft_quantile_s(q, rate_req_per_s, prefill_replicas, repeated, extra_s=wide)[0])

    early = 1.0
    if np.isfinite(ttft_limit_s):
        early = 1 - float(pre.ttft_tail(ttft_limit_s, rate_req_per_s, prefill_replicas, prefill, extra_s=extra)[0])
    smooth = 1 - float(decode_tpot_tail(tpot_limit_s, state, service.tokens_per_step)[0])
    top = de.negbin_quantile(0.999, state.mean_batch, state.batch_variance)
    pool_load = float(pre.prefill_utilisation(rate_req_per_s, prefill_replicas, prefill)[0])
    return Latencies(
        ttft=Percentiles(mean_ttft, _quantiles(quantiles, ttft)),
        tpot=Percentiles(
            mean_tpot, _quantiles(quantiles, lambda q: de.tpot_quantile_s(q, state, service.tokens_per_step))
        ),
        e2e=Percentiles(mean_ttft + float(weight @ service.decode_tokens) * mean_tpot, _quantiles(quantiles, e2e)),
        itl_max_s=float((state.base_s + state.slope_s * (1 + top))[0]) if state.stable[0] else float("inf"),
        attainment_frac=early * smooth if state.stable[0] else 0.0,
        prefill_utilisation=pool_load,
        decode_batch=float(state.mean_batch[0]),
        decode_load=float(state.load[0]),
    )


def colocated_latencies(
    rate_req_per_s: float,
    replicas: int,
    model: co.ColocatedModel,
    *,
    quantiles: Sequence[float] = QUANTILES,
    extra_s: float = 0.0,
    ttft_limit_s: float = np.inf,
    tpot_limit_s: float = np.inf,
) -> Latencies:
    """Latencies of one colocated pool; `model` holds one candidate (C = 1).

    End to end is the upper bound that takes TTFT and TPOT at the same quantile (pdplan latency model, section 8.6);
    attainment is the product, which understates it a little because both are late at the same busy times.
    """
    rate = rate_req_per_s / replicas
    state = co.colocated_state(rate, model)
    weight = model.weight
    tokens = np.broadcast_to(np.asarray(model.decode_steps).reshape(len(weight), -1)[:, :1], (len(weight), 1))[:, 0]
    tokens = tokens * model.tokens_per_step
    ttft = Percentiles(
        float(co.ttft_mean_s(state, model)[0]) + extra_s,
        {q: v + extra_s for q, v in _quantiles(quantiles, lambda q: co.ttft_quantile_s(q, state, model)).items()},
    )
    tpot = Percentiles(
        float(co.tpot_mean_s(state, model)[0]),
        _quantiles(quantiles, lambda q: co.tpot_quantile_s(q, state, model)),
    )
    own = np.sort(tokens)
    share = np.cumsum(weight[np.argsort(tokens)])
    e2e = {
        q: ttft.quantile_s[q] + tpot.quantile_s[q] * float(own[min(int(np.searchsorted(share, q)), len(own) - 1)])
        for q in ttft.quantile_s
    }
    late = float(co.ttft_tail(ttft_limit_s - extra_s, state, model)[0]) if np.isfinite(ttft_limit_s) else 0.0
    slow = float(co.tpot_tail(tpot_limit_s, state, model)[0]) if np.isfinite(tpot_limit_s) else 0.0
    return Latencies(
        ttft=ttft,
        tpot=tpot,
        e2e=Percentiles(ttft.mean_s + float(weight @ tokens) * tpot.mean_s, e2e),
        itl_max_s=float(co.itl_quantile_s(1.0, state, model)[0]),
        attainment_frac=(1 - late) * (1 - slow) if state.stable[0] else 0.0,
        prefill_utilisation=float(state.prefill_utilisation[0]),
        decode_batch=float(state.mean_batch[0]),
        decode_load=float(1 - model.base_s[0] / state.iteration_s[0]) if state.stable[0] else 1.0,
    )
