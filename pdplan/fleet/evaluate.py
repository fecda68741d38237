"""Latencies, loads and memory of given pools at given rates: the numbers of the report, and of the certificate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pdplan.fleet.candidates import Fleet
from pdplan.fleet.confidence import margins
from pdplan.fleet.plan import MemoryBudget, Stats
from pdplan.fleet.pools import BATCH_GRID, colocated_model, decode_model, link_between, mean_context, prefill_model
from pdplan.perf.layout import Layouts
from pdplan.scenario.resolve import Scenario
from pdplan.serving import colocated, decode, prefill
from pdplan.workload.mix import RequestMix

__all__ = ["Evaluation", "PoolSpec", "PoolState", "colocated_extra_s", "evaluate", "layouts_of"]

Floats = NDArray[np.float64]
_ANSWERS = np.concatenate([np.linspace(0, 0.9, 46)[1:], np.linspace(0.9, 0.99, 13)[1:], np.linspace(0.99, 1, 6)[1:-1]])
"""Cumulative shares at which answers of similar length are taken together."""
Tail = Callable[[Floats], Floats]
"""P(latency > t) at many t, (G,) -> (G,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """What identifies a pool and its load."""

    role: str
    site: str
    node_type: str
    destination_site: str
    tp: int
    pp: int
    ep: int
    attention_dp: int
    token_budget: int
    batch_cap: int
    replicas: int
    rate_req_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """What one pool does at its rate."""

    utilization_frac: float
    batch_mean: float
    max_batch: int
    service_mean_s: float
    flop_frac: float
    hbm_frac: float
    memory: MemoryBudget
    ttft_tail: Tail | None = None
    ttft_mean_s: float = 0.0
    tpot_tail: Tail | None = None
    tpot_mean_s: float = 0.0
    itl_tail: Tail | None = None
    """Of the gap between two tokens, over tokens."""
    itl_mean_s: float = 0.0
    transfer_mean_s: float = 0.0
    kv_bytes_per_request: float = 0.0
    prefill_work_frac: float = 0.0
    """Share of the time spent on prompts."""
    stable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """All pools, and the latency of the requests over all of them."""

    states: tuple[PoolState, ...]
    latency: Mapping[str, Stats]
    quantile: Callable[[str, float | None], float]
    """(metric, percentile or None for the mean) -> seconds."""
    assured: Callable[[str, float], float]
    """(metric, percentile) -> seconds that the measured percentile stays below with the scenario's confidence."""


def layouts_of(fleet: Fleet, spec: PoolSpec) -> Layouts:
    """The layout of one pool as arrays of length 1."""

    def one(value: int) -> NDArray[np.int64]:
        return np.array([value], dtype=np.int64)

    return Layouts(
        machine=one(fleet.index[spec.node_type]),
        tp=one(spec.tp),
        pp=one(spec.pp),
        ep=one(spec.ep),
        attention_dp=one(spec.attention_dp),
    )


def _scalar(values: object) -> float:
    return float(np.ravel(np.asarray(values))[0])


def _memory(fleet: Fleet, layouts: Layouts, sequences: float, context: float, staged: float) -> MemoryBudget:
    budget = fleet.latency.memory(layouts)
    per_card = _scalar(fleet.latency.kv_bytes_per_sequence_per_card(layouts, context)) / float(layouts.attention_dp[0])
    kv, staging = sequences * per_card, staged * per_card
    return MemoryBudget(
        hbm=_scalar(budget.hbm_bytes),
        weights=_scalar(budget.weights_bytes_per_card),
        kv_cache=kv,
        staging=staging,
        reserve=_scalar(budget.reserve_bytes_per_card),
        free=_scalar(budget.kv_bytes_per_card) - kv - staging,
    )


_GAP_LEVELS = np.concatenate([np.linspace(0.002, 0.96, 240), np.linspace(0.961, 0.9995, 78)])


def _tail_of(quantiles: Floats, stable: bool) -> Tail:
    """P(gap > t) from the quantiles at `_GAP_LEVELS`; a level that many share is a jump."""
    rising = np.maximum.accumulate(quantiles) + np.arange(len(quantiles)) * 1e-12

    def tail(limits: Floats) -> Floats:
        below = np.interp(limits, rising, _GAP_LEVELS, left=0.0, right=1.0)
        return np.asarray(1.0 - below if stable else np.ones_like(limits), dtype=np.float64)

    return tail


def _decode_state(scenario: Scenario, fleet: Fleet, spec: PoolSpec) -> PoolState:
    layouts = layouts_of(fleet, spec)
    model = decode_model(scenario, fleet, layouts, spec.batch_cap)
    state = decode.decode_state(
        np.array([spec.rate_req_per_s / spec.replicas]),
        BATCH_GRID,
        model.step_s,
        model.mean_tokens,
        model.tokens_per_step,
        context_spread_s=model.context_spread_s,
        arrival_cv2=scenario.arrival_cv2,
    )
    per_step = model.tokens_per_step
    typical = state.base_s + state.slope_s * (1 + state.mean_batch)

    # TPOT at many quantiles; those asked for are among them, so that percentiles come out exactly.
    asked = {target.percentile / 100 for target in scenario.targets} | {0.5, 0.9, 0.99}
    levels = np.array(sorted({*np.linspace(0.002, 0.998, 125).tolist(), *asked}))
    curve = np.maximum.accumulate(decode.tpot_quantile_s(levels[:, None], state, per_step, float(spec.replicas))[:, 0])

    stable = bool(state.stable[0])

    def tail(limits: Floats) -> Floats:
        below = np.interp(limits, curve, levels, left=0.0, right=1.0)
        return np.asarray(1.0 - below if stable else np.ones_like(limits), dtype=np.float64)

    batch = _scalar(state.mean_batch)
    here = np.maximum(state.mean_batch, 1.0)
    use = fleet.latency.decode_resources(layouts, here, model.context_tokens)
    step = fleet.latency.decode_step_s(layouts, here, model.context_tokens)
    busy, biggest = min(batch, 1.0), _scalar(model.max_batch)
    staged = spec.rate_req_per_s / spec.replicas * model.staging_s
    return PoolState(
        utilization_frac=batch / max(biggest, 1.0),
        batch_mean=batch,
        max_batch=int(min(biggest, 1e9)),
        service_mean_s=_scalar(typical),
        flop_frac=busy * _scalar(use.flop_s / step),
        hbm_frac=busy * _scalar(use.hbm_s / step),
        memory=_memory(fleet, layouts, batch, model.context_tokens, staged),
        tpot_tail=tail,
        tpot_mean_s=_scalar(decode.tpot_mean_s(state, per_step)),
        itl_tail=_tail_of(decode.step_quantile_s(_GAP_LEVELS[:, None], state, float(spec.replicas))[:, 0], stable),
        itl_mean_s=_scalar(typical),
        stable=stable,
    )


def _prefill_state(scenario: Scenario, fleet: Fleet, spec: PoolSpec, first_step_s: float) -> PoolState:
    layouts, mix = layouts_of(fleet, spec), scenario.mix
    same = spec.site == spec.destination_site
    link = None if same else link_between(scenario, spec.site, spec.destination_site)
    model = prefill_model(scenario, fleet, layouts, link, same_site=same)
    engine = fleet.latency.engine_constants
    extra = model.extra_s + (engine["first_token_steps"] + engine["poll_interval_steps"] / 2) * first_step_s
    service, rate, replicas = model.service(scenario), spec.rate_req_per_s, spec.replicas

    def tail(limits: Floats) -> Floats:
        result = prefill.ttft_tail(limits[:, None], rate, replicas, service, extra_s=extra)
        return np.asarray(result[:, 0], dtype=np.float64)

    rho = _scalar(prefill.prefill_utilisation(rate, replicas, service))
    ranks, most = float(model.ranks[0]), float(model.max_requests[0])
    passing = _scalar(prefill.mean_pass_s(rate, replicas, service))
    new = mix.new_tokens[:, None]
    use = fleet.latency.prefill_resources(layouts, new, mix.cached_tokens[:, None], ranks)
    cards = replicas * ranks * float(layouts.pp[0])
    longest = float(mix.input_tokens.max())
    here = rate / replicas * passing
    held = min(here + min(here, most), _scalar(fleet.latency.max_batch(layouts, longest)))
    return PoolState(
        utilization_frac=rho,
        batch_mean=here,
        max_batch=round(most),
        service_mean_s=passing,
        flop_frac=rate * _scalar(mix.weight @ use.flop_s) / cards,
        hbm_frac=rate * _scalar(mix.weight @ use.hbm_s) / cards,
        memory=_memory(fleet, layouts, held, longest, 0.0),
        ttft_tail=tail,
        ttft_mean_s=_scalar(prefill.ttft_mean_s(rate, replicas, service, extra_s=extra)),
        transfer_mean_s=float(model.weight @ model.transfer_s[:, 0]),
        kv_bytes_per_request=_scalar(model.kv_bytes_per_request),
        prefill_work_frac=1.0,
        stable=rho < 1,
    )


def colocated_extra_s(fleet: Fleet, state: colocated.ColocatedState) -> Floats:
    """Fixed part of a colocated TTFT: overhead and the engine's steps before the first token is returned."""
    engine = fleet.latency.engine_constants
    steps = engine["first_token_steps"] + engine["poll_interval_steps"] / 2
    result: Floats = engine["request_overhead_ms"] + steps * np.where(state.stable, state.iteration_s, 1.0)
    return result


def _colocated_state(scenario: Scenario, fleet: Fleet, spec: PoolSpec) -> PoolState:
    layouts, mix = layouts_of(fleet, spec), scenario.mix
    ranks = float(spec.attention_dp)
    rate = np.array([[spec.rate_req_per_s / spec.replicas / ranks]])
    model = colocated_model(scenario, fleet, layouts, np.array([float(spec.token_budget)]))
    state = colocated.colocated_state(rate, model)
    limits = decode_model(scenario, fleet, layouts, spec.batch_cap)
    extra = _scalar(colocated_extra_s(fleet, state))

    def ttft(limits: Floats) -> Floats:
        result = colocated.ttft_tail(limits[:, None] - extra, state, model)
        return np.asarray(result[:, 0], dtype=np.float64)

    def tpot(limits: Floats) -> Floats:
        result = colocated.tpot_tail(limits[:, None], state, model)
        return np.asarray(result[:, 0], dtype=np.float64)

    stable = bool(state.stable[0, 0])
    batch = _scalar(state.mean_batch) * ranks if stable else 0.0
    here = np.array([max(batch, 1.0)])
    decode_use = fleet.latency.decode_resources(layouts, here, limits.context_tokens)
    prefill_use = fleet.latency.prefill_resources(layouts, mix.new_tokens[:, None], mix.cached_tokens[:, None], 1.0)
    steps_per_s = 1.0 / _scalar(state.iteration_s) if stable else 0.0
    busy = min(batch + _scalar(state.prefill_utilisation), 1.0)
    flop = _scalar(decode_use.flop_s) * steps_per_s * busy
    flop += float(mix.weight @ prefill_use.flop_s[:, 0]) * float(rate[0, 0]) * ranks
    return PoolState(
        utilization_frac=max(_scalar(state.utilisation), batch / max(_scalar(limits.max_batch), 1.0)),
        batch_mean=batch,
        max_batch=int(min(_scalar(limits.max_batch), 1e9)),
        service_mean_s=_scalar(state.iteration_s),
        flop_frac=flop,
        hbm_frac=_scalar(decode_use.hbm_s) * steps_per_s * busy,
        memory=_memory(fleet, layouts, batch, mean_context(scenario), 0.0),
        ttft_tail=ttft,
        ttft_mean_s=_scalar(colocated.ttft_mean_s(state, model)) + extra,
        tpot_tail=tpot,
        tpot_mean_s=_scalar(colocated.tpot_mean_s(state, model)),
        itl_tail=_tail_of(colocated.itl_quantile_s(_GAP_LEVELS[:, None], state, model)[:, 0], stable),
        itl_mean_s=_scalar(state.iteration_s),
        prefill_work_frac=_scalar(state.prefill_share),
        stable=stable,
    )


def _stretched(tail: Tail, factor: float) -> Tail:
    """The tail of `factor` times the latency."""

    def stretched(limits: Floats) -> Floats:
        return tail(limits / factor)

    return stretched


def _quantile(tails: Sequence[tuple[float, Tail]], percentile: float) -> float:
    """Smallest t with a share-weighted tail of at most 1 - percentile: a grid, refined around the crossing."""
    allowed = 1 - percentile / 100
    low, high = 0.0, 1e6
    grid = np.geomspace(1e-4, high, 48)
    for _ in range(8):
        late = sum((share * tail(grid) for share, tail in tails), start=np.zeros(len(grid))) > allowed + 1e-12
        if late.all():
            return high
        first = int(np.argmin(late))
        low, high = (float(grid[first - 1]) if first else low), float(grid[first])
        if high - low <= 1e-12 * high:
            break
        grid = np.linspace(low, high, 33)
    return high


_LEVELS = np.array([0.0469100770306680, 0.2307653449471585, 0.5, 0.7692346550528415, 0.9530899229693320])
_LEVEL_WEIGHTS = np.array(
    [0.1184634425280945, 0.2393143352496832, 0.2844444444444444, 0.2393143352496832, 0.1184634425280945]
)
"""Gauss-Legendre rule in probability: levels of TPOT and their weights."""
_TIMES = np.concatenate([[0.0], np.geomspace(1e-3, 1e5, 320)])
"""Where tails of TTFT are tabulated for sums with decoding."""


def _end_to_end(mix: RequestMix, ttft: Sequence[tuple[float, Tail]], tpot: Sequence[tuple[float, Tail]]) -> Tail:
    """P(TTFT + tokens after the first x TPOT > t), the three independent of one another.

    Answers of similar length are taken together; TPOT stands at five levels.
    """
    after = np.maximum(mix.output_tokens - 1, 0.0)
    order = np.argsort(after, kind="stable")
    weight = mix.weight[order]
    group = np.searchsorted(_ANSWERS, np.cumsum(weight) - weight / 2)
    group = np.unique(group, return_inverse=True)[1]
    share = np.bincount(group, weights=weight)
    tokens = np.bincount(group, weights=weight * after[order]) / share
    late = sum((part * tail(_TIMES) for part, tail in ttft), start=np.zeros(len(_TIMES)))
    paces = np.array([_quantile(tpot, 100 * level) for level in _LEVELS])
    decoding = (tokens[:, None] * paces).ravel()
    each = (share[:, None] * _LEVEL_WEIGHTS).ravel()

    def tail(limits: Floats) -> Floats:
        left = limits[:, None] - decoding
        return np.asarray(np.where(left > 0, np.interp(left, _TIMES, late), 1.0) @ each, dtype=np.float64)

    return tail


def evaluate(scenario: Scenario, fleet: Fleet, specs: Sequence[PoolSpec]) -> Evaluation:
    """Every pool at its rate, and percentiles over all requests.

    A request's TTFT contains the first step of the decode pools at its destination, averaged by their rates.
    End-to-end latency is the sum of TTFT and the tokens after the first at their pace.
    """
    states: dict[int, PoolState] = {}
    first_step: dict[str, float] = {}
    by_site: dict[str, list[tuple[float, float]]] = {}
    for i, spec in enumerate(specs):
        if spec.role == "decode":
            states[i] = _decode_state(scenario, fleet, spec)
            by_site.setdefault(spec.site, []).append((spec.rate_req_per_s, states[i].service_mean_s))
        elif spec.role == "colocated":
            states[i] = _colocated_state(scenario, fleet, spec)
    for site, steps in by_site.items():
        total = sum(rate for rate, _ in steps)
        first_step[site] = sum(rate * step for rate, step in steps) / total if total > 0 else steps[0][1]
    for i, spec in enumerate(specs):
        if spec.role == "prefill":
            states[i] = _prefill_state(scenario, fleet, spec, first_step.get(spec.destination_site, 0.0))
    ordered = tuple(states[i] for i in range(len(specs)))

    def shares(metric: str) -> list[tuple[float, PoolState]]:
        roles = ("prefill", "colocated") if metric == "ttft_s" else ("decode", "colocated")
        found = [(spec.rate_req_per_s, state) for spec, state in zip(specs, ordered, strict=True) if spec.role in roles]
        total = sum(rate for rate, _ in found) or 1.0
        return [(rate / total, state) for rate, state in found]

    apart = any(spec.role == "prefill" for spec in specs)
    margin = {metric: margins(scenario, fleet, metric, disaggregated=apart) for metric in ("ttft_s", "tpot_s")}
    factor = {
        (id(state), metric): float(margin[metric][fleet.index[spec.node_type]])
        for spec, state in zip(specs, ordered, strict=True)
        for metric in margin
    }
    cache: dict[tuple[str, float | None], float] = {}
    tails: dict[str, list[tuple[float, Tail]]] = {}

    def tails_of(metric: str) -> list[tuple[float, Tail]]:
        if metric not in tails:
            if metric == "e2e_s":
                tails[metric] = [(1.0, _end_to_end(scenario.mix, tails_of("ttft_s"), tails_of("tpot_s")))]
            else:
                kind = metric.replace("_s", "_tail")
                found = [(share, getattr(state, kind)) for share, state in shares(metric)]
                tails[metric] = [(share, tail) for share, tail in found if tail is not None]
        return tails[metric]

    def mean(metric: str) -> float:
        if metric == "e2e_s":
            after = float(scenario.mix.mean(np.maximum(scenario.mix.output_tokens - 1, 0.0)))
            return mean("ttft_s") + after * mean("tpot_s")
        return float(sum(share * getattr(state, metric.replace("_s", "_mean_s")) for share, state in shares(metric)))

    def quantile(metric: str, percentile: float | None) -> float:
        key = (metric, percentile)
        if key not in cache:
            cache[key] = mean(metric) if percentile is None else _quantile(tails_of(metric), percentile)
        return cache[key]

    def assured(metric: str, percentile: float) -> float:
        if scenario.confidence is None:
            return quantile(metric, percentile)
        tails = []
        for share, state in shares(metric):
            tail = state.ttft_tail if metric == "ttft_s" else state.tpot_tail
            if tail is not None:
                tails.append((share, _stretched(tail, factor[id(state), metric])))
        return _quantile(tails, percentile)

    latency = {
        metric: Stats(
            mean=quantile(metric, None), p50=quantile(metric, 50), p90=quantile(metric, 90), p99=quantile(metric, 99)
        )
        for metric in ("ttft_s", "tpot_s", "itl_s", "e2e_s")
    }
    return Evaluation(states=ordered, latency=latency, quantile=quantile, assured=assured)
