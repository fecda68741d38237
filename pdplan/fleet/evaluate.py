"""Latencies, loads and memory of given pools at given rates: the numbers of the report, and of the certificate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pdplan.fleet.candidates import Fleet
from pdplan.fleet.plan import MemoryBudget, Stats
from pdplan.fleet.pools import colocated_coefficients, decode_model, link_between, mean_context, prefill_model
from pdplan.perf.layout import Layouts
from pdplan.scenario.resolve import Scenario
from pdplan.serving.colocated import ColocatedPoint, colocated_point
from pdplan.serving.decode import DecodePoint, decode_point, normal_cdf, operating_batch
from pdplan.serving.prefill import prefill_wait, ttft_mean_s, ttft_tail

__all__ = ["Evaluation", "PoolSpec", "PoolState", "evaluate", "layouts_of"]

Floats = NDArray[np.float64]
Tail = Callable[[float], float]


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
    ttft_tail: Tail | None
    ttft_mean_s: float
    tpot_tail: Tail | None
    tpot_mean_s: float
    transfer_mean_s: float
    kv_bytes_per_request: float
    prefill_work_frac: float
    """Share of the time spent on prompts (colocated)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """All pools, and the latency of the requests over all of them."""

    states: tuple[PoolState, ...]
    latency: Mapping[str, Stats]
    quantile: Callable[[str, float | None], float]
    """(metric, percentile or None for the mean) -> seconds."""


def layouts_of(fleet: Fleet, spec: PoolSpec) -> Layouts:
    """The layout of one pool as arrays of length 1."""

    def one(value: int) -> NDArray[np.int64]:
        return np.array([value], dtype=np.int64)

    return Layouts(
        machine=one(fleet.index[spec.node_type]), tp=one(spec.tp), pp=one(spec.pp), ep=one(spec.ep),
        attention_dp=one(spec.attention_dp),
    )


def _scalar(values: object) -> float:
    return float(np.ravel(np.asarray(values))[0])


def _memory(fleet: Fleet, layouts: Layouts, sequences: float, context: float, staged: float) -> MemoryBudget:
    budget = fleet.latency.memory(layouts)
    per_card = _scalar(fleet.latency.kv_bytes_per_sequence_per_card(layouts, context)) / float(layouts.attention_dp[0])
    kv, staging = sequences * per_card, staged * per_card
    return MemoryBudget(
        hbm=_scalar(budget.hbm_bytes), weights=_scalar(budget.weights_bytes_per_card), kv_cache=kv, staging=staging,
        reserve=_scalar(budget.reserve_bytes_per_card), free=_scalar(budget.kv_bytes_per_card) - kv - staging,
    )


def _decode_state(scenario: Scenario, fleet: Fleet, spec: PoolSpec) -> tuple[PoolState, DecodePoint]:
    layouts = layouts_of(fleet, spec)
    model = decode_model(scenario, fleet, layouts, spec.batch_cap)
    rate = np.array([spec.rate_req_per_s / spec.replicas])
    outputs = float(model.weight @ model.output_tokens)
    batch = operating_batch(model.step_s, rate, outputs, model.tokens_per_step)
    here = np.maximum(batch, 1.0)
    step = model.step_s(here)
    slope = (model.step_s(here * 1.05 + 0.5) - step) / (here * 0.05 + 0.5)
    point = decode_point(batch, step, slope, model.output_tokens, model.weight, model.tokens_per_step)
    busy = min(_scalar(batch), 1.0)
    use = fleet.latency.decode_resources(layouts, here, model.context_tokens)

    def tail(limit: float) -> float:
        z = (limit - point.tpot_mean_s) / np.maximum(point.tpot_sd_s, 1e-12)
        return _scalar(1 - np.tensordot(model.weight, normal_cdf(z), axes=(0, 0)))

    in_flight = _scalar(point.in_flight_mean)
    biggest = _scalar(model.max_batch)
    return PoolState(
        utilization_frac=in_flight / max(biggest, 1.0), batch_mean=in_flight, max_batch=int(min(biggest, 1e9)),
        service_mean_s=_scalar(point.step_s), flop_frac=busy * _scalar(use.flop_s / step),
        hbm_frac=busy * _scalar(use.hbm_s / step),
        memory=_memory(fleet, layouts, in_flight, model.context_tokens, spec.rate_req_per_s / spec.replicas * 0.1),
        ttft_tail=None, ttft_mean_s=0.0, tpot_tail=tail, tpot_mean_s=_scalar(point.tpot_mean_s), transfer_mean_s=0.0,
        kv_bytes_per_request=0.0, prefill_work_frac=0.0,
    ), point


