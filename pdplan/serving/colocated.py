"""Colocated replicas with chunked prefill: both latencies at once, and what prefill does to decode.

An iteration of at most `chunk_tokens` tokens carries B decode tokens and fills the rest with prefill:
time = base + per_sequence B + prefill work (pdplan latency model, section 8.4). With arrival rate lam, mean
prefill work
w and O decode steps,  den = 1 - lam w - lam O per_sequence;  TPOT = base/den;  B = lam O base/den.  Prefill is an M/G/1
queue whose service is the chunks' iterations. Each replica is taken alone (balanced random routing).

Spread of TPOT: the in-flight count as in decode, with base and slope stretched by 1/(1 - lam w), plus the random amount
of prefill work that arrives during a request's own life (compound Poisson), which hits short answers
hardest. The sum is
taken as a gamma above `base` per support point. That spread is pdplan's own extension of section 8.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdplan.serving.decode import ADMISSION_WAIT_PROBABILITY, life_factor, negbin_quantile
from pdplan.serving.normal import gamma_tail

__all__ = [
    "ColocatedCapacity",
    "ColocatedModel",
    "ColocatedState",
    "colocated_capacity_req_per_s",
    "colocated_state",
    "itl_quantile_s",
    "tpot_mean_s",
    "tpot_quantile_s",
    "tpot_tail",
    "ttft_mean_s",
    "ttft_quantile_s",
    "ttft_tail",
]

Floats = NDArray[np.float64]
_BISECTIONS = 22
MAX_UTILISATION = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class ColocatedModel:
    """C candidates; arrays (C,), (K,) or (K, C) as noted."""

    base_s: Floats
    """(C,) iteration time with nothing in it."""
    per_sequence_s: Floats
    """(C,) what one decoding sequence adds to an iteration."""
    prefill_work_s: Floats
    """(K, C) work of a support point's whole prefill beyond `base_s`."""
    new_tokens: Floats
    """(K,) tokens to prefill."""
    decode_steps: Floats
    """(K,) or (K, C) iterations a request decodes: (output - 1) / tokens per step."""
    weight: Floats
    """(K,), sums to 1."""
    chunk_tokens: Floats
    """(C,) tokens per iteration of the whole replica."""
    tokens_per_step: float = 1.0


class ColocatedState(NamedTuple):
    """One replica at a rate; arrays (..., C)."""

    iteration_s: Floats
    """Mean time per decode step."""
    mean_batch: Floats
    batch_variance: Floats
    prefill_utilisation: Floats
    """rho of the prefill queue."""
    prefill_share: Floats
    """Share of time that is prefill work (lam w)."""
    full_iteration_s: Floats
    """An iteration whose chunk is full."""
    mean_wait_s: Floats
    stable: NDArray[np.bool_]


def _steps(model: ColocatedModel) -> Floats:
    steps = np.asarray(model.decode_steps, dtype=np.float64)
    return np.broadcast_to(steps if steps.ndim == 2 else steps[:, None], model.prefill_work_s.shape)


def _expand(values: Floats, like: Floats) -> Floats:
    """(K, C) -> (K, 1.., C) so that it broadcasts against (..., C)."""
    return values.reshape(values.shape[0], *([1] * (like.ndim - 1)), values.shape[1])


def colocated_state(rate_req_per_s: ArrayLike, model: ColocatedModel) -> ColocatedState:
    """State of ONE replica that receives `rate_req_per_s`, broadcast to (..., C)."""
    shape = np.broadcast_shapes(np.shape(rate_req_per_s), model.base_s.shape)
    lam = np.broadcast_to(np.asarray(rate_req_per_s, dtype=np.float64), shape)
    work = model.weight @ model.prefill_work_s
    steps = model.weight @ _steps(model)
    share = lam * work
    den = 1 - share - lam * steps * model.per_sequence_s
    safe = np.maximum(den, 1e-9)
    iteration = model.base_s / safe
    batch = lam * steps * iteration
    room = model.chunk_tokens - batch
    stable = (den > 0) & (room > 0) & (share < 1)
    room = np.where(stable, room, 1.0)
    decode_part = model.base_s + model.per_sequence_s * batch
    tokens = model.weight @ model.new_tokens
    full = decode_part + work / tokens * room
    chunks = model.new_tokens.reshape(-1, *([1] * lam.ndim)) / room
    service = chunks * decode_part + _expand(model.prefill_work_s, lam)
    rho = lam * np.tensordot(model.weight, service, axes=(0, 0))
    second = np.tensordot(model.weight, service**2, axes=(0, 0))
    stable &= rho < 1
    wait = np.where(stable, lam * second / (2 * np.maximum(1 - rho, 1e-12)), np.inf)
    stretch = np.maximum(1 - share, 1e-9)
    p = np.clip(lam * steps * model.per_sequence_s / stretch, 0.0, 1 - 1e-9)
    return ColocatedState(
        np.where(stable, iteration, np.inf),
        np.where(stable, batch, np.inf),
        np.where(stable, batch / (1 - p), np.inf),
        rho,
        share,
        full,
        wait,
        stable,
    )


