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
from pdplan.fleet.formulation import FirstStage, Part
from pdplan.fleet.limits import build, cost_terms, running_terms
from pdplan.fleet.problem import FleetProblem, PoolOption
from pdplan.fleet.reduce import state_class
from pdplan.fleet.shape import Shape
from pdplan.fleet.shrink import running_usd, shrink
from pdplan.fleet.solution import FleetSolution, StateSolution

__all__ = ["solve_by_states"]

CLUSTERS = 8
"""States of the relaxed program."""
GOOD_GAP = 5e-3
"""Rounds go on until the gap asked for, or this if that is smaller."""
ROUNDS = 4
STATE_LIMIT_S = 2.0


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

    def __init__(
        self,
        shape: Shape,
        bought: FirstStage,
        opened: dict[tuple[str, str, int], int],
        used: frozenset[tuple[str, ...]],
        solver: str,
        gaps: tuple[float, float],
    ) -> None:
        self.shape = shape
        self.bought = bought
        self.opened = opened
        self.used = used
        """Kinds of pools (see `kind_of`) that the relaxed program used."""
        self.solver = solver
        self.running_gap, self.buying_gap = gaps
        self.grew: set[int] = set()

    def _pools(self, w: int) -> frozenset[str]:
        """Pools of the kinds that the relaxed program used: of each the leanest at full load and the smallest."""
        best: dict[tuple[str, ...], list[tuple[float, int, str]]] = defaultdict(list)
        for pool in self.shape.problem.pools:
            kind = kind_of(pool)
            rate = self.shape.steepest(pool, w) if kind in self.used else 0.0
            if rate > 0:
                best[kind].append((pool.cards_per_replica / rate, pool.cards_per_replica, pool.id))
        chosen = set()
        for members in best.values():
            chosen.add(min(members)[2])
            chosen.add(min(members, key=lambda one: (one[1], one[0], one[2]))[2])
        return frozenset(chosen)

    def state(self, w: int, limit_s: float, *, first: bool) -> StateSolution | None:
        """One state, exactly: the `first` of a class may buy what it lacks, others run on what is there."""
        few = self._pools(w)
        for fixed, pools in ((False, few), (False, None)) if first else ((True, few),):
            gap = self.running_gap if fixed else self.buying_gap
            part = Part(
                states=(w,),
                floor=self.bought,
                fixed=fixed,
                pools=pools,
                open_roles=self.opened if fixed else {k: 1 for k, on in self.opened.items() if on},
            )
            terms = running_terms if fixed else cost_terms
            loose, lv = build(self.shape, replace(part, relaxed=frozenset((w,))))
            loose.minimise(terms(self.shape, lv))
            program, v = build(self.shape, part)
            program.minimise(terms(self.shape, v))
            try:
                least = loose.solve(solver=self.solver, time_limit_s=limit_s, gap=gap / 4)
                if least.proof == "infeasible":
                    continue
                outcome = program.solve(
                    solver=self.solver,
                    time_limit_s=limit_s,
                    gap=gap / 4,
                    good_enough=least.bound * (1 + gap) + 1e-9,
                )
            except SolverError:
                continue
            if outcome.proof == "infeasible":
                continue
            if not fixed:
                now = first_stage(v, outcome.value)
                self.bought = FirstStage(
                    buy=self.bought.buy | now.buy,
                    kept=self.bought.kept | now.kept,
                    links=self.bought.links | now.links,
                    role_nodes=self.bought.role_nodes | now.role_nodes,
                )
                self.opened |= {key: 1 for key, on in open_roles(v, outcome.value).items() if on}
                self.grew.add(w)
            return state_solution(self.shape, v, outcome.value, w)
        return None


def kind_of(pool: PoolOption) -> tuple[str, ...]:
    """Pools of a kind differ in their layout only."""
    return (pool.role, pool.lane, pool.site, pool.node_type, pool.destination_site, pool.compatibility)


def _all_states(rounder: _Rounder, shape: Shape, deadline: float) -> dict[int, StateSolution] | None:
    """Every state: the largest demand of each class exactly, the others run down from it."""
    problem = shape.problem
    order = sorted(range(len(problem.states)), key=lambda w: (-problem.states[w].rate_req_per_s, w))
    found: dict[int, StateSolution] = {}
    above: dict[tuple[object, ...], int] = {}
    for w in order:
        kind = state_class(problem.states[w])
        if kind not in above:
            left = max(deadline - time.perf_counter(), 1.0)
            solved = rounder.state(w, left / 4, first=True)
            if solved is None:
                return None
            found[w] = solved
        above.setdefault(kind, w)
    for w in order:
        top = above[state_class(problem.states[w])]
        if w != top:
            found[w] = shrink(shape, rounder.bought, found[top], w)
    return found


