"""The scenario file, as the user writes it (``schema: pdplan.scenario/1``).

Field docstrings become the descriptions of ``pdplan schema`` (see :func:`json_schema`). Quantities with a unit in the value
(``400 Gb/s``) are strings; bare numbers stand only where the key carries the unit.
"""

from __future__ import annotations

import itertools
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from pdplan.units import parse_quantity

__all__ = ["ScenarioFile", "json_schema", "percentile_of"]

_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")


def percentile_of(key: str) -> float:
    """Percentile in (0, 100) of a key such as ``p90`` or ``p99.9``.

    Raises
    ------
    ValueError
        For any other key.
    """
    match = _PERCENTILE.fullmatch(key)
    if match is None or not 0.0 < (percentile := float(match.group(1))) < 100.0:
        raise ValueError(f"{key!r} is not a percentile; accepted are p50, p90, p99, p99.9 (above 0, below 100)")
    return percentile


def _quantity(dimension: str) -> BeforeValidator:
    def read(value: object) -> float:
        number = parse_quantity(value, dimension)
        if number <= 0:
            raise ValueError(f"{value!r} must be greater than 0")
        return number

    return BeforeValidator(read, json_schema_input_type=str)


BytesPerS = Annotated[float, _quantity("byte/s")]
Bytes = Annotated[float, _quantity("byte")]
Watts = Annotated[float, _quantity("W")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]
CountOrZero = Annotated[int, Field(ge=0, strict=True)]
Role = Literal["prefill", "decode", "colocated"]


class _Strict(BaseModel):
    # Building is deferred: the whole scenario is compiled once, not every part of it on import. Field docstrings are read
    # by json_schema(), not by pydantic: it would parse this file once per class, whatever the command.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class PrecisionFile(_Strict):
    """Number formats; what is left out follows the released checkpoint."""

    weights: Literal["bf16", "fp8", "int8", "fp4", "int4"] | None = None
    """Format of the linear layers and experts."""
    attention: Literal["bf16", "fp8", "int8", "fp4", "int4"] | None = None
    """Format of the attention projections where it differs."""
    kv_cache: Literal["bf16", "fp8", "int8", "fp4"] | None = None
    """Format of the KV cache (default: fp8 for fp8 and fp4 weights, else bf16)."""


class SpeculationFile(_Strict):
    """Speculative decoding or multi-token prediction."""

    draft_tokens: Annotated[int, Field(ge=1, le=16, strict=True)] = 1
    """Draft tokens per step."""
    acceptance_frac: Annotated[float, Field(gt=0, lt=1, strict=True)] | None = None
    """Chance that a draft token is accepted given those before it (default: the engine's fitted value)."""


class ArrivalsFile(_Strict):
    """Burstiness of arrivals."""

    cv: Annotated[float, Field(ge=0, le=20, strict=True)] = 1.0
    """Coefficient of variation of the gaps between arrivals; 1 is Poisson, 0 is a metronome."""


class WorkloadFile(_Strict):
    """What the users send."""

    rate_req_per_s: Positive
    """Mean arrival rate of requests over the whole fleet."""
    lengths: str | dict[str, Any]
    """Name of a shipped shape, {trace: FILE}, {fixed: {input_tokens, output_tokens}}, or quantile tables
    {input_tokens: {p50: ..}, output_tokens: {..}}."""
    arrivals: Literal["poisson"] | ArrivalsFile = "poisson"
    """poisson, or {cv: 2.0}."""
    prefix_hit_frac: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.0
    """Share of the input tokens found in the prefix cache."""
    peak_multiplier: Positive = 1.0
    """The fleet is sized for rate_req_per_s times this."""
    day_curve: Annotated[list[Positive], Field(min_length=2, max_length=168)] | None = None
    """Rate over the day (24 entries) or the week (168), as multiples of rate_req_per_s; any other number of equal parts of
    a day is accepted. The fleet is sized for the largest, roles may change between periods."""


class SloFile(_Strict):
    """Latency targets by percentile, in seconds."""

    ttft_s: dict[str, Positive] = Field(default_factory=dict)
    """Time to first token, e.g. {p90: 2.0}."""
    tpot_s: dict[str, Positive] = Field(default_factory=dict)
    """Time per output token after the first, e.g. {p90: 0.05}."""

    @model_validator(mode="after")
    def _percentiles(self) -> SloFile:
        for table in (self.ttft_s, self.tpot_s):
            for key in table:
                percentile_of(key)
        if not self.ttft_s or not self.tpot_s:
            raise ValueError("both ttft_s and tpot_s need at least one target, e.g. ttft_s: {p90: 2.0}")
        return self


class PriceChoice(_Strict):
    """Which price rows of the catalog apply."""

    pricing_model: Literal["on-demand", "spot", "reserved-1y", "reserved-3y", "purchase", "any"] | str = "on-demand"
    """Pricing model of the rows."""
    provider: str | None = None
    """Only rows of this provider."""
    region: str | None = None
    """Only rows of this region."""


