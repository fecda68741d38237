r"""Colocated replicas with chunked prefill: both latencies at once, and what prefill does to decode.

An iteration of at most `chunk_tokens` tokens carries B decode tokens and fills the rest with prefill:
time = base + per_sequence B + prefill work. With arrival rate lam, mean prefill work w and O decode steps,
``den = 1 - lam w - lam O per_sequence``;  mean iteration = base/den;  B = lam O base/den.
Each replica is taken alone (balanced random routing). The page "Where waiting comes from" derives what follows; in short:

* saturation is where every iteration is full: then B sequences leave room for as many prompts as are decoded;
* a prompt waits as in M/G/1 served in full chunks. What fits into one iteration together does not wait; slow changes
  of B and the growth of B while the queue is busy stretch the wait;
* who does not wait sits out the iteration under way (long ones more likely) and shares the next with those who come meanwhile;
* TPOT averages iterations over a request's own steps. Its mean starts at that of an iteration met at a random time,
  its variance falls with the number of steps over their correlation, and it lies between an empty and a full iteration:
  a beta distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdplan.serving.decode import ADMISSION_WAIT_PROBABILITY, life_factor, negbin_quantile
from pdplan.serving.normal import beta_tail, gamma_quantile

__all__ = [
    "ColocatedCapacity",
    "ColocatedModel",
    "ColocatedState",
    "colocated_capacity_req_per_s",
    "colocated_state",
    "itl_quantile_s",
    "saturation_req_per_s",
    "tpot_mean_s",
    "tpot_quantile_s",
    "tpot_tail",
    "ttft_mean_s",
    "ttft_quantile_s",
    "ttft_tail",
]

Floats = NDArray[np.float64]
_STAGES, _BISECTIONS = 8, 14
_UNEVEN = 0.005
"""Headroom of capacities, relative to the share that may be late: groups of prompts make a tail dip a little as the rate grows."""
MAX_UTILISATION = 0.95
_FEEDBACK_ROUNDS = 12
_STEP_GROUPS = 12
_EDGES = np.concatenate([np.arange(0.04, 0.93, 0.04), [0.94, 0.96, 0.975, 0.985, 0.992, 0.997]])
"""Cumulative shares at which prompts of similar length are taken together, finer where percentiles are asked."""
_TWO = (0.5 - 0.5 / math.sqrt(3.0), 0.5 + 0.5 / math.sqrt(3.0))
"""Gauss-Legendre levels of equal weight on (0, 1)."""
_THREE = ((0.1127016653792583, 5 / 18), (0.5, 8 / 18), (0.8872983346207417, 5 / 18))


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
    arrival_cv2: float = 1.0
    """Squared coefficient of variation of the gaps between arrivals (1 for Poisson)."""


class _Moments(NamedTuple):
    """Sums over the support points, prompts in order of length; (C,) or (K + 1, C) where cumulative."""

    tokens: Floats
    """(K,) in order."""
    mean_tokens: float
    square_tokens: float
    work: Floats
    square_work: Floats
    steps: Floats
    cumulative: tuple[Floats, ...]
    """Over prompts up to a length: weight (K + 1,), tokens, tokens^2, work, work x tokens, work^2."""
    group_tokens: Floats
    """(G,)"""
    group_work: Floats
    """(G, C)"""
    group_weight: Floats


def _steps(model: ColocatedModel) -> Floats:
    steps = np.asarray(model.decode_steps, dtype=np.float64)
    return np.broadcast_to(steps if steps.ndim == 2 else steps[:, None], model.prefill_work_s.shape)


def _moments(model: ColocatedModel) -> _Moments:
    order = np.argsort(model.new_tokens, kind="stable")
    tokens, work, weight = model.new_tokens[order], model.prefill_work_s[order], model.weight[order]
    share = weight[:, None]

    def running(values: Floats) -> Floats:
        return np.concatenate([np.zeros((1, *values.shape[1:])), np.cumsum(values, axis=0)])

    group = np.searchsorted(_EDGES, np.cumsum(weight) - weight / 2)
    group = np.unique(group, return_inverse=True)[1]
    sums = np.zeros((int(group.max()) + 1, len(weight)))
    sums[group, np.arange(len(weight))] = weight
    total = sums.sum(axis=1)
    return _Moments(
        tokens=tokens,
        mean_tokens=float(weight @ tokens),
        square_tokens=float(weight @ tokens**2),
        work=weight @ work,
        square_work=weight @ work**2,
        steps=model.weight @ _steps(model),
        cumulative=(
            running(weight),
            running(weight * tokens),
            running(weight * tokens**2),
            running(share * work),
            running(share * work * tokens[:, None]),
            running(share * work**2),
        ),
        group_tokens=sums @ tokens / total,
        group_work=sums @ work / total[:, None],
        group_weight=total,
    )


class ColocatedState(NamedTuple):
    """One replica at a rate; arrays (..., C)."""

    rate_req_per_s: Floats
    iteration_s: Floats
    """Mean over iterations."""
    decode_iteration_s: Floats
    """An iteration without prefill."""
    full_iteration_s: Floats
    """An iteration whose chunk is full."""
    room_tokens: Floats
    """Prompt tokens of a full chunk."""
    mean_batch: Floats
    batch_variance: Floats
    utilisation: Floats
    """Rate over the rate of saturation."""
    prefill_utilisation: Floats
    """Time to serve the prompts in full chunks beside the mean batch, over all time."""
    prefill_share: Floats
    """Share of time that is prefill work (lam w)."""
    iteration_variance_s2: Floats
    met_mean_s: Floats
    """Of the iteration met at a random time, which is more likely a long one."""
    met_variance_s2: Floats
    correlation_steps: Floats
    """Iterations over which their durations resemble one another."""
    wait_probability: Floats
    wait_offset_s: Floats
    """Least wait of those who wait: shorter ones vanish in the iteration everyone sits out."""
    wait_scale_s: Floats
    """Mean wait beyond it."""
    stable: NDArray[np.bool_]


def _expand(values: Floats, like: Floats) -> Floats:
    """(K, C) -> (K, 1.., C) so that it broadcasts against (..., C)."""
    return values.reshape(values.shape[0], *([1] * (like.ndim - 1)), values.shape[1])


def saturation_req_per_s(model: ColocatedModel) -> Floats:
    """Rate at which every iteration of one replica is full, (C,).

    Then decode and prefill keep pace, B / O = (chunk - B) / tokens per iteration.
    """
    return _saturation(model, _moments(model))


def _saturation(model: ColocatedModel, m: _Moments) -> Floats:
    batch = model.chunk_tokens * m.steps / (m.mean_tokens + m.steps)
    room = model.chunk_tokens - batch
    full = model.base_s + model.per_sequence_s * batch + m.work / m.mean_tokens * room
    out: Floats = room / m.mean_tokens / full
    return out


def colocated_state(rate_req_per_s: ArrayLike, model: ColocatedModel) -> ColocatedState:
    """State of ONE replica that receives `rate_req_per_s`, broadcast to (..., C)."""
    return _state(np.asarray(rate_req_per_s, dtype=np.float64), model, _moments(model))


def _state(rate: Floats, model: ColocatedModel, m: _Moments) -> ColocatedState:
    lam = np.broadcast_to(rate, np.broadcast_shapes(np.shape(rate), model.base_s.shape))
    share = lam * m.work
    den = 1 - share - lam * m.steps * model.per_sequence_s
    utilisation = lam / _saturation(model, m)
    stable = (den > 0) & (share < 1) & (utilisation < 1)
    iteration = model.base_s / np.where(stable, den, 1.0)
    batch = lam * m.steps * iteration
    room = model.chunk_tokens - batch
    stable &= room > 0
    room = np.where(stable, room, model.chunk_tokens)
    decode_only = model.base_s + model.per_sequence_s * np.where(stable, batch, 0.0)
    full = decode_only + m.work / m.mean_tokens * room
    small = np.searchsorted(m.tokens, room, side="right")
    columns = np.broadcast_to(np.arange(room.shape[-1]), room.shape)
    per_chunk = decode_only / room

    def served(which: NDArray[np.int64] | int) -> tuple[Floats, Floats]:
        """Mean and mean square of the time in full chunks of the prompts up to an index."""
        _, t1, t2, w1, wt, w2 = m.cumulative
        first = per_chunk * t1[which] + w1[which, columns]
        return first, per_chunk**2 * t2[which] + 2 * per_chunk * wt[which, columns] + w2[which, columns]

    mean, square = served(len(m.tokens))
    short, _ = served(small)
    rho = lam * mean
    stable &= rho < 1
    rho = np.where(stable, np.maximum(rho, 1e-12), 0.5)
    # One prompt more means one sequence more and the prompts that come while its work is done.
    stretch = np.maximum(1 - share, 1e-9)
    p = np.clip(lam * m.steps * model.per_sequence_s / stretch, 0.0, 1 - 1e-9)
    echo = lam / stretch
    uneven = model.arrival_cv2 - 1
    variance = (
        batch / (1 - p) * (2 + 2 * echo * m.work + echo**2 * m.square_work + uneven * (1 + echo * m.work) ** 2) / 2
    )
    square = square + uneven * mean**2

    # Feedback: a queue that lasts as long as a request's life meets the batch of saturation, and changes of the batch
    # act on it like variance of the work.
    steepness = lam * m.mean_tokens * (model.per_sequence_s / room + decode_only / room**2)
    life = m.steps * full
    loaded = rho
    for _ in range(_FEEDBACK_ROUNDS):
        lasts = lam * square / (2 * (1 - loaded) ** 2)
        lasts = lasts / (lasts + life)
        loaded = (loaded + rho + lasts * np.maximum(utilisation - rho, 0.0)) / 2
        loaded = np.where(stable, np.minimum(loaded, 0.9999), 0.5)
    restless = 2 * steepness**2 * variance * life * lasts
    scale = (lam * square + restless) / (2 * (1 - loaded)) / rho
    # Prompts above the room are served chunk by chunk; of the shorter ones as many as fit share an iteration.
    number, tokens, squares = (c[small] for c in m.cumulative[:3])
    typical = tokens / np.maximum(number, 1e-12)
    scatter = squares * number / np.maximum(tokens, 1e-12) ** 2
    together = np.maximum(np.where(number > 1e-9, room / np.maximum(typical, 1e-12) - scatter / 2, 1.0), 1.0)
    waits = loaded / rho * ((rho - lam * short) + lam * short * loaded ** (together - 1))
    waits = np.clip(waits, 1e-12, loaded)
    offset = scale * np.log(loaded / waits)
    if uneven > 0:
        # Bursts find the queue busy more often than time does (Kraemer and Langenbach-Belz, 1976).
        scatter_all = square / mean**2 - 1 - uneven
        found = 4 * rho / (model.arrival_cv2 + rho**2 * (4 * model.arrival_cv2 + scatter_all))
        waits = np.minimum(waits + uneven * waits * (1 - waits) * found, 0.9999)

    gain, most = np.maximum(iteration - decode_only, 1e-12), np.maximum(full - decode_only, 1e-12)
    often = np.clip(gain / most, 0.0, 1.0)
    arriving = lam * iteration * (m.square_work + uneven * m.work**2)
    spread = np.maximum(
        np.minimum(often * (1 - often) * most**2, arriving / (1 - np.minimum(share, 0.999) ** 2)), 1e-18
    )
    met = iteration + spread / iteration
    shape = gain**2 / spread
    around = (spread + gain**2) * decode_only / iteration + gain**3 * (1 + 1 / shape) * (1 + 2 / shape) / iteration
    above = met - decode_only
    met_variance = np.minimum(np.maximum(around - above**2, 0.0), np.maximum(above * (full - met), 0.0))
    return ColocatedState(
        rate_req_per_s=lam,
        iteration_s=np.where(stable, iteration, np.inf),
        decode_iteration_s=decode_only,
        full_iteration_s=full,
        room_tokens=room,
        mean_batch=np.where(stable, batch, np.inf),
        batch_variance=np.where(stable, variance, np.inf),
        utilisation=utilisation,
        prefill_utilisation=rho,
        prefill_share=share,
        iteration_variance_s2=spread,
        met_mean_s=met,
        met_variance_s2=met_variance,
        correlation_steps=np.maximum(arriving / stretch**2 / (2 * spread), 0.3),
        wait_probability=waits,
        wait_offset_s=offset,
        wait_scale_s=np.maximum(scale, 1e-12),
        stable=stable,
    )


class _Own(NamedTuple):
    """A prompt's own iterations by group, (G, ..., C)."""

    chunks: Floats
    left_tokens: Floats
    """Room in the last of them."""
    alone_s: Floats
    per_token_s: Floats


