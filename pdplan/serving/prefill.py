r"""Prefill pools as M/G/c queues: waiting time, TTFT percentiles and capacity (docs/explanation/queueing.md, section 1).

The wait is exponential with an atom at zero, so the distribution of TTFT is a finite sum over the support of the
length distribution; nothing is sampled. Arrays: K support points, C candidates, N replica counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["MAX_UTILIZATION_FRAC", "erlang_c", "prefill_capacity_req_per_s", "prefill_wait", "ttft_mean_s", "ttft_tail"]

Floats = NDArray[np.float64]
TargetPairs = Sequence[tuple[float | None, float]]
"""(percentile in percent, or None for the mean; limit in seconds)."""

MAX_UTILIZATION_FRAC = 0.95
"""Pools are never planned busier: beyond it the stationary state is not reached within hours, and the formula's error
grows (10 to 21 % in the 99th percentile at 0.9 to 0.95 against simulation)."""


def erlang_c(servers: ArrayLike, load: ArrayLike) -> Floats:
    """Probability of waiting in M/M/c (Erlang C), by the recursion of Erlang B.

    Parameters
    ----------
    servers : array_like of int
    load : array_like
        Offered load in erlang, less than `servers`.

    Examples
    --------
    >>> round(float(erlang_c(4, 3.1725)), 5)
    0.58411
    """
    servers_array, a = np.broadcast_arrays(np.asarray(servers, dtype=np.int64), np.asarray(load, dtype=np.float64))
    b = np.ones(a.shape)
    for j in range(1, int(servers_array.max()) + 1):
        step = a * b / (j + a * b)
        b = np.where(j <= servers_array, step, b)
    rho = a / servers_array
    result: Floats = b / (1 - rho + rho * b)
    return result


def prefill_wait(
    rate: ArrayLike, servers: ArrayLike, service_mean_s: ArrayLike, service_cv2: ArrayLike, arrival_cv2: float = 1.0
) -> tuple[Floats, Floats]:
    r"""Chance of waiting and mean wait of those that do.

    .. math:: E[W] = C\,\frac{E[S]}{c(1-\rho)}\,\frac{c_a^2 + c_s^2}{2},\qquad \theta = E[W]/C

    Returns
    -------
    tuple of ndarray
        C and theta [s]; a pool without spare capacity has C = 1 and theta = inf.
    """
    servers = np.asarray(servers, dtype=np.float64)
    load = np.asarray(rate, dtype=np.float64) * np.asarray(service_mean_s)
    rho = load / servers
    stable = rho < 1
    safe = np.where(stable, load, 0.5 * servers)
    waits = np.where(stable, erlang_c(servers.astype(np.int64), safe), 1.0)
    with np.errstate(divide="ignore"):
        theta = np.where(
            stable,
            np.asarray(service_mean_s) / (servers * np.maximum(1 - rho, 1e-12)) * (arrival_cv2 + np.asarray(service_cv2)) / 2,
            np.inf,
        )
    return waits, theta


def ttft_tail(
    limit_s: ArrayLike, waits: ArrayLike, theta_s: ArrayLike, service_s: Floats, weight: Floats, extra_s: ArrayLike = 0.0
) -> Floats:
    """P(TTFT > limit): wait plus service plus what follows prefill.

    Parameters
    ----------
    limit_s : array_like, shape (..., C)
    waits, theta_s : array_like, shape (..., C)
        From :func:`prefill_wait`.
    service_s : ndarray, shape (K, C)
    weight : ndarray, shape (K,)
    extra_s : array_like, shape (K, C)
        KV transfer, first decode step and fixed overhead.

    Returns
    -------
    ndarray, shape (..., C)
    """
    limit, waits, theta = (np.asarray(v, dtype=np.float64) for v in (limit_s, waits, theta_s))
    own = service_s + np.asarray(extra_s)
    shape = (own.shape[0],) + (1,) * max(limit.ndim - 1, waits.ndim - 1, 0) + own.shape[1:]
    room = limit - own.reshape(shape)
    with np.errstate(over="ignore", invalid="ignore"):
        late = np.where(room < 0, 1.0, waits * np.exp(-np.maximum(room, 0) / np.maximum(theta, 1e-12)))
    result: Floats = np.tensordot(weight, late, axes=(0, 0))
    return result


def ttft_mean_s(waits: ArrayLike, theta_s: ArrayLike, service_s: Floats, weight: Floats, extra_s: ArrayLike = 0.0) -> Floats:
    """Mean TTFT, shape (..., C)."""
    own: Floats = np.tensordot(weight, service_s + np.asarray(extra_s), axes=(0, 0))
    result: Floats = own + np.asarray(waits) * np.asarray(theta_s)
    return result


def prefill_capacity_req_per_s(
    service_s: Floats, weight: Floats, servers: NDArray[np.int64], targets: TargetPairs, extra_s: ArrayLike = 0.0,
    arrival_cv2: float = 1.0, *, steps: int = 28,
) -> Floats:
    """Largest arrival rate at which pools of the given sizes meet every target.

    Parameters
    ----------
    service_s : ndarray, shape (K, C)
    weight : ndarray, shape (K,)
    servers : ndarray of int, shape (N, C) or (N, 1)
        Parallel servers of the whole pool.
    targets : sequence of (percentile or None, limit in s)
    extra_s : array_like, shape (K, C)
    arrival_cv2 : float
        Squared coefficient of variation of the gaps between arrivals.

    Returns
    -------
    ndarray, shape (N, C)
        0 where even an idle pool misses a target. Found by bisection, from below.
    """
    mean: Floats = np.tensordot(weight, service_s, axes=(0, 0))
    cv2 = np.tensordot(weight, service_s**2, axes=(0, 0)) / mean**2 - 1

    def meets(rate: Floats) -> NDArray[np.bool_]:
        waits, theta = prefill_wait(rate, servers, mean, np.maximum(cv2, 0), arrival_cv2)
        good = np.ones(waits.shape, dtype=bool)
        for percentile, limit in targets:
            if percentile is None:
                good &= ttft_mean_s(waits, theta, service_s, weight, extra_s) <= limit
            else:
                good &= ttft_tail(limit, waits, theta, service_s, weight, extra_s) <= 1 - percentile / 100 + 1e-12
        return good

    high = MAX_UTILIZATION_FRAC * servers / mean
    low = np.zeros(high.shape)
    possible = meets(np.full(high.shape, 1e-9) * high)
    all_good = meets(high)
    low = np.where(all_good, high, low)
    for _ in range(steps):
        middle = (low + high) / 2
        good = meets(middle)
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    return np.where(possible, low, 0.0)
