"""Prefill pools: time to first token with the true length distribution, and the rate a target allows.

Layouts whose replicas serve one request at a time form one first-come queue with as many servers as replicas (M/G/c).
Waiting time W is zero with probability 1 - C (Erlang C) and exponential with mean theta otherwise (pdplan latency model,
section 8.1), so that, over support points k,
P(TTFT > t) = sum_k w_k min(1, C exp(-(t - S_k)/theta)) for t >= S_k.

Layouts with attention data parallelism serve several requests in passes that last as long as their fullest rank
(:mod:`pdplan.serving.rank_passes`). Both kinds may stand side by side in one call.

Valid for stationary traffic up to a utilisation of about 0.95, the default cap: above it a queue needs so long to settle
that its percentiles describe no real hour. Not valid for sticky routing (that is n queues of one replica).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdplan.serving.rank_passes import (
    EXPONENTIAL_NODES,
    RankPasses,
    erlang_b,
    mean_pass_at,
    rank_passes,
    rank_ttft_tail,
    take_columns,
)

__all__ = [
    "MAX_UTILISATION",
    "PrefillService",
    "PrefillWait",
    "erlang_c",
    "mean_pass_s",
    "prefill_capacity_req_per_s",
    "prefill_utilisation",
    "prefill_wait",
    "ttft_mean_s",
    "ttft_quantile_s",
    "ttft_tail",
]

Floats = NDArray[np.float64]
MAX_UTILISATION = 0.95
_BISECTIONS = 15
_MEAN_NODES = 96
_SLACK = 1e-12
"""Of a tail probability, against rounding."""
_QUIET = 3e-3
"""Mean wait for network cards, relative to a pass, below which it is left out."""
_UNEVEN = 0.01
"""Headroom of capacities with ranks, relative to the share that may be late: interpolation in tables makes a tail dip by up
to 0.0005 as the rate grows, and at a rate below its capacity a pool must meet its targets."""


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
    blocking = erlang_b(c, a)
    rho = np.clip(a, 1e-12, None) / c
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillService:
    """Prefill of K support points on C layouts."""

    service_s: Floats
    """(K, C) pass time of a request that is alone in its pass."""
    weight: Floats
    """(K,) shares of the support points; need not sum to one."""
    ranks: ArrayLike = 1
    """(C,) attention ranks that share a pass. With one, every request has a pass of its own."""
    full_s: Floats | None = None
    """(K, C) pass with one such request on every rank; not needed where no layout has several."""
    fixed_s: ArrayLike = 0.0
    """(C,) pass without requests (several ranks)."""
    max_requests: ArrayLike = 1.0
    """(C,) requests of a full pass (several ranks)."""
    arrival_cv2: float = 1.0
    """Squared coefficient of variation of the gaps between arrivals (1 for Poisson)."""
    send_s: Floats | None = None
    """(K, C) time a request's cache takes the network cards of its rank; None where transfers do not queue."""
    hidden_s: Floats | None = None
    """(K, C) wait for the network cards that passes unnoticed, because sending begins with the pass."""


class _Pool(NamedTuple):
    """A checked service, its columns by kind, and what does not depend on the rate."""

    single: Floats
    weight: Floats
    mean: Floats
    """(C,)"""
    cv2: Floats
    arrival_cv2: float
    alone: NDArray[np.int64]
    """Columns of one request per pass."""
    shared: NDArray[np.int64]
    """Columns with ranks."""
    passes: RankPasses | None
    ranks: Floats
    send_mean_s: Floats
    """(C,); 0 where transfers do not queue."""
    send_residual_s: Floats
    """E[s^2] / 2 E[s]."""
    hidden: Floats


