"""Prefill pools: time to first token as M/G/c with the true length distribution, and the rate a target allows.

A replica serves `slots` requests at once (attention-DP ranks times requests per pass); a pool of n replicas is one
first-come queue with n x slots servers. A
pass with all slots filled takes `service_full_s` instead of `service_s`;
in between the pass time moves with utilisation (pdplan latency model, section 3). With more than one slot a request
that arrives while a pass runs also waits for its end (a gate, uniform over the pass).

Waiting time W is zero with probability 1 - C (Erlang C) and exponential with mean theta otherwise (pdplan
latency model,
section 8.1), so that, over support points k,
P(TTFT > t) = sum_k w_k min(1, C exp(-(t - S_k)/theta)) for t >= S_k.

Valid for stationary traffic up to a utilisation of about 0.95, the default cap: above it a queue needs so
long to settle
that its percentiles describe no real hour. Not valid for sticky routing (that is n queues of one replica).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "MAX_UTILISATION",
    "BatchedPrefill",
    "PrefillWait",
    "batched_prefill",
    "erlang_c",
    "prefill_capacity_req_per_s",
    "prefill_utilisation",
    "prefill_wait",
    "ttft_mean_s",
    "ttft_quantile_s",
    "ttft_tail",
]

Floats = NDArray[np.float64]
MAX_UTILISATION = 0.95
_BISECTIONS = 18
_RECURSION_LIMIT = 64
"""Above this many servers the closed form with the incomplete gamma function is cheaper than the recursion."""
_GAUSS = (0.5 - 0.5 / math.sqrt(3.0), 0.5 + 0.5 / math.sqrt(3.0))
"""Two-point Gauss-Legendre nodes on (0, 1) for the uniform gate."""


def erlang_c(servers: ArrayLike, load: ArrayLike) -> Floats:
    """Probability of waiting in M/M/c.

    Parameters
    ----------
    servers : array_like of int
        Number of servers c, broadcast against `load`.
    load : array_like
        Offered load a = rate x mean service, Erlang. At a >= c the answer is 1.
    """
    c, a = np.broadcast_arrays(np.asarray(servers, dtype=np.float64), np.asarray(load, dtype=np.float64))
    safe = np.clip(a, 1e-12, None)
    top = int(c.max(initial=1.0))
    if top <= _RECURSION_LIMIT:
        inverse = np.ones(c.shape)  # 1/B(j, a) = 1 + j/a 1/B(j-1, a): grows, never cancels
        for j in range(1, top + 1):
            inverse = np.where(j <= c, 1.0 + j / safe * inverse, inverse)
        blocking = 1.0 / inverse
    else:
        from scipy.special import gammaincc, gammaln

        blocking = np.exp(c * np.log(safe) - safe - gammaln(c + 1)) / np.maximum(gammaincc(c + 1, safe), 1e-300)
    rho = safe / c
    out: Floats = np.where(rho >= 1, 1.0, blocking / np.maximum(1.0 - rho + rho * blocking, 1e-300))
    return out


class PrefillWait(NamedTuple):
    """Queueing of one or many pools; arrays of one shape."""

    utilisation: Floats
    wait_probability: Floats
    theta_s: Floats
    """Mean wait of those who wait."""
    mean_wait_s: Floats


def prefill_wait(
    rate_req_per_s: ArrayLike,
    servers: ArrayLike,
    mean_service_s: ArrayLike,
    service_cv2: ArrayLike,
    arrival_cv2: ArrayLike = 1.0,
) -> PrefillWait:
    """M/G/c (or G/G/c through `arrival_cv2`) wait; pdplan latency model, section 8.1.

    `service_cv2` and `arrival_cv2` are squared coefficients of variation. Infinite where the load reaches the servers.
    """
    rate, c, service = (np.asarray(x, dtype=np.float64) for x in (rate_req_per_s, servers, mean_service_s))
    load = rate * service
    rho = load / c
    waits = erlang_c(c, load)
    variation = (np.asarray(arrival_cv2) + np.asarray(service_cv2)) / 2
    theta = np.where(rho < 1, service * variation / (c * np.maximum(1 - rho, 1e-12)), np.inf)
    return PrefillWait(rho, waits, theta, waits * theta)


class _Pool(NamedTuple):
    """Everything fixed about C candidates; (K, C) and (C,) arrays."""

    single: Floats
    extra: Floats
    """service_full - service, what a full pass adds."""
    weight: Floats
    slots: Floats
    arrival_cv2: float


def _pool(
    service_s: ArrayLike, weight: ArrayLike, slots: ArrayLike, service_full_s: ArrayLike | None, arrival_cv2: float
) -> _Pool:
    single = np.asarray(service_s, dtype=np.float64)
    w = np.asarray(weight, dtype=np.float64)
    if single.ndim != 2 or w.shape != single.shape[:1]:
        raise ValueError(f"service_s must be (K, C) and weight (K,); got {single.shape} and {w.shape}")
    full = single if service_full_s is None else np.maximum(np.asarray(service_full_s, dtype=np.float64), single)
    many = np.broadcast_to(np.asarray(slots, dtype=np.float64), single.shape[1:])
    return _Pool(single, full - single, w / w.sum(), many, arrival_cv2)


def _utilisation(pool: _Pool, rate: Floats, replicas: Floats) -> Floats:
    """rho solves rho = rate (E S1 + rho E[S_full - S1]) / servers."""
    per_server = rate / (replicas * pool.slots)
    lower = 1 - per_server * (pool.weight @ pool.extra)
    out: Floats = np.where(lower > 0, per_server * (pool.weight @ pool.single) / np.maximum(lower, 1e-12), np.inf)
    return out


def _state(pool: _Pool, rate: Floats, replicas: Floats) -> tuple[Floats, Floats, PrefillWait, Floats]:
    """Service (K, ..., C), mean service (..., C), wait, and probability that a pass runs on one's replica."""
    rho = np.minimum(_utilisation(pool, rate, replicas), 1.0)
    shape = (pool.single.shape[0], *([1] * (rho.ndim - 1)), pool.single.shape[1])
    mean1, mean_extra = pool.weight @ pool.single, pool.weight @ pool.extra
    if np.any(pool.extra):
        service = pool.single.reshape(shape) + rho * pool.extra.reshape(shape)
        second = (
            pool.weight @ pool.single**2
            + 2 * rho * (pool.weight @ (pool.single * pool.extra))
            + rho**2 * (pool.weight @ pool.extra**2)
        )
    else:
        service = pool.single.reshape(shape)
        second = np.broadcast_to(pool.weight @ pool.single**2, rho.shape)
    mean = mean1 + rho * mean_extra
    wait = prefill_wait(rate, replicas * pool.slots, mean, np.maximum(second / mean**2 - 1, 0), pool.arrival_cv2)
    busy = np.where(pool.slots > 1, -np.expm1(-rate / replicas * mean), 0.0)
    return service, mean, wait, busy


