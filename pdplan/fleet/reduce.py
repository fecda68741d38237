"""Fewer states, exactly: identical states are one with their hours together, implied states are left out.

State u is implied by state w when w is in the same phase, its demand is at least u's with the same mix, tables and losses, and
u may rent wherever w may. Proof: w's replicas, nodes and rented nodes with flows and link loads scaled by rate_u / rate_w meet
every constraint of u (tables and links have room to spare, counts are the same). If u has no hours, or nothing is paid or
counted by use (no rented nodes, no energy, no carbon), that costs nothing more, so the optimum of the smaller problem is the
optimum of the whole. A state without losses is implied by one with losses too, where nothing (spare nodes, pinned counts,
minimum units) is asked only of states without losses.
"""

from __future__ import annotations

from dataclasses import replace

from pdplan.fleet.problem import FleetProblem, State
from pdplan.fleet.shape import is_loss
from pdplan.fleet.solution import StateSolution

__all__ = ["Reduced", "expand", "reduce_states", "state_class"]


class Reduced:
    """A smaller problem, and for every state of the whole one the state that stands for it."""

    def __init__(self, problem: FleetProblem, stands: tuple[int, ...]) -> None:
        self.problem = problem
        self.stands = stands


def state_class(state: State) -> tuple[object, ...]:
    """What states must share to differ in demand alone."""
    return (
        state.phase,
        state.variant,
        state.band_frac,
        tuple(sorted(state.lost_nodes.items())),
        tuple(sorted(state.lost_sites)),
        tuple(sorted(tuple(sorted(pair)) for pair in state.lost_links)),
        tuple(sorted((tuple(sorted(pair)), n) for pair, n in state.lost_link_units.items())),
        state.can_rent,
    )


def _paid_by_use(problem: FleetProblem) -> bool:
    goals = {problem.objective, *(name for name, _ in problem.then)}
    if any(offer.paid == "when_used" or offer.energy_usd_per_kwh > 0 for offer in problem.offers):
        return True
    counts_carbon = "carbon" in goals or problem.limits.max_carbon_kg_per_hour is not None
    return counts_carbon and any(offer.carbon_kg_per_node_hour > 0 for offer in problem.offers)


def _implied(problem: FleetProblem, u: State, w: State) -> bool:
    """Whether u's constraints hold wherever w's do."""
    if u.rate_req_per_s > w.rate_req_per_s or (w.can_rent and not u.can_rent):
        return False
    mine, theirs = state_class(u), state_class(w)
    if mine[:3] != theirs[:3]:
        return False
    if mine[3:7] == theirs[3:7]:
        return True
    limits = problem.limits
    strict = any(limits.spare_nodes.values()) or limits.pinned_nodes or any(limits.min_cards_by_role.values())
    return not is_loss(u) and not strict


def reduce_states(problem: FleetProblem) -> Reduced:
    """Merge identical states, drop implied ones."""
    states = problem.states
    by_use = _paid_by_use(problem)
    order = sorted(range(len(states)), key=lambda w: (-states[w].rate_req_per_s, not is_loss(states[w]), w))
    kept: list[int] = []
    stands: dict[int, int] = {}
    for w in order:
        for other in kept:
            same = (
                state_class(states[w]) == state_class(states[other])
                and states[w].rate_req_per_s == states[other].rate_req_per_s
            )
            free = not by_use or states[w].hours_per_year == 0
            if same or (free and _implied(problem, states[w], states[other])):
                stands[w] = other
                break
        else:
            kept.append(w)
            stands[w] = w
    kept.sort()
    hours = {w: sum(states[u].hours_per_year for u in stands if stands[u] == w) for w in kept}
    smaller = tuple(replace(states[w], hours_per_year=hours[w]) for w in kept)
    place = {w: i for i, w in enumerate(kept)}
    return Reduced(replace(problem, states=smaller), tuple(place[stands[w]] for w in range(len(states))))


def expand(problem: FleetProblem, reduced: Reduced, found: tuple[StateSolution, ...]) -> tuple[StateSolution, ...]:
    """One solution per state of the whole problem."""
    result = []
    for state, i in zip(problem.states, reduced.stands, strict=True):
        one = found[i]
        scale = state.rate_req_per_s / one.rate_req_per_s if one.rate_req_per_s else 1.0
        flows = {name: x * scale for name, x in one.flow_req_per_s.items()} if scale != 1.0 else one.flow_req_per_s
        result.append(replace(one, id=state.id, rate_req_per_s=state.rate_req_per_s, flow_req_per_s=flows))
    return tuple(result)