def _own(state: ColocatedState, model: ColocatedModel, m: _Moments) -> _Own:
    tokens = m.group_tokens.reshape(-1, *([1] * state.room_tokens.ndim))
    chunks = np.ceil(tokens / state.room_tokens)
    alone = chunks * state.decode_iteration_s + _expand(m.group_work, state.room_tokens)
    return _Own(chunks, chunks * state.room_tokens - tokens, alone, m.work / m.mean_tokens)


def _unqueued(
    state: ColocatedState, own: _Own, m: _Moments, arrival_cv2: float
) -> Iterator[tuple[Floats | float, Floats]]:
    """(share, TTFT (G, ..., C)) over nodes, for requests that do not wait: the rest of an iteration, then their own."""
    lam, waits = state.rate_req_per_s, state.wait_probability
    empty, full = state.decode_iteration_s, state.full_iteration_s
    met = np.clip((state.met_mean_s - waits * full) / np.maximum(1 - waits, 1e-9), empty, full) - empty
    above = np.maximum(state.met_mean_s - empty, 1e-12)
    bare = np.exp(-lam * empty) * empty / np.where(state.stable, state.iteration_s, 1.0)
    bare = np.clip(bare, 0.0, 1 - 1e-9)
    square = state.met_variance_s2 + above**2
    variance = np.maximum(square / (1 - bare) - (above / (1 - bare)) ** 2, 0.0) * (met / above) ** 2
    passing: list[tuple[Floats, Floats]] = [(bare, np.zeros_like(met))]
    for level in _TWO:
        more = gamma_quantile(level, met / (1 - bare), np.maximum(variance, 1e-18))
        passing.append(((1 - bare) / 2, np.minimum(more, full - empty)))
    for share, more in passing:
        length = empty + more
        others = lam * (length + (own.chunks - 1) * full)
        # Bursts: an arrival tells of others, half of them before and half after it.
        others = np.maximum(others + (arrival_cv2 - 1) * -np.expm1(-others), 1e-12)
        none = np.exp(-others)
        some = np.maximum(1 - none, 1e-12)
        mean = others * m.mean_tokens / some
        spread = (others * m.square_tokens + (others * m.mean_tokens) ** 2) / some - mean**2
        company: list[tuple[Floats, Floats]] = [(none, np.zeros_like(mean))]
        for level in _TWO:
            company.append((some / 2, gamma_quantile(level, mean, np.maximum(spread, 1e-18))))
        for chance, tokens in company:
            served = own.alone_s + own.per_token_s * np.minimum(tokens, own.left_tokens)
            for part in _TWO:
                yield share * chance / 2, part * length + served