def _pool(service: PrefillService) -> _Pool:
    single = np.asarray(service.service_s, dtype=np.float64)
    weight = np.asarray(service.weight, dtype=np.float64)
    if single.ndim != 2 or weight.shape != single.shape[:1]:
        raise ValueError(f"service_s must be (K, C) and weight (K,); got {single.shape} and {weight.shape}")
    weight = weight / weight.sum()
    ranks, fixed, most = (
        np.broadcast_to(np.asarray(x, dtype=np.float64), single.shape[1:])
        for x in (service.ranks, service.fixed_s, service.max_requests)
    )
    alone, shared = np.flatnonzero(ranks <= 1), np.flatnonzero(ranks > 1)
    passes = None
    if len(shared):
        if service.full_s is None:
            raise ValueError("full_s is needed where a layout has several ranks")
        full = np.asarray(service.full_s, dtype=np.float64)
        passes = rank_passes(single[:, shared], full[:, shared], fixed[shared], weight, ranks[shared], most[shared])
    mean = weight @ single
    second = weight @ single**2
    send = np.zeros(single.shape) if service.send_s is None else np.asarray(service.send_s, dtype=np.float64)
    hidden = np.zeros(single.shape) if service.hidden_s is None else np.asarray(service.hidden_s, dtype=np.float64)
    send_mean = weight @ send
    return _Pool(
        single=single,
        weight=weight,
        mean=mean,
        cv2=np.maximum(second / mean**2 - 1, 0.0),
        arrival_cv2=service.arrival_cv2,
        alone=alone,
        shared=shared,
        passes=passes,
        ranks=ranks,
        send_mean_s=send_mean,
        send_residual_s=weight @ send**2 / np.maximum(2 * send_mean, 1e-300),
        hidden=np.broadcast_to(hidden, single.shape),
    )


def _ceiling(pool: _Pool) -> Floats:
    """Rate at which one replica, or its network cards, are always busy, (C,)."""
    out: Floats = 1 / pool.mean
    if pool.passes is not None:
        out[pool.shared] = pool.passes.capacity_req_per_s
    return np.minimum(out, pool.ranks / np.maximum(pool.send_mean_s, 1e-300))


def _grid(rate: ArrayLike, replicas: ArrayLike, candidates: int) -> tuple[Floats, Floats]:
    """Rate and replicas broadcast to (..., C)."""
    r, n = np.broadcast_arrays(np.asarray(rate, dtype=np.float64), np.asarray(replicas, dtype=np.float64))
    shape = np.broadcast_shapes(r.shape, (candidates,))
    return np.broadcast_to(r, shape), np.broadcast_to(n, shape)


def _sending(pool: _Pool, rate: Floats, replicas: Floats) -> tuple[Floats, Floats]:
    """Busy share of the network cards of a rank, and mean wait of those who find them busy (M/G/1), (..., C)."""
    busy = rate / (replicas * pool.ranks) * pool.send_mean_s
    return busy, np.maximum(pool.send_residual_s, 1e-12) / np.maximum(1 - busy, 1e-9)


def _tail(pool: _Pool, t_s: Floats, rate: Floats, replicas: Floats, *, grouped: bool = True) -> Floats:
    """P(wait + service + wait for the network cards > t) with t (1 or K, ..., C)."""
    tail = _tail_computed(pool, t_s, rate, replicas, grouped=grouped)
    busy, wait = _sending(pool, rate, replicas)
    delay = busy * wait * np.exp(-(pool.weight @ pool.hidden) / wait)
    noticed = delay > _QUIET * pool.mean
    columns = np.flatnonzero(noticed.reshape(-1, noticed.shape[-1]).any(axis=0))
    if not len(columns):
        return tail
    part = _columns(pool, columns)
    hidden = part.hidden.reshape(len(pool.weight), *([1] * (rate.ndim - 1)), len(columns))
    late = np.zeros((*rate.shape[:-1], len(columns)))
    for x, share in EXPONENTIAL_NODES:
        more = np.maximum(x * wait[..., columns] - hidden, 0.0)
        late += share * _tail_computed(
            part, t_s[..., columns] - more, rate[..., columns], replicas[..., columns], grouped=grouped
        )
    queued = np.minimum(busy[..., columns], 1.0)
    tail[..., columns] = (1 - queued) * tail[..., columns] + queued * late
    return np.where(busy < 1, tail, 1.0)