def _prefill_state(scenario: Scenario, fleet: Fleet, spec: PoolSpec, first_step_s: float) -> PoolState:
    layouts = layouts_of(fleet, spec)
    same = spec.site == spec.destination_site
    link = None if same else link_between(scenario, spec.site, spec.destination_site)
    model = prefill_model(scenario, fleet, layouts, link, same_site=same)
    mix, servers = scenario.mix, model.servers_per_replica * spec.replicas
    mean = np.tensordot(mix.weight, model.service_s, axes=(0, 0))
    cv2 = np.tensordot(mix.weight, model.service_s**2, axes=(0, 0)) / mean**2 - 1
    waits, theta = prefill_wait(spec.rate_req_per_s, servers, mean, np.maximum(cv2, 0), scenario.arrival_cv2)
    steps = fleet.latency.engine_constants
    extra = model.extra_s + (steps["first_token_steps"] + steps["poll_interval_steps"] / 2) * first_step_s
    rho = _scalar(spec.rate_req_per_s * mean / servers)
    new = mix.new_tokens[:, None]
    use = fleet.latency.prefill_resources(layouts, new, mix.cached_tokens[:, None], layouts.attention_dp)
    passes = np.tensordot(mix.weight, model.service_s, axes=(0, 0)) * layouts.pp

    def tail(limit: float) -> float:
        return _scalar(ttft_tail(np.array([limit]), waits, theta, model.service_s, mix.weight, extra))

    longest = float(mix.input_tokens.max())
    sequences = float(layouts.attention_dp[0]) * (1.0 + rho)
    return PoolState(
        utilization_frac=rho, batch_mean=rho * float(layouts.attention_dp[0]),
        max_batch=int(layouts.attention_dp[0]), service_mean_s=_scalar(mean),
        flop_frac=rho * _scalar(mix.weight @ use.flop_s / passes), hbm_frac=rho * _scalar(mix.weight @ use.hbm_s / passes),
        memory=_memory(fleet, layouts, min(sequences, _scalar(fleet.latency.max_batch(layouts, longest))), longest, 0.0),
        ttft_tail=tail, ttft_mean_s=_scalar(ttft_mean_s(waits, theta, model.service_s, mix.weight, extra)), tpot_tail=None,
        tpot_mean_s=0.0, transfer_mean_s=_scalar(mix.weight @ model.transfer_s),
        kv_bytes_per_request=_scalar(model.kv_bytes_per_request), prefill_work_frac=1.0,
    )


def colocated_of(
    scenario: Scenario, fleet: Fleet, layouts: Layouts, chunk: Floats, rate: Floats
) -> tuple[ColocatedPoint, Floats]:
    """State of colocated replicas at `rate` each, and the fixed part of TTFT (C,)."""
    mix = scenario.mix
    point = colocated_point(
        rate, **colocated_coefficients(scenario, fleet, layouts, chunk), new_tokens=mix.new_tokens,
        output_tokens=np.maximum(mix.output_tokens - 1, 0.5), weight=mix.weight,
        tokens_per_step=fleet.latency.tokens_per_step(layouts), arrival_cv2=scenario.arrival_cv2,
    )
    steps = fleet.latency.engine_constants
    first = (steps["first_token_steps"] + steps["poll_interval_steps"] / 2) * point.iteration_decode_s
    return point, steps["request_overhead_ms"] + first


