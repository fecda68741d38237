"""A simple plan made without a solver: the answer of last resort, checked like any other and marked `greedy`."""

from __future__ import annotations

import math
from dataclasses import replace

from pdplan.fleet.audit import cost_usd_per_hour, failures
from pdplan.fleet.limits import price
from pdplan.fleet.problem import PoolOption
from pdplan.fleet.shape import Shape, is_loss
from pdplan.fleet.solution import FleetSolution, StateSolution
from pdplan.fleet.tables import replicas_for

__all__ = ["greedy"]


def _choices(shape: Shape, lane: str) -> list[tuple[PoolOption, ...]]:
    """Ways to serve a lane with one colocated pool, or one prefill and one decode pool."""
    mine = [p for p in shape.problem.pools if p.lane == lane and not p.group]
    ways: list[tuple[PoolOption, ...]] = [(p,) for p in mine if p.role == "colocated"]
    for d in (p for p in mine if p.role == "decode"):
        ways += [
            (p, d)
            for p in mine
            if p.role == "prefill" and p.destination_site == d.site and p.compatibility == d.compatibility
        ]
    return ways


def _usd(shape: Shape, pool: PoolOption) -> float:
    offers = [shape.problem.offers[o] for o in shape.offers_at[pool.site, pool.node_type]]
    return min((price(o, 0) for o in offers if o.paid == "always"), default=math.inf)


def greedy(shape: Shape) -> FleetSolution | None:
    """Per lane the one way that is cheapest at the highest demand, bought for the largest state; None where it breaks a rule.

    Overlapping lanes: those with most bands first, until every band is served. Only the first phase buys.
    """
    problem = shape.problem
    left = set(range(len(shape.band_lanes)))
    chosen: dict[str, tuple[PoolOption, ...]] = {}
    lanes = sorted(problem.lanes, key=lambda lane: (-len(lane.bands), lane.id)) if problem.bands else problem.lanes
    for at, lane in enumerate(lanes):
        bands = set(lane.bands) if problem.bands else {at}
        if not bands <= left:
            continue
        priced = []
        for way in _choices(shape, lane.id):
            cost = 0.0
            for w in range(len(problem.states)):
                total = 0.0
                for pool in way:
                    table = shape.table(pool, w)
                    n = replicas_for(table, shape.lane_rates[w, lane.id]) if table is not None else None
                    short = n is None or n > pool.max_replicas
                    total += math.inf if short else shape.nodes_for(pool, n or 0) * _usd(shape, pool)
                cost = max(cost, total if shape.lane_rates[w, lane.id] > 0 else 0.0)
            priced.append((cost, tuple(pool.id for pool in way), way))
        if priced and math.isfinite(min(priced)[0]):
            chosen[lane.id] = min(priced, key=lambda one: one[:2])[2]
            left -= bands
    if left:
        return None
    states = []
    for w, state in enumerate(problem.states):
        replicas: dict[str, int] = {}
        flows: dict[str, float] = {}
        nodes: dict[tuple[str, str, str], int] = {}
        for lane_id, way in chosen.items():
            rate = shape.lane_rates[w, lane_id]
            for pool in way:
                table = shape.table(pool, w)
                if rate <= 0 or table is None:
                    continue
                replicas[pool.id] = replicas_for(table, rate) or 0
                flows[pool.id] = rate
                key = (pool.site, pool.role, pool.node_type)
                nodes[key] = nodes.get(key, 0) + shape.nodes_for(pool, replicas[pool.id])
        for used in nodes if not is_loss(state) else ():
            cards = shape.offer((used[0], used[2])).cards_per_node
            nodes[used] += problem.limits.spare_nodes.get(used[1], 0)
            nodes[used] = max(nodes[used], math.ceil(problem.limits.min_cards_by_role.get(used[1], 0) / cards))
        states.append(
            StateSolution(
                id=state.id,
                rate_req_per_s=state.rate_req_per_s,
                phase=state.phase,
                replicas=replicas,
                flow_req_per_s=flows,
                nodes=nodes,
                lane_share=dict.fromkeys(sorted(chosen), 1.0),
            )
        )
    found = _bought(shape, tuple(states))
    return found if found is not None and not failures(problem, found) else None


def _bought(shape: Shape, states: tuple[StateSolution, ...]) -> FleetSolution | None:
    problem = shape.problem
    bought: dict[tuple[str, str, str, int], int] = {}
    kept: dict[tuple[str, str, str], int] = {}
    for place, offers in shape.offers_at.items():
        need = max(
            sum(n for (s, _, k), n in one.nodes.items() if (s, k) == place)
            + (0 if not any((s, k) == place for s, _, k in one.nodes) else max(state.lost_nodes.get(place, 0), 0))
            for state, one in zip(problem.states, states, strict=True)
        )
        always = [problem.offers[o] for o in offers if problem.offers[o].paid == "always"]
        for offer in always:
            if n := min(need, offer.owned_nodes):
                kept[offer.site, offer.node_type, offer.term] = n
                need -= n
        for offer in sorted(always, key=lambda one: (price(one, 0), one.term)):
            if need <= 0 or offer.from_phase > 0:
                continue
            room = need if offer.max_nodes is None else max(offer.max_nodes - offer.owned_nodes, 0)
            n = (
                -(-max(min(need, room), offer.min_nodes_if_used - offer.owned_nodes) // offer.lot_nodes)
                * offer.lot_nodes
            )
            bought[offer.site, offer.node_type, offer.term, 0] = n
            need -= n
        if need > 0:
            return None
    links = {
        (i, p): link.max_units
        for i, link in enumerate(problem.links)
        for p in range(link.from_phase, len(problem.phases))
    }
    found = FleetSolution(
        proof="greedy",
        states=states,
        bought_by_phase={key: n for key, n in bought.items() if n},
        kept=kept,
        links_by_phase=links,
        objective=0.0,
        bound=0.0,
        gap=1.0,
        solver="none",
        variables=0,
        constraints=0,
        time_s=0.0,
    )
    cost = cost_usd_per_hour(problem, found)
    return replace(found, objective=cost, cost_usd_per_hour=cost)
