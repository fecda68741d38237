"""Structurally different plans: another set of (site, role, node type) that serves."""

from __future__ import annotations

from pdplan.fleet.formulation import Part, Variables
from pdplan.fleet.problem import FleetProblem
from pdplan.fleet.shape import Shape
from pdplan.fleet.solution import FleetSolution
from pdplan.fleet.solver import Program

__all__ = ["add_structures", "structure"]

RoleKey = tuple[str, str, str]
LEAST_SHARE = 0.01
"""A (site, role, type) counts as open where it serves at least this share of the largest demand, summed over states."""


def structure(problem: FleetProblem, found: FleetSolution) -> frozenset[RoleKey]:
    """The (site, role, type) that serve in any state."""
    pools = {pool.id: pool for pool in problem.pools}
    return frozenset(
        (pools[i].site, pools[i].role, pools[i].node_type) for one in found.states for i in one.flow_req_per_s
    )


def add_structures(
    program: Program, v: Variables, shape: Shape, part: Part, seen: tuple[frozenset[RoleKey], ...]
) -> None:
    """Per set S already seen: sum over S of (1 - open) + sum outside S of open >= 1.

    open[s,q,h] is binary: flow <= demand x open in every state, and what is open serves at least `LEAST_SHARE` of the
    largest demand, so that an idle replica makes no new plan.
    """
    if not seen:
        return
    largest = max(sum(shape.lane_rates[w, lane.id] for lane in shape.problem.lanes) for w in part.states)
    opened: dict[RoleKey, str] = {}
    for key, pools in shape.pools_of.items():
        flows = [(v.flow[w, pool.id], 1.0) for w in part.states for pool in pools if (w, pool.id) in v.flow]
        if not flows:
            continue
        open_ = opened[key] = program.variable(0, 1, integer=True, label="shape")
        program.row("shape_serves", [*flows, (open_, -LEAST_SHARE * largest)], ">=", 0.0)
        program.row("shape_open", [*flows, (open_, -len(part.states) * largest)], "<=", 0.0)
    for one in seen:
        terms = [(name, -1.0 if key in one else 1.0) for key, name in opened.items()]
        program.row("shape_new", terms, ">=", 1.0 - len(one & set(opened)))
