r"""Decode pools: sequences in flight, TPOT percentiles and capacity (docs/explanation/queueing.md, section 2).

With a step of al + be B seconds and Poisson arrivals, the number in flight is negative binomial; a request sees the
average of it over its own life. Arrays: M points of a batch grid, C candidates, K output lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdplan.serving.prefill import TargetPairs

__all__ = ["DecodePoint", "batch_grid", "decode_capacity", "decode_point", "normal_cdf", "operating_batch", "tpot_tail"]

Floats = NDArray[np.float64]
ADMISSION_Z = 2.326
"""Sequences in flight stay below the largest batch with 99 % chance."""
MAX_LOAD_FRAC = 0.85
"""Largest share of arrivals' growth pressure (p of the negative binomial): beyond it relaxation takes minutes and the
formula overstates the tail (checked by simulation)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePoint:
    """State of one decode replica; arrays (..., C), `tpot_sd_s` (K, ..., C)."""

    rate_req_per_s: Floats
    in_flight_mean: Floats
    in_flight_sd: Floats
    load_frac: Floats
    """p of the negative binomial."""
    step_s: Floats
    tpot_mean_s: Floats
    tpot_sd_s: Floats
    """By output length: a short answer sees less averaging."""


def normal_cdf(z: ArrayLike) -> Floats:
    """Standard normal distribution function."""
    from scipy.special import ndtr

    result: Floats = np.asarray(ndtr(np.asarray(z, dtype=np.float64)))
    return result


def life_average(x: ArrayLike) -> Floats:
    """Variance left after averaging a process of relaxation time 1 over a stretch x: 2 (x - 1 + e^-x) / x^2.

    Examples
    --------
    >>> round(float(life_average(0.48872)), 4)
    0.8552
    """
    x = np.maximum(np.asarray(x, dtype=np.float64), 1e-3)
    result: Floats = 2 * (x + np.expm1(-x)) / x**2
    return result


def decode_point(
    batch: ArrayLike, step_s: ArrayLike, slope_s: ArrayLike, output_tokens: Floats, weight: Floats,
    tokens_per_step: ArrayLike = 1.0,
) -> DecodePoint:
    r"""State of a replica whose fluid batch is `batch`.

    .. math:: \lambda = B L / (O\,t(B)),\quad p = \lambda O\,be/L,\quad r = al/be + 1,\quad
              E[N] = \frac{rp}{1-p},\quad Var[N] = \frac{rp}{(1-p)^2}

    Parameters
    ----------
    batch, step_s, slope_s : array_like, shape (..., C)
        Fluid batch B, step time there and its derivative by batch (tangent).
    output_tokens, weight : ndarray, shape (K,)
    tokens_per_step : array_like, shape (C,)
        L, above 1 with speculation.
    """
    batch, step = np.asarray(batch, dtype=np.float64), np.asarray(step_s, dtype=np.float64)
    be = np.maximum(np.asarray(slope_s, dtype=np.float64), 1e-12)
    al = np.maximum(step - be * batch, 1e-9)
    mean_output = float(weight @ output_tokens)
    per_step = np.asarray(tokens_per_step, dtype=np.float64)
    rate = batch * per_step / (mean_output * step)
    p = np.clip(rate * mean_output / per_step * be, 1e-12, 1 - 1e-9)
    r = al / be + 1
    mean, variance = r * p / (1 - p), r * p / (1 - p) ** 2
    seen = al + be * (1 + mean)
    outputs = output_tokens.reshape((-1,) + (1,) * seen.ndim)
    # Relaxation time of the number in flight: a life over 1 - p, shortened as the note's 8.3 has it (al / t*).
    stretch = outputs / mean_output * al / seen
    sd = be * np.sqrt(variance) * np.sqrt(life_average(stretch)) / per_step
    return DecodePoint(
        rate_req_per_s=rate, in_flight_mean=mean, in_flight_sd=np.sqrt(variance), load_frac=p, step_s=seen,
        tpot_mean_s=seen / per_step, tpot_sd_s=sd,
    )


def tpot_tail(limit_s: ArrayLike, point: DecodePoint, weight: Floats) -> Floats:
    """P(TPOT > limit) over requests of all output lengths, shape (..., C)."""
    z = (np.asarray(limit_s) - point.tpot_mean_s) / np.maximum(point.tpot_sd_s, 1e-12)
    result: Floats = 1 - np.tensordot(weight, normal_cdf(z), axes=(0, 0))
    return result


def batch_grid(max_batch: Floats, points: int = 40) -> Floats:
    """Geometric grid of batches from 0.05 to the largest, shape (points, C)."""
    top = np.maximum(max_batch, 0.1)
    return np.asarray(np.geomspace(0.05, top, points), dtype=np.float64)


def _meets(
    point: DecodePoint, max_batch: Floats, weight: Floats, targets: TargetPairs
) -> NDArray[np.bool_]:
    good = (point.in_flight_mean + ADMISSION_Z * point.in_flight_sd <= np.maximum(max_batch, 1.0)) | (
        point.in_flight_mean + point.in_flight_sd**2 < 0.05
    )
    good &= (point.load_frac <= MAX_LOAD_FRAC) & (max_batch >= 1.0)
    for percentile, limit in targets:
        if percentile is None:
            good &= point.tpot_mean_s <= limit
        else:
            good &= tpot_tail(limit, point, weight) <= 1 - percentile / 100 + 1e-12
    return good


def decode_capacity(
    step: Callable[[Floats], Floats], max_batch: Floats, output_tokens: Floats, weight: Floats, targets: TargetPairs,
    tokens_per_step: ArrayLike = 1.0,
) -> Floats:
    """Largest rate per replica, shape (C,), at which every TPOT target and the admission limit hold; 0 where none does.

    Parameters
    ----------
    step : callable
        Batch (M, C) -> step time (M, C). [s]
    max_batch : ndarray, shape (C,)
        Resident sequences the memory and the engine admit.
    """
    grid = batch_grid(max_batch)
    for _ in range(2):
        here = np.maximum(grid, 1.0)  # a step with less than one sequence is the step with one
        times = step(here)
        slopes = (step(here * 1.05 + 0.5) - times) / (here * 0.05 + 0.5)
        point = decode_point(grid, times, slopes, output_tokens, weight, tokens_per_step)
        good = np.logical_and.accumulate(_meets(point, max_batch, weight, targets), axis=0)
        count = good.sum(axis=0)
        last = np.maximum(count - 1, 0)
        columns = np.arange(grid.shape[1])
        rate = np.where(count > 0, point.rate_req_per_s[last, columns], 0.0)
        low = np.where(count > 0, grid[last, columns], grid[0])
        high = grid[np.minimum(count, len(grid) - 1), columns]
        grid = np.linspace(low, np.maximum(high, low * 1.0001), 12)
    return np.asarray(rate, dtype=np.float64)


def operating_batch(
    step: Callable[[Floats], Floats], rate: Floats, mean_output_tokens: float, tokens_per_step: ArrayLike = 1.0,
    *, largest: float = 1e6,
) -> Floats:
    """Fluid batch of a replica at `rate`: the root of B = rate O t(B) / L, by bisection; `largest` if there is none."""
    low, high = np.zeros(np.shape(rate)), np.full(np.shape(rate), largest)
    for _ in range(60):
        middle = (low + high) / 2
        need = rate * mean_output_tokens / np.asarray(tokens_per_step) * step(np.maximum(middle, 1.0))
        low, high = np.where(need > middle, middle, low), np.where(need > middle, high, middle)
    return np.asarray((low + high) / 2, dtype=np.float64)
