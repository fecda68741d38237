"""From a solver's numbers to whole counts."""

from __future__ import annotations

from collections.abc import Mapping

from pdplan.errors import PdplanError
from pdplan.fleet.formulation import FirstStage, Variables
from pdplan.fleet.shape import Shape
from pdplan.fleet.solution import StateSolution

__all__ = ["first_stage", "open_roles", "state_solution"]


def whole(value: float) -> int:
    """The integer a solver means."""
    nearest = round(value)
    if abs(value - nearest) > 1e-4:
        raise PdplanError(f"the solver returned {value!r} for an integer")
    return nearest


def first_stage(v: Variables, value: Mapping[str, float]) -> FirstStage:
    """What is bought."""
    return FirstStage(
        buy={key: whole(value[name]) for key, name in v.buy.items()},
        kept={key: whole(value[name]) for key, name in v.kept.items()},
        links={key: whole(value[name]) for key, name in v.links.items()},
        role_nodes={key: whole(value[name]) for key, name in v.role_nodes.items()},
    )


def open_roles(v: Variables, value: Mapping[str, float]) -> dict[tuple[str, str, int], int]:
    """(site, role, phase) -> whether it is opened, where that was decided."""
    return {key: whole(value[name]) for key, name in v.open_roles.items()}


def state_solution(shape: Shape, v: Variables, value: Mapping[str, float], w: int) -> StateSolution:
    """What runs in an exact state."""
    problem = shape.problem
    replicas: dict[str, int] = {}
    fractions: dict[str, float] = {}
    flows: dict[str, float] = {}
    for pool in problem.pools:
        if (w, pool.id) not in v.replicas:
            continue
        n = value[v.replicas[w, pool.id]]
        if pool.group:
            if n > 1e-9:
                fractions[pool.id] = n
        elif count := whole(n):
            replicas[pool.id] = count
        x = value[v.flow[w, pool.id]]
        if x > 1e-9 and (pool.id in replicas or pool.id in fractions):
            flows[pool.id] = x
    rented: dict[tuple[str, str, str], int] = {}
    for (at, o), name in v.rent.items():
        offer = problem.offers[o]
        if at == w and (n := whole(value[name])):
            rented[offer.site, offer.node_type, offer.term] = n
    shares = {lane.id: 1.0 for lane in problem.lanes if lane.id not in shape.chosen_lanes}
    shares |= {lane: s for (at, lane), name in v.share.items() if at == w and (s := value[name]) > 1e-9}
    state = problem.states[w]
    return StateSolution(
        id=state.id,
        rate_req_per_s=state.rate_req_per_s,
        phase=state.phase,
        replicas=replicas,
        flow_req_per_s=flows,
        nodes={key: n for (s, key), name in sorted(v.nodes.items()) if s == w and (n := whole(value[name]))},
        rented=rented,
        lane_share={lane: shares[lane] for lane in sorted(shares)},
        group_replicas=fractions,
    )
