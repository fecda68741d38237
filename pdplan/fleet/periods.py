"""Operating states of a plan: what runs at every level of the day and after every loss, and their certificate lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from pdplan.errors import InfeasibleError, SolverError
from pdplan.fleet.assemble import Solved, slo_of, specs_of
from pdplan.fleet.candidates import Fleet
from pdplan.fleet.evaluate import PoolSpec, evaluate
from pdplan.fleet.plan import PeriodNodes, PeriodPlan, PeriodPool, Plan, PoolLayout
from pdplan.fleet.problem import FleetProblem
from pdplan.fleet.solve import FleetSolution, SolveOptions, solve_fleet
from pdplan.scenario.resolve import Offer, Period, Scenario

__all__ = ["check_periods", "leanest", "periods_of", "rented_mean_nodes", "rented_nodes"]

Add = Callable[[str, float, float], None]
Offers = Mapping[tuple[str, str], Offer]


def periods_of(scenario: Scenario, fleet: Fleet, solved: Solved) -> tuple[PeriodPlan, ...]:
    """What runs in every operating state, with its own latencies; empty where there is one state only."""
    if len(scenario.periods) == 1:
        return ()
    options = {pool.id: pool for pool in solved.built.problem.pools}
    lines = []
    for period, state in zip(scenario.periods, solved.solution.states, strict=True):
        specs, ids = specs_of(solved.built, state)
        here = replace(solved, specs=specs, ids=ids, evaluation=evaluate(scenario, fleet, specs))
        pools = []
        for pool_id, spec, use in zip(ids, specs, here.evaluation.states, strict=True):
            budget = scenario.engine.prefill_token_budget if spec.role == "prefill" else spec.token_budget
            layout = PoolLayout(
                tp=spec.tp,
                pp=spec.pp,
                ep=spec.ep,
                attention_dp=spec.attention_dp,
                cards_per_replica=options[pool_id].cards_per_replica,
                max_batch=min(use.max_batch, spec.batch_cap),
                token_budget=budget,
            )
            pools.append(
                PeriodPool(
                    role=spec.role,
                    site=spec.site,
                    node_type=spec.node_type,
                    destination_site=spec.destination_site,
                    layout=layout,
                    replicas=spec.replicas,
                    rate_req_per_s=spec.rate_req_per_s,
                )
            )
        nodes = [
            PeriodNodes(site=site, role=role, node_type=kind, nodes=n)
            for (site, role, kind), n in sorted(state.nodes.items())
        ]
        rented = [
            PeriodNodes(site=site, role="", node_type=kind, nodes=n)
            for (site, kind, _), n in sorted(state.rented.items())
            if n
        ]
        lines.append(
            PeriodPlan(
                id=period.id,
                hours_per_year=period.hours_per_year,
                rate_req_per_s=period.rate_req_per_s,
                pools=tuple(pools),
                nodes=tuple(nodes),
                rented=tuple(rented),
                slo=slo_of(scenario, here),
            )
        )
    return tuple(lines)


def leanest(problem: FleetProblem, found: FleetSolution, options: SolveOptions) -> FleetSolution:
    """The same purchases, with as few nodes switched on as every state off the peak needs.

    Off the peak many counts cost the same. States that rent are left as they are: their counts are money.
    """
    peak, states = found.peak.id, []
    had = dict(found.kept)
    for place, n in found.bought.items():
        had[place] = had.get(place, 0) + n
    offers = tuple(
        replace(
            offer,
            max_nodes=had.get((offer.site, offer.node_type, offer.term), 0),
            owned_nodes=had.get((offer.site, offer.node_type, offer.term), 0),
            min_nodes_if_used=0,
            lot_nodes=1,
        )
        for offer in problem.offers
        if offer.paid == "always"
    )
    links = tuple(
        replace(link, min_units=found.link_units.get(i, 0), max_units=found.link_units.get(i, 0))
        for i, link in enumerate(problem.links)
    )
    limits = replace(problem.limits, budget_usd_per_hour=None, max_changed_nodes=None)
    for state, now in zip(problem.states, found.states, strict=True):
        if now.id != peak and not any(now.rented.values()):
            alone = replace(
                problem,
                states=(replace(state, hours_per_year=1.0),),
                offers=offers,
                links=links,
                limits=limits,
                objective="power",
                then=(),
            )
            # where the solver stops early, what was found before stands
            with suppress(InfeasibleError, SolverError):
                now = solve_fleet(alone, options).states[0]
        states.append(now)
    return replace(found, states=tuple(states))


def rented_nodes(period: PeriodPlan, site: str, node_type: str) -> int:
    """Nodes of a type that are paid by the hour in a period."""
    return sum(line.nodes for line in period.rented if (line.site, line.node_type) == (site, node_type))


def rented_mean_nodes(plan: Plan, site: str, node_type: str) -> float:
    """The same over all hours."""
    hours = sum(period.hours_per_year for period in plan.periods) or 1.0
    return sum(rented_nodes(p, site, node_type) * p.hours_per_year for p in plan.periods) / hours


def check_periods(
    add: Add,
    scenario: Scenario,
    fleet: Fleet,
    plan: Plan,
    offers: Offers,
    spec_of: Callable[[PeriodPool], PoolSpec],
    sure: str,
) -> None:
    """Certificate lines of every operating state: targets, flows, nodes within what is had, rented and not lost."""
    known = {period.id: period for period in scenario.periods}
    if plan.periods:
        add("operating states that the plan leaves out", float(len(set(known) - {p.id for p in plan.periods})), 0.0)
    for line in plan.periods:
        if (given := known.get(line.id)) is None:
            continue
        evaluation = evaluate(scenario, fleet, [spec_of(pool) for pool in line.pools])
        for target in scenario.targets:
            name = {"ttft_s": "TTFT", "tpot_s": "TPOT"}[target.metric]
            value = evaluation.assured(target.metric, target.percentile)
            add(f"{line.id}: {name} {target.label}{sure} [s]", value, target.limit_s)
        served = sum(pool.rate_req_per_s for pool in line.pools if pool.role != "prefill")
        add(f"{line.id}: every request is decoded [req/s]", given.rate_req_per_s, served)
        _check_nodes(add, plan, line, given, offers)


def _check_nodes(add: Add, plan: Plan, line: PeriodPlan, given: Period, offers: Offers) -> None:
    need: dict[tuple[str, str, str], int] = defaultdict(int)
    for pool in line.pools:
        per_node = offers[pool.site, pool.node_type].node.cards_per_node
        size = pool.layout.tp * pool.layout.pp * pool.layout.attention_dp
        divides = size <= per_node and per_node % size == 0
        need[pool.site, pool.role, pool.node_type] += pool.replicas * (
            size if divides else -(-size // per_node) * per_node
        )
    used: dict[tuple[str, str], int] = defaultdict(int)
    for entry in line.nodes:
        used[entry.site, entry.node_type] += entry.nodes
        cards = entry.nodes * offers[entry.site, entry.node_type].node.cards_per_node
        where = f"{line.id}: {entry.role} replicas fit on the {entry.node_type} nodes at {entry.site} [cards]"
        add(where, float(need.pop((entry.site, entry.role, entry.node_type), 0)), float(cards))
    add(f"{line.id}: pools without nodes", float(len(need)), 0.0)
    for (site, node_type), count in sorted(used.items()):
        had = sum(p.nodes + p.owned_nodes for p in plan.purchases if (p.site, p.node_type) == (site, node_type))
        if given.lost_site == site:
            had = 0
        elif given.lost_nodes is not None and given.lost_nodes[:2] == (site, node_type):
            had = max(had - given.lost_nodes[2], 0)
        rented, offer = rented_nodes(line, site, node_type), offers[site, node_type]
        add(f"{line.id}: nodes in use of {node_type} at {site}", float(count), float(had + rented))
        if rented:
            most = float(rented) if offer.max_rented_nodes is None else float(offer.max_rented_nodes)
            most = most if offer.rent_usd_per_node_hour is not None and given.lost_site != site else 0.0
            add(f"{line.id}: rented {node_type} at {site}", float(rented), most)