def _columns(pool: _Pool, columns: NDArray[np.int64]) -> _Pool:
    """Some of the layouts."""
    at = np.full(pool.single.shape[1], -1)
    at[columns] = np.arange(len(columns))
    shared = pool.shared[at[pool.shared] >= 0]
    passes = None
    if pool.passes is not None and len(shared):
        passes = take_columns(pool.passes, np.flatnonzero(at[pool.shared] >= 0))
    return pool._replace(
        single=pool.single[:, columns],
        mean=pool.mean[columns],
        cv2=pool.cv2[columns],
        alone=at[pool.alone[at[pool.alone] >= 0]],
        shared=at[shared],
        passes=passes,
        ranks=pool.ranks[columns],
        send_mean_s=pool.send_mean_s[columns],
        send_residual_s=pool.send_residual_s[columns],
        hidden=pool.hidden[:, columns],
    )


def _tail_computed(pool: _Pool, t_s: Floats, rate: Floats, replicas: Floats, *, grouped: bool) -> Floats:
    """P(wait + service > t)."""
    if pool.passes is None:
        return _tail_alone(pool, pool.alone, t_s, rate, replicas)
    out = np.empty(rate.shape)
    if len(pool.alone):
        part = pool.alone
        out[..., part] = _tail_alone(pool, part, t_s[..., part], rate[..., part], replicas[..., part])
    part = pool.shared
    out[..., part] = rank_ttft_tail(
        t_s[..., part],
        rate[..., part],
        replicas[..., part],
        pool.passes,
        arrival_cv2=pool.arrival_cv2,
        grouped=grouped,
    )
    return out


def _tail_alone(pool: _Pool, columns: NDArray[np.int64], t_s: Floats, rate: Floats, replicas: Floats) -> Floats:
    wait = prefill_wait(rate, replicas, pool.mean[columns], pool.cv2[columns], pool.arrival_cv2)
    theta = np.where(np.isfinite(wait.theta_s), np.maximum(wait.theta_s, 1e-12), 1e30)
    service = pool.single[:, columns].reshape(len(pool.weight), *([1] * (rate.ndim - 1)), len(columns))
    left = t_s - service
    survive = np.where(left >= 0, wait.wait_probability * np.exp(-np.maximum(left, 0.0) / theta), 1.0)
    return np.where(wait.utilisation >= 1, 1.0, np.tensordot(pool.weight, survive, axes=(0, 0)))


def _time(t_s: ArrayLike, shape: tuple[int, ...]) -> Floats:
    """A time per pool as (1, ..., C)."""
    return np.broadcast_to(np.asarray(t_s, dtype=np.float64), shape)[None]


def _after(extra_s: ArrayLike, pool: _Pool, dimensions: int) -> Floats:
    """A latency after the pass (scalar, (C,) or (K, C)) as (K, 1.., C)."""
    extra = np.broadcast_to(np.asarray(extra_s, dtype=np.float64), pool.single.shape)
    return extra.reshape(extra.shape[0], *([1] * (dimensions - 1)), extra.shape[1])


def prefill_utilisation(rate_req_per_s: ArrayLike, replicas: ArrayLike, service: PrefillService) -> Floats:
    """Rate over the rate at which the pool is always busy with full passes, (..., C); at 1 the queue grows without end."""
    pool = _pool(service)
    rate, n = _grid(rate_req_per_s, replicas, pool.single.shape[1])
    out: Floats = rate / (n * _ceiling(pool))
    return out


def mean_pass_s(rate_req_per_s: ArrayLike, replicas: ArrayLike, service: PrefillService) -> Floats:
    """Mean duration of a pass, (..., C): with several ranks it grows with the load."""
    pool = _pool(service)
    rate, n = _grid(rate_req_per_s, replicas, pool.single.shape[1])
    mean = np.array(np.broadcast_to(pool.mean, rate.shape))
    if pool.passes is not None:
        part = pool.shared
        mean[..., part] = mean_pass_at(pool.passes, (rate / n)[..., part])
    return mean


