"""Operating states of a plan: what runs at every level of the day and after every loss."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from pdplan.errors import InfeasibleError, SolverError
from pdplan.fleet.assemble import Solved, slo_of, specs_of
from pdplan.fleet.candidates import Fleet
from pdplan.fleet.evaluate import evaluate
from pdplan.fleet.plan import PeriodNodes, PeriodPlan, PeriodPool, PoolLayout
from pdplan.fleet.problem import FleetProblem
from pdplan.fleet.solve import FleetSolution, SolveOptions, solve_fleet
from pdplan.scenario.resolve import Scenario

__all__ = ["leanest", "periods_of"]


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
