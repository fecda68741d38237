"""What a simulation of a plan found, as written into reports. Records only; :mod:`pdplan.fleet.verify` makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "VERIFICATION_SCHEMA",
    "SimulatedLatency",
    "SimulatedPhase",
    "SimulatedPool",
    "SimulatedTarget",
    "Verdict",
    "Verification",
]

VERIFICATION_SCHEMA = "pdplan.verification/1"
Verdict = Literal["met", "missed within the interval", "missed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTarget:
    """A target of the scenario against the simulation."""

    metric: str
    percentile: float | None
    """90 for p90; null for a mean."""
    target: float
    planned: float | None
    """What the plan says, seconds."""
    simulated: float | None
    """Seconds; null where so many requests got no answer that the percentile is infinite."""
    half_width_95: float | None
    """Half of the 95 % confidence interval of the simulated value, seconds."""
    verdict: Literal["met", "missed within the interval", "missed"]
    """`missed within the interval` is a miss smaller than the interval's half-width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLatency:
    """One percentile (or mean) of a latency, planned and simulated."""

    metric: str
    """`ttft_s`, `tpot_s`, `e2e_s` over requests; `itl_s`: the gap between two tokens, over tokens; `itl_max_s`: the largest
    gap of a request, over requests."""
    percentile: float | None
    """90 for p90, 100 for the largest of all; null for the mean."""
    planned: float | None
    """Seconds; null where the plan does not say."""
    simulated: float | None
    """Seconds; null where infinite."""
    half_width_95: float | None
    """Half of the 95 % confidence interval, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPool:
    """Load of one pool, planned and simulated."""

    name: str
    """Role and number in the order of the plan, e.g. `prefill-1`."""
    role: str
    site: str
    node_type: str
    replicas: int
    utilization_planned_frac: float
    """Busy share (prefill), or mean batch over largest batch."""
    utilization_simulated_frac: float
    """The same, measured."""
    batch_planned: float
    """Mean requests in service per replica."""
    batch_simulated: float
    """The same, measured."""
    kv_simulated_frac: float
    """Mean share of the memory for caches that is in use."""
    wait_mean_s: float
    """Before the pass (prefill, colocated), or between the cache's arrival and the batch (decode)."""
    wait_p99_s: float
    """99th percentile of that wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPhase:
    """What the users saw between two failures."""

    name: str
    """What is down."""
    from_s: float
    """Since the first arrival of the run, seconds."""
    to_s: float
    """Seconds since the first arrival."""
    requests: int
    """Arrivals in that time, over all runs."""
    attainment_frac: float
    """Share of them within all targets' limits."""
    ttft_p90_s: float | None
    """Seconds; null where infinite."""
    ttft_p99_s: float | None
    """Seconds; null where infinite."""
    tpot_p90_s: float | None
    """Seconds; null where infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A plan, played request by request."""

    mode: str
    """`disaggregated` or `colocated`: which of the plan's fleets was played."""
    traffic: str
    """Where the requests come from, in words."""
    rate_req_per_s: float
    """Mean arrival rate of the requests played."""
    seed: int
    """First of the seeds; the same seed gives the same numbers."""
    runs: int
    """Runs with different seeds."""
    simulated_requests: int
    """Over all runs, those left out at start and end among them."""
    duration_s: float
    """Of one run: from the first to the last arrival."""
    warmup_frac: float
    """Share of each run left out at its start."""
    cooldown_frac: float
    """Share of each run left out at its end, when the fleet empties."""
    routers: str
    """How a request finds its replica."""
    failures: tuple[str, ...]
    """As asked for with `--fail`."""
    requests: int
    """Measured, over all runs."""
    finished: int
    """Of the measured ones."""
    rejected: int
    """Turned away or lost; they count against every target."""
    unfinished: int
    """Left without an answer at the end."""
    preempted: int
    """Requests whose cache was dropped and computed again."""
    attainment_frac: float
    """Share of the measured requests within the limits of all targets at once."""
    targets: tuple[SimulatedTarget, ...]
    """Every target of the scenario."""
    latency: tuple[SimulatedLatency, ...]
    """Means and percentiles."""
    pools: tuple[SimulatedPool, ...]
    """Every pool of the fleet played."""
    phases: tuple[SimulatedPhase, ...]
    """Before, between and after failures; empty without."""
    warnings: tuple[str, ...]
    """Sentences for the reader."""
    ok: bool
    """No target is missed by more than the interval."""
    alternative: Verification | None = None
    """The colocated alternative under the same requests, where it was asked for."""