class NodeFile(_Strict):
    """Nodes of one type that can be had at this site."""

    type: str
    """Catalog id of a node."""
    max_nodes: CountOrZero | None = None
    """Stock: at most this many at this site."""
    min_nodes: CountOrZero = 0
    """If any are taken, at least this many."""
    lot_nodes: Count = 1
    """Sold in multiples of this many."""
    owned_nodes: CountOrZero = 0
    """Already there and paid for (counted inside max_nodes); they cost `owned_usd_per_node_hour`."""
    owned_usd_per_node_hour: NonNegative = 0.0
    """Running cost of an owned node."""
    rent_usd_per_node_hour: Positive | None = None
    """More nodes can be rented by the hour at this price, in the periods that need them."""
    max_rented_nodes: CountOrZero | None = None
    """Most that can be rented at a time."""
    usd_per_node_hour: NonNegative | None = None
    """Your own price, everything included; wins over the catalog."""
    purchase_usd_per_node: Positive | None = None
    """Your own purchase price; turned into an hourly cost by `finance`."""
    price: PriceChoice | None = None
    """Which catalog rows to use (default: the scenario's `pricing`)."""
    roles: list[Role] | None = None
    """Roles this machine may take (default: all)."""


class SiteFile(_Strict):
    """A data centre and what can be had there."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    """Short name: letters, digits, dot, dash, underscore."""
    nodes: Annotated[list[NodeFile | str], Field(min_length=1)]
    """Node types on offer; a bare id means no limit at the catalog price."""
    max_power: Watts | None = None
    """Power available to the nodes of this site, e.g. 2 MW."""
    max_cards: Count | None = None
    """Most accelerator cards this site can hold."""
    electricity_usd_per_kwh: NonNegative | None = None
    """Tariff for nodes whose price leaves energy out (purchased ones)."""
    grid_co2_kg_per_kwh: NonNegative | None = None
    """Carbon dioxide of the electricity; needed for `max_carbon_kg_per_hour` and the objective carbon."""
    rack_power: Watts | None = None
    """Most a rack gives; node types of one rack that draw more are not used here, e.g. 40 kW."""
    pue: Annotated[float, Field(ge=1, le=3, strict=True)] | None = None
    """Power usage effectiveness of the site."""


class LinkFile(_Strict):
    """Fibre between two sites."""

    between: Annotated[list[str], Field(min_length=2, max_length=2)]
    """The two site names."""
    distance_km: NonNegative
    """Length of the route, one way."""
    unit_bandwidth: BytesPerS
    """What one purchasable unit carries, e.g. 400 Gb/s."""
    min_units: CountOrZero = 0
    """Units already there or always bought."""
    max_units: CountOrZero = 64
    """Most units that can be had."""
    usd_per_unit_month: NonNegative = 0.0
    """Price of one unit."""
    usable_frac: Annotated[float, Field(gt=0, le=1, strict=True)] = 0.8
    """Share of the nominal capacity that KV transfers may fill."""


class RoleFile(_Strict):
    """Rules for one role."""

    min_cards: CountOrZero = 0
    """If the role is opened at a site, at least this many cards there."""
    sites: list[str] | None = None
    """Sites where it may run (default: all)."""
    node_types: list[str] | None = None
    """Node types it may use (default: all)."""
    forbidden_node_types: list[str] = Field(default_factory=list)
    """Node types it may not use."""
    spare_nodes: CountOrZero = 0
    """N + k: at every site, of every type the role uses, so many nodes more than the load needs."""


class PinnedFile(_Strict):
    """Nodes that are fixed: exactly so many in use."""

    site: str
    role: Role
    type: str
    """Catalog id of the node."""
    nodes: CountOrZero


class CurrentFile(_Strict):
    """Nodes that run today."""

    site: str
    type: str
    """Catalog id of the node."""
    nodes: CountOrZero


class LossFile(_Strict):
    """Something that fails, and what must still be served then."""

    lose_site: str | None = None
    """All of a site."""
    lose_nodes: CurrentFile | None = None
    """So many nodes of a type, e.g. {site: east, type: h200-sxm-8, nodes: 1}."""
    rate_frac: Annotated[float, Field(gt=0, le=1, strict=True)] = 1.0
    """Share of the peak rate that is still served, within the same targets; the rest is turned away."""

    @model_validator(mode="after")
    def _one(self) -> LossFile:
        if (self.lose_site is None) == (self.lose_nodes is None):
            raise ValueError("write either lose_site or lose_nodes")
        return self


class FleetFile(_Strict):
    """Rules for the fleet as a whole."""

    modes: Annotated[list[Literal["disaggregated", "colocated"]], Field(min_length=1)] = ["disaggregated", "colocated"]
    """Alternatives to solve; the first is the plan, the other is shown beside it."""
    prefill: RoleFile = RoleFile()
    decode: RoleFile = RoleFile()
    colocated: RoleFile = RoleFile()
    budget_usd_per_hour: Positive | None = None
    """Most the fleet may cost."""
    max_power: Watts | None = None
    """Most the fleet may draw, e.g. 1.5 MW."""
    max_cards: Count | None = None
    """Most cards in the fleet."""
    max_sites: Count | None = None
    """Most sites that may be used."""
    max_carbon_kg_per_hour: Positive | None = None
    """Most carbon dioxide of the nodes in use."""
    same_vendor: bool = False
    """Prefill and decode on accelerators of one vendor."""
    pinned: list[PinnedFile] = Field(default_factory=list)
    """Exact node counts, e.g. [{site: west, role: decode, type: h20-96-8, nodes: 24}]."""
    current: list[CurrentFile] = Field(default_factory=list)
    """The fleet of today, for `max_changed_nodes`."""
    survive: list[LossFile] = Field(default_factory=list)
    """Losses, one at a time, that the fleet must be able to take."""
    max_changed_nodes: CountOrZero | None = None
    """Most nodes that may come or go against `current`, over all types and sites."""
    max_tp: Annotated[int, Field(ge=1, le=1024, strict=True)] | None = None
    """Largest tensor-parallel width considered."""
    max_cards_per_replica: Count | None = None
    """Largest replica considered."""
    chunk_tokens: Annotated[list[Annotated[int, Field(ge=64, le=131072, strict=True)]], Field(min_length=1)] = Field(
        default_factory=lambda: [512, 2048, 8192]
    )
    """Token budgets per iteration tried for colocated serving."""


class FinanceFile(_Strict):
    """How purchases become hourly costs (annuity)."""

    amortisation_years: Positive = 5.0
    """Years over which a purchase is written off."""
    capital_cost_per_year_frac: Annotated[float, Field(ge=0, le=1, strict=True)] = 0.10
    """Interest rate of the annuity."""
    max_price_age_days: Count = 365
    """Older price rows give a warning."""
    as_of: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None = None
    """Date for the age of prices (default: the newest observation in the catalog, so that output does not depend on
    the day it is run)."""


class SolverFile(_Strict):
    """How the program is solved."""

    name: Literal["highs", "cbc", "scip"] = "highs"
    time_limit_s: Positive = 60.0
    gap: Annotated[float, Field(ge=0, le=1, strict=True)] = 1e-4
    """Relative gap at which the solver may stop and call the plan optimal."""


class ScenarioFile(_Strict):
    """A planning question: model, workload, targets, and what can be bought."""

    schema_id: Literal["pdplan.scenario/1"] = Field(alias="schema")
    """Always pdplan.scenario/1."""
    name: Annotated[str, Field(min_length=1, max_length=200)] = "unnamed scenario"
    """Title of the report."""
    model: Annotated[str, Field(min_length=1)]
    """Catalog id, or path to a Hugging Face config.json."""
    precision: PrecisionFile = PrecisionFile()
    engine: str = "generic"
    """Catalog id of the serving engine: its constants and layout rules."""
    speculation: SpeculationFile | None = None
    workload: WorkloadFile
    slo: SloFile
    confidence: Annotated[float, Field(ge=0.5, lt=1, strict=True)] | None = None
    """Chance with which the targets shall hold although predictions err, e.g. 0.9 (default: targets are held against the
    predictions themselves)."""
    sites: Annotated[list[SiteFile], Field(min_length=1)]
    links: list[LinkFile] = Field(default_factory=list)
    fleet: FleetFile = FleetFile()
    pricing: PriceChoice = PriceChoice()
    """Default choice of catalog price rows."""
    finance: FinanceFile = FinanceFile()
    objective: Literal["cost", "cards", "power", "carbon"] = "cost"
    """What to minimise."""
    solver: SolverFile = SolverFile()
    profile: Annotated[str, Field(min_length=1)] | None = None
    """Efficiency profile written by `pdplan calibrate`: constants fitted to your own measurements."""
    latency_overrides: dict[str, Positive] = Field(default_factory=dict)
    """Latency constants that replace the catalog's, by name, e.g. {family.memory_efficiency: 0.8}."""


def json_schema() -> dict[str, Any]:
    """JSON Schema of the scenario file, the docstring under each field as its description."""
    import ast
    import inspect
    import sys

    schema = ScenarioFile.model_json_schema(by_alias=True)
    aliases = {name: info.alias or name for name, info in ScenarioFile.model_fields.items()}
    for node in ast.parse(inspect.getsource(sys.modules[__name__])).body:
        if not isinstance(node, ast.ClassDef):
            continue
        home = schema if node.name == ScenarioFile.__name__ else schema["$defs"].get(node.name, {})
        for field, text in itertools.pairwise(node.body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                name = aliases.get(field.target.id, field.target.id) if home is schema else field.target.id
                home["properties"][name].setdefault("description", " ".join(str(text.value.value).split()))
    return schema
