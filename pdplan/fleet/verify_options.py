"""How to play a plan: seeds, traffic, router, and failures by the names of pools and sites."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pdplan.errors import InputError
from pdplan.fleet.plan import Pool
from pdplan.fleet.simulated import PlayedPool
from pdplan.scenario.resolve import Scenario
from pdplan.simulate import Failure
from pdplan.simulate.fleet import ROUTERS, Router
from pdplan.workload.traces import Trace

__all__ = ["DEFAULT_RUNS", "FailureSpec", "VerifyOptions", "failures_of", "options_of", "parse_failure"]

DEFAULT_RUNS = 3
"""Of drawn requests; a trace and a very long run are played once."""
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
    runs: int | None = None
    """Runs with the seeds `seed`, `seed` + 1, ...; None chooses."""
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
        runs=seeds,
        requests=requests,
        trace=read,
        trace_name=str(trace) if trace is not None else "trace",
        at_plan_rate=at_plan_rate,
        router=name,  # type: ignore[arg-type]
        failures=tuple(specs),
        colocated=colocated,
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


def failures_of(scenario: Scenario, played: Sequence[PlayedPool], specs: Sequence[FailureSpec]) -> list[Failure]:
    """Which replicas each failure takes; of one pool every failure takes others, as long as there are any.

    Raises
    ------
    InputError
        A target that is no pool and no site, or more nodes than there are.
    """
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
