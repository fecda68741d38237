"""Play a plan in the simulator and compare: every target, percentile and utilisation, planned and simulated.

Runs with different seeds are summarised together; start and end of each run are left out. The number of requests is
chosen so that the shortest run is long against a request's life and the interval of a p99 is a few per cent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pdplan.errors import InputError
from pdplan.fleet.plan import LinkLoad, Plan, Pool, SloLine, Stats
from pdplan.fleet.played_requests import draw_requests, trace_requests
from pdplan.fleet.simulated import PlayedPool, fleet_to_play
from pdplan.fleet.verification import (
    SimulatedLatency,
    SimulatedPhase,
    SimulatedPool,
    SimulatedTarget,
    Verdict,
    Verification,
)
from pdplan.fleet.verify_options import DEFAULT_RUNS, VerifyOptions, failures_of, options_of
from pdplan.scenario.resolve import Scenario
from pdplan.simulate import (
    Failure,
    SimFleet,
    SimOptions,
    SimRequests,
    SimResult,
    Summary,
    gap_quantile_s,
    simulate,
    summarise,
)
from pdplan.simulate.fleet import Router
from pdplan.simulate.result import estimate

__all__ = ["verify_anything", "verify_plan"]

Floats = NDArray[np.float64]
WARMUP_FRAC = COOLDOWN_FRAC = 0.1
_LEAST_PER_RUN = 8_000
_MOST_PER_RUN = 1_000_000
_LONG_RUN = 50_000
"""One run of that many requests is enough where the number of runs is free."""
_LIVES_PER_RUN = 20.0
"""A run lasts at least this many mean lives of a request, so that the tenth left out at its start is two of them."""
_TAIL_REQUESTS = 100
"""Measured requests beyond the highest percentile asked, over all runs."""
_PIECES_PER_RUN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    """The fleet chosen, with what the plan says about it."""

    mode: str
    pools: tuple[Pool, ...]
    links: tuple[LinkLoad, ...]
    slo: tuple[SloLine, ...]
    latency: dict[str, Stats]


def _alternative(plan: Plan) -> _Played:
    other = plan.colocated
    if other is None or not other.pools:
        raise InputError(
            "--colocated: the plan has no alternative to simulate"
            + (f" ({other.reason})" if other is not None and other.reason else "")
        )
    return _Played(mode=other.mode, pools=other.pools, links=(), slo=other.slo, latency=dict(other.latency))


def _chosen(plan: Plan) -> _Played:
    if not plan.pools:
        raise InputError("the plan has no pools: there is no fleet to simulate")
    return _Played(mode=plan.mode, pools=plan.pools, links=plan.links, slo=plan.slo, latency=dict(plan.latency))


def _size(scenario: Scenario, fleets: Sequence[_Played], options: VerifyOptions) -> tuple[int, int]:
    """Requests of one run, and runs, for all fleets alike; of a trace all requests unless some are asked for."""
    if options.trace is not None:
        return min(options.requests or len(options.trace.arrival_s), len(options.trace.arrival_s)), options.runs or 1
    if options.requests is not None:
        return options.requests, options.runs or DEFAULT_RUNS
    runs = options.runs or DEFAULT_RUNS
    life = max(chosen.latency["e2e_s"].mean if "e2e_s" in chosen.latency else 10.0 for chosen in fleets)
    highest = max([target.percentile for target in scenario.targets if target.percentile is not None], default=99.0)
    measured = 1.0 - WARMUP_FRAC - COOLDOWN_FRAC
    tail = _TAIL_REQUESTS / (1.0 - highest / 100.0) / measured / runs
    times = [f.at_s for f in options.failures] + [f.back_s for f in options.failures if f.back_s is not None]
    # A failure needs time before it, and after it as much again.
    seconds = max([_LIVES_PER_RUN * life, *(2.0 * time + 4.0 * life for time in times)])
    count = max(float(_LEAST_PER_RUN), tail, scenario.rate_req_per_s * seconds)
    if options.runs is None and count > _LONG_RUN:
        runs = 1
    return min(math.ceil(count / 1000.0) * 1000, _MOST_PER_RUN), runs


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _verdict(simulated: float, half_width: float, limit: float) -> Verdict:
    slack = half_width if math.isfinite(half_width) else 0.0
    if simulated <= limit:
        return "met"
    return "missed within the interval" if simulated <= limit + slack else "missed"


def _planned(chosen: _Played, metric: str, percentile: float | None) -> float | None:
    for line in chosen.slo:
        if line.metric == metric and line.percentile == percentile:
            return line.predicted
    name = "mean" if percentile is None else {50.0: "p50", 90.0: "p90", 99.0: "p99"}.get(percentile, "")
    return getattr(chosen.latency[metric], name) if name and metric in chosen.latency else None


def _targets(scenario: Scenario, chosen: _Played, summary: Summary) -> tuple[SimulatedTarget, ...]:
    lines = []
    for target in scenario.targets:
        found = (
            summary.mean[target.metric]
            if target.percentile is None
            else summary.quantiles[target.metric][target.percentile / 100]
        )
        lines.append(
            SimulatedTarget(
                metric=target.metric,
                percentile=target.percentile,
                target=target.limit_s,
                planned=_planned(chosen, target.metric, target.percentile),
                simulated=_finite(found.value),
                half_width_95=_finite(found.half_width),
                verdict=_verdict(found.value, found.half_width, target.limit_s),
            )
        )
    return tuple(lines)


def _gaps(chosen: _Played, results: Sequence[SimResult]) -> list[SimulatedLatency]:
    """Gaps between tokens, over tokens; the interval is over the runs."""
    lines = []
    for percentile in (50.0, 90.0, 99.0):
        each = [gap_quantile_s(result.pools, percentile / 100) for result in results]
        value = gap_quantile_s([use for result in results for use in result.pools], percentile / 100)
        lines.append(
            SimulatedLatency(
                metric="itl_s",
                percentile=percentile,
                planned=_planned(chosen, "itl_s", percentile),
                simulated=_finite(value),
                half_width_95=_finite(estimate(value, each).half_width),
            )
        )
    return lines


def _largest_gap(results: Sequence[SimResult]) -> SimulatedLatency:
    known = [gap for result in results for gap in (result.itl_max_s[np.isfinite(result.itl_max_s)],) if len(gap)]
    largest = max((float(gap.max()) for gap in known), default=math.nan)
    return SimulatedLatency(
        metric="itl_max_s", percentile=100.0, planned=None, simulated=_finite(largest), half_width_95=None
    )


def _latency(
    chosen: _Played, summary: Summary, percentiles: Sequence[float], results: Sequence[SimResult]
) -> tuple[SimulatedLatency, ...]:
    lines = []
    for metric in ("ttft_s", "tpot_s", "e2e_s", "itl_max_s"):
        for percentile in (None, *percentiles):
            found = summary.mean[metric] if percentile is None else summary.quantiles[metric][percentile / 100]
            lines.append(
                SimulatedLatency(
                    metric=metric,
                    percentile=percentile,
                    planned=_planned(chosen, metric, percentile),
                    simulated=_finite(found.value),
                    half_width_95=_finite(found.half_width),
                )
            )
        if metric == "e2e_s":
            lines += _gaps(chosen, results)
    return (*lines, _largest_gap(results))


def _pools(played: Sequence[PlayedPool], results: Sequence[SimResult]) -> tuple[SimulatedPool, ...]:
    lines = []
    for p, item in enumerate(played):
        uses = [result.pools[p] for result in results]
        pool, decodes = item.pool, item.pool.role != "prefill"
        batch = float(np.mean([use.mean_batch for use in uses])) * item.units
        largest = max(pool.layout.max_batch, 1)
        lines.append(
            SimulatedPool(
                name=item.name,
                role=pool.role,
                site=pool.site,
                node_type=pool.node_type,
                replicas=pool.replicas,
                utilization_planned_frac=pool.batch_mean / largest if decodes else pool.utilization_frac,
                utilization_simulated_frac=batch / largest
                if decodes
                else float(np.mean([use.busy_frac for use in uses])),
                batch_planned=pool.batch_mean,
                batch_simulated=batch,
                kv_simulated_frac=float(np.mean([use.kv_frac for use in uses])),
                wait_mean_s=float(np.mean([use.mean_wait_s for use in uses])),
                wait_p99_s=float(np.mean([use.p99_wait_s for use in uses])),
            )
        )
    return tuple(lines)


def _limits(scenario: Scenario, metric: str) -> float:
    """The loosest limit of a metric: what attainment counts against."""
    return max((t.limit_s for t in scenario.targets if t.metric == metric), default=math.inf)


def _quantile_of(values: Floats, q: float) -> float | None:
    """A request without an answer counts as infinite."""
    if not len(values):
        return None
    ordered = np.sort(np.where(np.isnan(values), np.inf, values))
    return _finite(float(ordered[min(math.ceil(q * len(ordered) - 1e-9), len(ordered)) - 1]))


def _phases(
    scenario: Scenario, results: Sequence[SimResult], failures: Sequence[Failure]
) -> tuple[SimulatedPhase, ...]:
    """Requests by the time they arrive: before the first failure, and after each loss and return."""
    if not failures:
        return ()
    times = sorted({f.at_s for f in failures} | {f.back_s for f in failures if f.back_s is not None})
    end = min(float(result.arrival_s[-1]) for result in results)
    start = max(float(result.arrival_s[int(WARMUP_FRAC * len(result.arrival_s))]) for result in results)
    marks = [min(start, times[0]), *times, end]
    lines = []
    for a, b in pairwise(marks):
        if b <= a:
            continue
        lost = sum(f.replicas for f in failures if f.at_s <= a and (f.back_s is None or f.back_s > a))
        ttft, tpot, single = [], [], []
        for result in results:
            keep = (result.arrival_s >= a) & (result.arrival_s < b)
            ttft.append(result.ttft_s[keep])
            tpot.append(result.tpot_s[keep])
            single.append((result.output_tokens[keep] <= 1) & np.isfinite(result.e2e_s[keep]))
        first, each, alone = np.concatenate(ttft), np.concatenate(tpot), np.concatenate(single)
        good = (first <= _limits(scenario, "ttft_s")) & (alone | (each <= _limits(scenario, "tpot_s")))
        lines.append(
            SimulatedPhase(
                name="all replicas work" if lost == 0 else f"{lost} replica{'' if lost == 1 else 's'} down",
                from_s=a,
                to_s=b,
                requests=len(first),
                attainment_frac=float(good.mean()) if len(first) else math.nan,
                ttft_p90_s=_quantile_of(first, 0.9),
                ttft_p99_s=_quantile_of(first, 0.99),
                tpot_p90_s=_quantile_of(each[~alone], 0.9),
            )
        )
    return tuple(line for line in lines if line.requests)


def _warnings(scenario: Scenario, options: VerifyOptions, rate: float, results: Sequence[SimResult]) -> tuple[str, ...]:
    found = []
    if options.trace is not None and rate < 0.95 * scenario.rate_req_per_s:
        found.append(
            f"the trace has {rate:.3g} requests per second, the plan is made for {scenario.rate_req_per_s:.3g}; "
            "--at-plan-rate replays it faster"
        )
    if options.trace is not None:
        mix = scenario.mix
        for what, tokens, assumed in (
            ("prompts", options.trace.input_tokens, mix.input_tokens),
            ("answers", options.trace.output_tokens, mix.output_tokens),
        ):
            mean, planned = float(np.mean(tokens)), float(mix.mean(assumed))
            if abs(mean / planned - 1) > 0.1:
                found.append(
                    f"the trace's {what} have {mean:.0f} tokens on average, those of the scenario {planned:.0f}"
                )
    for result in results:
        n = len(result.ttft_s)
        part = n // 10
        early, late = (_quantile_of(result.ttft_s[a : a + part], 0.5) for a in (part, n - 2 * part))
        if part >= 100 and early is not None and (late is None or late > 3 * early + 1.0):
            found.append(
                "a queue was still growing at the end: the percentiles depend on how long the run is, and the fleet is "
                "too small for this traffic"
            )
            break
    if options.failures:
        left_out = WARMUP_FRAC * float(np.mean([result.arrival_s[-1] for result in results]))
        hidden = [spec.label for spec in options.failures if spec.at_s < left_out]
        if hidden:
            found.append(
                f"{', '.join(hidden)}: lies in the first {left_out:.0f} s, which the targets' percentiles leave out; the table "
                "of phases shows it"
            )
    if options.trace is not None and options.trace.bad_lines:
        found.append(f"{options.trace_name}: {options.trace.bad_lines} lines hold no request and were left out")
    return tuple(found)


def verify_plan(
    plan: Plan,
    scenario: Scenario,
    options: VerifyOptions | None = None,
    *,
    progress: Callable[[float], None] | None = None,
) -> Verification:
    """Simulate a plan's fleet under its own traffic (or a trace) and compare with what the plan says.

    Parameters
    ----------
    plan : Plan
        With pools.
    scenario : Scenario
        The plan's own, resolved (:func:`pdplan.fleet.pipeline.scenario_of`).
    options : VerifyOptions, optional
        Seeds, requests, trace, router, failures.
    progress : callable, optional
        Called now and then with the share that is done.

    Returns
    -------
    Verification
        The same for the same input, whether or not the compiled event loop is installed.

    Raises
    ------
    InputError
        Nothing to simulate, an unknown failure target, or a failure after the last arrival.
    """
    options = options or VerifyOptions()
    chosen = _chosen(plan)
    if not options.colocated:
        return _verified(scenario, chosen, options, _size(scenario, [chosen], options), progress)
    other = _alternative(plan)
    mine = None if progress is None else lambda share: progress(share / 2)
    its = None if progress is None else lambda share: progress((1 + share) / 2)
    # The same requests for both, so that they can be compared; failures name pools of the plan.
    size = _size(scenario, [chosen, other], options)
    found = _verified(scenario, chosen, options, size, mine)
    return replace(found, alternative=_verified(scenario, other, replace(options, failures=()), size, its))


def _verified(
    scenario: Scenario,
    chosen: _Played,
    options: VerifyOptions,
    size: tuple[int, int],
    progress: Callable[[float], None] | None,
) -> Verification:
    count, runs = size
    decode_router: Router = "least_loaded" if options.router == "central" else options.router
    fleet, played = fleet_to_play(
        scenario, chosen.pools, chosen.links, prefill_router=options.router, decode_router=decode_router
    )
    fleet = replace(fleet, failures=failures_of(scenario, played, options.failures))
    seeds = range(options.seed, options.seed + runs)
    replayed = None
    if options.trace is not None:
        replayed = trace_requests(
            scenario, options.trace, count=count, at_plan_rate=options.at_plan_rate, name=options.trace_name
        )
    results = []
    for number, seed in enumerate(seeds):
        asked = replayed if replayed is not None else draw_requests(scenario, count, seed)
        last = float(np.asarray(asked.arrival_s)[-1])
        late = [spec.label for spec in options.failures if spec.at_s >= last]
        if late:
            raise InputError(
                f"--fail: {', '.join(late)}: the last request arrives at {last:.0f} s; fail earlier or ask for more --requests"
            )
        results.append(_run(fleet, asked, seed, _share(progress, number, count, runs)))
    percentiles = sorted({50.0, 90.0, 99.0, *(t.percentile for t in scenario.targets if t.percentile is not None)})
    summary = summarise(
        results,
        quantiles=[p / 100 for p in percentiles],
        ttft_limit_s=_limits(scenario, "ttft_s"),
        tpot_limit_s=_limits(scenario, "tpot_s"),
        warmup_frac=WARMUP_FRAC,
        cooldown_frac=COOLDOWN_FRAC,
        batches=_PIECES_PER_RUN if runs > 1 else 3 * _PIECES_PER_RUN,
    )
    duration = float(np.mean([result.arrival_s[-1] - result.arrival_s[0] for result in results]))
    rate = (count - 1) / duration
    targets = _targets(scenario, chosen, summary)
    return Verification(
        mode=chosen.mode,
        traffic=_traffic(options),
        rate_req_per_s=rate,
        seed=options.seed,
        runs=runs,
        simulated_requests=count * runs,
        duration_s=duration,
        warmup_frac=WARMUP_FRAC,
        cooldown_frac=COOLDOWN_FRAC,
        routers=options.router if options.router == decode_router else f"{options.router}, decode {decode_router}",
        failures=tuple(spec.label for spec in options.failures),
        requests=summary.requests,
        finished=summary.finished,
        rejected=summary.rejected,
        unfinished=summary.unfinished,
        preempted=summary.preempted,
        attainment_frac=summary.attainment.value,
        targets=targets,
        latency=_latency(chosen, summary, percentiles, results),
        pools=_pools(played, results),
        phases=_phases(scenario, results, list(fleet.failures)),
        warnings=_warnings(scenario, options, rate, results),
        ok=all(line.verdict != "missed" for line in targets),
    )


def _traffic(options: VerifyOptions) -> str:
    if options.trace is None:
        return "drawn from the scenario's workload"
    return f"{options.trace_name}, replayed {'at the rate of the plan' if options.at_plan_rate else 'at its own times'}"


def _share(
    progress: Callable[[float], None] | None, number: int, count: int, runs: int
) -> Callable[[int], None] | None:
    """Arrivals of one run as a share of all runs."""
    if progress is None:
        return None

    def arrived(n: int) -> None:
        progress((number + n / max(count, 1)) / runs)

    return arrived


def _run(fleet: SimFleet, asked: SimRequests, seed: int, arrived: Callable[[int], None] | None) -> SimResult:
    try:
        return simulate(fleet, asked, SimOptions(seed=seed, warmup_frac=WARMUP_FRAC, progress=arrived))
    except ValueError as fault:
        # What only the simulator finds out, e.g. arrivals that go nowhere because all rates are 0.
        raise InputError(f"the plan cannot be simulated: {fault}") from None


def verify_anything(
    plan: Plan | str | Path,
    *,
    catalog: str | Path | None = None,
    seed: int = 1,
    seeds: int | None = None,
    requests: int | None = None,
    router: str = "least-loaded",
    failures: Sequence[str] = (),
    trace: str | Path | None = None,
    at_plan_rate: bool = False,
    colocated: bool = False,
) -> Verification:
    """Simulate a plan given as a path or as a plan; the function behind ``pdplan.verify``.

    Parameters are the options of ``pdplan verify``; `failures` are texts such as ``decode-1@300``.
    """
    from pdplan.files import read_text
    from pdplan.fleet.pipeline import scenario_of
    from pdplan.fleet.plan import plan_from_json

    name = "PLAN.json" if isinstance(plan, Plan) else str(plan)
    answer = plan if isinstance(plan, Plan) else plan_from_json(read_text(plan), name=name)
    options = options_of(
        seed=seed, seeds=seeds, requests=requests, router=router, failures=failures,
        trace=None if trace is None else Path(trace), at_plan_rate=at_plan_rate, colocated=colocated,
    )  # fmt: skip
    folder = None if catalog is None else Path(catalog)
    return verify_plan(answer, scenario_of(answer, catalog_folder=folder, name=name), options)
