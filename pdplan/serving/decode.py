"""Decode replicas: the in-flight count as a negative binomial, TPOT percentiles and the rate a target allows.

Step time al + be N with N sequences in flight, Poisson arrivals and any output length: N is negative binomial with
p = rate O be and r = al/be + 1 (pdplan latency model, section 8.3; only the mean output length matters). A step time
that is not a straight line is replaced by its tangent at the fluid point B* = rate O t(B*).

Capacities take each replica alone at rate / n (balanced random routing), which is on the safe side; percentiles of a pool
may take into account that a router joins the shortest queue (:func:`tpot_quantile_s`). Above p of about 0.8 the stationary
percentiles are an upper bound that a short run never reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdplan.serving.normal import normal_quantile

__all__ = [
    "DecodeCapacity",
    "DecodeState",
    "decode_capacity_req_per_s",
    "decode_state",
    "life_factor",
    "negbin_quantile",
    "step_quantile_s",
    "tpot_at_batch_s",
    "tpot_mean_s",
    "tpot_quantile_s",
]

Floats = NDArray[np.float64]
_BISECTIONS = 40
ADMISSION_WAIT_PROBABILITY = 0.01
"""Share of requests that may find the batch full; they wait, all others do not."""


def negbin_quantile(q: ArrayLike, mean: ArrayLike, variance: ArrayLike) -> Floats:
    """Quantile of a negative binomial (Poisson where variance = mean), as a real number.

    Cornish-Fisher expansion with the exact skewness and kurtosis: within half a request of the exact quantile for means
    above one, and it costs no special function.
    """
    m = np.maximum(np.asarray(mean, dtype=np.float64), 1e-12)
    v = np.maximum(np.asarray(variance, dtype=np.float64), m)
    levels = np.asarray(q, dtype=np.float64)
    normal = NormalDist()
    z = np.array([normal.inv_cdf(float(x)) for x in levels.ravel()]).reshape(levels.shape)
    # In terms of p = 1 - m/v and r = m (1-p)/p: skewness (1+p)/sqrt(r p), excess kurtosis 6/r + (1-p)^2/(p r).
    skew = (2 * v - m) / (m * np.sqrt(v))
    kurtosis = 6 * (v - m) / m**2 + 1 / v
    w = z + (z**2 - 1) * skew / 6 + (z**3 - 3 * z) * kurtosis / 24 - (2 * z**3 - 5 * z) * skew**2 / 36
    # The expansion turns over far out at tiny means; the median is the least an upper quantile can be.
    out: Floats = np.maximum(m + np.sqrt(v) * np.where(z > 0, np.maximum(w, -skew / 6), w), 0.0)
    return out


def life_factor(base_s: ArrayLike, step_s: ArrayLike) -> Floats:
    """Variance of a request's own average step time over that of one step (section 8.3), x = al/t*."""
    x = np.asarray(base_s, dtype=np.float64) / np.asarray(step_s, dtype=np.float64)
    x = np.maximum(x, 1e-6)
    out: Floats = np.where(x < 1e-3, 1 - x / 3, 2 * (x + np.expm1(-x)) / x**2)
    return out


class DecodeState(NamedTuple):
    """One replica at a rate; every array of shape (..., C)."""

    base_s: Floats
    """al: step time without load, from the tangent."""
    slope_s: Floats
    """be: what one more sequence adds."""
    fluid_batch: Floats
    load: Floats
    """p = rate O be: share of the step time that load causes."""
    mean_batch: Floats
    batch_variance: Floats
    stable: NDArray[np.bool_]
    table: tuple[Floats, Floats]
    """The step times it was made from: batch (M,), time (M, C)."""
    context_spread_s: Floats
    """(C,) or 0: what one standard deviation of a sequence's context adds to a step."""