def ttft_tail(
    t_s: ArrayLike,
    rate_req_per_s: ArrayLike,
    replicas: ArrayLike,
    service: PrefillService,
    *,
    extra_s: ArrayLike = 0.0,
    grouped: bool = True,
) -> Floats:
    """P(wait + pass + extra > t).

    Parameters
    ----------
    t_s, rate_req_per_s, replicas : array_like
        Broadcast to (..., C). Time, arrival rate of the whole pool, replicas in it.
    service : PrefillService
        Of C layouts.
    extra_s : scalar, (C,) or (K, C)
        Each request's latency after its pass (KV transfer, first decode step).
    grouped : bool
        Layouts with ranks: support points of similar work are taken together, fine unless `extra_s` differs among them.

    Returns
    -------
    ndarray (..., C)
    """
    pool = _pool(service)
    shape = np.broadcast_shapes(np.shape(t_s), np.shape(rate_req_per_s), np.shape(replicas), pool.single.shape[1:])
    rate, n = (np.broadcast_to(np.asarray(x, dtype=np.float64), shape) for x in (rate_req_per_s, replicas))
    return _tail(pool, _time(t_s, shape) - _after(extra_s, pool, len(shape)), rate, n, grouped=grouped)


def ttft_mean_s(
    rate_req_per_s: ArrayLike, replicas: ArrayLike, service: PrefillService, *, extra_s: ArrayLike = 0.0
) -> Floats:
    """Mean of wait + pass + extra, (..., C); infinite where the pool is unstable. Parameters as in :func:`ttft_tail`."""
    pool = _pool(service)
    rate, n = _grid(rate_req_per_s, replicas, pool.single.shape[1])
    extra = pool.weight @ np.broadcast_to(np.asarray(extra_s, dtype=np.float64), pool.single.shape)
    wait = prefill_wait(rate, n, pool.mean, pool.cv2, pool.arrival_cv2)
    busy, sending = _sending(pool, rate, n)
    hidden = pool.hidden.reshape(len(pool.weight), *([1] * (rate.ndim - 1)), -1)
    delayed = busy * sending * np.tensordot(pool.weight, np.exp(-hidden / np.maximum(sending, 1e-300)), axes=(0, 0))
    mean = wait.mean_wait_s + pool.mean
    stable = rate < n * _ceiling(pool)
    if pool.passes is not None:
        part = pool.shared
        # The integral of the tail, over nodes denser near zero.
        top = _upper(pool, 0.9999, rate, n)[..., part]
        edges = np.linspace(0.0, 1.0, _MEAN_NODES + 1) ** 2
        middle = (edges[1:] + edges[:-1]) / 2
        sums = np.zeros(top.shape)
        for u, width in zip(middle, np.diff(edges), strict=True):
            t = np.zeros(rate.shape)
            t[..., part] = u * top
            sums += _tail_computed(pool, t[None], rate, n, grouped=True)[..., part] * width * top
        mean = np.array(mean)
        mean[..., part] = sums
    return np.where(stable, mean + delayed + extra, np.inf)


def _upper(pool: _Pool, q: float, rate: Floats, replicas: Floats) -> Floats:
    """A time above the q-quantile of wait + pass, (..., C); any number where the pool is unstable."""
    slowest = pool.single.max(axis=0)
    wait = prefill_wait(rate, replicas, pool.mean, pool.cv2, pool.arrival_cv2)
    top = slowest + np.where(wait.utilisation < 1, wait.theta_s, 0.0) * -math.log1p(-q)
    if pool.passes is not None:
        part, top = pool.shared, np.array(top)
        top[..., part] = slowest[part]
        stable = rate < replicas * _ceiling(pool)
        for _ in range(40):
            late = stable & (_tail(pool, top[None], rate, replicas) > 1 - q + _SLACK)
            late[..., pool.alone] = False
            if not late.any():
                break
            top = np.where(late, 2 * top, top)
    busy, sending = _sending(pool, rate, replicas)
    sending = np.where(busy < 1, sending, 0.0)
    return np.asarray(top + EXPONENTIAL_NODES[-1][0] * sending, dtype=np.float64)