def _tail(pool: _Pool, t_s: Floats, rate: Floats, replicas: Floats) -> Floats:
    service, mean, wait, busy = _state(pool, rate, replicas)
    theta = np.where(np.isfinite(wait.theta_s), np.maximum(wait.theta_s, 1e-12), 1e30)

    def later(gate: Floats | float) -> Floats:
        left = (t_s - gate) - service
        survive = np.where(left >= 0, wait.wait_probability * np.exp(-np.maximum(left, 0.0) / theta), 1.0)
        out: Floats = np.tensordot(pool.weight, survive, axes=(0, 0))
        return out

    tail = later(0.0)
    if np.any(busy > 0):
        gated = (later(_GAUSS[0] * mean) + later(_GAUSS[1] * mean)) / 2
        tail = (1 - busy) * tail + busy * gated
    return np.where(wait.utilisation >= 1, 1.0, tail)


def _grid(rate: ArrayLike, replicas: ArrayLike, candidates: int) -> tuple[Floats, Floats]:
    """Rate and replicas broadcast to (..., C)."""
    r, n = np.broadcast_arrays(np.asarray(rate, dtype=np.float64), np.asarray(replicas, dtype=np.float64))
    shape = np.broadcast_shapes(r.shape, (candidates,))
    return np.broadcast_to(r, shape), np.broadcast_to(n, shape)


def prefill_utilisation(
    rate_req_per_s: ArrayLike,
    replicas: ArrayLike,
    service_s: ArrayLike,
    weight: ArrayLike,
    *,
    slots: ArrayLike = 1,
    service_full_s: ArrayLike | None = None,
) -> Floats:
    """Busy share of the pool's servers, (..., C); at or above 1 the queue grows without end. See :func:`ttft_tail`."""
    pool = _pool(service_s, weight, slots, service_full_s, 1.0)
    return _utilisation(pool, *_grid(rate_req_per_s, replicas, pool.single.shape[1]))


