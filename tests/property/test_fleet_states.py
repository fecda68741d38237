"""States, phases, rented nodes and losses against enumeration written without the program; both ways to solve; the audit."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from pdplan.errors import InfeasibleError
from pdplan.fleet.audit import audit, failures
from pdplan.fleet.problem import (
    CapacityTable,
    FleetProblem,
    Lane,
    Limits,
    NodeOffer,
    Phase,
    PoolOption,
    SiteOption,
    State,
)
from pdplan.fleet.solve import SolveOptions, solve_fleet

EXACT = SolveOptions(gap=1e-9, method="exact")
MOST = 6


def _table(rng: np.random.Generator) -> CapacityTable:
    n = np.arange(1, MOST + 1)
    mu = float(rng.uniform(1.5, 3.0))
    return CapacityTable(replicas=n, rate_req_per_s=np.maximum(mu * n - 0.8 * np.sqrt(n), 0.2 * n))


def random_states(seed: int) -> FleetProblem:
    """One site, two types, x also for rent; two or three states, perhaps with a loss, perhaps in two phases."""
    rng = np.random.default_rng(seed)
    phases = 2 if rng.random() < 0.4 else 1
    offers = [
        NodeOffer(
            site="a",
            node_type=kind,
            term="buy",
            cards_per_node=2,
            cost_usd_per_node_hour=float(rng.integers(2, 12)),
            cost_by_phase_usd_per_node_hour=tuple(float(v) for v in rng.integers(2, 12, size=phases)),
            power_w_per_node=1e3,
            max_nodes=3,
            from_phase=int(rng.random() < 0.2) if phases == 2 else 0,
        )
        for kind in ("x", "y")
    ]
    offers.append(
        NodeOffer(
            site="a",
            node_type="x",
            term="rent",
            cards_per_node=2,
            cost_usd_per_node_hour=float(rng.integers(5, 30)),
            power_w_per_node=1e3,
            max_nodes=int(rng.integers(1, 3)),
            paid="when_used",
        )
    )
    pools = tuple(
        PoolOption(
            id=kind,
            role="colocated",
            lane="all",
            site="a",
            node_type=kind,
            destination_site="a",
            cards_per_replica=int(rng.choice([1, 2])),
            capacity=_table(rng),
            max_replicas=MOST,
        )
        for kind in ("x", "y")
    )
    states = [
        State(
            id=f"s{i}",
            rate_req_per_s=float(rng.uniform(1.0, 7.0)),
            hours_per_year=float(rng.integers(1, 9) * 1000),
            lost_nodes={("a", str(rng.choice(["x", "y"]))): int(rng.choice([-1, 1, 1, 2]))}
            if rng.random() < 0.4
            else {},
            can_rent=bool(rng.random() < 0.8),
            phase=min(i, phases - 1),
        )
        for i in range(int(rng.integers(2, 4)))
    ]
    return FleetProblem(
        pools=pools,
        lanes=(Lane(id="all", rate_frac=1.0),),
        sites=(SiteOption(id="a"),),
        offers=tuple(offers),
        links=(),
        limits=Limits(max_cards=int(rng.integers(6, 13)) if rng.random() < 0.3 else None),
        states=tuple(states),
        phases=tuple(Phase(id=f"q{p}", weight=1 / phases) for p in range(phases)),
    )


def enumerate_cost(problem: FleetProblem) -> float:
    """Least cost over all purchases and, in each state, all counts; infinite where none will do."""
    pools = {pool.node_type: pool for pool in problem.pools}
    buy = {offer.node_type: offer for offer in problem.offers if offer.term == "buy"}
    rent = next(offer for offer in problem.offers if offer.term == "rent")
    phases = len(problem.phases)

    def nodes(kind: str, n: int) -> int:
        return math.ceil(n * pools[kind].cards_per_replica / 2)

    counts = [(x, y) for x in range(MOST + 1) for y in range(MOST + 1)]

    def carried(kind: str, n: int) -> float:
        return float(pools[kind].capacity.rate_req_per_s[n - 1]) if n else 0.0

    running: dict[tuple[int, int, int], float] = {}
    for w, state in enumerate(problem.states):
        able = [c for c in counts if carried("x", c[0]) + carried("y", c[1]) >= state.rate_req_per_s - 1e-9]
        for had in itertools.product(range(4), repeat=2):
            there = []
            for kind, n in zip(("x", "y"), had, strict=True):
                lost = state.lost_nodes.get(("a", kind), 0)
                there.append(0 if lost == -1 else max(n - lost, 0))
            least = math.inf
            for x, y in able:
                extra = max(nodes("x", x) - there[0], 0)
                may = state.can_rent and state.lost_nodes.get(("a", "x")) != -1
                cap = problem.limits.max_cards
                if nodes("y", y) > there[1] or extra > (rent.max_nodes or 0) * may:
                    continue
                if cap is not None and 2 * (nodes("x", x) + nodes("y", y)) > cap:
                    continue
                least = min(least, extra * rent.cost_usd_per_node_hour)
            hours = sum(s.hours_per_year for s in problem.states if s.phase == state.phase)
            running[w, *had] = least * state.hours_per_year / hours / phases
    best = math.inf
    options = {
        kind: [
            b for b in itertools.product(range(4), repeat=phases) if sum(b) <= 3 and not any(b[: buy[kind].from_phase])
        ]
        for kind in ("x", "y")
    }
    for bx, by in itertools.product(options["x"], options["y"]):
        total = 0.0
        for kind, bought in (("x", bx), ("y", by)):
            for p, n in enumerate(bought):
                total += n * buy[kind].cost_by_phase_usd_per_node_hour[p] * (phases - p) / phases
        for w, state in enumerate(problem.states):
            total += running[w, sum(bx[: state.phase + 1]), sum(by[: state.phase + 1])]
        best = min(best, total)
    return best


def _cost(problem: FleetProblem) -> float:
    try:
        return solve_fleet(problem, EXACT).objective
    except InfeasibleError:
        return math.inf


@pytest.mark.parametrize("block", range(6))
def test_cost_over_states_equals_enumeration(block: int) -> None:
    """The program finds the enumerated optimum, its plan passes the audit, and the bill is the objective."""
    met = 0
    for seed in range(block * 10, block * 10 + 10):
        problem = random_states(seed)
        expected = enumerate_cost(problem)
        if math.isinf(expected):
            with pytest.raises(InfeasibleError):
                solve_fleet(problem, EXACT)
            continue
        found = solve_fleet(problem, EXACT)
        met += 1

        assert found.proof == "optimal", seed
        assert found.objective == pytest.approx(expected, rel=1e-6, abs=1e-6), seed
        assert found.cost_usd_per_hour == pytest.approx(expected, rel=1e-6, abs=1e-6), seed
        assert failures(problem, found) == [], seed
        assert len(audit(problem, found)) > 10
    assert met >= 2


@pytest.mark.parametrize("seed", range(8))
def test_rounding_by_states_is_feasible_and_its_bound_holds(seed: int) -> None:
    """The relaxed bound never exceeds the optimum, the rounded plan never beats it, and it passes the audit."""
    problem = random_states(seed)
    exact = _cost(problem)
    if math.isinf(exact):
        return
    found = solve_fleet(problem, replace(EXACT, method="states", gap=1e-4, time_limit_s=4.0))

    assert found.bound <= exact * (1 + 1e-6) + 1e-6
    assert found.objective >= exact * (1 - 1e-6) - 1e-6
    assert failures(problem, found) == []


@pytest.mark.parametrize("seed", range(0, 30, 3))
def test_freedom_never_costs_more_over_states(seed: int) -> None:
    """More stock, fewer states, no losses, lower prices; doubled prices double; order does not matter."""
    problem = random_states(seed)
    base = _cost(problem)
    more = replace(problem, offers=tuple(replace(o, max_nodes=9) for o in problem.offers))
    whole = replace(problem, states=tuple(replace(s, lost_nodes={}) for s in problem.states))
    turned = replace(problem, pools=problem.pools[::-1], offers=problem.offers[::-1], states=problem.states[::-1])
    doubled = replace(
        problem,
        offers=tuple(
            replace(
                o,
                cost_usd_per_node_hour=2 * o.cost_usd_per_node_hour,
                cost_by_phase_usd_per_node_hour=tuple(2 * c for c in o.cost_by_phase_usd_per_node_hour),
            )
            for o in problem.offers
        ),
    )

    assert _cost(more) <= base * (1 + 1e-9) + 1e-9
    assert _cost(whole) <= base * (1 + 1e-9) + 1e-9
    assert _cost(turned) == pytest.approx(base, rel=1e-7)
    assert _cost(doubled) == pytest.approx(2 * base, rel=1e-7)