def _step_and_slope(batch: Floats, step_time_s: Floats, at: Floats) -> tuple[Floats, Floats]:
    """Piecewise-linear step time and a smoothed slope at `at` (..., C).

    The slope is interpolated between the mid-points of the pieces so that it has no jumps to trip the search.
    """
    pieces = np.diff(step_time_s, axis=0) / np.diff(batch)[:, None]
    columns = np.arange(step_time_s.shape[1])
    cell = np.clip(np.searchsorted(batch, at, side="right") - 1, 0, len(batch) - 2)
    step = step_time_s[cell, columns] + pieces[cell, columns] * (at - batch[cell])
    middle = (batch[1:] + batch[:-1]) / 2
    if len(middle) == 1:
        slope = np.broadcast_to(pieces[0], at.shape)
    else:
        left = np.clip(np.searchsorted(middle, at, side="right") - 1, 0, len(middle) - 2)
        share = np.clip((at - middle[left]) / (middle[left + 1] - middle[left]), 0.0, 1.0)
        slope = (1 - share) * pieces[left, columns] + share * pieces[left + 1, columns]
    return step, slope


def _checked(batch: ArrayLike, step_time_s: ArrayLike) -> tuple[Floats, Floats]:
    b, t = np.asarray(batch, dtype=np.float64), np.asarray(step_time_s, dtype=np.float64)
    if b.ndim != 1 or t.ndim != 2 or len(b) < 2 or t.shape[0] != len(b) or np.any(np.diff(b) <= 0) or np.any(~(t > 0)):
        raise ValueError(
            f"batch must be an increasing (M >= 2,) and step_time_s a positive (M, C); got {b.shape}, {t.shape}"
        )
    return b, t


def _at_fluid(
    b: Floats, t: Floats, steps: Floats, fluid: Floats, context_spread_s: Floats, arrival_cv2: float
) -> tuple[Floats, DecodeState]:
    """Rate that makes `fluid` the fluid point, and the state there."""
    step, slope = _step_and_slope(b, t, fluid)
    slope = np.clip(slope, 1e-9 * step / np.maximum(fluid, 1e-9), 0.98 * step / np.maximum(fluid, 1e-9))
    base = step - slope * fluid
    rate = fluid / (steps * step)
    p = slope * fluid / step
    mean = (base / slope + 1) * p / (1 - p)
    # Half of the scatter comes from arrivals, half from departures.
    variance = mean / (1 - p) * (1 + arrival_cv2) / 2
    state = DecodeState(
        base, slope, fluid, p, mean, variance, np.ones(fluid.shape, dtype=np.bool_), (b, t), context_spread_s
    )
    return rate, state


def _steps(mean_decode_tokens: ArrayLike, tokens_per_step: ArrayLike) -> Floats:
    out: Floats = np.asarray(mean_decode_tokens, dtype=np.float64) / np.asarray(tokens_per_step, dtype=np.float64)
    if np.any(~(out > 0)):
        raise ValueError("mean_decode_tokens / tokens_per_step must be positive")
    return out


def decode_state(
    rate_req_per_s: ArrayLike,
    batch: ArrayLike,
    step_time_s: ArrayLike,
    mean_decode_tokens: ArrayLike,
    tokens_per_step: ArrayLike = 1.0,
    *,
    context_spread_s: ArrayLike = 0.0,
    arrival_cv2: float = 1.0,
) -> DecodeState:
    """State of ONE replica that receives `rate_req_per_s`.

    Parameters
    ----------
    rate_req_per_s : array_like
        Broadcast to (..., C).
    batch : (M,)
        Increasing batch sizes at which the step time is known; beyond the last the line goes on.
    step_time_s : (M, C)
        Duration of one step at those batches.
    mean_decode_tokens : scalar or (C,)
        Mean output tokens made by decode (output - 1 where prefill makes the first).
    tokens_per_step : scalar or (C,)
        Above 1 with speculative decoding.
    context_spread_s : scalar or (C,)
        What one standard deviation of a sequence's context adds to a step; N sequences scatter by the root of N of it.
    arrival_cv2 : float
        Squared coefficient of variation of the gaps between arrivals (1 for Poisson).

    Returns
    -------
    DecodeState
        `stable` is False where no batch is large enough to keep up.
    """
    b, t = _checked(batch, step_time_s)
    steps = _steps(mean_decode_tokens, tokens_per_step)
    rate = np.broadcast_to(
        np.asarray(rate_req_per_s, dtype=np.float64), np.broadcast_shapes(np.shape(rate_req_per_s), t.shape[1:])
    )
    low, high = np.zeros(rate.shape), np.full(rate.shape, 1e6)
    for _ in range(60):
        middle = (low + high) / 2
        behind = middle < rate * steps * _step_and_slope(b, t, middle)[0]
        low, high = np.where(behind, middle, low), np.where(behind, high, middle)
    _, state = _at_fluid(b, t, steps, high, np.asarray(context_spread_s, dtype=np.float64), arrival_cv2)
    return state._replace(stable=high < 0.999e6)


