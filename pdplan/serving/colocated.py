r"""Colocated pools with chunked prefill: both latencies of a replica that does both jobs (queueing.md, section 3).

An iteration takes a0 + be B + bm (prefill tokens) seconds, with at most `chunk` tokens. Arrays: C candidates,
K support points of the length distribution, G points of a rate grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdplan.serving.decode import ADMISSION_Z, MAX_LOAD_FRAC, life_average, normal_cdf
from pdplan.serving.prefill import MAX_UTILIZATION_FRAC, TargetPairs, ttft_tail

__all__ = ["ColocatedPoint", "colocated_capacity", "colocated_meets", "colocated_point"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColocatedPoint:
    """State of one replica; arrays (..., C), those by request (K, ..., C)."""

    stable: NDArray[np.bool_]
    rho: Floats
    """Share of the time with prefill work in the iterations."""
    in_flight_mean: Floats
    in_flight_sd: Floats
    load_frac: Floats
    tpot_mean_s: Floats
    tpot_sd_s: Floats
    own_s: Floats
    """Prefill of the request itself, chunk by chunk."""
    wait_theta_s: Floats
    """Mean wait of the requests that wait (all but 1 - rho)."""
    iteration_decode_s: Floats
    iteration_mixed_s: Floats


def colocated_point(
    rate: ArrayLike, *, fixed_s: ArrayLike, per_sequence_s: ArrayLike, per_token_s: ArrayLike, chunk: ArrayLike,
    new_tokens: Floats, output_tokens: Floats, weight: Floats, tokens_per_step: ArrayLike = 1.0, arrival_cv2: float = 1.0,
) -> ColocatedPoint:
    r"""State at `rate` requests/s per replica.

    .. math:: den = 1 - \lambda b_m E[len] - \lambda O b_e,\quad TPOT = a_0/den,\quad B = \lambda O a_0/den,\quad
              t_f = a_0 + b_e B + b_m (C - B),\quad \rho = \lambda E[len]\,t_f/(C - B)

    Parameters
    ----------
    rate : array_like, shape (..., C)
    fixed_s, per_sequence_s, per_token_s, chunk : array_like, shape (C,)
        a0, be, bm and the token budget C of an iteration.
    new_tokens, output_tokens, weight : ndarray, shape (K,)
    """
    lam = np.asarray(rate, dtype=np.float64)
    a0, be, bm, chunk = (np.asarray(v, dtype=np.float64) for v in (fixed_s, per_sequence_s, per_token_s, chunk))
    per_step = np.asarray(tokens_per_step, dtype=np.float64)
    length, output = float(weight @ new_tokens), float(weight @ output_tokens)
    prefill_load = lam * bm * length
    den = 1 - prefill_load - lam * output / per_step * be
    safe = np.maximum(den, 1e-6)
    mean_step = a0 / safe
    batch = lam * output / per_step * mean_step
    room = np.maximum(chunk - batch, 1.0)
    decode_only = a0 + be * batch
    mixed = decode_only + bm * room
    lengths = new_tokens.reshape((-1,) + (1,) * lam.ndim)
    service = lengths * mixed / room
    mean_service = np.tensordot(weight, service, axes=(0, 0))
    second = np.tensordot(weight, service**2, axes=(0, 0))
    rho = lam * mean_service
    stable = (den > 1e-3) & (rho < 1) & (chunk > batch + 1)
    cv2 = second / mean_service**2 - 1
    theta = mean_service * (arrival_cv2 + cv2) / 2 / np.maximum(1 - rho, 1e-6)
    own = np.where(lengths < room, decode_only + bm * lengths, np.ceil(lengths / room) * mixed)
    # In flight: the negative binomial of a decode pool whose steps are stretched by the prefill share.
    stretch = np.maximum(1 - prefill_load, 1e-6)
    al, slope = a0 / stretch, be / stretch
    p = np.clip(lam * output / per_step * slope, 1e-12, 1 - 1e-9)
    variance = (al / np.maximum(slope, 1e-12) + 1) * p / (1 - p) ** 2
    # A request averages iterations with and without prefill over its life; the on-off process of prefill work
    # forgets itself within one (size-biased) service time.
    share = rho * decode_only / np.maximum(rho * decode_only + (1 - rho) * mixed, 1e-12)
    life = output_tokens.reshape(lengths.shape) / per_step * mean_step
    phase = share * (1 - share) * (mixed - decode_only) ** 2 * life_average(life * mean_service / np.maximum(second, 1e-18))
    crowd = slope**2 * variance * life_average(
        output_tokens.reshape(lengths.shape) / output * al / np.maximum(mean_step, 1e-12)
    )
    return ColocatedPoint(
        stable=stable, rho=rho, in_flight_mean=batch, in_flight_sd=np.sqrt(variance), load_frac=p,
        tpot_mean_s=mean_step / per_step, tpot_sd_s=np.sqrt(phase + crowd) / per_step, own_s=own, wait_theta_s=theta,
        iteration_decode_s=decode_only, iteration_mixed_s=mixed,
    )


def colocated_tpot_tail(limit_s: float, point: ColocatedPoint, weight: Floats) -> Floats:
    """P(TPOT > limit), shape (..., C)."""
    z = (limit_s - point.tpot_mean_s) / np.maximum(point.tpot_sd_s, 1e-12)
    return np.asarray(np.where(point.stable, 1 - np.tensordot(weight, normal_cdf(z), axes=(0, 0)), 1.0))


def colocated_ttft_tail(limit_s: float, point: ColocatedPoint, weight: Floats, extra_s: ArrayLike) -> Floats:
    """P(TTFT > limit), shape (..., C); the wait is that of one server per replica."""
    own = point.own_s + np.asarray(extra_s) + point.tpot_mean_s / 2
    flat = own.reshape(own.shape[0], -1)
    tail = ttft_tail(
        np.full(flat.shape[1], limit_s), np.minimum(point.rho, 1.0).ravel(), point.wait_theta_s.ravel(), flat, weight
    )
    return np.asarray(np.where(point.stable, tail.reshape(point.rho.shape), 1.0))


def colocated_meets(
    point: ColocatedPoint, max_batch: ArrayLike, weight: Floats, ttft_targets: TargetPairs, tpot_targets: TargetPairs,
    extra_s: ArrayLike = 0.0,
) -> NDArray[np.bool_]:
    """Whether every target and the admission limit hold, shape (..., C)."""
    biggest = np.asarray(max_batch)
    good = point.stable & (point.rho <= MAX_UTILIZATION_FRAC) & (point.load_frac <= MAX_LOAD_FRAC) & (biggest >= 1)
    good &= (point.in_flight_mean + ADMISSION_Z * point.in_flight_sd <= biggest) | (point.in_flight_mean < 0.05)
    for percentile, limit in ttft_targets:
        if percentile is None:
            mean = np.tensordot(weight, point.own_s, axes=(0, 0)) + point.rho * point.wait_theta_s + point.tpot_mean_s / 2
            good &= mean + np.mean(np.asarray(extra_s)) <= limit
        else:
            good &= colocated_ttft_tail(limit, point, weight, extra_s) <= 1 - percentile / 100 + 1e-12
    for percentile, limit in tpot_targets:
        if percentile is None:
            good &= point.tpot_mean_s <= limit
        else:
            good &= colocated_tpot_tail(limit, point, weight) <= 1 - percentile / 100 + 1e-12
    return good


def colocated_capacity(
    *, fixed_s: Floats, per_sequence_s: Floats, per_token_s: Floats, chunk: Floats, max_batch: Floats, new_tokens: Floats,
    output_tokens: Floats, weight: Floats, ttft_targets: TargetPairs, tpot_targets: TargetPairs,
    tokens_per_step: ArrayLike = 1.0, extra_s: ArrayLike = 0.0, arrival_cv2: float = 1.0, steps: int = 26,
) -> Floats:
    """Largest rate per replica, shape (C,), that meets every target; 0 where none does. Bisection from below."""

    def meets(rate: Floats) -> NDArray[np.bool_]:
        point = colocated_point(
            rate, fixed_s=fixed_s, per_sequence_s=per_sequence_s, per_token_s=per_token_s, chunk=chunk,
            new_tokens=new_tokens, output_tokens=output_tokens, weight=weight, tokens_per_step=tokens_per_step,
            arrival_cv2=arrival_cv2,
        )
        return colocated_meets(point, max_batch, weight, ttft_targets, tpot_targets, extra_s)

    high = 1.0 / (per_token_s * float(weight @ new_tokens) + float(weight @ output_tokens) * per_sequence_s)
    low = np.zeros_like(high)
    possible = meets(high * 1e-6)
    for _ in range(steps):
        middle = (low + high) / 2
        good = meets(middle)
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    return np.where(possible, low, 0.0)
