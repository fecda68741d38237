"""The fleet program's input: candidate pools with capacity tables, sites, links, limits. Numbers only.

This is the contract between latency/queueing (which build it) and optimisation (which solves it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CapacityTable",
    "FleetProblem",
    "Lane",
    "Limits",
    "LinkOption",
    "NodeOffer",
    "Objective",
    "PoolOption",
    "Role",
    "SiteOption",
    "State",
]

Role = Literal["prefill", "decode", "colocated"]
Objective = Literal["cost", "cards", "power"]


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
class Lane:
    """A slice of traffic served together. `rate_frac` of the scenario's rate enters it (one state)."""

    id: str
    rate_frac: float
    bands: tuple[int, ...] = (0,)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOffer:
    """Nodes of one type that can be had at one site."""

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
    carbon_kg_per_node_hour: float = 0.0


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
    """(site, role, node type) -> exact node count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """An operating state: a demand level with its hours per year, and what is lost in it."""

    id: str
    rate_req_per_s: float
    hours_per_year: float
    lost_nodes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(site, node type) -> nodes down; -1 is all of them."""
    lost_links: tuple[tuple[str, str], ...] = ()
    lane_frac: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetProblem:
    """Everything the program needs; the sum of coverage over lanes follows `lanes[*].bands`."""

    pools: tuple[PoolOption, ...]
    lanes: tuple[Lane, ...]
    sites: tuple[SiteOption, ...]
    offers: tuple[NodeOffer, ...]
    links: tuple[LinkOption, ...]
    limits: Limits
    states: tuple[State, ...]
    objective: Objective = "cost"
