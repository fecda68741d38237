"""Solve a fleet problem: reduce, build, solve (all-integer, or relaxed with exact rounding), or say why it cannot be met."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from pdplan.errors import InputError, SolverError
from pdplan.fleet.alternatives import add_structures, structure
from pdplan.fleet.audit import cost_usd_per_hour
from pdplan.fleet.explain import explain
from pdplan.fleet.extract import first_stage, state_solution
from pdplan.fleet.formulation import Part
from pdplan.fleet.greedy import greedy
from pdplan.fleet.limits import build, goal_terms
from pdplan.fleet.problem import FleetProblem
from pdplan.fleet.reduce import expand, reduce_states
from pdplan.fleet.rounding import solve_by_states
from pdplan.fleet.shape import Shape
from pdplan.fleet.solution import FleetSolution, StateSolution
from pdplan.fleet.solver import Outcome

__all__ = ["FleetSolution", "SolveOptions", "StateSolution", "alternatives", "solve", "solve_fleet"]

ALL_INTEGER_POOL_STATES = 1500
"""Up to so many pools x states all counts are whole from the start; beyond, states are relaxed and rounded."""
THROUGHPUT_STEP = 1e-3
"""The largest multiple of the demand is found to this fraction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOptions:
    """How to solve."""

    solver: str = "highs"
    time_limit_s: float = 60.0
    gap: float = 1e-4
    log_file: str | None = None
    """The solver's own log is appended here."""
    method: str = "auto"
    """auto, exact (every count whole from the start) or states (relaxed, then rounded state by state)."""


def solve_fleet(
    problem: FleetProblem, options: SolveOptions | None = None, *, objective: str | None = None
) -> FleetSolution:
    """The best plan, or why there is none.

    A plan by anything but cost is made the cheapest of its kind at last, with its optimum fixed. Where the solver stops
    without any plan, a simple constructive plan is returned if there is one, with proof ``greedy``.

    Raises
    ------
    InfeasibleError
        With the requirements that break it and, for each, the nearest value that works.
    SolverError
        The solver stopped without a plan, and no simple plan meets every constraint.
    InputError
        The problem contradicts itself.
    """
    options = options or SolveOptions()
    if objective is not None:
        problem = replace(problem, objective=objective)  # type: ignore[arg-type]
    Shape(problem)  # the whole problem is checked, also the states that are left out below
    if problem.objective == "throughput":
        return _most_throughput(problem, options)
    began = time.perf_counter()
    reduced = reduce_states(problem)
    shape = Shape(reduced.problem)
    try:
        found = _solve(shape, options)
    except SolverError:
        simple = greedy(shape)
        if simple is None:
            raise
        found = simple
    if found is None:
        raise explain(problem, lambda trial, goal: _probe(trial, goal, options))
    states = expand(problem, reduced, found.states)
    return replace(found, states=states, time_s=time.perf_counter() - began)


def _solve(shape: Shape, options: SolveOptions) -> FleetSolution | None:
    """The reduced problem; None where it cannot be met."""
    problem = shape.problem
    large = len(problem.pools) * len(problem.states) > ALL_INTEGER_POOL_STATES
    by_states = options.method == "states" or (options.method == "auto" and large and len(problem.states) > 1)
    if by_states and problem.objective == "cost" and not problem.then:
        return solve_by_states(
            shape, solver=options.solver, time_limit_s=options.time_limit_s, gap=options.gap, log_file=options.log_file
        )
    return _solve_exactly(shape, options)


def _solve_exactly(
    shape: Shape, options: SolveOptions, seen: tuple[frozenset[tuple[str, str, str]], ...] = ()
) -> FleetSolution | None:
    """All counts whole from the start; objectives in turn; none of the structures already `seen`."""
    problem = shape.problem
    part = Part(states=tuple(range(len(problem.states))))
    program, v = build(shape, part)
    add_structures(program, v, shape, part, seen)
    goals = [(str(problem.objective), 0.0), *((str(name), slack) for name, slack in problem.then)]
    if all(name != "cost" for name, _ in goals):
        goals.append(("cost", 0.0))
    first: Outcome | None = None
    outcome: Outcome | None = None
    proof = "optimal"
    terms: list[tuple[str, float]] = []
    for turn, (name, slack) in enumerate(goals):
        if outcome is not None:
            # The one before may get worse by the stated fraction, and by the tolerance it was found with.
            most = outcome.objective * (1 + slack + 1e-9) + 1e-9
            program.row("goal", terms, "<=", most)
        terms = goal_terms(program, v, shape, part, name)
        program.minimise(terms)
        try:
            now = program.solve(
                solver=options.solver, time_limit_s=options.time_limit_s, gap=options.gap, log_file=options.log_file
            )
        except SolverError:
            if turn == 0:
                raise
            proof = "feasible"  # the plan so far stands, without proof for the rest
            break
        if now.proof == "infeasible":
            if turn == 0:
                return None
            proof = "feasible"
            break
        outcome = now
        first = first or now
        proof = proof if now.proof == "optimal" else "feasible"
    assert first is not None and outcome is not None
    chosen = first_stage(v, outcome.value)
    offers = problem.offers
    key = {o: (offer.site, offer.node_type, offer.term) for o, offer in enumerate(offers)}
    variables, constraints = program.size
    found = FleetSolution(
        proof=proof,
        states=tuple(state_solution(shape, v, outcome.value, w) for w in part.states),
        bought_by_phase={(*key[o], p): n for (o, p), n in chosen.buy.items() if n},
        kept={key[o]: n for o, n in chosen.kept.items() if n},
        links_by_phase=chosen.links,
        objective=first.objective,
        bound=first.bound,
        gap=first.gap,
        solver=options.solver,
        variables=variables,
        constraints=constraints,
        time_s=first.time_s,
    )
    return replace(found, cost_usd_per_hour=cost_usd_per_hour(problem, found))


