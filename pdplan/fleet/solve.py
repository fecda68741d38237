"""Solve a fleet problem: build, solve, round exactly, check; or say in words why it cannot be met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pdplan.errors import InfeasibleError, InputError, PdplanError, Reason, SolverError
from pdplan.fleet.formulation import Variables, build, cards_terms, cost_terms, node_terms, objective_terms, power_terms
from pdplan.fleet.problem import FleetProblem
from pdplan.fleet.solver import Outcome, Program

__all__ = ["FleetSolution", "SolveOptions", "solve", "solve_fleet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOptions:
    """How to solve."""

    solver: str = "highs"
    time_limit_s: float = 60.0
    gap: float = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSolution:
    """Integers and flows of a plan."""

    proof: str
    """optimal (gap reached, with the solver's proof) or feasible."""
    replicas: Mapping[str, int]
    flow_req_per_s: Mapping[str, float]
    nodes: Mapping[tuple[str, str, str], int]
    """(site, role, node type) -> nodes in use."""
    bought: Mapping[tuple[str, str], int]
    """(site, node type) -> nodes bought, beyond those owned."""
    link_units: Mapping[int, int]
    """Index into problem.links -> units."""
    objective: float
    bound: float
    gap: float
    solver: str
    variables: int
    constraints: int
    time_s: float


def _require_solvable(problem: FleetProblem) -> None:
    """Refuse what the program does not model or cannot tell apart, instead of leaving it out in silence."""
    faults = []
    if len(problem.states) != 1:
        faults.append(f"states: {len(problem.states)} given; the program solves exactly one operating state")
    for state in problem.states:
        for name in ("lost_nodes", "lost_sites", "lost_links", "lost_link_units", "band_frac", "variant"):
            if getattr(state, name):
                faults.append(f"states.{state.id}.{name}: is not modelled; leave it empty and scale the stock instead")
    ids = [pool.id for pool in problem.pools]
    faults += [
        f"pools: id {one!r} is used twice; ids must differ" for one in sorted({i for i in ids if ids.count(i) > 1})
    ]
    offered = {(offer.site, offer.node_type) for offer in problem.offers}
    if len(offered) < len(problem.offers):
        faults.append("offers: a site offers the same node type twice; merge the entries")
    lanes = {lane.id for lane in problem.lanes}
    for pool in problem.pools:
        if (pool.site, pool.node_type) not in offered:
            faults.append(f"pools.{pool.id}: no offer of {pool.node_type!r} at {pool.site!r}; add one to offers")
        if pool.lane not in lanes:
            faults.append(f"pools.{pool.id}.lane: {pool.lane!r} is not one of {', '.join(sorted(lanes))}")
    if faults:
        raise InputError(*faults)


def _whole(value: float) -> int:
    nearest = round(value)
    if abs(value - nearest) > 1e-4:
        raise PdplanError(f"the solver returned {value!r} for an integer")
    return nearest


def _solution(problem: FleetProblem, program: Program, v: Variables, outcome: Outcome, solver: str) -> FleetSolution:
    values = outcome.value
    replicas = {pool.id: _whole(values[v.replicas[pool.id]]) for pool in problem.pools}
    flows = {pool.id: max(values[v.flow[pool.id]], 0.0) for pool in problem.pools}
    nodes: dict[tuple[str, str, str], int] = {}
    for site in problem.sites:
        for role in ("prefill", "decode", "colocated"):
            for offer in problem.offers:
                if offer.site == site.id:
                    terms = node_terms(problem, v, site=site.id, role=role, node_type=offer.node_type)
                    if count := sum(_whole(values[name]) for name, _ in terms):
                        nodes[site.id, role, offer.node_type] = count
    variables, constraints = program.size
    return FleetSolution(
        proof=outcome.proof,
        replicas={k: n for k, n in replicas.items() if n},
        flow_req_per_s={k: x for k, x in flows.items() if replicas[k] and x > 1e-9},
        nodes=nodes,
        bought={k: n for k, name in v.bought.items() if (n := _whole(values[name]))},
        link_units={i: _whole(values[name]) for i, name in v.links.items()},
        objective=outcome.objective,
        bound=outcome.bound,
        gap=outcome.gap,
        solver=solver,
        variables=variables,
        constraints=constraints,
        time_s=outcome.time_s,
    )


def solve_fleet(
    problem: FleetProblem, options: SolveOptions | None = None, *, objective: str | None = None
) -> FleetSolution:
    """The best plan, or why there is none.

    A plan by cards or power is made the cheapest of its kind by a second solve with the optimum fixed.

    Raises
    ------
    InfeasibleError
        With the requirements that break it and, for each, the nearest value that works.
    SolverError
        The solver stopped without a plan.
    InputError
        The problem holds what the program does not model, or contradicts itself.
    """
    _require_solvable(problem)
    options = options or SolveOptions()
    goal = objective or problem.objective
    program, v = build(problem)
    program.minimise(objective_terms(problem, v, goal))
    outcome = program.solve(solver=options.solver, time_limit_s=options.time_limit_s, gap=options.gap)
    if outcome.proof == "infeasible":
        raise explain(problem, options)
    if goal != "cost":
        first = outcome
        program.row("goal", objective_terms(problem, v, goal), "<=", first.objective * (1 + 1e-9) + 1e-9)
        program.minimise(cost_terms(problem, v))
        try:
            second = program.solve(solver=options.solver, time_limit_s=options.time_limit_s, gap=options.gap)
        except SolverError:  # the plan of the first solve stands, without proof of being the cheapest of its kind
            return _solution(problem, program, v, replace(first, proof="feasible"), options.solver)
        if second.proof != "infeasible":
            outcome = replace(
                first,
                value=second.value,
                time_s=first.time_s + second.time_s,
                proof="optimal" if first.proof == second.proof == "optimal" else "feasible",
            )
    return _solution(problem, program, v, outcome, options.solver)


def _probe(program: Program, options: SolveOptions) -> Outcome | None:
    """A solve that only looks for a reason: None where it is infeasible or stopped without a plan."""
    try:
        outcome = program.solve(solver=options.solver, time_limit_s=options.time_limit_s, gap=1e-3)
    except SolverError:
        return None
    return None if outcome.proof == "infeasible" else outcome


def _relaxed_value(problem: FleetProblem, options: SolveOptions, terms_of: str) -> float | None:
    """Least cost, power or cards of a relaxed problem; None where it is infeasible still."""
    program, v = build(problem)
    terms = {"cost": cost_terms, "power": power_terms, "cards": cards_terms}[terms_of](problem, v)
    program.minimise(terms)
    outcome = _probe(program, options)
    return None if outcome is None else outcome.objective


def _largest_rate(problem: FleetProblem, options: SolveOptions) -> float:
    """Largest rate that the stock and the limits carry, by bisection on the rate of the state."""
    low, high = 0.0, 1.0
    for _ in range(7):
        middle = (low + high) / 2
        trial = replace(
            problem, states=tuple(replace(s, rate_req_per_s=s.rate_req_per_s * middle) for s in problem.states)
        )
        if _relaxed_value(trial, options, "cards") is None:
            high = middle
        else:
            low = middle
    return low * problem.states[0].rate_req_per_s


def explain(problem: FleetProblem, options: SolveOptions) -> InfeasibleError:
    """Which requirement breaks the request, found by dropping them one at a time and solving again."""
    limits, reasons = problem.limits, []

    def tell(name: str, required: float | None, nearest: float | None, message: str) -> None:
        reasons.append(Reason(constraint=name, required=required, nearest=nearest, message=message))

    if limits.budget_usd_per_hour is not None:
        cost = _relaxed_value(replace(problem, limits=replace(limits, budget_usd_per_hour=None)), options, "cost")
        if cost is not None:
            tell(
                "fleet.budget_usd_per_hour",
                limits.budget_usd_per_hour,
                cost,
                f"the budget of {limits.budget_usd_per_hour:,.2f} USD/h is too small: the cheapest plan costs {cost:,.2f} USD/h",
            )
    if limits.max_power_w is not None:
        power = _relaxed_value(replace(problem, limits=replace(limits, max_power_w=None)), options, "power")
        if power is not None:
            tell(
                "fleet.max_power",
                limits.max_power_w,
                power,
                f"the power cap of {limits.max_power_w / 1e3:,.0f} kW is too low: the least is {power / 1e3:,.1f} kW",
            )
    if limits.max_cards is not None:
        cards = _relaxed_value(replace(problem, limits=replace(limits, max_cards=None)), options, "cards")
        if cards is not None:
            tell(
                "fleet.max_cards",
                float(limits.max_cards),
                cards,
                f"{limits.max_cards} cards are too few: the least is {cards:.0f}",
            )
    if (
        limits.max_sites is not None
        and _relaxed_value(replace(problem, limits=replace(limits, max_sites=None)), options, "cost") is not None
    ):
        tell("fleet.max_sites", float(limits.max_sites), None, f"{limits.max_sites} sites are too few")
    if any(site.max_power_w is not None or site.max_cards is not None for site in problem.sites):
        open_sites = tuple(replace(site, max_power_w=None, max_cards=None) for site in problem.sites)
        if _relaxed_value(replace(problem, sites=open_sites), options, "cost") is not None:
            tell("sites", None, None, "the power or card limit of a site is too low")
    if problem.links:
        wide = tuple(replace(link, max_units=10_000) for link in problem.links)
        program, v = build(replace(problem, links=wide))
        program.minimise([(name, 1.0) for name in v.links.values()])
        outcome = _probe(program, options)
        if outcome is not None:
            have = sum(link.max_units for link in problem.links)
            tell(
                "links.max_units",
                float(have),
                outcome.objective,
                f"the links are too narrow: {have} units can be had, {outcome.objective:.0f} are needed",
            )
    if any(offer.max_nodes is not None for offer in problem.offers):
        offers = tuple(replace(offer, max_nodes=None) for offer in problem.offers)
        unlimited = replace(problem, offers=offers)
        program, v = build(unlimited)
        program.minimise(cards_terms(unlimited, v))
        outcome = _probe(program, options)
        if outcome is not None:
            found = _solution(unlimited, program, v, outcome, options.solver)
            for offer in problem.offers:
                need = sum(n for (s, _, h), n in found.nodes.items() if (s, h) == (offer.site, offer.node_type))
                if offer.max_nodes is not None and need > offer.max_nodes:
                    tell(
                        f"sites.{offer.site}.{offer.node_type}.max_nodes",
                        float(offer.max_nodes),
                        float(need),
                        f"{offer.max_nodes} x {offer.node_type} at {offer.site} are too few: {need} would do",
                    )
    rate = problem.states[0].rate_req_per_s
    possible = _largest_rate(problem, options)
    if possible > 0:
        tell(
            "workload.rate_req_per_s",
            rate,
            possible,
            f"{rate:g} req/s cannot be served with what is allowed: the most is about {possible:.3g} req/s",
        )
    if not reasons:
        tell("fleet", None, None, "no combination of the allowed machines, sites and links serves this at any rate")
    return InfeasibleError("; ".join(reason.message for reason in reasons), reasons)


def solve(
    problem: FleetProblem,
    *,
    objective: str | None = None,
    time_limit_s: float = 60.0,
    gap: float = 1e-4,
    solver: str = "highs",
) -> FleetSolution:
    """The solver alone, for a problem built by hand: ``pdplan.solve``. See :func:`solve_fleet`."""
    return solve_fleet(problem, SolveOptions(solver=solver, time_limit_s=time_limit_s, gap=gap), objective=objective)
