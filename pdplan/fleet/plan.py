"""The plan: what to buy, what it costs, what latency it gives, and the proof. Plain numbers, SI units.

A plan is written as PLAN.json (``schema: pdplan.plan/1``) and read back without loss. Fields are added,
never renamed.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pdplan import __version__
from pdplan.errors import InputError
from pdplan.fleet.verification import Verification

__all__ = [
    "SCHEMA",
    "Alternative",
    "Assumption",
    "Assurance",
    "Binding",
    "CandidateCount",
    "Certificate",
    "Check",
    "Cost",
    "CostLine",
    "LinkLoad",
    "MemoryBudget",
    "NearOptimal",
    "PeriodNodes",
    "PeriodPlan",
    "PeriodPool",
    "Plan",
    "PlanReason",
    "Pool",
    "PoolLayout",
    "Purchase",
    "SloLine",
    "Solver",
    "Stats",
    "Totals",
    "plan_from_json",
]

SCHEMA = "pdplan.plan/1"


def _report() -> Any:
    """The writers live on a floor above; a plan only forwards to them."""
    return importlib.import_module("pdplan.report")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """One line of the bill."""

    item: str
    """For instance ``east: 6 x h200-sxm-8`` or ``link east-west``."""
    role: str
    """prefill, decode, colocated, idle or network."""
    quantity: float
    unit_usd_per_hour: float
    usd_per_hour: float
    basis: str
    """Where the unit price comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Money. A month is 730 hours and a year 8760."""

    usd_per_hour: float
    usd_per_month: float
    usd_per_year: float
    usd_per_million_input_tokens: float
    """Prefill pools (plus network) over input tokens at the design rate; colocated fleets split by modelled work."""
    usd_per_million_output_tokens: float
    breakdown: tuple[CostLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Size of the fleet."""

    cards: int
    nodes: int
    prefill_cards: int
    decode_cards: int
    prefill_nodes: int
    decode_nodes: int
    colocated_cards: int
    colocated_nodes: int
    idle_cards: int
    """Bought with whole nodes and not used by any replica."""
    power_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLayout:
    """How one replica is spread over cards."""

    tp: int
    pp: int
    ep: int
    attention_dp: int
    cards_per_replica: int
    max_batch: int
    """Most sequences resident in one replica (decode and colocated; requests per pass for prefill)."""
    token_budget: int
    """New tokens per pass and attention rank (prefill), or per iteration (colocated); 0 for decode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """HBM of one card, bytes."""

    hbm: float
    weights: float
    kv_cache: float
    """KV of the mean number of sequences in service."""
    staging: float
    """KV of requests in transfer."""
    reserve: float
    free: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Identical replicas of one layout on one node type at one site."""

    role: Literal["prefill", "decode", "colocated"]
    site: str
    node_type: str
    accelerator: str
    destination_site: str
    nodes: int
    """Whole nodes; 0 where the pool sits on another pool's node (same role, site and type)."""
    cards: int
    """Cards of the nodes, idle ones included."""
    replicas: int
    layout: PoolLayout
    rate_req_per_s: float
    capacity_req_per_s: float
    """Largest rate at which this pool still meets every target."""
    utilization_frac: float
    """Busy share of the replicas (prefill), or mean batch over largest batch (decode)."""
    batch_mean: float
    """Mean sequences in service per replica."""
    service_mean_s: float
    """Prefill pass, or decode step."""
    flop_frac: float
    """Share of the dense peak in use."""
    hbm_frac: float
    """Share of the memory bandwidth in use."""
    memory_bytes_per_card: MemoryBudget
    usd_per_hour: float
    power_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """Nodes of one type to have at one site."""

    site: str
    node_type: str
    nodes: int
    owned_nodes: int
    cards_per_node: int
    idle_cards: int
    usd_per_node_hour: float
    usd_per_hour: float
    """Bought, kept and rented."""
    price_basis: str
    rented_nodes: int = 0
    """Most that are rented at a time."""
    rented_mean_nodes: float = 0.0
    """Over all hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLoad:
    """KV traffic between two sites (or inside one, where `from_site` equals `to_site`)."""

    from_site: str
    to_site: str
    units: int
    load_gbit_per_s: float
    capacity_gbit_per_s: float
    """Usable share of the units bought."""
    utilization_frac: float
    one_way_s: float
    transfer_mean_s: float
    """Mean KV transfer per request as it enters TTFT."""
    usd_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SloLine:
    """A target against the prediction, with the 90 % interval of the latency model."""

    metric: str
    percentile: float
    target: float
    predicted: float
    low_90: float
    high_90: float
    met: bool
    assured: float | None = None
    """What is held against the target: the prediction times the margin of the scenario's confidence, if it states one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assurance:
    """What the scenario's confidence asks for and costs."""

    confidence: float
    """One-sided, for each target by itself."""
    ttft_margin: float | None
    """Assured over predicted TTFT, the largest of the targets; null where there is no plan."""
    tpot_margin: float | None
    """The same of TPOT."""
    status_without: str
    """Outcome of the same scenario with targets held against the predictions themselves."""
    usd_per_hour_without: float | None = None
    """Cost of that plan; null where there is none."""
    nodes_without: int | None = None
    """Its nodes."""
    cards_without: int | None = None
    """Its cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Mean and percentiles of a latency, seconds."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the certificate: lhs <= rhs unless the name says otherwise."""

    name: str
    lhs: float
    rhs: float
    slack: float
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Every constraint recomputed outside the solver."""

    ok: bool
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solver:
    """Who solved it and what was proven."""

    name: str
    proof: Literal["optimal", "feasible", "none"]
    gap: float
    bound: float
    time_s: float | None
    """None in written files, so that they are byte-identical."""
    variables: int
    constraints: int
    rounds: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateCount:
    """How many layouts were looked at."""

    enumerated: int
    feasible: int
    kept: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A figure the plan rests on, with its source."""

    name: str
    value: str
    basis: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A constraint without slack: what holds the cost up."""

    constraint: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReason:
    """Why a request cannot be met; see :class:`pdplan.errors.Reason`."""

    constraint: str
    required: float | None
    nearest: float | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NearOptimal:
    """Another fleet of the same mode: a different set of machine types, roles and sites in use, at its own least cost."""

    rank: int
    """2 is the next after the plan."""
    fleet: str
    """Nodes in use at the peak, in words."""
    nodes: int
    cards: int
    usd_per_hour: float
    cost_ratio: float
    """Its cost over the plan's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodPool:
    """A pool as it runs in one period."""

    role: str
    site: str
    node_type: str
    destination_site: str
    layout: PoolLayout
    replicas: int
    rate_req_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodNodes:
    """Nodes of a type in use in one period."""

    site: str
    node_type: str
    role: str
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodPlan:
    """What runs in one operating state: a level of the day, or after a loss."""

    id: str
    """The level as a multiple of the rate, or what is lost."""
    hours_per_year: float
    """0 for a loss, which must only be survived."""
    rate_req_per_s: float
    pools: tuple[PeriodPool, ...]
    nodes: tuple[PeriodNodes, ...]
    rented: tuple[PeriodNodes, ...] = ()
    """Of the nodes, those paid by the hour; their role is empty."""
    slo: tuple[SloLine, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another way of serving the same scenario, summarised."""

    mode: str
    status: str
    """optimal, feasible, infeasible or not solved."""
    reason: str
    """Why there is none; empty otherwise."""
    usd_per_hour: float | None = None
    usd_per_month: float | None = None
    usd_per_million_input_tokens: float | None = None
    usd_per_million_output_tokens: float | None = None
    cards: int | None = None
    nodes: int | None = None
    power_w: float | None = None
    cost_ratio: float | None = None
    """Its cost over the plan's."""
    pools: tuple[Pool, ...] = ()
    slo: tuple[SloLine, ...] = ()
    latency: Mapping[str, Stats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer to a scenario."""

    schema: str = SCHEMA
    pdplan_version: str = __version__
    scenario: Mapping[str, Any]
    """As given."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """What files named by the scenario said (model architecture, lengths of a trace), so that this file stands alone."""
    catalog_digest: str
    status: Literal["optimal", "feasible", "infeasible"]
    mode: Literal["disaggregated", "colocated", "mixed"]
    objective: str
    reasons: tuple[PlanReason, ...] = ()
    cost: Cost | None = None
    totals: Totals | None = None
    pools: tuple[Pool, ...] = ()
    purchases: tuple[Purchase, ...] = ()
    links: tuple[LinkLoad, ...] = ()
    slo: tuple[SloLine, ...] = ()
    latency: Mapping[str, Stats] = field(default_factory=dict)
    periods: tuple[PeriodPlan, ...] = ()
    """Every operating state, the peak first; empty where there is one only, which the pools show."""
    colocated: Alternative | None = None
    """The alternative mode on the same scenario."""
    near_optimal: tuple[NearOptimal, ...] = ()
    """The next best fleets that differ in structure, where they were asked for."""
    distances: tuple[DistanceLine, ...] = ()
    """How the answer moves with the length of the fibre."""
    binding: tuple[Binding, ...] = ()
    certificate: Certificate | None = None
    solver: Solver | None = None
    candidates: CandidateCount | None = None
    assumptions: tuple[Assumption, ...] = ()
    warnings: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    assurance: Assurance | None = None
    """What the scenario's confidence costs; null where it states none."""
    simulation: Verification | None = None
    """What `pdplan plan --verify` found; null where it was not asked for."""

    @property
    def cost_usd_per_hour(self) -> float:
        """Cost of the fleet per hour; raises ValueError for an infeasible request."""
        if self.cost is None:
            raise ValueError("the request is infeasible: there is no cost")
        return self.cost.usd_per_hour

    @property
    def slo_report(self) -> tuple[SloLine, ...]:
        """Targets against predictions."""
        return self.slo

    def without_times(self) -> Plan:
        """The same plan less the figures that vary from run to run."""
        return replace(self, solver=replace(self.solver, time_s=None) if self.solver else None)

    def to_json(self) -> str:
        """PLAN.json as text, byte-identical for identical input."""
        data = asdict(self.without_times())
        if data["solver"] is not None:
            del data["solver"]["time_s"]
        return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def to_markdown(self) -> str:
        """The decision paper."""
        return str(_report().render(self, "md"))

    def write(self, folder: str | Path, formats: tuple[str, ...] | list[str] = ("md", "csv", "json")) -> list[Path]:
        """Write the reports into a folder, each file whole or not at all; returns the paths."""
        paths: list[Path] = _report().write(self, Path(folder), formats)
        return paths


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceLine:
    """The plan re-solved with every inter-site link at another length."""

    distance_km: float
    status: str
    usd_per_hour: float | None
    link_usd_per_hour: float | None
    one_way_s: float
    slo: tuple[SloLine, ...] = ()
    nodes: int | None = None


def plan_from_json(text: str, *, name: str = "PLAN.json") -> Plan:
    """Read PLAN.json back.

    Raises
    ------
    InputError
        Not JSON, not a plan, or a field of the wrong kind.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as fault:
        raise InputError(f"{name}: is not JSON: {fault}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise InputError(f"{name}: schema is not {SCHEMA!r}; write one with `pdplan plan SCENARIO --json`")
    if isinstance(data.get("solver"), dict):
        data["solver"].setdefault("time_s", None)
    try:
        return TypeAdapter(Plan).validate_python(data)
    except ValidationError as fault:
        raise InputError(
            *(
                f"{name}: {'.'.join(str(step) for step in error['loc'])}: {error['msg']}"
                for error in fault.errors()[:10]
            )
        ) from None