def alternatives(problem: FleetProblem, count: int, options: SolveOptions | None = None) -> tuple[FleetSolution, ...]:
    """The best plan and up to `count` next best ones that open another set of (site, role, node type), best first.

    Raises what :func:`solve_fleet` raises where there is no plan at all.
    """
    options = options or SolveOptions()
    found = [solve_fleet(problem, options)]
    reduced = reduce_states(problem)
    shape = Shape(reduced.problem)
    while len(found) <= count:
        seen = tuple(structure(problem, one) for one in found)
        try:
            other = _solve_exactly(shape, options, seen)
        except SolverError:
            break
        if other is None:
            break
        found.append(replace(other, states=expand(problem, reduced, other.states)))
    return tuple(found)


def _probe(problem: FleetProblem, goal: str, options: SolveOptions) -> FleetSolution | None:
    """A solve that only looks for a reason: None where it is infeasible or stopped without a plan."""
    reduced = reduce_states(replace(problem, objective=goal, then=()))  # type: ignore[arg-type]
    shape = Shape(reduced.problem)
    part = Part(states=tuple(range(len(shape.problem.states))))
    try:
        program, v = build(shape, part)
        program.minimise(goal_terms(program, v, shape, part, goal))
        outcome = program.solve(solver=options.solver, time_limit_s=options.time_limit_s, gap=1e-3)
    except SolverError:
        return None
    if outcome.proof == "infeasible":
        return None
    chosen = first_stage(v, outcome.value)
    return FleetSolution(
        proof=outcome.proof,
        states=expand(problem, reduced, tuple(state_solution(shape, v, outcome.value, w) for w in part.states)),
        bought_by_phase={},
        kept={},
        links_by_phase=chosen.links,
        objective=outcome.objective,
        bound=outcome.bound,
        gap=outcome.gap,
        solver=options.solver,
        variables=0,
        constraints=0,
        time_s=outcome.time_s,
    )


def scaled(problem: FleetProblem, multiple: float) -> FleetProblem:
    """The problem with every state's demand times `multiple`."""
    states = tuple(replace(s, rate_req_per_s=s.rate_req_per_s * multiple) for s in problem.states)
    return replace(problem, states=states)


def largest_multiple(fits: Callable[[float], bool], low: float, high: float, step: float) -> tuple[float, float]:
    """(largest multiple known to fit, smallest known not to), by bisection between one of each."""
    while high - low > step * max(low, step):
        middle = (low + high) / 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low, high


def _most_throughput(problem: FleetProblem, options: SolveOptions) -> FleetSolution:
    """Largest multiple of the demand that the limits allow, by bisection; the plan there is the cheapest."""
    began = time.perf_counter()
    by_cost = replace(problem, objective="cost", then=tuple(t for t in problem.then if t[0] != "throughput"))
    found: dict[float, FleetSolution] = {}

    def fits(multiple: float) -> bool:
        reduced = reduce_states(scaled(by_cost, multiple))
        one = _solve(Shape(reduced.problem), options)
        if one is not None:
            found[multiple] = replace(one, states=expand(scaled(by_cost, multiple), reduced, one.states))
        return one is not None

    low, high = 0.0, 1.0
    while fits(high):
        low, high = high, high * 2
        if high > 2**20:
            raise InputError(
                "objective: throughput has no limit here; give a budget, a power or card cap, or a stock of every type"
            )
    low, high = largest_multiple(fits, low, high, THROUGHPUT_STEP)
    if low == 0.0:
        raise explain(by_cost, lambda trial, goal: _probe(trial, goal, options))
    return replace(
        found[low],
        objective=low,
        bound=high,
        gap=(high - low) / low,
        time_s=time.perf_counter() - began,
    )


def solve(
    problem: FleetProblem,
    *,
    objective: str | None = None,
    time_limit_s: float = 60.0,
    gap: float = 1e-4,
    solver: str = "highs",
    log_file: str | None = None,
) -> FleetSolution:
    """The solver alone, for a problem built by hand: ``pdplan.solve``. See :func:`solve_fleet`."""
    options = SolveOptions(solver=solver, time_limit_s=time_limit_s, gap=gap, log_file=log_file)
    return solve_fleet(problem, options, objective=objective)