def _queued(state: ColocatedState, own: _Own, m: _Moments) -> Floats:
    """The iterations of a request that waited, (G, ..., C): those behind it fill its last chunk."""
    behind = state.rate_req_per_s * m.mean_tokens * (state.wait_scale_s + own.chunks * state.full_iteration_s)
    return own.alone_s + own.per_token_s * np.minimum(own.left_tokens, behind) + state.wait_offset_s


def ttft_mean_s(state: ColocatedState, model: ColocatedModel) -> Floats:
    """Mean over waiting and not waiting requests of the wait and their own iterations."""
    m = _moments(model)
    own, zero = _own(state, model, m), np.zeros((len(m.group_weight), *state.room_tokens.shape))
    alone = sum((share * t for share, t in _unqueued(state, own, m, model.arrival_cv2)), start=zero)
    waits = state.wait_probability
    each = (1 - waits) * alone + waits * (_queued(state, own, m) + state.wait_scale_s)
    return np.where(state.stable, np.tensordot(m.group_weight, each, axes=(0, 0)), np.inf)


def ttft_tail(t_s: ArrayLike, state: ColocatedState, model: ColocatedModel) -> Floats:
    """P(TTFT > t), (..., C)."""
    m = _moments(model)
    return _ttft_tail(np.asarray(t_s, dtype=np.float64), state, _own(state, model, m), m, model.arrival_cv2)