def _own(state: ColocatedState, model: ColocatedModel) -> Floats:
    """Iterations of a request's own prefill, (K, ..., C): one short one, or as many full ones as it has chunks.

    Requests that arrive during one iteration (lam x iteration of them) share the next; their work is added
    here. Section
    8.4 leaves it out and says so; with it the means of its table of simulations come out within 7 % at every budget.
    """
    batch = np.where(state.stable, state.mean_batch, 0.0)
    room = np.maximum(np.where(state.stable, model.chunk_tokens - batch, 1.0), 1e-9)
    tokens = model.new_tokens.reshape(-1, *([1] * batch.ndim))
    decode_part = model.base_s + model.per_sequence_s * batch
    work = _expand(model.prefill_work_s, batch)
    chunks = np.ceil(tokens / room)
    mean_per_token = (model.weight @ model.prefill_work_s) / (model.weight @ model.new_tokens)
    # The last chunk's iteration is filled by the next request, unless the request fits in one iteration.
    filled = work + (chunks * room - tokens) * mean_per_token
    shared = state.prefill_share * np.where(state.stable, state.iteration_s, 0.0)
    out: Floats = np.where(tokens < room, decode_part + work, chunks * decode_part + filled) + shared
    return out


def ttft_mean_s(state: ColocatedState, model: ColocatedModel) -> Floats:
    """Queue + own iterations + half an iteration under way; pdplan latency model, section 8.4."""
    own = np.tensordot(model.weight, _own(state, model), axes=(0, 0))
    return np.where(state.stable, state.mean_wait_s + own + state.iteration_s / 2, np.inf)


def ttft_tail(t_s: ArrayLike, state: ColocatedState, model: ColocatedModel) -> Floats:
    """P(TTFT > t): wait zero with probability 1 - rho, else exponential with the M/G/1 mean."""
    residual = np.where(state.stable, state.iteration_s / 2, 0.0)
    rho = np.clip(state.prefill_utilisation, 1e-12, 1.0)
    theta = np.where(state.stable, np.maximum(np.where(state.stable, state.mean_wait_s, 1.0) / rho, 1e-12), 1e30)
    left = np.asarray(t_s, dtype=np.float64) - residual - _own(state, model)
    late = np.where(left >= 0, rho * np.exp(-np.maximum(left, 0.0) / theta), 1.0)
    return np.where(state.stable, np.tensordot(model.weight, late, axes=(0, 0)), 1.0)


def _search(tail: object, q: float, high: Floats) -> Floats:
    low = np.zeros(high.shape)
    for _ in range(50):
        middle = (low + high) / 2
        late = tail(middle) > 1 - q  # type: ignore[operator]
        low, high = np.where(late, middle, low), np.where(late, high, middle)
    return high


def ttft_quantile_s(q: float, state: ColocatedState, model: ColocatedModel) -> Floats:
    """q-quantile of TTFT, (..., C)."""
    rho = np.clip(state.prefill_utilisation, 1e-12, 1.0)
    wait = np.where(state.stable, state.mean_wait_s, 0.0) / rho * -np.log1p(-q)
    high = _own(state, model).max(axis=0) + np.where(state.stable, state.iteration_s, 0.0) + wait
    return np.where(state.stable, _search(lambda t: ttft_tail(t, state, model), q, high), np.inf)


def tpot_mean_s(state: ColocatedState, model: ColocatedModel) -> Floats:
    """Mean time per output token."""
    return state.iteration_s / model.tokens_per_step


def _step_groups(model: ColocatedModel) -> tuple[Floats, Floats]:
    """Decode steps (G, C) and weight (G,) of at most 12 groups of support points that decode equally long.

    The spread goes with 1/steps, so a group has the harmonic mean. Points that decode nothing have no TPOT.
    """
    steps = _steps(model)
    order = np.argsort(steps[:, 0], kind="stable")
    order = order[steps[order, 0] > 0]
    if not len(order):
        return np.ones((1, steps.shape[1])), np.ones(1)
    weight = model.weight[order]
    group = np.minimum((np.cumsum(weight) - weight / 2) / weight.sum() * 12, 11).astype(np.int64)
    _, group = np.unique(group, return_inverse=True)
    total = np.bincount(group, weights=weight)
    inverse = np.zeros((len(total), steps.shape[1]))
    np.add.at(inverse, group, weight[:, None] / np.maximum(steps[order], 1.0))
    return total[:, None] / inverse, total / total.sum()


def _tpot_spread(rate: Floats, state: ColocatedState, model: ColocatedModel) -> tuple[Floats, Floats, Floats]:
    """Mean (..., C) and variance (G, ..., C) of a request's own average step time, weight (G,)."""
    mean = np.where(state.stable, state.iteration_s, 1.0)
    stretch = np.maximum(1 - state.prefill_share, 1e-9)
    variance = np.where(state.stable, state.batch_variance, 0.0)
    crowd = (model.per_sequence_s / stretch) ** 2 * variance * life_factor(model.base_s / stretch, mean)
    second = model.weight @ model.prefill_work_s**2
    steps, weight = _step_groups(model)
    return mean, crowd + rate * mean * second / (_expand(steps, mean) * stretch**2), weight