def _colocated_state(scenario: Scenario, fleet: Fleet, spec: PoolSpec) -> PoolState:
    layouts, mix = layouts_of(fleet, spec), scenario.mix
    rate = np.array([spec.rate_req_per_s / spec.replicas])
    point, extra = colocated_of(scenario, fleet, layouts, np.array([float(spec.token_budget)]), rate)
    model = decode_model(scenario, fleet, layouts, spec.batch_cap, staging_s=0.0)
    own = point.own_s + extra + point.tpot_mean_s / 2

    def ttft(limit: float) -> float:
        return _scalar(ttft_tail(np.array([limit]), point.rho, point.wait_theta_s, own, mix.weight))

    def tpot(limit: float) -> float:
        z = (limit - point.tpot_mean_s) / np.maximum(point.tpot_sd_s, 1e-12)
        return _scalar(1 - np.tensordot(mix.weight, normal_cdf(z), axes=(0, 0)))

    in_flight = np.maximum(point.in_flight_mean, 1.0)
    decode_use = fleet.latency.decode_resources(layouts, in_flight, model.context_tokens)
    prefill_use = fleet.latency.prefill_resources(layouts, mix.new_tokens[:, None], mix.cached_tokens[:, None], 1.0)
    steps_per_s = 1.0 / _scalar(point.tpot_mean_s * model.tokens_per_step)
    busy = min(_scalar(point.in_flight_mean) + _scalar(point.rho), 1.0)

    def share(decode_s: object, prefill_s: Floats) -> float:
        return _scalar(decode_s) * steps_per_s * busy + _scalar(mix.weight @ prefill_s) * float(rate[0])

    chunk_work = _scalar(rate * float(mix.mean(mix.new_tokens)) * colocated_coefficients(
        scenario, fleet, layouts, np.array([float(spec.token_budget)]))["per_token_s"])
    return PoolState(
        utilization_frac=max(_scalar(point.rho), _scalar(point.in_flight_mean / np.maximum(model.max_batch, 1))),
        batch_mean=_scalar(point.in_flight_mean), max_batch=int(min(_scalar(model.max_batch), 1e9)),
        service_mean_s=_scalar(point.tpot_mean_s * model.tokens_per_step),
        flop_frac=min(share(decode_use.flop_s, prefill_use.flop_s), 1.0),
        hbm_frac=min(_scalar(decode_use.hbm_s) * steps_per_s * busy, 1.0),
        memory=_memory(fleet, layouts, _scalar(point.in_flight_mean), mean_context(scenario), 0.0),
        ttft_tail=ttft, ttft_mean_s=_scalar(mix.weight @ own + point.rho * point.wait_theta_s), tpot_tail=tpot,
        tpot_mean_s=_scalar(point.tpot_mean_s), transfer_mean_s=0.0, kv_bytes_per_request=0.0,
        prefill_work_frac=chunk_work,
    )


def _quantile(tails: Sequence[tuple[float, Tail]], percentile: float) -> float:
    """Smallest t with a share-weighted tail of at most 1 - percentile, by bisection."""
    allowed = 1 - percentile / 100

    def late(t: float) -> float:
        return sum(share * tail(t) for share, tail in tails)

    low, high = 0.0, 1e-3
    while late(high) > allowed and high < 1e6:
        low, high = high, high * 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if late(middle) > allowed else (low, middle)
    return high


def evaluate(scenario: Scenario, fleet: Fleet, specs: Sequence[PoolSpec]) -> Evaluation:
    """Every pool at its rate, and percentiles over all requests.

    A request's TTFT contains the first step of the decode pools at its destination, averaged by their rates.
    End-to-end latency adds TPOT at the same percentile for a mean answer: an upper bound, since the two are not
    comonotone.
    """
    states: dict[int, PoolState] = {}
    first_step: dict[str, float] = {}
    by_site: dict[str, list[tuple[float, float]]] = {}
    for i, spec in enumerate(specs):
        if spec.role == "decode":
            states[i], point = _decode_state(scenario, fleet, spec)
            by_site.setdefault(spec.site, []).append((spec.rate_req_per_s, _scalar(point.step_s)))
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

    cache: dict[tuple[str, float | None], float] = {}

    def quantile(metric: str, percentile: float | None) -> float:
        key = (metric, percentile)
        if key not in cache:
            if metric == "e2e_s":
                answer = float(scenario.mix.mean(np.maximum(scenario.mix.output_tokens - 1, 0.0)))
                cache[key] = quantile("ttft_s", percentile) + answer * quantile("tpot_s", percentile)
            elif percentile is None:
                cache[key] = sum(
                    share * (state.ttft_mean_s if metric == "ttft_s" else state.tpot_mean_s) for share, state in shares(metric)
                )
            else:
                tails = [
                    (share, state.ttft_tail if metric == "ttft_s" else state.tpot_tail) for share, state in shares(metric)
                ]
                cache[key] = _quantile([(share, tail) for share, tail in tails if tail is not None], percentile)
        return cache[key]

    latency = {
        metric: Stats(
            mean=quantile(metric, None), p50=quantile(metric, 50), p90=quantile(metric, 90), p99=quantile(metric, 99)
        )
        for metric in ("ttft_s", "tpot_s", "e2e_s")
    }
    return Evaluation(states=ordered, latency=latency, quantile=quantile)