def _ttft_tail(t: Floats, state: ColocatedState, own: _Own, m: _Moments, arrival_cv2: float) -> Floats:
    late = sum(
        (share * (time > t) for share, time in _unqueued(state, own, m, arrival_cv2)),
        start=np.zeros((len(m.group_weight), *np.broadcast_shapes(t.shape, state.room_tokens.shape))),
    )
    left = t - _queued(state, own, m)
    queue = np.where(left > 0, np.exp(-np.maximum(left, 0.0) / state.wait_scale_s), 1.0)
    tail = (1 - state.wait_probability) * late + state.wait_probability * queue
    return np.where(state.stable, np.tensordot(m.group_weight, tail, axes=(0, 0)), 1.0)


def _search(tail: object, q: float, high: Floats) -> Floats:
    low = np.zeros(high.shape)
    for _ in range(50):
        middle = (low + high) / 2
        late = tail(middle) > 1 - q  # type: ignore[operator]
        low, high = np.where(late, middle, low), np.where(late, high, middle)
    return high


def ttft_quantile_s(q: float, state: ColocatedState, model: ColocatedModel) -> Floats:
    """q-quantile of TTFT, (..., C)."""
    m = _moments(model)
    own = _own(state, model, m)
    longest = (own.alone_s + own.per_token_s * own.left_tokens).max(axis=0)
    high = longest + state.full_iteration_s + state.wait_offset_s - state.wait_scale_s * math.log1p(-q)
    return np.where(state.stable, _search(lambda t: _ttft_tail(t, state, own, m, model.arrival_cv2), q, high), np.inf)