def tpot_tail(t_s: ArrayLike, rate_req_per_s: ArrayLike, state: ColocatedState, model: ColocatedModel) -> Floats:
    """P(TPOT > t) over requests, (..., C); support points that decode nothing do not count."""
    rate = np.broadcast_to(np.asarray(rate_req_per_s, dtype=np.float64), state.iteration_s.shape)
    mean, variance, counted = _tpot_spread(rate, state, model)
    above = np.maximum(mean - model.base_s, 1e-12)
    shape = above**2 / np.maximum(variance, 1e-18)
    x = np.asarray(t_s, dtype=np.float64) * model.tokens_per_step - model.base_s
    tail = gamma_tail(x / above, shape)
    return np.where(state.stable, np.tensordot(counted, np.where(x > 0, tail, 1.0), axes=(0, 0)), 1.0)


def tpot_quantile_s(q: float, rate_req_per_s: ArrayLike, state: ColocatedState, model: ColocatedModel) -> Floats:
    """q-quantile over requests of the time per output token, (..., C)."""
    rate = np.broadcast_to(np.asarray(rate_req_per_s, dtype=np.float64), state.iteration_s.shape)
    mean, variance, _ = _tpot_spread(rate, state, model)
    high = (mean + np.sqrt(variance.max(axis=0)) * (10 + 1 / np.sqrt(1 - q))) / model.tokens_per_step
    return np.where(state.stable, _search(lambda t: tpot_tail(t, rate, state, model), q, high), np.inf)


def itl_quantile_s(q: float, state: ColocatedState, model: ColocatedModel) -> Floats:
    """q-quantile over tokens of the gap between two tokens.

    A share of iterations carries a full chunk (`full_iteration_s`), the others only decode; the share makes the mean
    iteration come out. q = 1 gives the largest gap of ordinary operation: a full chunk beside the p99.9 batch.
    """
    batch = np.where(state.stable, state.mean_batch, 0.0)
    decode_only = model.base_s + model.per_sequence_s * batch
    mean = np.where(state.stable, state.iteration_s, 1.0)
    share = np.clip((mean - decode_only) / np.maximum(state.full_iteration_s - decode_only, 1e-12), 0.0, 1.0)
    top = negbin_quantile(0.999, batch, np.where(state.stable, state.batch_variance, 0.0))
    largest = state.full_iteration_s + model.per_sequence_s * np.maximum(top - batch, 0.0)
    ordinary = np.where(q <= 1 - share, decode_only, state.full_iteration_s)
    return np.where(state.stable, largest if q >= 1 else ordinary, np.inf)


class ColocatedCapacity(NamedTuple):
    """Of one replica; arrays (C,)."""

    rate_req_per_s: Floats
    batch: Floats
    utilisation: Floats


def colocated_capacity_req_per_s(
    model: ColocatedModel,
    ttft_targets: Sequence[tuple[float, float]],
    tpot_targets: Sequence[tuple[float, float]],
    max_batch: ArrayLike,
    *,
    extra_s: ArrayLike = 0.0,
    admission_wait_probability: float = ADMISSION_WAIT_PROBABILITY,
    max_utilisation: float = MAX_UTILISATION,
) -> ColocatedCapacity:
    """Largest rate at which one replica meets all targets and its KV memory suffices; n replicas serve n times that.

    `ttft_targets` and `tpot_targets` are (q, limit_s) pairs; `extra_s` (C,) is added to every TTFT.
    """
    for q, limit in [*ttft_targets, *tpot_targets]:
        if not (0 < q < 1 and limit > 0):
            raise ValueError(f"target (q={q!r}, limit={limit!r} s): 0 < q < 1 and a positive limit are accepted")
    most = np.broadcast_to(np.asarray(max_batch, dtype=np.float64), model.base_s.shape)
    work = model.weight @ model.prefill_work_s + (model.weight @ _steps(model)) * model.per_sequence_s

    def met(rate: Floats) -> NDArray[np.bool_]:
        state = colocated_state(rate, model)
        ok = state.stable & (state.prefill_utilisation <= max_utilisation)
        held = negbin_quantile(
            1 - admission_wait_probability, np.where(ok, state.mean_batch, 1.0), np.where(ok, state.batch_variance, 1.0)
        )
        ok &= held <= most
        for q, limit in ttft_targets:
            ok &= ttft_tail(limit - np.asarray(extra_s), state, model) <= 1 - q
        for q, limit in tpot_targets:
            ok &= tpot_tail(limit, rate, state, model) <= 1 - q
        return ok

    ceiling = 1.0 / np.maximum(work, 1e-12)
    low, high = np.zeros(ceiling.shape), ceiling.copy()
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        good = met(middle)
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    none = low <= ceiling * 1e-5
    rate = np.where(none, 0.0, low)
    state = colocated_state(rate, model)
    return ColocatedCapacity(rate, np.where(none, 0.0, state.mean_batch), state.prefill_utilisation)
