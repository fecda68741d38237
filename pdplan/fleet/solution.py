"""The fleet program's answer: what is bought once per phase and what runs in every state. Numbers only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["FleetSolution", "StateSolution"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSolution:
    """What runs in one operating state. Entries that are zero are left out."""

    id: str
    rate_req_per_s: float
    phase: int = 0
    replicas: Mapping[str, int]
    """Pool -> whole replicas. Pools of a group may run fractions: theirs are in `group_replicas`."""
    flow_req_per_s: Mapping[str, float]
    nodes: Mapping[tuple[str, str, str], int]
    """(site, role, node type) -> nodes in use, spare nodes included."""
    rented: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """(site, node type, term) -> nodes paid only while used."""
    lane_share: Mapping[str, float] = field(default_factory=dict)
    """Lane -> share of each of its bands."""
    group_replicas: Mapping[str, float] = field(default_factory=dict)
    """Pool of a group -> replicas, possibly a fraction; they sum to a whole number over the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSolution:
    """Integers and flows of a plan over all states and phases."""

    proof: str
    """optimal (gap reached, with the solver's proof), feasible (with its gap) or greedy (no solver behind it)."""
    states: tuple[StateSolution, ...]
    """One per state of the problem, in its order."""
    bought_by_phase: Mapping[tuple[str, str, str, int], int]
    """(site, node type, term, phase) -> nodes bought in that phase, beyond those owned."""
    kept: Mapping[tuple[str, str, str], int]
    """(site, node type, term) -> owned nodes that stay in use."""
    links_by_phase: Mapping[tuple[int, int], int]
    """(index into problem.links, phase) -> units there in that phase."""
    objective: float
    """Cost [USD/h], cards, watts, kg CO2 per hour, or multiple of the demand."""
    bound: float
    gap: float
    solver: str
    variables: int
    constraints: int
    time_s: float
    cost_usd_per_hour: float = 0.0
    """Mean over phases (by weight) and states (by hours), whatever the objective."""

    @property
    def bought(self) -> dict[tuple[str, str, str], int]:
        """(site, node type, term) -> nodes bought in all phases together."""
        total: dict[tuple[str, str, str], int] = {}
        for (site, node_type, term, _), n in self.bought_by_phase.items():
            total[site, node_type, term] = total.get((site, node_type, term), 0) + n
        return total

    @property
    def link_units(self) -> dict[int, int]:
        """Index into problem.links -> units in the last phase."""
        last = max((phase for _, phase in self.links_by_phase), default=0)
        return {i: n for (i, phase), n in self.links_by_phase.items() if phase == last}

    @property
    def peak(self) -> StateSolution:
        """The state with the highest rate (the first of them)."""
        return max(self.states, key=lambda state: state.rate_req_per_s)

    @property
    def replicas(self) -> Mapping[str, int]:
        """Replicas of the peak state."""
        return self.peak.replicas

    @property
    def flow_req_per_s(self) -> Mapping[str, float]:
        """Flows of the peak state."""
        return self.peak.flow_req_per_s

    @property
    def nodes(self) -> Mapping[tuple[str, str, str], int]:
        """Nodes in use in the peak state."""
        return self.peak.nodes