def tpot_mean_s(state: ColocatedState, model: ColocatedModel) -> Floats:
    """Mean time per output token over requests."""
    return _tpot_mean(state, model, _tpot_spread(state, model))


def _tpot_mean(state: ColocatedState, model: ColocatedModel, spread: tuple[Floats, Floats, Floats]) -> Floats:
    mean, _, weight = spread
    return np.where(state.stable, np.tensordot(weight, mean, axes=(0, 0)) / model.tokens_per_step, np.inf)


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
    group = np.minimum((np.cumsum(weight) - weight / 2) / weight.sum() * _STEP_GROUPS, _STEP_GROUPS - 1)
    _, group = np.unique(group.astype(np.int64), return_inverse=True)
    total = np.bincount(group, weights=weight)
    inverse = np.zeros((len(total), steps.shape[1]))
    np.add.at(inverse, group, weight[:, None] / np.maximum(steps[order], 1.0))
    return total[:, None] / inverse, total / total.sum()


def _tpot_spread(
    state: ColocatedState, model: ColocatedModel, groups: tuple[Floats, Floats] | None = None
) -> tuple[Floats, Floats, Floats]:
    """Mean and variance (G, ..., C) of a request's own average iteration by steps, weight (G,)."""
    iteration = np.where(state.stable, state.iteration_s, 1.0)
    stretch = np.maximum(1 - state.prefill_share, 1e-9)
    variance = np.where(state.stable, state.batch_variance, 0.0)
    batch = np.where(state.stable, state.mean_batch, 1.0)
    slope = model.per_sequence_s / stretch
    # Tokens are made where there are many sequences, more often than where there are few.
    crowd_mean = slope * variance / np.maximum(batch, 1e-9)
    crowd = slope**2 * variance * life_factor(model.base_s / stretch, iteration)
    steps, weight = groups or _step_groups(model)
    x = _expand(steps, iteration) / state.correlation_steps
    fading = -np.expm1(-x) / x
    own = 2 * (x + np.expm1(-x)) / x**2
    mean = iteration + crowd_mean + (state.met_mean_s - iteration) * fading
    more = np.maximum(state.met_variance_s2 - state.iteration_variance_s2, 0.0)
    return mean, crowd + state.iteration_variance_s2 * own + more * fading**2, weight


def _tpot_tail(
    x: Floats, state: ColocatedState, model: ColocatedModel, spread: tuple[Floats, Floats, Floats]
) -> Floats:
    mean, variance, weight = spread
    busy = 3 * np.sqrt(np.where(state.stable, state.batch_variance, 0.0))
    per_token = (model.weight @ model.prefill_work_s) / (model.weight @ model.new_tokens)
    # The longest average: every iteration full, beside a batch three deviations above its mean.
    most = state.full_iteration_s + np.maximum(model.per_sequence_s - per_token, 0.0) * busy
    width = np.maximum(most, mean * 1.001) - model.base_s
    middle = np.clip((mean - model.base_s) / width, 1e-9, 1 - 1e-9)
    scatter = np.clip(variance / width**2 / (middle * (1 - middle)), 1e-9, 0.98)
    tail = beta_tail((x - model.base_s) / width, middle, scatter)
    return np.where(state.stable, np.tensordot(weight, tail, axes=(0, 0)), 1.0)