def ttft_tail(
    t_s: ArrayLike,
    rate_req_per_s: ArrayLike,
    replicas: ArrayLike,
    service_s: ArrayLike,
    weight: ArrayLike,
    *,
    slots: ArrayLike = 1,
    service_full_s: ArrayLike | None = None,
    arrival_cv2: float = 1.0,
) -> Floats:
    """P(wait + service > t).

    Parameters
    ----------
    t_s, rate_req_per_s, replicas : array_like
        Broadcast to (..., C). Time, arrival rate of the whole pool, replicas in it.
    service_s : (K, C)
        Pass time of support point k on candidate c when it is alone in its pass.
    weight : (K,)
        Shares of the support points.
    slots : (C,), optional
        Requests one replica serves in one pass.
    service_full_s : (K, C), optional
        Pass time when all slots are taken; `service_s` when absent.
    arrival_cv2 : float
        Squared coefficient of variation of the gaps between arrivals (1 for Poisson).

    Returns
    -------
    ndarray (..., C)
    """
    pool = _pool(service_s, weight, slots, service_full_s, arrival_cv2)
    rate, n = _grid(rate_req_per_s, replicas, pool.single.shape[1])
    return _tail(pool, np.asarray(t_s, dtype=np.float64), rate, n)


def ttft_mean_s(
    rate_req_per_s: ArrayLike,
    replicas: ArrayLike,
    service_s: ArrayLike,
    weight: ArrayLike,
    *,
    extra_s: ArrayLike = 0.0,
    slots: ArrayLike = 1,
    service_full_s: ArrayLike | None = None,
    arrival_cv2: float = 1.0,
) -> Floats:
    """Mean of wait + service + extra, (..., C); parameters as in :func:`prefill_capacity_req_per_s`."""
    pool = _pool(service_s, weight, slots, service_full_s, arrival_cv2)
    rate, n = _grid(rate_req_per_s, replicas, pool.single.shape[1])
    _, mean, wait, busy = _state(pool, rate, n)
    extra = pool.weight @ np.broadcast_to(np.asarray(extra_s, dtype=np.float64), pool.single.shape)
    out: Floats = np.where(wait.utilisation < 1, wait.mean_wait_s + mean * (1 + busy / 2) + extra, np.inf)
    return out


def ttft_quantile_s(
    q: float,
    rate_req_per_s: ArrayLike,
    replicas: ArrayLike,
    service_s: ArrayLike,
    weight: ArrayLike,
    *,
    extra_s: ArrayLike = 0.0,
    slots: ArrayLike = 1,
    service_full_s: ArrayLike | None = None,
    arrival_cv2: float = 1.0,
) -> Floats:
    """q-quantile of wait + service + extra, (..., C); infinite where the pool is unstable.

    `extra_s` (scalar, (C,) or (K, C)) is each request's latency after its pass; the rest as in :func:`ttft_tail`.
    """
    if not 0 < q < 1:
        raise ValueError(f"q is {q!r}; a fraction strictly between 0 and 1 is accepted")
    pool = _pool(service_s, weight, slots, service_full_s, arrival_cv2)
    rate, n = _grid(rate_req_per_s, replicas, pool.single.shape[1])
    service, mean, wait, _ = _state(pool, rate, n)
    stable = wait.utilisation < 1
    # The slowest service plus the wait's own quantile plus a whole gate bounds the sum's quantile from above.
    low = np.zeros(rate.shape)
    extra = np.broadcast_to(np.asarray(extra_s, dtype=np.float64), pool.single.shape)
    extra = extra.reshape(extra.shape[0], *([1] * (rate.ndim - 1)), extra.shape[1])
    high = (service + extra).max(axis=0) + mean + np.where(stable, wait.theta_s, 0.0) * -math.log1p(-q)
    for _ in range(45):
        middle = (low + high) / 2
        late = _tail(pool, middle - extra, rate, n) > 1 - q + 1e-12
        low, high = np.where(late, middle, low), np.where(late, high, middle)
    return np.where(stable, high, np.inf)


