"""Play a plan in the simulator and compare: every target, percentile and utilisation, planned and simulated.

Runs with different seeds are summarised together; start and end of each run are left out. The number of requests is
chosen so that the shortest run is long against a request's life and the interval of a p99 is a few per cent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pdplan.errors import InputError
from pdplan.fleet.plan import LinkLoad, Plan, Pool, SloLine, Stats
from pdplan.fleet.simulated import PlayedPool, draw_requests, fleet_to_play
from pdplan.fleet.verification import (
    SimulatedLatency,
    SimulatedPhase,
    SimulatedPool,
    SimulatedTarget,
    Verdict,
    Verification,
)
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
from pdplan.simulate.fleet import ROUTERS, Router
from pdplan.simulate.result import estimate
from pdplan.workload.traces import Trace

__all__ = ["FailureSpec", "VerifyOptions", "options_of", "parse_failure", "trace_requests", "verify_plan"]

Floats = NDArray[np.float64]
WARMUP_FRAC = COOLDOWN_FRAC = 0.1
DEFAULT_RUNS = 3
_LEAST_PER_RUN = 8_000
_MOST_PER_RUN = 1_000_000
_LIVES_PER_RUN = 20.0
"""A run lasts at least this many mean lives of a request, so that the tenth left out at its start is two of them."""
_TAIL_REQUESTS = 100
"""Measured requests beyond the highest percentile asked, over all runs."""
_PIECES_PER_RUN = 5
_LEAST_ASKED, _MOST_ASKED = 100, 100_000_000
_FAILURE = re.compile(r"(?:(\d+)\*)?([^@*]+)@(\d+(?:\.\d+)?)s?(?::(\d+(?:\.\d+)?)s?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSpec:
    """Nodes of a pool, or a whole site, that are lost at a time and perhaps come back empty."""

    target: str
    """Name of a pool in the simulation, or of a site."""
    at_s: float
    back_s: float | None = None
    nodes: int = 1
    """Of a pool; a site is lost whole."""

    @property
    def label(self) -> str:
        """As the command line writes it."""
        many = f"{self.nodes}*" if self.nodes > 1 else ""
        return f"{many}{self.target}@{self.at_s:g}" + (f":{self.back_s:g}" if self.back_s is not None else "")


def parse_failure(text: str) -> FailureSpec:
    """Read ``[COUNT*]POOL_OR_SITE@SECONDS[:SECONDS]``.

    Raises
    ------
    InputError
        Another form, or a return before the loss.

    Examples
    --------
    >>> parse_failure("2*decode-1@600:1200")
    FailureSpec(target='decode-1', at_s=600.0, back_s=1200.0, nodes=2)
    """
    match = _FAILURE.fullmatch(text.strip())
    if match is None:
        raise InputError(
            f"--fail: {text!r} is not accepted; write POOL@SECONDS for a node, SITE@SECONDS for a site, 2*POOL@SECONDS for "
            "two nodes, and :SECONDS after it where they return, e.g. decode-1@600:1200"
        )
    many, target, at, back = match.groups()
    found = FailureSpec(
        target=target.strip(), at_s=float(at), back_s=None if back is None else float(back), nodes=int(many or 1)
    )
    if found.nodes < 1 or (found.back_s is not None and found.back_s <= found.at_s):
        raise InputError(f"--fail: {text!r} is not accepted; at least one node, and a return after the loss, are")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """How to play; the defaults give an answer in seconds."""

    seed: int = 1
    runs: int = DEFAULT_RUNS
    """Runs with the seeds `seed`, `seed` + 1, ..."""
    requests: int | None = None
    """Per run; None chooses."""
    trace: Trace | None = None
    """Requests to replay instead of drawn ones; the runs then differ in routing alone."""
    trace_name: str = "trace"
    at_plan_rate: bool = False
    """Stretch the trace's time so that its mean rate is the plan's."""
    router: Router = "least_loaded"
    """For prefill and decode; `central` is for prefill alone."""
    failures: tuple[FailureSpec, ...] = ()
    colocated: bool = False
    """Play the plan's colocated alternative, too."""


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


def _per_run(scenario: Scenario, chosen: _Played, options: VerifyOptions) -> int:
    """Requests of one run."""
    if options.requests is not None:
        return options.requests
    life = chosen.latency["e2e_s"].mean if "e2e_s" in chosen.latency else 10.0
    highest = max([target.percentile for target in scenario.targets if target.percentile is not None], default=99.0)
    measured = 1.0 - WARMUP_FRAC - COOLDOWN_FRAC
    tail = _TAIL_REQUESTS / (1.0 - highest / 100.0) / measured / options.runs
    times = [f.at_s for f in options.failures] + [f.back_s for f in options.failures if f.back_s is not None]
    # A failure needs time before it, and after it as much again.
    seconds = max([_LIVES_PER_RUN * life, *(2.0 * time + 4.0 * life for time in times)])
    count = max(float(_LEAST_PER_RUN), tail, scenario.rate_req_per_s * seconds)
    return min(math.ceil(count / 1000.0) * 1000, _MOST_PER_RUN)