def tpot_mean_s(state: DecodeState, tokens_per_step: ArrayLike = 1.0) -> Floats:
    """Mean time per output token: an arrival sees N others (PASTA), so t(N + 1) on average."""
    out: Floats = (state.base_s + state.slope_s * (1 + state.mean_batch)) / np.asarray(tokens_per_step)
    return np.where(state.stable, out, np.inf)


def tpot_quantile_s(
    q: ArrayLike, state: DecodeState, tokens_per_step: ArrayLike = 1.0, replicas: ArrayLike = 1.0
) -> Floats:
    r"""q-quantile over requests of the time per output token, averaged over each request's life (section 8.3).

    Parameters
    ----------
    q : array_like
        Between 0 and 1, broadcast to (..., C).
    state : DecodeState
        Of one replica at its share of the rate, arrays (..., C).
    tokens_per_step : array_like
        Above 1 with speculative decoding.
    replicas : array_like
        Replicas among which a router picks the one with the fewest requests, n. It keeps them equally full, so that they
        fluctuate together: the pool is one processor-sharing system of n times the rate with step time
        :math:`al + be\,N/n`, whose count is negative binomial with the same p and :math:`n\,al/be + 1`. A replica holds
        one n-th of it, with one n-th of the variance of a replica alone. 1 is random routing.
    """
    n = np.asarray(replicas, dtype=np.float64)
    level = negbin_quantile(q, n * state.mean_batch, n * state.batch_variance) / n
    middle = tpot_at_batch_s(state.mean_batch, state, 1.0)
    spread = tpot_at_batch_s(level, state, 1.0) - middle
    z = normal_quantile(q)
    context = z * state.context_spread_s * np.sqrt(1 + state.mean_batch)
    # Two independent scatters, the one of the batch with its own skewness.
    total = middle + np.where(z * spread >= 0, np.sign(z) * np.hypot(spread, context), spread + context)
    return np.where(state.stable, np.maximum(total, 0.0) / np.asarray(tokens_per_step), np.inf)


def tpot_at_batch_s(level: Floats, state: DecodeState, tokens_per_step: ArrayLike = 1.0) -> Floats:
    """TPOT of a request whose arrival finds `level` sequences, (..., C), averaged over its life.

    The tangent at the fluid point, or the step itself at the batch averaged over the life, whichever is longer: where the
    step bends upwards, as with pipeline stages at a few sequences, the tangent promises too much.
    """
    typical = state.base_s + state.slope_s * (1 + state.mean_batch)
    lasting = (level - state.mean_batch) * np.sqrt(life_factor(state.base_s, typical))
    bent = _step_and_slope(*state.table, np.maximum(1 + state.mean_batch + lasting, 1.0))[0]
    out: Floats = np.maximum(typical + state.slope_s * lasting, bent) / np.asarray(tokens_per_step)
    return np.where(state.stable, out, np.inf)


def step_quantile_s(q: ArrayLike, state: DecodeState, replicas: ArrayLike = 1.0) -> Floats:
    """q-quantile over steps of one step, the gap between two tokens, (..., C); `replicas` as in :func:`tpot_quantile_s`."""
    n = np.asarray(replicas, dtype=np.float64)
    level = 1 + negbin_quantile(q, n * state.mean_batch, n * state.batch_variance) / n
    bent = _step_and_slope(*state.table, np.maximum(level, 1.0))[0]
    return np.where(state.stable, np.maximum(state.base_s + state.slope_s * level, bent), np.inf)


