"""Many states: a relaxed program gives purchases and a proven bound, every state is then solved exactly on its own.

1. Relaxed: purchases whole, what runs in each state continuous, tables replaced by the steepest line from their origin. Only
   flows remain per state, and of pools that do the same only the cheapest per req/s. Its optimum is a bound for the problem.
2. More states than `CLUSTERS` are clustered for the relaxed program: states that differ in demand alone are averaged by hours.
   The least running cost of a relaxed state is convex in its demand (a linear program in its right side), so the average
   demand costs no more than the average of the costs (Jensen), and the bound holds. The largest demand stays on its own.
3. Given the purchases, states no longer share anything, so each is solved exactly against the real tables. One that does not
   fit buys what it lacks, at least cost, and the purchases grow.
4. While the gap is above what is asked and time is left, states that had to buy more are made exact in step 1.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, replace

from pdplan.errors import SolverError
from pdplan.fleet.audit import cost_usd_per_hour, failures
from pdplan.fleet.extract import first_stage, open_roles, state_solution
from pdplan.fleet.formulation import FirstStage, Part, steepest
from pdplan.fleet.limits import build, cost_terms, running_terms
from pdplan.fleet.problem import FleetProblem
from pdplan.fleet.reduce import state_class
from pdplan.fleet.shape import Shape
from pdplan.fleet.solution import FleetSolution, StateSolution

__all__ = ["solve_by_states"]

CLUSTERS = 24
"""States of the relaxed program."""
GOOD_GAP = 5e-3
"""Rounds go on until the gap asked for, or this if that is smaller."""
ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clustered:
    problem: FleetProblem
    members: tuple[tuple[int, ...], ...]
    """Per state of `problem`, the states it stands for."""


def cluster(problem: FleetProblem, apart: frozenset[int], most: int) -> _Clustered:
    """Neighbouring demands of one class averaged by hours; the largest of each class, and `apart`, stay."""
    classes: dict[tuple[object, ...], list[int]] = defaultdict(list)
    states = problem.states
    for w in sorted(range(len(states)), key=lambda w: -states[w].rate_req_per_s):
        classes[state_class(states[w])].append(w)
    members: list[tuple[int, ...]] = []
    for kind in classes.values():
        alone = [w for w in kind if w in apart or w == kind[0]]
        rest = [w for w in kind if w not in alone and states[w].hours_per_year > 0]
        members += [(w,) for w in alone]
        parts = min(len(rest), max(1, round((most - len(classes)) * len(rest) / len(states))))
        for k in range(parts if rest else 0):
            members.append(tuple(rest[len(rest) * k // parts : len(rest) * (k + 1) // parts]))
    members.sort()
    new = []
    for group in members:
        hours = sum(states[w].hours_per_year for w in group)
        mean = (
            sum(states[w].rate_req_per_s * states[w].hours_per_year for w in group) / hours
            if len(group) > 1
            else states[group[0]].rate_req_per_s
        )
        new.append(replace(states[group[0]], rate_req_per_s=mean, hours_per_year=hours))
    return _Clustered(problem=replace(problem, states=tuple(new)), members=tuple(members))


class _Rounder:
    """Exact states under growing purchases."""

    def __init__(self, shape: Shape, bought: FirstStage, opened: dict[tuple[str, str, int], int], solver: str) -> None:
        self.shape = shape
        self.bought = bought
        self.opened = opened
        self.solver = solver
        self.grew: set[int] = set()

    def _places(self) -> set[tuple[str, str]]:
        offers = self.shape.problem.offers
        have = {o for (o, _), n in self.bought.buy.items() if n} | {o for o, n in self.bought.kept.items() if n}
        have |= {o for o, offer in enumerate(offers) if offer.paid == "when_used"}
        return {(offers[o].site, offers[o].node_type) for o in have}

    def _pools(self, w: int) -> frozenset[str]:
        """Pools at places that have nodes; of those that do the same, the leanest at full load and the smallest."""
        shape, places = self.shape, self._places()
        best: dict[tuple[object, ...], list[tuple[float, int, str]]] = defaultdict(list)
        for pool in shape.problem.pools:
            rate = steepest(shape, pool, w) if (pool.site, pool.node_type) in places else 0.0
            if rate > 0:
                key = (pool.role, pool.lane, pool.site, pool.node_type, pool.destination_site, pool.compatibility)
                best[key].append((pool.cards_per_replica / rate, pool.cards_per_replica, pool.id))
        chosen = set()
        for members in best.values():
            chosen.add(min(members)[2])
            chosen.add(min(members, key=lambda one: (one[1], one[0], one[2]))[2])
        return frozenset(chosen)

    def state(self, w: int, limit_s: float) -> StateSolution | None:
        """One state, exactly: with what is there, else with the least that must be bought."""
        for fixed, pools in ((True, self._pools(w)), (False, None)):
            part = Part(
                states=(w,),
                floor=self.bought,
                fixed=fixed,
                pools=pools,
                open_roles=self.opened if fixed else {k: 1 for k, on in self.opened.items() if on},
            )
            program, v = build(self.shape, part)
            program.minimise(running_terms(self.shape, v, part) if fixed else cost_terms(self.shape, v, part))
            try:
                outcome = program.solve(solver=self.solver, time_limit_s=limit_s, gap=2e-3)
            except SolverError:
                continue
            if outcome.proof == "infeasible":
                continue
            if not fixed:
                self.bought = first_stage(v, outcome.value)
                self.opened |= {key: 1 for key, on in open_roles(v, outcome.value).items() if on}
                self.grew.add(w)
            return state_solution(self.shape, v, outcome.value, w)
        return None


def _all_states(rounder: _Rounder, shape: Shape, deadline: float) -> tuple[StateSolution, ...] | None:
    """Every state, the largest demand first; one that nothing is paid for by use repeats what the one above runs."""
    problem = shape.problem
    order = sorted(range(len(problem.states)), key=lambda w: (-problem.states[w].rate_req_per_s, w))
    found: dict[int, StateSolution] = {}
    above: dict[tuple[object, ...], int] = {}
    for w in order:
        state = problem.states[w]
        kind = state_class(state)
        if kind in above and _free(problem, found[above[kind]]):
            one = found[above[kind]]
            scale = state.rate_req_per_s / one.rate_req_per_s
            flows = {name: x * scale for name, x in one.flow_req_per_s.items()}
            found[w] = replace(one, id=state.id, rate_req_per_s=state.rate_req_per_s, flow_req_per_s=flows)
            continue
        left = max(deadline - time.perf_counter(), 1.0)
        solved = rounder.state(w, min(left, 10.0))
        if solved is None:
            return None
        found[w], above[kind] = solved, w
    return tuple(found[w] for w in range(len(problem.states)))


def _free(problem: FleetProblem, one: StateSolution) -> bool:
    """Whether what runs costs nothing by use."""
    tariffs = {(o.site, o.node_type) for o in problem.offers if o.energy_usd_per_kwh > 0}
    return not one.rented and not any((s, k) in tariffs for s, _, k in one.nodes)


def solve_by_states(
    shape: Shape, *, solver: str, time_limit_s: float, gap: float, log_file: str | None = None
) -> FleetSolution | None:
    """A plan with its proven gap; None where even the relaxed problem cannot be met."""
    began = time.perf_counter()
    deadline = began + time_limit_s
    problem = shape.problem
    exact: frozenset[int] = frozenset()
    best: FleetSolution | None = None
    bound = 0.0
    for _ in range(ROUNDS):
        small = cluster(problem, exact, CLUSTERS)
        inner = Shape(small.problem) if len(small.members) < len(problem.states) else shape
        if inner is shape:
            small = _Clustered(problem=problem, members=tuple((w,) for w in range(len(problem.states))))
        states = tuple(range(len(small.members)))
        steep = {
            (c, pool.id): max(steepest(shape, pool, w) for w in group)
            for c, group in enumerate(small.members)
            if len(group) > 1
            for pool in problem.pools
        }
        whole = frozenset(c for c in states if len(small.members[c]) == 1 and small.members[c][0] in exact)
        part = Part(states=states, relaxed=frozenset(states) - whole, best_rate=steep)
        program, v = build(inner, part)
        program.minimise(cost_terms(inner, v, part))
        left = max(deadline - time.perf_counter(), 1.0)
        try:
            master = program.solve(
                solver=solver, time_limit_s=left * 0.6, gap=max(gap, GOOD_GAP) / 4, log_file=log_file
            )
        except SolverError:
            break
        if master.proof == "infeasible":
            return None
        bound = max(bound, master.bound)
        rounder = _Rounder(shape, first_stage(v, master.value), open_roles(v, master.value), solver)
        rounded = _all_states(rounder, shape, deadline)
        if rounded is not None:
            found = _whole_plan(shape, rounder.bought, rounded, bound, program.size, solver, began)
            if not failures(problem, found) and (best is None or found.objective < best.objective):
                best = found
        if best is not None and best.objective - bound <= max(gap, GOOD_GAP) * best.objective:
            break
        more = rounder.grew - exact
        if not more or time.perf_counter() > began + time_limit_s / 2:
            break
        exact |= more
    if best is None:
        raise SolverError("no whole plan was found near the relaxed one; raise --time-limit-s or solve fewer states")
    apart = max(best.objective - bound, 0.0) / max(abs(best.objective), 1e-9)
    return replace(best, bound=bound, gap=apart, proof="optimal" if apart <= gap else "feasible")


def _whole_plan(
    shape: Shape,
    bought: FirstStage,
    states: tuple[StateSolution, ...],
    bound: float,
    size: tuple[int, int],
    solver: str,
    began: float,
) -> FleetSolution:
    offers = shape.problem.offers
    key = {o: (offer.site, offer.node_type, offer.term) for o, offer in enumerate(offers)}
    found = FleetSolution(
        proof="feasible",
        states=states,
        bought_by_phase={(*key[o], p): n for (o, p), n in bought.buy.items() if n},
        kept={key[o]: n for o, n in bought.kept.items() if n},
        links_by_phase=bought.links,
        objective=0.0,
        bound=bound,
        gap=1.0,
        solver=solver,
        variables=size[0],
        constraints=size[1],
        time_s=time.perf_counter() - began,
    )
    cost = cost_usd_per_hour(shape.problem, found)
    return replace(found, objective=cost, cost_usd_per_hour=cost)