def tpot_tail(t_s: ArrayLike, state: ColocatedState, model: ColocatedModel) -> Floats:
    """P(TPOT > t) over requests, (..., C); support points that decode nothing do not count."""
    x = np.asarray(t_s, dtype=np.float64) * model.tokens_per_step
    return _tpot_tail(x, state, model, _tpot_spread(state, model))


def tpot_quantile_s(q: float, state: ColocatedState, model: ColocatedModel) -> Floats:
    """q-quantile over requests of the time per output token, (..., C)."""
    spread = _tpot_spread(state, model)
    high = 2 * state.full_iteration_s + spread[0].max(axis=0) + 20 * np.sqrt(spread[1].max(axis=0))
    found = _search(lambda t: _tpot_tail(t, state, model, spread), q, high)
    return np.where(state.stable, found / model.tokens_per_step, np.inf)


def itl_quantile_s(q: ArrayLike, state: ColocatedState, model: ColocatedModel) -> Floats:
    """q-quantile over tokens of the gap between two tokens.

    Iterations without prefill last `decode_iteration_s`; the others last longer by a gamma-distributed work that ends
    at a full chunk. q = 1 gives the largest gap of ordinary operation: a full chunk beside the p99.9 batch.
    """
    empty, full = state.decode_iteration_s, state.full_iteration_s
    iteration = np.where(state.stable, state.iteration_s, 1.0)
    if np.ndim(q) == 0 and float(np.asarray(q)) >= 1:
        batch = np.where(state.stable, state.mean_batch, 0.0)
        top = negbin_quantile(0.999, batch, np.where(state.stable, state.batch_variance, 0.0))
        return np.where(state.stable, full + model.per_sequence_s * np.maximum(top - batch, 0.0), np.inf)
    gain, most = np.maximum(iteration - empty, 1e-12), np.maximum(full - empty, 1e-12)
    bare = np.minimum(1 - np.clip(gain / most, 0.0, 1.0), np.exp(-state.rate_req_per_s * iteration))
    bare = np.clip(bare, 0.0, 1 - 1e-9)
    mean = gain / (1 - bare)
    square = (state.iteration_variance_s2 + gain**2) / (1 - bare)
    q = np.asarray(q, dtype=np.float64)
    level = np.clip((q - bare) / (1 - bare), 1e-6, 1 - 1e-9)
    more = np.minimum(gamma_quantile(level, mean, np.maximum(square - mean**2, 1e-18)), most)
    return np.where(state.stable, empty + np.where(q <= bare, 0.0, more), np.inf)


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
    m, groups = _moments(model), _step_groups(model)

    def met(rate: Floats) -> NDArray[np.bool_]:
        state = _state(rate, model, m)
        held = negbin_quantile(
            1 - admission_wait_probability,
            np.where(state.stable, state.mean_batch, 1.0),
            np.where(state.stable, state.batch_variance, 1.0),
        )
        ok = state.stable & (held <= most)
        own = _own(state, model, m)
        for q, limit in ttft_targets:
            ok &= _ttft_tail(limit - np.asarray(extra_s), state, own, m, model.arrival_cv2) <= (1 - q) * (1 - _UNEVEN)
        if tpot_targets:
            spread = _tpot_spread(state, model, groups)
        for q, limit in tpot_targets:
            ok &= _tpot_tail(np.asarray(limit * model.tokens_per_step), state, model, spread) <= (1 - q) * (1 - _UNEVEN)
        return ok

    # Tails of short answers fall again near saturation: the first rate that fails counts, not the last that succeeds.
    ceiling = _saturation(model, m) * max_utilisation
    low, high, fine = np.zeros(ceiling.shape), ceiling.copy(), np.ones(ceiling.shape, dtype=np.bool_)
    for part in np.linspace(1 / _STAGES, 1.0, _STAGES):
        good = fine & met(part * ceiling)
        high = np.where(fine & ~good, part * ceiling, high)
        low, fine = np.where(good, part * ceiling, low), good
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        good = met(middle)
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    none = low <= ceiling * 1e-5
    rate = np.where(none, 0.0, low)
    state = _state(rate, model, m)
    return ColocatedCapacity(rate, np.where(none, 0.0, state.mean_batch), state.utilisation)