def ttft_quantile_s(
    q: float, rate_req_per_s: ArrayLike, replicas: ArrayLike, service: PrefillService, *, extra_s: ArrayLike = 0.0
) -> Floats:
    """q-quantile of wait + pass + extra, (..., C); infinite where the pool is unstable. As in :func:`ttft_tail`."""
    if not 0 < q < 1:
        raise ValueError(f"q is {q!r}; a fraction strictly between 0 and 1 is accepted")
    pool = _pool(service)
    rate, n = _grid(rate_req_per_s, replicas, pool.single.shape[1])
    extra = _after(extra_s, pool, rate.ndim)
    low, high = np.zeros(rate.shape), _upper(pool, q, rate, n) + extra.max(axis=0)
    for _ in range(45):
        middle = (low + high) / 2
        late = _tail(pool, middle[None] - extra, rate, n) > 1 - q + _SLACK
        low, high = np.where(late, middle, low), np.where(late, high, middle)
    return np.where(rate < n * _ceiling(pool), high, np.inf)


def prefill_capacity_req_per_s(
    service: PrefillService,
    replicas: ArrayLike,
    targets: Sequence[tuple[float, float]],
    extra_s: ArrayLike = 0.0,
    *,
    max_utilisation: float = MAX_UTILISATION,
) -> Floats:
    """Largest rate at which n replicas meet every TTFT target.

    Parameters
    ----------
    service : PrefillService
        Of C layouts.
    replicas : (N,) or (N, C) int
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
        0 where the unloaded latency already breaks a target. Found from below to 2^-15 of the rate at the cap.
    """
    for q, limit in targets:
        if not (0 < q < 1 and limit > 0):
            raise ValueError(f"target (q={q!r}, limit={limit!r} s): 0 < q < 1 and a positive limit are accepted")
    pool = _pool(service)
    n = np.asarray(replicas, dtype=np.float64)
    n = np.array(np.broadcast_to(n if n.ndim == 2 else n[:, None], (len(n), pool.single.shape[1])))
    extra = _after(extra_s, pool, 2)
    out = np.zeros(n.shape)
    # Layouts that miss a target when idle are left out of the search.
    idle = _met(pool, targets, n[-1:] * _ceiling(pool) * 1e-6, n[-1:], extra)[0]
    columns = np.flatnonzero(idle)
    if len(columns):
        out[:, columns] = _search(_columns(pool, columns), targets, n[:, columns], extra[..., columns], max_utilisation)
    return out


def _met(
    pool: _Pool, targets: Sequence[tuple[float, float]], rate: Floats, replicas: Floats, extra: Floats
) -> NDArray[np.bool_]:
    """Whether every target holds, (N, C)."""
    uneven = np.zeros(pool.single.shape[1])
    uneven[pool.shared] = _UNEVEN
    ok = np.ones(rate.shape, dtype=np.bool_)
    for q, limit in targets:
        ok &= _tail(pool, limit - extra, rate, replicas) <= (1 - q) * (1 - uneven) + _SLACK
    return ok


def _search(
    pool: _Pool, targets: Sequence[tuple[float, float]], n: Floats, extra: Floats, max_utilisation: float
) -> Floats:
    """The capacity of each pool, from below, (N, C)."""
    ceiling = n * _ceiling(pool) * max_utilisation
    low, high = np.zeros(ceiling.shape), ceiling.copy()
    low = np.where(_met(pool, targets, ceiling, n, extra), ceiling, low)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        good = _met(pool, targets, middle, n, extra)
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    return np.where(low > ceiling * 1e-6, low, 0.0)