def _improved(
    rounder: _Rounder, shape: Shape, found: dict[int, StateSolution], wanted: float, deadline: float
) -> dict[int, StateSolution]:
    """Solve single states exactly and run those below down from them, until `wanted` USD per hour are saved or time is up."""
    states, hours = shape.problem.states, shape.hours_share
    found = dict(found)
    saved = 0.0
    order = sorted(found, key=lambda w: (-states[w].rate_req_per_s, w))
    # Spread over the demands first: what one state finds also serves its neighbours below.
    for w in [*order[2::4], *order[1::4], *order[3::4], *order[4::4]]:
        if saved >= wanted or time.perf_counter() > deadline:
            break
        if running_usd(shape, found[w]) <= 0 or hours[w] <= 0:
            continue
        better = rounder.state(w, min(STATE_LIMIT_S, max(deadline - time.perf_counter(), 0.2)), first=False)
        if better is None:
            continue
        kind = state_class(states[w])
        for u in order:
            if u != w and time.perf_counter() > deadline:
                continue
            if state_class(states[u]) == kind and states[u].rate_req_per_s <= states[w].rate_req_per_s:
                trial = better if u == w else shrink(shape, rounder.bought, better, u)
                gain = running_usd(shape, found[u]) - running_usd(shape, trial)
                if gain > 0:
                    found[u] = trial
                    saved += gain * hours[u]
    return found


def solve_by_states(
    shape: Shape, *, solver: str, time_limit_s: float, gap: float, log_file: str | None = None
) -> FleetSolution | None:
    """A plan with its proven gap; None where even the relaxed problem cannot be met."""
    began = time.perf_counter()
    deadline = began + time_limit_s
    problem = shape.problem
    exact: frozenset[int] = frozenset()
    best: FleetSolution | None = None
    bound = cost = 0.0
    for _ in range(ROUNDS):
        small = cluster(problem, exact, CLUSTERS)
        inner = Shape(small.problem) if len(small.members) < len(problem.states) else shape
        if inner is shape:
            small = _Clustered(problem=problem, members=tuple((w,) for w in range(len(problem.states))))
        states = tuple(range(len(small.members)))
        steep = {
            (c, pool.id): max(shape.steepest(pool, w) for w in group)
            for c, group in enumerate(small.members)
            if len(group) > 1
            for pool in problem.pools
        }
        whole = frozenset(c for c in states if len(small.members[c]) == 1 and small.members[c][0] in exact)
        part = Part(states=states, relaxed=frozenset(states) - whole, best_rate=steep)
        program, v = build(inner, part)
        program.minimise(cost_terms(inner, v))
        left = max(deadline - time.perf_counter(), 1.0)
        try:
            master = program.solve(
                solver=solver, time_limit_s=left * 0.6, gap=max(gap, GOOD_GAP) / 6, log_file=log_file
            )
        except SolverError:
            break
        if master.proof == "infeasible":
            return None
        bound = max(bound, master.bound)
        kinds = {pool.id: kind_of(pool) for pool in problem.pools}
        used = frozenset(kinds[i] for (_, i), name in v.flow.items() if master.value[name] > 1e-6)
        # A third of the gap may be lost in the purchases, a third in what runs, which is a part of the whole only.
        running = sum(master.value[name] * usd for name, usd in running_terms(inner, v))
        third = max(gap, GOOD_GAP) / 3
        gaps = (min(max(third * master.objective / max(running, 1e-9), third), 0.1), third)
        rounder = _Rounder(shape, first_stage(v, master.value), open_roles(v, master.value), used, solver, gaps)
        rounded = _all_states(rounder, shape, deadline)
        wanted = max(gap, GOOD_GAP)
        for improve in (False, True):
            if rounded is None:
                break
            if improve:
                until = min(deadline, time.perf_counter() + time_limit_s / 4)
                rounded = _improved(rounder, shape, rounded, cost * (1 - 0.9 * wanted) - bound, until)
            plans = tuple(rounded[w] for w in range(len(problem.states)))
            found = _whole_plan(shape, rounder.bought, plans, bound, program.size, solver, began)
            cost = found.objective
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