def prefill_capacity_req_per_s(
    service_s: ArrayLike,
    weight: ArrayLike,
    replicas: ArrayLike,
    targets: Sequence[tuple[float, float]],
    extra_s: ArrayLike = 0.0,
    *,
    slots: ArrayLike = 1,
    service_full_s: ArrayLike | None = None,
    arrival_cv2: float = 1.0,
    max_utilisation: float = MAX_UTILISATION,
) -> Floats:
    """Largest rate at which n replicas meet every TTFT target.

    Parameters
    ----------
    service_s, weight, slots, service_full_s, arrival_cv2
        As in :func:`ttft_tail`.
    replicas : (N,) int
        Replicas in the pool, one answer each.
    targets : sequence of (q, limit_s)
        P(TTFT <= limit) >= q for each.
    extra_s : scalar, (C,) or (K, C)
        Latency after the prefill pass (KV transfer, first decode step), added to each request's own service.
    max_utilisation : float
        No answer above this utilisation; see the module's note on validity.

    Returns
    -------
    ndarray (N, C)
        0 where the unloaded latency already breaks a target. Found from below to 2^-18 of the rate at the cap.
    """
    pool = _pool(service_s, weight, slots, service_full_s, arrival_cv2)
    extra = np.broadcast_to(np.asarray(extra_s, dtype=np.float64), pool.single.shape)
    n = np.asarray(replicas, dtype=np.float64)[:, None] * np.ones(pool.single.shape[1])
    # rho = cap inverted for the rate: rate = servers cap / (E S1 + cap E[extra])
    work = pool.weight @ pool.single + max_utilisation * (pool.weight @ pool.extra)
    ceiling = n * pool.slots * max_utilisation / work
    shifted = _Targets(pool, extra[:, None, :], targets)
    low, high = np.zeros(ceiling.shape), ceiling.copy()
    low = np.where(shifted.met(ceiling, n), ceiling, low)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        met = shifted.met(middle, n)
        low, high = np.where(met, middle, low), np.where(met, high, middle)
    return np.where(low > ceiling * 1e-6, low, 0.0)


class _Targets:
    """Whether every target holds, with a latency of its own added to each support point."""

    def __init__(self, pool: _Pool, extra: Floats, targets: Sequence[tuple[float, float]]) -> None:
        for q, limit in targets:
            if not (0 < q < 1 and limit > 0):
                raise ValueError(f"target (q={q!r}, limit={limit!r} s): 0 < q < 1 and a positive limit are accepted")
        self.pool, self.extra, self.targets = pool, extra, targets

    def met(self, rate: Floats, replicas: Floats) -> NDArray[np.bool_]:
        ok = np.ones(rate.shape, dtype=np.bool_)
        for q, limit in self.targets:
            ok &= _tail(self.pool, limit - self.extra, rate, replicas) <= 1 - q + 1e-12
        return ok


class BatchedPrefill(NamedTuple):
    """One server whose pass takes everything waiting; pdplan latency model, section 8.2."""

    requests_per_pass: Floats
    pass_s: Floats
    residual_s: Floats
    """Mean residual pass time seen by an arrival during a pass."""
    busy_probability: Floats
    utilisation: Floats
    """At the token cap (rho_max)."""
    mean_ttft_s: Floats


def batched_prefill(
    rate_req_per_s: ArrayLike,
    fixed_s: ArrayLike,
    mean_work_s: ArrayLike,
    work_variance_s2: ArrayLike,
    max_requests: ArrayLike,
) -> BatchedPrefill:
    """Mean TTFT of one server that batches whatever waits into one pass of fixed cost plus work.

    Good to 5-10 % up to a capped utilisation of 0.6; above 0.9 only the order of magnitude. The p99 is 2.6 to 4 means.

    Parameters
    ----------
    rate_req_per_s : array_like
        Rate at this one server.
    fixed_s, mean_work_s, work_variance_s2 : array_like
        Cost of a pass without requests; mean and variance of one request's own work.
    max_requests : array_like
        Requests a full pass holds: token budget / mean length - 0.5.
    """
    lam, fixed, mean, variance, most = np.broadcast_arrays(
        *(
            np.asarray(x, dtype=np.float64)
            for x in (rate_req_per_s, fixed_s, mean_work_s, work_variance_s2, max_requests)
        )
    )
    k = np.ones(lam.shape)
    for _ in range(200):
        cycle = fixed + k * mean
        k = 0.5 * k + 0.5 * np.minimum(lam * cycle + np.exp(-lam * cycle), most)
    cycle = fixed + k * mean
    work = np.minimum(lam * mean, 0.999)
    k_variance = (lam * cycle + lam**2 * k * variance) / (1 - work**2)
    second = cycle**2 + k * variance + mean**2 * k_variance
    residual = second / (2 * cycle)
    idle = np.exp(-lam * cycle) / np.maximum(lam, 1e-300)
    busy = cycle / (cycle + idle)
    rho = lam * (fixed / most + mean)
    own = fixed / most
    excess = lam * (variance + (mean + own) ** 2) / (2 * np.maximum(1 - rho, 1e-12)) * rho**most
    ttft = fixed + mean + busy * residual * (1 + 2 * work) + excess
    return BatchedPrefill(k, cycle, residual, busy, rho, np.where(rho < 1, ttft, np.inf))
