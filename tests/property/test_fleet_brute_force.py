"""The fleet program against enumeration written without it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from pdplan.errors import InfeasibleError
from pdplan.fleet.problem import (
    CapacityTable,
    FleetProblem,
    Lane,
    Limits,
    LinkOption,
    NodeOffer,
    PoolOption,
    SiteOption,
    State,
)
from pdplan.fleet.solve import SolveOptions, solve_fleet

EXACT = SolveOptions(gap=1e-9)
MOST = 6
"""Replicas per pool that enumeration looks at; tables carry the whole rate with fewer."""


def _table(rng: np.random.Generator, linear: bool) -> CapacityTable:
    mu = float(rng.uniform(2.0, 6.0))
    n = np.arange(1, MOST + 1)
    rate = mu * n if linear else np.maximum(mu * n - 1.2 * np.sqrt(n), 0.3 * n)
    return CapacityTable(replicas=n.astype(np.int64), rate_req_per_s=rate)


def random_problem(seed: int) -> FleetProblem:
    """Two sites, two node types, up to five pools; links, stock, minimum units, lots, owned nodes, budget, power."""
    rng = np.random.default_rng(seed)
    sites = ("a", "b") if rng.random() < 0.6 else ("a",)
    offers = [
        NodeOffer(
            site=site,
            node_type=kind,
            cards_per_node=int(rng.choice([2, 4])),
            cost_usd_per_node_hour=float(rng.integers(1, 20)),
            power_w_per_node=float(rng.integers(1, 9)) * 1e3,
            max_nodes=int(rng.integers(1, 6)) if rng.random() < 0.6 else None,
            lot_nodes=2 if rng.random() < 0.2 else 1,
            min_nodes_if_used=2 if rng.random() < 0.2 else 0,
            owned_nodes=1 if rng.random() < 0.2 else 0,
            owned_cost_usd_per_node_hour=0.5,
        )
        for site in sites
        for kind in ("x", "y")
    ]
    offers = [replace(o, owned_nodes=min(o.owned_nodes, o.max_nodes or 1)) for o in offers]
    keys = ("", "") if rng.random() < 0.7 else ("tp1", "tp2")
    pools = []
    for role, count in (("prefill", 2), ("decode", 2), ("colocated", 1)):
        for i in range(count):
            offer = offers[int(rng.integers(len(offers)))]
            destination = str(rng.choice(sites)) if role == "prefill" else offer.site
            pools.append(
                PoolOption(
                    id=f"{role}{i}",
                    role=role,
                    lane="all",
                    site=offer.site,
                    node_type=offer.node_type,
                    destination_site=destination,
                    cards_per_replica=int(rng.choice([1, 2, 4])),
                    capacity=_table(rng, linear=role != "prefill"),
                    compatibility="" if role == "colocated" else keys[i],
                    kv_bytes_per_request=float(rng.uniform(0.1, 1.0)) * 1e9 if role == "prefill" else 0.0,
                    max_replicas=MOST,
                )
            )
    links = (
        (
            LinkOption(
                site_a="a",
                site_b="b",
                unit_bandwidth_bytes_per_s=4e9,
                usable_frac=0.5,
                min_units=0,
                max_units=3,
                usd_per_unit_hour=1.5,
            ),
        )
        if len(sites) == 2
        else ()
    )
    limits = Limits(
        budget_usd_per_hour=float(rng.integers(20, 80)) if rng.random() < 0.3 else None,
        max_power_w=float(rng.integers(5, 30)) * 1e3 if rng.random() < 0.3 else None,
        max_cards=int(rng.integers(6, 24)) if rng.random() < 0.2 else None,
        min_cards_by_role={"prefill": 6} if rng.random() < 0.3 else {},
    )
    return FleetProblem(
        pools=tuple(pools),
        lanes=(Lane(id="all", rate_frac=1.0),),
        sites=tuple(SiteOption(id=s) for s in sites),
        offers=tuple(offers),
        links=links,
        limits=limits,
        states=(State(id="design", rate_req_per_s=float(rng.uniform(3, 9)), hours_per_year=8760),),
    )


def _flows_exist(problem: FleetProblem, counts: dict[str, int]) -> list[float] | None:
    """Link loads (bytes/s per direction) of a feasible routing with the given replicas, or None.

    A linear feasibility question with few variables: solved by scipy, apart from the fleet program.
    """
    from scipy.optimize import linprog

    active = [p for p in problem.pools if counts[p.id]]
    if not active:
        return None
    rate = problem.states[0].rate_req_per_s
    caps = [float(p.capacity.rate_req_per_s[counts[p.id] - 1]) for p in active]
    rows, right = [], []
    rows.append([1.0 if p.role != "prefill" else 0.0 for p in active])
    right.append(rate)
    groups = {
        (p.destination_site if p.role == "prefill" else p.site, p.compatibility)
        for p in active
        if p.role != "colocated"
    }
    for key in sorted(groups):
        rows.append(
            [
                (1.0 if p.role == "prefill" else -1.0)
                * ((p.destination_site if p.role == "prefill" else p.site, p.compatibility) == key)
                * (p.role != "colocated")
                for p in active
            ]
        )
        right.append(0.0)
    ways = [("a", "b"), ("b", "a")]
    loads = [
        [p.kv_bytes_per_request * (p.role == "prefill" and (p.site, p.destination_site) == w) for p in active]
        for w in ways
    ]
    if not problem.links:
        result = linprog([0.0] * len(active), A_eq=rows, b_eq=right, bounds=[(0, c) for c in caps], method="highs")
        return [0.0, 0.0] if result.status == 0 else None
    # Least units: minimise the larger of both directions' loads.
    n = len(active)
    result = linprog(
        [0.0] * n + [1.0],
        A_eq=[[*r, 0.0] for r in rows],
        b_eq=right,
        A_ub=[[v / 1e9 for v in load] + [-1.0] for load in loads],
        b_ub=[0.0, 0.0],
        bounds=[(0, c) for c in caps] + [(0, None)],
        method="highs",
    )
    return [result.x[-1] * 1e9] if result.status == 0 else None


def brute_force(problem: FleetProblem) -> float | None:
    """Least cost over every combination of replicas, or None."""
    best: float | None = None
    offers = {(o.site, o.node_type): o for o in problem.offers}
    limits = problem.limits
    for combination in itertools.product(*(range(4) for _ in problem.pools)):
        counts = {p.id: n for p, n in zip(problem.pools, combination, strict=True)}
        nodes: dict[tuple[str, str, str], int] = {}
        for p in problem.pools:
            key = (p.site, p.role, p.node_type)
            nodes[key] = nodes.get(key, 0) + counts[p.id] * p.cards_per_replica
        for key, cards in nodes.items():
            nodes[key] = math.ceil(cards / offers[key[0], key[2]].cards_per_node)
        # Minimum units: more nodes of a role than its replicas need may have to be taken.
        least = limits.min_cards_by_role.get("prefill", 0)
        options = [nodes]
        if least:
            short = []
            for site in problem.sites:
                mine = [k for k in nodes if k[0] == site.id and k[1] == "prefill" and nodes[k]]
                have = sum(nodes[k] * offers[k[0], k[2]].cards_per_node for k in mine)
                if mine and have < least:
                    kinds = sorted({p.node_type for p in problem.pools if p.site == site.id and p.role == "prefill"})
                    short.append((site.id, have, kinds))
            for site_id, have, kinds in short:
                grown = []
                for option in options:
                    for extra in itertools.product(range(5), repeat=len(kinds)):
                        added = sum(e * offers[site_id, k].cards_per_node for e, k in zip(extra, kinds, strict=True))
                        if have + added >= least:
                            new = dict(option)
                            for e, k in zip(extra, kinds, strict=True):
                                new[site_id, "prefill", k] = new.get((site_id, "prefill", k), 0) + e
                            grown.append(new)
                options = grown
        cheapest: float | None = None
        for option in options:
            cost = power = cards = 0.0
            ok = True
            for (s, h), offer in offers.items():
                used = sum(n for (s2, _, h2), n in option.items() if (s2, h2) == (s, h))
                bought = max(used - offer.owned_nodes, 0)
                if used and offer.min_nodes_if_used:
                    bought = max(bought, offer.min_nodes_if_used - offer.owned_nodes)
                bought = math.ceil(bought / offer.lot_nodes) * offer.lot_nodes
                if offer.max_nodes is not None and (
                    bought > max(offer.max_nodes - offer.owned_nodes, 0) or used > offer.max_nodes
                ):
                    ok = False
                # Buying more than needed only to leave owned nodes cold can pay where lots force it: both are counted.
                cold = min(bought, used)
                cost += bought * offer.cost_usd_per_node_hour + (used - cold) * offer.owned_cost_usd_per_node_hour
                power += used * offer.power_w_per_node
                cards += used * offer.cards_per_node
            ok &= limits.max_power_w is None or power <= limits.max_power_w
            ok &= limits.max_cards is None or cards <= limits.max_cards
            if ok and (cheapest is None or cost < cheapest):
                cheapest = cost
        if cheapest is None or (best is not None and cheapest >= best):
            continue
        loads = _flows_exist(problem, counts)
        if loads is None:
            continue
        total = cheapest
        if problem.links:
            link = problem.links[0]
            units = math.ceil(max(loads) / (link.unit_bandwidth_bytes_per_s * link.usable_frac) - 1e-9)
            if units > link.max_units:
                continue
            total += units * link.usd_per_unit_hour
        if (limits.budget_usd_per_hour is None or total <= limits.budget_usd_per_hour + 1e-9) and (
            best is None or total < best
        ):
            best = total
    return best


@pytest.mark.parametrize("block", range(10))
def test_cost_equals_enumeration(block: int) -> None:
    """On random small instances the program finds exactly the enumerated optimum, or both find none."""
    for seed in range(block * 20, block * 20 + 20):
        problem = random_problem(seed)
        # Enumeration looks at 0 to 3 replicas a pool; the program gets the same limit.
        problem = replace(problem, pools=tuple(replace(p, max_replicas=3) for p in problem.pools))
        expected = brute_force(problem)
        if expected is None:
            with pytest.raises(InfeasibleError):
                solve_fleet(problem, EXACT)
            continue
        found = solve_fleet(problem, EXACT)

        assert found.proof == "optimal", seed
        assert found.objective == pytest.approx(expected, rel=1e-6, abs=1e-6), seed


def _cost(problem: FleetProblem) -> float:
    try:
        return solve_fleet(problem, EXACT).objective
    except InfeasibleError:
        return math.inf


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_more_freedom_never_costs_more(seed: int) -> None:
    """More stock, no budget, another type on offer or a lower price never raise the cost; doubled prices double it."""
    problem = random_problem(seed)
    base = _cost(problem)
    more = replace(problem, offers=tuple(replace(o, max_nodes=None) for o in problem.offers))
    free = replace(problem, limits=Limits())
    cheap = replace(
        problem, offers=tuple(replace(o, cost_usd_per_node_hour=o.cost_usd_per_node_hour * 0.8) for o in problem.offers)
    )
    fewer = replace(problem, pools=problem.pools[1:])
    order = replace(problem, pools=problem.pools[::-1], offers=problem.offers[::-1], sites=problem.sites[::-1])

    assert _cost(more) <= base * (1 + 1e-9) + 1e-9
    assert _cost(free) <= base * (1 + 1e-9) + 1e-9
    assert _cost(cheap) <= base * (1 + 1e-9) + 1e-9
    assert _cost(fewer) >= base * (1 - 1e-9) - 1e-9
    assert _cost(order) == pytest.approx(base, rel=1e-7)
    if math.isfinite(base) and problem.limits.budget_usd_per_hour is None:
        doubled = replace(
            problem,
            offers=tuple(
                replace(
                    o,
                    cost_usd_per_node_hour=2 * o.cost_usd_per_node_hour,
                    owned_cost_usd_per_node_hour=2 * o.owned_cost_usd_per_node_hour,
                )
                for o in problem.offers
            ),
            links=tuple(replace(link, usd_per_unit_hour=2 * link.usd_per_unit_hour) for link in problem.links),
        )
        assert _cost(doubled) == pytest.approx(2 * base, rel=1e-7)
