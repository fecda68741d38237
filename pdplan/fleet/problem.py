"""The fleet program's input: candidate pools with capacity tables, sites, links, limits. Numbers only.

This is the contract between latency/queueing (which build it) and optimisation (which solves it).

Demand is a set of bands (slices of one model's traffic by prompt length); a lane is a union of bands that pools serve
together. What is bought is decided once per phase; what runs is decided in every state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Band",
    "CapacityTable",
    "FleetProblem",
    "Lane",
    "Limits",
    "LinkOption",
    "NodeOffer",
    "Objective",
    "Phase",
    "PoolOption",
    "Role",
    "SiteOption",
    "State",
]

Role = Literal["prefill", "decode", "colocated"]
Objective = Literal["cost", "cards", "power", "carbon", "throughput"]
"""`throughput` is the largest multiple of the demand that the limits (a budget among them) allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityTable:
    """Largest arrival rate [req/s] at which n identical replicas still meet the percentile targets.

    `replicas` are increasing integers (K,) starting at 1, `rate_req_per_s` (K,) is non-decreasing.
    Between points the table is read at the largest listed n not above it plus linear growth at the
    smaller of the neighbouring slopes (never promising more than the queueing formula); past the last
    point it grows linearly with the last slope per replica.
    """

    replicas: NDArray[np.int64]
    rate_req_per_s: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A slice of one model's traffic: `rate_frac` of a state's rate unless the state says otherwise."""

    id: str
    rate_frac: float
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Bands served together.

    With one lane per band (the usual case without thresholds) every lane takes all of its bands. Where lanes overlap the
    program chooses: a share of each lane, the shares of the lanes that contain a band summing to 1. A lane with share a
    takes the share a of each of its bands, so the mix of lengths in a lane, and with it the tables, never changes.
    """

    id: str
    rate_frac: float
    """Sum of the fractions of its bands."""
    bands: tuple[int, ...] = (0,)
    """Indices into `FleetProblem.bands`."""
    model: str = ""
    kv_bytes_per_request: float = 0.0
    """Mean bytes of KV that go from prefill to decode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOption:
    """A candidate pool: any number of identical replicas of one layout at one site for one lane."""

    id: str
    role: Role
    lane: str
    site: str
    node_type: str
    """Key of a NodeOffer at that site."""
    destination_site: str
    """Prefill: where its requests decode. Decode and colocated: its own site."""
    cards_per_replica: int
    capacity: CapacityTable
    compatibility: str = ""
    """Prefill and decode pools exchange requests only where this key is equal (an engine's equal-TP rule)."""
    kv_bytes_per_request: float = 0.0
    """Sent from this (prefill) pool per request; overrides the lane's."""
    max_replicas: int = 1_000_000
    candidate: int = -1
    """Row of the candidate table this pool came from."""
    variants: Mapping[str, CapacityTable] = field(default_factory=dict)
    """Tables under other conditions (a relaxed SLO, a pessimistic latency model), by the name states use."""
    group: str = ""
    """Pools of one group (same site, node type, role and size; linear tables) are the same replicas serving several lanes in
    turn: their replicas may be fractions, the sum over the group is a whole number. Empty: a pool of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOffer:
    """Nodes of one type that can be had at one site, on one term. (site, node_type, term) is unique."""

    site: str
    node_type: str
    cards_per_node: int
    cost_usd_per_node_hour: float
    power_w_per_node: float
    max_nodes: int | None = None
    min_nodes_if_used: int = 0
    lot_nodes: int = 1
    """Bought only in multiples of this."""
    owned_nodes: int = 0
    """Already there, at `owned_cost_usd_per_node_hour`."""
    owned_cost_usd_per_node_hour: float = 0.0
    """Paid for every owned node that is kept, in all hours."""
    carbon_kg_per_node_hour: float = 0.0
    term: str = ""
    """How it is had: purchase, reserved-3y, on-demand, spot ... Offers of one type at one site share cards and power."""
    paid: Literal["always", "when_used"] = "always"
    """always: in all hours from its phase on; when_used: in the hours of the states that use it (rented burst)."""
    from_phase: int = 0
    """First phase in which it can be there (lead time)."""
    cost_by_phase_usd_per_node_hour: tuple[float, ...] = ()
    """Hourly cost of a node bought in phase p, kept for good (price decline); empty is the same in all."""
    idle_power_w_per_node: float | None = None
    """Drawn by a node that is on and idle; None is `power_w_per_node`."""
    energy_usd_per_kwh: float = 0.0
    """Paid for the power of nodes in use where the hourly cost leaves energy out (PUE included)."""
    vendor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteOption:
    """A data centre."""

    id: str
    max_power_w: float | None = None
    max_cards: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOption:
    """Capacity between two sites (either direction), bought in units."""

    site_a: str
    site_b: str
    unit_bandwidth_bytes_per_s: float
    usable_frac: float
    min_units: int
    max_units: int
    usd_per_unit_hour: float
    from_phase: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Global limits. None is no limit."""

    budget_usd_per_hour: float | None = None
    max_power_w: float | None = None
    max_cards: int | None = None
    max_sites: int | None = None
    min_cards_by_role: Mapping[str, int] = field(default_factory=dict)
    """If a role is opened at a site, its cards there are at least this (the 64 + 64 start)."""
    pinned_nodes: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """(site, role, node type) -> exact node count, in every state."""
    max_carbon_kg_per_hour: float | None = None
    same_vendor: bool = False
    """Prefill and decode nodes of one vendor."""
    current_nodes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(site, node type) -> nodes today, for `max_changed_nodes`."""
    max_changed_nodes: int | None = None
    """Sum over types and sites of |nodes had - nodes today| is at most this."""
    spare_nodes: Mapping[str, int] = field(default_factory=dict)
    """Role -> k: every (site, role, node type) in use has k nodes more than the load needs (N + k)."""
    allow_role_switch: bool = True
    """A node may serve another role in another state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of time (a quarter) with its own purchases. What was bought before is still there."""

    id: str
    weight: float = 1.0
    """Its share of the horizon's discounted hours; the weights of all phases sum to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """An operating state: a demand level with its hours per year, and what is lost in it."""

    id: str
    rate_req_per_s: float
    hours_per_year: float
    """Weight of its running cost within its phase; 0 must only be survived."""
    lost_nodes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(site, node type) -> nodes down; -1 is all of them. Rented nodes (`when_used`) replace none of them."""
    lost_sites: tuple[str, ...] = ()
    lost_links: tuple[tuple[str, str], ...] = ()
    """All units between two sites, both directions."""
    lost_link_units: Mapping[tuple[str, str], int] = field(default_factory=dict)
    band_frac: tuple[float, ...] = ()
    """Fractions of the rate by band where they differ from the bands' own."""
    phase: int = 0
    variant: str = ""
    """Which table of a pool holds: empty is `capacity`, else `variants[variant]` (a pool without it cannot serve here)."""
    can_rent: bool = True
    """Whether nodes paid `when_used` can be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetProblem:
    """Everything the program needs. The cost per hour is the mean over phases (by weight) and states (by hours)."""

    pools: tuple[PoolOption, ...]
    lanes: tuple[Lane, ...]
    sites: tuple[SiteOption, ...]
    offers: tuple[NodeOffer, ...]
    links: tuple[LinkOption, ...]
    limits: Limits
    states: tuple[State, ...]
    objective: Objective = "cost"
    then: tuple[tuple[Objective, float], ...] = ()
    """Further objectives in turn, each with the fraction by which the one before may get worse for it."""
    bands: tuple[Band, ...] = ()
    """Empty: one band per lane, with the lane's fraction."""
    phases: tuple[Phase, ...] = (Phase(id=""),)