def _own_prefixes(trace: Trace, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Tokens of each prompt that an earlier one began with, and its group (the first block); None without block ids.

    As with a cache that forgets nothing; the simulator looks for a group's prefix only where the group was served last.
    """
    if trace.block_ids is None or trace.block_offsets is None:
        return None
    offsets, ids = trace.block_offsets[: count + 1], trace.block_ids
    blocks = np.diff(offsets)
    inputs = np.asarray(trace.input_tokens[:count], dtype=np.int64)
    # The last block of a prompt is not full: the size is the least that holds every prompt.
    size = int(np.ceil((inputs / np.maximum(blocks, 1)).max(where=blocks > 0, initial=1.0)))
    seen: set[int] = set()
    names: dict[int, int] = {}
    cached, group = np.zeros(count, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    for i, (a, b) in enumerate(pairwise(offsets.tolist())):
        mine = ids[a:b].tolist()
        found = 0
        while found < len(mine) and mine[found] in seen:
            found += 1
        cached[i] = found * size
        if mine:
            group[i] = names.setdefault(mine[0], len(names))
        seen.update(mine)
    return np.minimum(cached, np.maximum(inputs - 1, 0)), group


def trace_requests(scenario: Scenario, trace: Trace, options: VerifyOptions) -> SimRequests:
    """A trace as requests: its own times, or stretched to the plan's rate.

    Cached tokens are those of its block ids where it has them, else the scenario's share of each prompt.

    Raises
    ------
    InputError
        Too few requests, or all at one time.
    """
    count = len(trace.arrival_s) if options.requests is None else min(options.requests, len(trace.arrival_s))
    arrival = np.asarray(trace.arrival_s[:count], dtype=np.float64)
    if count < 10 or arrival[-1] <= arrival[0]:
        raise InputError(f"{options.trace_name}: {count} requests; at least 10, at more than one time, can be replayed")
    arrival = arrival - arrival[0]
    if options.at_plan_rate:
        arrival = arrival * ((count - 1) / float(arrival[-1]) / scenario.rate_req_per_s)
    mix = scenario.mix
    inputs = np.maximum(np.asarray(trace.input_tokens[:count]), 1)
    prefixes = _own_prefixes(trace, count)
    if prefixes is None:
        hit = float(mix.mean(mix.cached_tokens)) / float(mix.mean(mix.input_tokens))
        prefixes = np.clip(np.rint(inputs * hit), 0, inputs - 1).astype(np.int64), np.full(count, -1, dtype=np.int64)
    return SimRequests(
        arrival_s=arrival,
        input_tokens=inputs,
        output_tokens=np.maximum(np.asarray(trace.output_tokens[:count]), 1),
        cached_tokens=prefixes[0],
        prefix_group=prefixes[1],
    )


def _replicas_per_node(scenario: Scenario, pool: Pool) -> int:
    cards = next(
        offer.node.cards_per_node
        for site in scenario.sites
        for offer in site.offers
        if (site.name, offer.node.id) == (pool.site, pool.node_type)
    )
    # A replica over several nodes is lost with any of them.
    return max(cards // max(pool.layout.cards_per_replica, 1), 1)


def _failures(scenario: Scenario, played: Sequence[PlayedPool], specs: Sequence[FailureSpec]) -> list[Failure]:
    """Which replicas each failure takes; of one pool every failure takes others, as long as there are any."""
    found: list[Failure] = []
    taken: dict[str, int] = {}
    names, sites = [item.name for item in played], sorted({item.pool.site for item in played})
    for spec in specs:
        roles = [item.name for item in played if item.pool.role == spec.target]
        if spec.target in names or len(roles) == 1:
            hit = [item for item in played if item.name in (spec.target, *roles)]
        elif spec.target in sites:
            hit = [item for item in played if item.pool.site == spec.target]
        else:
            raise InputError(
                f"--fail: {spec.target!r} is no pool and no site of the plan; pools: {', '.join(names)}; sites: "
                f"{', '.join(sites)}"
            )
        for item in hit:
            whole = item.pool.replicas * item.units
            before = 0 if spec.target in sites else taken.get(item.name, 0)
            lost = whole if spec.target in sites else spec.nodes * _replicas_per_node(scenario, item.pool) * item.units
            if before >= whole:
                raise InputError(
                    f"--fail: {spec.label}: all {item.pool.replicas} replicas of {item.name} are lost already; "
                    "name another pool"
                )
            lost = min(lost, whole - before)
            taken[item.name] = before + lost
            found.append(Failure(pool=item.name, at_s=spec.at_s, replicas=lost, back_s=spec.back_s, spared=before))
    return found


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


def _gaps(results: Sequence[SimResult]) -> list[SimulatedLatency]:
    """Gaps between tokens, over tokens; the interval is over the runs."""
    lines = []
    for percentile in (50.0, 90.0, 99.0):
        each = [gap_quantile_s(result.pools, percentile / 100) for result in results]
        value = gap_quantile_s([use for result in results for use in result.pools], percentile / 100)
        lines.append(
            SimulatedLatency(
                metric="itl_s",
                percentile=percentile,
                planned=None,
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
            lines += _gaps(results)
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


def options_of(
    *,
    seed: int = 1,
    seeds: int | None = None,
    requests: int | None = None,
    router: str = "least-loaded",
    failures: Sequence[str] = (),
    trace: Path | None = None,
    at_plan_rate: bool = False,
    colocated: bool = False,
) -> VerifyOptions:
    """Options as the command line gives them.

    Raises
    ------
    InputError
        Every fault at once, or a trace that cannot be read.
    """
    faults = []
    name = router.replace("-", "_")
    if name not in ROUTERS:
        known = ", ".join(r.replace("_", "-") for r in ROUTERS)
        faults.append(f"--router: {router!r} is not accepted; choose from {known}")
    if seed < 0:
        faults.append(f"--seed: {seed} is not accepted; 0 or more is")
    if seeds is not None and not 1 <= seeds <= 100:
        faults.append(f"--seeds: {seeds} is not accepted; 1 to 100 are")
    if requests is not None and not _LEAST_ASKED <= requests <= _MOST_ASKED:
        faults.append(f"--requests: {requests} is not accepted; {_LEAST_ASKED} to {_MOST_ASKED} are")
    if at_plan_rate and trace is None:
        faults.append("--at-plan-rate: is for a trace; add --trace FILE")
    specs = []
    for text in failures:
        try:
            specs.append(parse_failure(text))
        except InputError as fault:
            faults += fault.faults
    if faults:
        raise InputError(*faults)
    read = None
    if trace is not None:
        from pdplan.workload.traces import read_trace

        read = read_trace(trace)
    return VerifyOptions(
        seed=seed,
        runs=seeds or (1 if trace is not None else DEFAULT_RUNS),
        requests=requests,
        trace=read,
        trace_name=str(trace) if trace is not None else "trace",
        at_plan_rate=at_plan_rate,
        router=name,  # type: ignore[arg-type]
        failures=tuple(specs),
        colocated=colocated,
    )


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
        return _verified(scenario, chosen, options, progress)
    other = _alternative(plan)
    mine = None if progress is None else lambda share: progress(share / 2)
    its = None if progress is None else lambda share: progress((1 + share) / 2)
    # The same requests for both, so that they can be compared.
    count = max(_per_run(scenario, chosen, options), _per_run(scenario, other, options))
    same = replace(options, requests=count if options.trace is None else options.requests)
    found = _verified(scenario, chosen, same, mine)
    # Failures name pools of the plan.
    return replace(found, alternative=_verified(scenario, other, replace(same, failures=()), its))


def _verified(
    scenario: Scenario, chosen: _Played, options: VerifyOptions, progress: Callable[[float], None] | None
) -> Verification:
    decode_router: Router = "least_loaded" if options.router == "central" else options.router
    fleet, played = fleet_to_play(
        scenario, chosen.pools, chosen.links, prefill_router=options.router, decode_router=decode_router
    )
    fleet = replace(fleet, failures=_failures(scenario, played, options.failures))
    seeds = range(options.seed, options.seed + options.runs)
    replayed = None if options.trace is None else trace_requests(scenario, options.trace, options)
    count = _per_run(scenario, chosen, options) if replayed is None else len(np.asarray(replayed.arrival_s))
    results = []
    for number, seed in enumerate(seeds):
        asked = replayed if replayed is not None else draw_requests(scenario, count, seed)
        last = float(np.asarray(asked.arrival_s)[-1])
        late = [spec.label for spec in options.failures if spec.at_s >= last]
        if late:
            raise InputError(
                f"--fail: {', '.join(late)}: the last request arrives at {last:.0f} s; fail earlier or ask for more --requests"
            )
        results.append(_run(fleet, asked, seed, _share(progress, number, count, options.runs)))
    percentiles = sorted({50.0, 90.0, 99.0, *(t.percentile for t in scenario.targets if t.percentile is not None)})
    summary = summarise(
        results,
        quantiles=[p / 100 for p in percentiles],
        ttft_limit_s=_limits(scenario, "ttft_s"),
        tpot_limit_s=_limits(scenario, "tpot_s"),
        warmup_frac=WARMUP_FRAC,
        cooldown_frac=COOLDOWN_FRAC,
        batches=_PIECES_PER_RUN if options.runs > 1 else 3 * _PIECES_PER_RUN,
    )
    duration = float(np.mean([result.arrival_s[-1] - result.arrival_s[0] for result in results]))
    rate = (count - 1) / duration
    targets = _targets(scenario, chosen, summary)
    return Verification(
        mode=chosen.mode,
        traffic=_traffic(options),
        rate_req_per_s=rate,
        seed=options.seed,
        runs=options.runs,
        simulated_requests=count * options.runs,
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
    return simulate(fleet, asked, SimOptions(seed=seed, warmup_frac=WARMUP_FRAC, progress=arrived))
