"""Serving at fixed concurrency: N users, each sending the next request when the last one is answered.

This is how benchmarks are run. Source: pdplan latency model, section 5 (docs/explanation/latency-model.md). Everything
is vectorised over C deployments; a colocated deployment is one whose replicas prefill and decode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdplan.perf.layout import Layouts
from pdplan.perf.model import LatencyModel
from pdplan.perf.transfer import kv_transfer_s

__all__ = [
    "BOTTLENECKS",
    "SATURATED_UTILISATION",
    "ClosedLoopResult",
    "PrefillPool",
    "closed_loop",
    "prefill_waiting",
]

Floats = NDArray[np.float64]

SATURATED_UTILISATION = 0.85
"""Above this prefill utilisation a 10 % capacity error moves the waiting time by 50 to 500 %."""
BOTTLENECKS = ("load", "prefill", "memory", "admission", "interleaving", "none fits")
"""load: more users would get more; prefill: the prefill pool is full; memory: the cache is full; admission: the
engine's batch limit; interleaving: prefill takes the decode steps' time (colocated); none fits: no sequence fits."""
_BISECTIONS = 48
_HIGHEST_UTILISATION = 0.9999
_LEAST_SHARE = 0.03
"""Colocated decode keeps at least this share of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPool:
    """The prefill side of disaggregated deployments."""

    latency: LatencyModel
    layouts: Layouts
    """(C,), aligned with the decode layouts."""
    replicas: ArrayLike = 1
    token_budget: ArrayLike | None = None
    """New tokens per pass and attention rank; None is the engine's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoopResult:
    """Steady state of C deployments; every array is (C,). NaN where not even one sequence fits."""

    ttft_s: Floats
    """Median time to first token as a client sees it."""
    tpot_s: Floats
    request_rate_per_s: Floats
    output_tok_per_s: Floats
    """Whole deployment."""
    total_tok_per_s_per_card: Floats
    """Input and output tokens over all cards."""
    batch: Floats
    """Mean sequences in decode per replica."""
    max_batch: Floats
    prefill_utilisation_frac: Floats
    decode_utilisation_frac: Floats
    """Batch over the largest batch that fits."""
    queue_s: Floats
    """Part of the TTFT spent in front of a full pool."""
    bottleneck: NDArray[np.str_]
    saturated: NDArray[np.bool_]
    """A queue grows in front of a full pool: its waiting time is an order of magnitude, not a number."""


def _queue_wait(service: Floats, rho: Floats, servers: Floats) -> Floats:
    """Mean wait at `servers` parallel servers of deterministic-like service (Sakasegawa's approximation of M/G/c)."""
    result: Floats = service * rho ** np.sqrt(2 * (servers + 1)) / (2 * servers * (1 - rho))
    return result


def prefill_waiting(
    rate: Floats,
    alone: Floats,
    full: Floats,
    per_pass: Floats,
    capacity: Floats,
    replicas: Floats,
    ranks: Floats,
    *,
    colocated: bool,
) -> tuple[Floats, Floats]:
    """Mean time of a request's own prefill pass, and its wait before that pass, in seconds (section 5, step 4)."""
    rho = np.minimum(rate / capacity, _HIGHEST_UTILISATION)
    service = alone + (full - alone) * rho
    if colocated:
        busy = np.minimum(rho, 0.97)
        return service, service / per_pass * busy / (2 * (1 - busy))
    return service, _queue_wait(service, rho, np.maximum(replicas * ranks, 1.0))


def closed_loop(
    latency: LatencyModel,
    layouts: Layouts,
    *,
    concurrency: ArrayLike,
    input_tokens: ArrayLike,
    output_tokens: ArrayLike,
    cached_tokens: ArrayLike = 0.0,
    replicas: ArrayLike = 1,
    prefill: PrefillPool | None = None,
    token_budget: ArrayLike | None = None,
    max_batch: ArrayLike | None = None,
    transfer_s: ArrayLike | None = None,
    ramp_frac: float = 0.0,
) -> ClosedLoopResult:
    r"""Find the largest request rate that N users can keep up.

    The unknown is the decode batch B of one replica: it fixes the step time, hence the rate X, hence waiting and
    latency; by Little's law :math:`X (TTFT + (O - 1) TPOT) \le N`. B is bisected.

    Parameters
    ----------
    latency : LatencyModel
        Of the decode (or colocated) replicas.
    layouts : Layouts
        C decode (or colocated) layouts.
    concurrency : array_like
        Requests in flight over the whole deployment.
    input_tokens, output_tokens, cached_tokens : array_like
        Mean prompt, answer and cached prefix per request.
    replicas : array_like
        Decode (or colocated) replicas.
    prefill : PrefillPool, optional
        The prefill side; None is colocated serving.
    token_budget : array_like, optional
        Colocated: tokens one prefill takes per attention rank; None is the engine's.
    max_batch : array_like, optional
        Admission limit of one decode replica, sequences.
    transfer_s : array_like, optional
        Hand-over of one request's cache; None is inside one site, over the NICs of the sending ranks.
    ramp_frac : float
        Share of a run that ramp and drain cost; the public benchmark's is 0.05. Rates are reduced by it.

    Returns
    -------
    ClosedLoopResult
    """
    shape = (len(layouts),)
    users, s, o, cached, n_d = (
        np.broadcast_to(np.asarray(v, dtype=np.float64), shape)
        for v in (concurrency, input_tokens, output_tokens, cached_tokens, replicas)
    )
    pool = prefill or PrefillPool(latency=latency, layouts=layouts, replicas=replicas, token_budget=token_budget)
    colocated = prefill is None
    new = s - cached
    general, engine = pool.latency.general, pool.latency.engine_constants
    n_p = np.broadcast_to(np.asarray(pool.replicas, dtype=np.float64), shape)
    budget = pool.latency.engine.prefill_token_budget if pool.token_budget is None else pool.token_budget
    ranks = np.asarray(pool.layouts.attention_dp, dtype=np.float64)
    per_pass = ranks * np.maximum(np.asarray(budget, dtype=np.float64) / np.maximum(new, 1.0), 1.0)
    alone = pool.latency.prefill_pass_s(pool.layouts, new, cached)
    full = pool.latency.prefill_pass_s(pool.layouts, new, cached, per_pass)
    capacity = n_p * per_pass / pool.latency.prefill_interval_s(pool.layouts, new, cached, per_pass)
    if colocated:
        transfer = np.zeros(shape)
    elif transfer_s is None:
        transfer = kv_transfer_s(
            pool.latency.kv_transfer_bytes(pool.layouts, s),
            sender_bandwidth_bytes_per_s=pool.latency.nic_bandwidth_bytes_per_s(pool.layouts),
            parallel_senders=pool.latency.kv_transfer_senders(pool.layouts),
            efficiency_frac=general["transfer_efficiency"],
            handshake_s=general["transfer_latency_s"],
        )
    else:
        transfer = np.broadcast_to(np.asarray(transfer_s, dtype=np.float64), shape)
    per_step = latency.tokens_per_step(layouts)
    context = s + o / 2
    resident = latency.max_batch(layouts, s + o)
    admitted = np.inf if max_batch is None else np.asarray(max_batch, dtype=np.float64)
    ceiling = np.minimum(np.minimum(resident, admitted), users / n_d)
    fits = ceiling > 0
    ceiling = np.where(fits, ceiling, 1.0)
    # others in the system that may be prefilling while one decodes, per replica
    others = np.maximum(users / n_d - 1, 0.0) / np.maximum(users / n_d, 1.0)
    first_steps = engine["first_token_steps"] + engine["poll_interval_steps"] / 2 * general["poll_weight"]

    def stolen(rate: Floats) -> Floats:
        """Share of a colocated replica's time that prefill takes at `rate` requests/s."""
        busy = np.minimum(rate * full / per_pass / n_d, 0.97)
        together = 1 + (per_pass - 1) * busy
        marginal = (alone + (full - alone) * busy) / together
        share = np.minimum(general["prefill_interleave"] * rate / n_d * marginal * others, 0.97)
        return np.minimum(share, 1 - _LEAST_SHARE)

    def state(batch: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """(rate, TTFT without queue residual, TPOT, prefill utilisation, share stolen) at a decode batch."""
        step = latency.decode_step_s(layouts, batch, context)
        undisturbed = batch * n_d * per_step / (o * step)
        share = np.zeros(shape)
        rate = undisturbed
        if colocated:
            rate = _fixed_point(lambda x: undisturbed * (1 - stolen(x)), undisturbed)
            share = stolen(rate)
        tpot = step / (1 - share) / per_step
        rho = np.minimum(rate / capacity, _HIGHEST_UTILISATION)
        service, wait = prefill_waiting(
            rate, alone, full, per_pass, capacity, n_p * pool.layouts.pp, ranks, colocated=colocated
        )
        ttft = service + wait * general["queue_weight"] + transfer + engine["request_overhead_ms"]
        ttft = ttft + np.where(users > 1, first_steps * step, 0.0)
        return rate, ttft, tpot, rho, share

    low, high = np.log(ceiling) - 12.0, np.log(ceiling)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        rate, ttft, tpot, _, _ = state(np.exp(middle))
        over = (rate * (ttft + (o - 1) * tpot) > users) | (rate >= capacity * _HIGHEST_UTILISATION)
        high, low = np.where(over, middle, high), np.where(over, low, middle)
    batch = np.exp(low)
    rate, ttft, tpot, rho, share = state(batch)
    queue = np.maximum(users / rate - (ttft + (o - 1) * tpot), 0.0)
    full_batch = batch > 0.98 * np.minimum(resident, admitted)
    waiting = queue > 0.1 * (ttft + (o - 1) * tpot)
    bottleneck = np.select(
        [~fits, full_batch & (resident <= admitted), full_batch, rho > SATURATED_UTILISATION, share > 0.5],
        [BOTTLENECKS[5], BOTTLENECKS[2], BOTTLENECKS[3], BOTTLENECKS[1], BOTTLENECKS[4]],
        BOTTLENECKS[0],
    )
    cards = n_d * layouts.cards_per_replica
    if not colocated:
        cards = cards + n_p * pool.layouts.cards_per_replica
    rate_seen = rate * (1 - ramp_frac)

    def known(values: Floats) -> Floats:
        return np.where(fits, values, np.nan)

    return ClosedLoopResult(
        ttft_s=known(ttft + queue),
        tpot_s=known(tpot),
        request_rate_per_s=known(rate_seen),
        output_tok_per_s=known(rate_seen * o),
        total_tok_per_s_per_card=known(rate_seen * (s + o) / cards),
        batch=known(batch),
        max_batch=np.minimum(resident, admitted),
        prefill_utilisation_frac=known(rate / capacity),
        decode_utilisation_frac=known(batch / np.maximum(np.minimum(resident, admitted), 1e-300)),
        queue_s=known(queue),
        bottleneck=bottleneck,
        saturated=fits & ((rho > SATURATED_UTILISATION) | (full_batch & waiting)),
    )


def _fixed_point(step: Callable[[Floats], Floats], start: Floats) -> Floats:
    """Solve x = step(x) for a decreasing `step` by bisection on (0, start]."""
    low, high = np.zeros_like(start), start
    for _ in range(30):
        middle = (low + high) / 2
        above = step(middle) > middle
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return (low + high) / 2