class DecodeCapacity(NamedTuple):
    """Of one replica; arrays (C,)."""

    rate_req_per_s: Floats
    batch: Floats
    """Mean sequences in flight at that rate."""
    utilisation: Floats
    """Rate over the rate at which the largest batch is just full."""
    limited_by_memory: NDArray[np.bool_]


def decode_capacity_req_per_s(
    batch: ArrayLike,
    step_time_s: ArrayLike,
    mean_decode_tokens: ArrayLike,
    targets: Sequence[tuple[float, float]],
    max_batch: ArrayLike,
    *,
    tokens_per_step: ArrayLike = 1.0,
    staging_s: ArrayLike = 0.0,
    context_spread_s: ArrayLike = 0.0,
    arrival_cv2: float = 1.0,
    admission_wait_probability: float = ADMISSION_WAIT_PROBABILITY,
    max_load: float = 0.95,
) -> DecodeCapacity:
    """Largest rate at which one replica meets every TPOT target and its KV memory suffices.

    Parameters
    ----------
    batch, step_time_s, mean_decode_tokens, tokens_per_step, context_spread_s, arrival_cv2
        As in :func:`decode_state`.
    targets : sequence of (q, limit_s)
        P(TPOT <= limit) >= q for each.
    max_batch : (C,)
        Sequences whose KV fits (or the engine's admission limit).
    staging_s : scalar or (C,)
        Time a request's KV is held while in transfer: rate x staging_s sequences occupy memory beside the batch.
    admission_wait_probability : float
        P(in flight + in transfer >= max_batch) allowed.
    max_load : float
        Largest p admitted; beyond it the stationary state is never reached.
    """
    b, t = _checked(batch, step_time_s)
    steps = np.broadcast_to(_steps(mean_decode_tokens, tokens_per_step), t.shape[1:])
    most = np.broadcast_to(np.asarray(max_batch, dtype=np.float64), t.shape[1:])
    staging, context = np.asarray(staging_s, dtype=np.float64), np.asarray(context_spread_s, dtype=np.float64)
    for q, limit in targets:
        if not (0 < q < 1 and limit > 0):
            raise ValueError(f"target (q={q!r}, limit={limit!r} s): 0 < q < 1 and a positive limit are accepted")

    def memory_fits(rate: Floats, state: DecodeState) -> NDArray[np.bool_]:
        held = rate * staging
        need = negbin_quantile(1 - admission_wait_probability, state.mean_batch + held, state.batch_variance + held)
        return np.asarray(need <= most, dtype=np.bool_)

    def met(fluid: Floats) -> NDArray[np.bool_]:
        rate, state = _at_fluid(b, t, steps, fluid, context, arrival_cv2)
        ok = memory_fits(rate, state) & (state.load <= max_load)
        for q, limit in targets:
            ok &= tpot_quantile_s(q, state, tokens_per_step) <= limit
        return ok

    # The fluid point is the search variable: the rate follows from it without another inner search.
    low, high = np.zeros(most.shape), np.maximum(most, 1e-9)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        good = met(middle)
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    rate, state = _at_fluid(b, t, steps, np.maximum(low, 1e-9), context, arrival_cv2)
    none = low < 1e-6
    full_step = _step_and_slope(b, t, np.maximum(most, 1e-9))[0]
    saturated = most / (steps * full_step)
    next_rate, next_state = _at_fluid(b, t, steps, np.maximum(high, 1e-9) * (1 + 1e-6), context, arrival_cv2)
    return DecodeCapacity(
        np.where(none, 0.0, rate),
        np.where(none, 0.0, state.mean_batch),
        np.where(none, 0.0, rate / np.maximum(saturated, 1e-300)),
        ~memory_fits(next_rate, next_state),
    )
