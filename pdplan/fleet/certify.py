"""The certificate: every number of a plan recomputed from the scenario, and every constraint with its slack.

Nothing of the program that made the plan is used, so that a plan from anywhere can be checked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from pdplan.errors import InputError, unknown_name
from pdplan.fleet.candidates import Fleet, fleet_of, offers_for
from pdplan.fleet.evaluate import Evaluation, PoolSpec, evaluate, layouts_of
from pdplan.fleet.plan import Binding, Certificate, Check, PeriodPlan, PeriodPool, Plan, Pool
from pdplan.fleet.pools import link_between
from pdplan.scenario.resolve import Offer, Period, Scenario

__all__ = ["binding_of", "certify"]

TOLERANCE = 1e-6
Add = Callable[[str, float, float], None]
Offers = Mapping[tuple[str, str], Offer]


def _spec(pool: Pool | PeriodPool) -> PoolSpec:
    layout = pool.layout
    return PoolSpec(
        role=pool.role,
        site=pool.site,
        node_type=pool.node_type,
        destination_site=pool.destination_site,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        attention_dp=layout.attention_dp,
        token_budget=layout.token_budget,
        batch_cap=max(layout.max_batch, 1) if pool.role != "prefill" else 1 << 30,
        replicas=pool.replicas,
        rate_req_per_s=pool.rate_req_per_s,
    )


def _known(scenario: Scenario, plan: Plan) -> dict[tuple[str, str], Offer]:
    offers = {(offer.site, offer.node.id): offer for site in scenario.sites for offer in site.offers}
    faults = []
    for i, pool in enumerate(plan.pools):
        if (pool.site, pool.node_type) not in offers:
            faults.append(
                f"pools.{i}: {unknown_name('node type', pool.node_type, [h for s, h in offers if s == pool.site])} "
                f"(site {pool.site!r} of the scenario)"
            )
        elif pool.replicas < 1 or pool.nodes < 0 or pool.rate_req_per_s < 0:
            faults.append(f"pools.{i}: replicas, nodes and rate_req_per_s must be at least 1, 0 and 0")
        elif min(pool.layout.tp, pool.layout.pp, pool.layout.ep, pool.layout.attention_dp) < 1:
            faults.append(f"pools.{i}.layout: tp, pp, ep and attention_dp must be at least 1")
    if not plan.pools:
        faults.append("pools: is empty; there is nothing to check in a plan without pools")
    if faults:
        raise InputError(*faults)
    return offers


def _pool_checks(add: Add, scenario: Scenario, fleet: Fleet, plan: Plan, evaluation: Evaluation) -> None:
    for i, (pool, state) in enumerate(zip(plan.pools, evaluation.states, strict=True)):
        where = f"pool {i + 1} ({pool.role}, {pool.node_type} at {pool.site})"
        layouts = layouts_of(fleet, _spec(pool))
        valid, reasons = fleet.latency.valid(layouts)
        add(
            f"{where}: layout is valid{'' if valid.all() else ': ' + '; '.join(reasons)}",
            0.0 if valid.all() else 1.0,
            0.0,
        )
        memory = state.memory
        add(
            f"{where}: weights, cache, staging and reserve fit in HBM [GB]",
            (memory.weights + memory.kv_cache + memory.staging + memory.reserve) / 1e9,
            memory.hbm / 1e9,
        )
        if pool.role != "prefill":
            add(
                f"{where}: mean batch within the resident capacity [sequences]",
                state.batch_mean,
                float(state.max_batch),
            )
        add(
            f"{where}: work below what the replicas can do [share]",
            state.utilization_frac if state.stable else 2.0,
            1.0,
        )
        add(f"{where}: FLOP/s below the dense peak [share]", state.flop_frac, 1.0)
        add(f"{where}: HBM bandwidth below the peak [share]", state.hbm_frac, 1.0)


def _rented_nodes(period: PeriodPlan, site: str, node_type: str) -> int:
    """Nodes of a type that are paid by the hour in a period."""
    return sum(line.nodes for line in period.rented if (line.site, line.node_type) == (site, node_type))


def _rented_mean_nodes(plan: Plan, site: str, node_type: str) -> float:
    """The same over all hours."""
    hours = sum(period.hours_per_year for period in plan.periods) or 1.0
    return sum(_rented_nodes(p, site, node_type) * p.hours_per_year for p in plan.periods) / hours


def _cards_taken(pools: Iterable[Pool | PeriodPool], cards_per_node: int) -> int:
    """Cards that the replicas of one role on one type take, lost remainders of nodes included.

    Replicas of 1, 2, 4, ... cards that divide a node share nodes without loss; others fill nodes of their own, as many to a
    node as fit, or each a whole number of nodes.
    """
    shared = own = 0
    for pool in pools:
        size = pool.layout.tp * pool.layout.pp * pool.layout.attention_dp
        if cards_per_node % size == 0 and size & (size - 1) == 0:
            shared += pool.replicas * size
        elif size <= cards_per_node:
            own += -(-pool.replicas // (cards_per_node // size)) * cards_per_node
        else:
            own += pool.replicas * -(-size // cards_per_node) * cards_per_node
    return shared + own


def _fleet_checks(add: Add, scenario: Scenario, plan: Plan, offers: Offers) -> None:
    rate = scenario.rate_req_per_s
    served = sum(pool.rate_req_per_s for pool in plan.pools if pool.role != "prefill")
    add("every request is decoded [req/s]", rate, served)
    filled: dict[tuple[str, str], float] = defaultdict(float)
    for pool in plan.pools:
        key = f"tp {pool.layout.tp}" if scenario.engine.equal_tp else ""
        if pool.role == "prefill":
            filled[pool.destination_site, key] += pool.rate_req_per_s
        elif pool.role == "decode":
            filled[pool.site, key] -= pool.rate_req_per_s
    for (site, key), difference in sorted(filled.items()):
        add(
            f"prefilled for {site}{' with ' + key if key else ''} equals decoded there [req/s]",
            abs(difference),
            1e-6 * rate,
        )
    groups: dict[tuple[str, str, str], list[Pool]] = defaultdict(list)
    nodes: dict[tuple[str, str], int] = defaultdict(int)
    for pool in plan.pools:
        groups[pool.site, pool.role, pool.node_type].append(pool)
        nodes[pool.site, pool.node_type] += pool.nodes
    cards: dict[tuple[str, str, str], int] = {}
    have: dict[tuple[str, str, str], int] = {}
    for group, members in groups.items():
        per_node = offers[group[0], group[2]].node.cards_per_node
        cards[group], have[group] = _cards_taken(members, per_node), sum(pool.nodes for pool in members) * per_node
    for (site, role, node_type), used in sorted(cards.items()):
        fit = f"{role} replicas fit on the {node_type} nodes at {site} [cards]"
        add(fit, float(used), float(have[site, role, node_type]))
    bought = {(p.site, p.node_type): p for p in plan.purchases}
    for place, used_nodes in sorted(nodes.items()):
        offer = offers[place]
        if offer.max_nodes is not None:
            own = used_nodes - (_rented_nodes(plan.periods[0], *place) if plan.periods else 0)
            add(f"stock of {place[1]} at {place[0]} [nodes]", float(own), float(offer.max_nodes))
        if plan.purchases:
            entry = bought.get(place)
            count = (entry.nodes + entry.owned_nodes) if entry else 0
            count += _rented_nodes(plan.periods[0], *place) if plan.periods else 0
            add(f"nodes in use are bought or owned: {place[1]} at {place[0]}", float(used_nodes), float(count))
            if entry and offer.lot_nodes > 1:
                add(
                    f"{place[1]} at {place[0]} is bought in lots of {offer.lot_nodes} [remainder]",
                    float(entry.nodes % offer.lot_nodes),
                    0.0,
                )
            if entry and offer.min_nodes:
                add(
                    f"least order of {place[1]} at {place[0]} [nodes]",
                    float(offer.min_nodes),
                    float(entry.nodes + entry.owned_nodes),
                )
    for (site, role, node_type), used in sorted(cards.items()):
        if spare := getattr(scenario.fleet, role).spare_nodes:
            per_node = offers[site, node_type].node.cards_per_node
            add(
                f"spare {role} nodes of {node_type} at {site}",
                float(spare),
                (have[site, role, node_type] - used) // per_node,
            )
    for role in ("prefill", "decode", "colocated"):
        rules = getattr(scenario.fleet, role)
        allowed = {(offer.site, offer.node.id) for offer in offers_for(scenario, role)}
        for site_obj in scenario.sites:
            mine = [pool for pool in plan.pools if pool.role == role and pool.site == site_obj.name]
            if mine and rules.min_cards:
                add(f"least {role} cards at {site_obj.name}", float(rules.min_cards), float(sum(p.cards for p in mine)))
            for pool in mine:
                add(
                    f"{role} may use {pool.node_type} at {pool.site}",
                    0.0 if (pool.site, pool.node_type) in allowed else 1.0,
                    0.0,
                )


def _period_checks(
    add: Add,
    scenario: Scenario,
    fleet: Fleet,
    plan: Plan,
    offers: Offers,
    sure: str,
) -> None:
    """Certificate lines of every operating state: targets, flows, nodes within what is had, rented and not lost."""
    known = {period.id: period for period in scenario.periods}
    if plan.periods:
        add("operating states that the plan leaves out", float(len(set(known) - {p.id for p in plan.periods})), 0.0)
    for line in plan.periods:
        if (given := known.get(line.id)) is None:
            continue
        evaluation = evaluate(scenario, fleet, [_spec(pool) for pool in line.pools])
        for target in scenario.targets:
            name = {"ttft_s": "TTFT", "tpot_s": "TPOT"}[target.metric]
            value = evaluation.assured(target.metric, target.percentile)
            add(f"{line.id}: {name} {target.label}{sure} [s]", value, target.limit_s)
        served = sum(pool.rate_req_per_s for pool in line.pools if pool.role != "prefill")
        add(f"{line.id}: every request is decoded [req/s]", given.rate_req_per_s, served)
        _period_node_checks(add, plan, line, given, offers)


def _period_node_checks(add: Add, plan: Plan, line: PeriodPlan, given: Period, offers: Offers) -> None:
    groups: dict[tuple[str, str, str], list[PeriodPool]] = defaultdict(list)
    for pool in line.pools:
        groups[pool.site, pool.role, pool.node_type].append(pool)
    need = {key: _cards_taken(members, offers[key[0], key[2]].node.cards_per_node) for key, members in groups.items()}
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
        rented, offer = _rented_nodes(line, site, node_type), offers[site, node_type]
        add(f"{line.id}: nodes in use of {node_type} at {site}", float(count), float(had + rented))
        if rented:
            most = float(rented) if offer.max_rented_nodes is None else float(offer.max_rented_nodes)
            most = most if offer.rent_usd_per_node_hour is not None and given.lost_site != site else 0.0
            add(f"{line.id}: rented {node_type} at {site}", float(rented), most)


def _limit_checks(add: Add, scenario: Scenario, plan: Plan, offers: Offers, evaluation: Evaluation) -> float:
    """Links, limits and money; returns the recomputed cost."""
    sent: dict[tuple[str, str], float] = defaultdict(float)
    for pool, state in zip(plan.pools, evaluation.states, strict=True):
        if pool.role == "prefill" and pool.site != pool.destination_site:
            sent[pool.site, pool.destination_site] += pool.rate_req_per_s * state.kv_bytes_per_request * 8 / 1e9
    units = {(line.from_site, line.to_site): line.units for line in plan.links}
    link_cost, counted = 0.0, set()
    for (a, b), load in sorted(sent.items()):
        link = link_between(scenario, a, b)
        n = units.get((a, b), 0)
        capacity = 0.0 if link is None else n * link.unit_bandwidth_bytes_per_s * link.usable_frac * 8 / 1e9
        add(f"KV traffic {a} to {b} [Gb/s]", load, capacity)
        if link is not None:
            add(f"link units {a}-{b}", float(n), float(link.max_units))
            if frozenset((a, b)) not in counted:
                counted.add(frozenset((a, b)))
                link_cost += n * link.usd_per_unit_hour
    cost = link_cost
    if plan.purchases:
        cost += sum(
            p.nodes * offers[p.site, p.node_type].usd_per_node_hour
            + p.owned_nodes * offers[p.site, p.node_type].owned_usd_per_node_hour
            + _rented_mean_nodes(plan, p.site, p.node_type)
            * (offers[p.site, p.node_type].rent_usd_per_node_hour or 0.0)
            for p in plan.purchases
        )
    else:
        cost += sum(pool.nodes * offers[pool.site, pool.node_type].usd_per_node_hour for pool in plan.pools)
    rules = scenario.fleet
    power = sum(pool.nodes * offers[pool.site, pool.node_type].node.power_w for pool in plan.pools)
    cards = sum(pool.nodes * offers[pool.site, pool.node_type].node.cards_per_node for pool in plan.pools)
    if rules.budget_usd_per_hour is not None:
        add("budget [USD/h]", cost, rules.budget_usd_per_hour)
    if rules.max_power is not None:
        add("power of the fleet [kW]", power / 1e3, rules.max_power / 1e3)
    if rules.max_cards is not None:
        add("cards of the fleet", float(cards), float(rules.max_cards))
    if rules.max_sites is not None:
        add("sites in use", float(len({pool.site for pool in plan.pools})), float(rules.max_sites))
    if rules.max_carbon_kg_per_hour is not None:
        carbon = sum(pool.nodes * offers[pool.site, pool.node_type].carbon_kg_per_node_hour for pool in plan.pools)
        add("CO2 of the fleet [kg/h]", carbon, rules.max_carbon_kg_per_hour)
    if rules.same_vendor:
        vendors = {offers[p.site, p.node_type].accelerator.vendor for p in plan.pools if p.role != "colocated"}
        add("vendors of prefill and decode", float(len(vendors)), 1.0)
    for pin in rules.pinned:
        if (pin.role == "colocated") == (plan.mode == "colocated"):
            mine = [p for p in plan.pools if (p.site, p.role, p.node_type) == (pin.site, pin.role, pin.type)]
            off = abs(sum(pool.nodes for pool in mine) - pin.nodes)
            add(f"pinned {pin.role} nodes of {pin.type} at {pin.site} [difference]", float(off), 0.0)
    if rules.max_changed_nodes is not None:
        had: dict[tuple[str, str], int] = defaultdict(int)
        for entry in plan.purchases:
            had[entry.site, entry.node_type] += entry.nodes + entry.owned_nodes
        today = {(entry.site, entry.type): entry.nodes for entry in rules.current}
        moved = sum(abs(had.get(place, 0) - today.get(place, 0)) for place in {*had, *today})
        add("nodes that come or go", float(moved), float(rules.max_changed_nodes))
    for site in scenario.sites:
        mine = [pool for pool in plan.pools if pool.site == site.name]
        if site.max_power_w is not None:
            used = sum(pool.nodes * offers[pool.site, pool.node_type].node.power_w for pool in mine)
            add(f"power at {site.name} [kW]", used / 1e3, site.max_power_w / 1e3)
        if site.max_cards is not None:
            add(f"cards at {site.name}", float(sum(pool.cards for pool in mine)), float(site.max_cards))
    return cost


def certify(scenario: Scenario, plan: Plan) -> Certificate:
    """Recompute a plan and list every constraint as lhs <= rhs.

    Raises
    ------
    InputError
        The plan names machines or sites the scenario does not have, or has no pools.
    """
    offers = _known(scenario, plan)
    fleet = fleet_of(scenario)
    evaluation = evaluate(scenario, fleet, [_spec(pool) for pool in plan.pools])
    checks: list[Check] = []

    def add(name: str, lhs: float, rhs: float) -> None:
        room = TOLERANCE * max(abs(lhs), abs(rhs), 1e-9)
        checks.append(Check(name=name, lhs=lhs, rhs=rhs, slack=rhs - lhs, ok=bool(lhs <= rhs + room)))

    sure = f" with {scenario.confidence * 100:g} % confidence" if scenario.confidence is not None else ""
    for target in scenario.targets:
        name = {"ttft_s": "TTFT", "tpot_s": "TPOT"}[target.metric]
        add(f"{name} {target.label}{sure} [s]", evaluation.assured(target.metric, target.percentile), target.limit_s)
    _pool_checks(add, scenario, fleet, plan, evaluation)
    _fleet_checks(add, scenario, plan, offers)
    _period_checks(add, scenario, fleet, plan, offers, sure)
    cost = _limit_checks(add, scenario, plan, offers, evaluation)
    if plan.cost is not None:
        add(
            "cost as printed equals cost recomputed [USD/h difference]",
            abs(plan.cost.usd_per_hour - cost),
            1e-6 * max(cost, 1.0),
        )
    for line in plan.slo:
        again = evaluation.quantile(line.metric, line.percentile)
        add(
            f"{line.metric} p{line.percentile:g} as printed equals recomputed [s difference]",
            abs(again - line.predicted),
            1e-6 * max(again, 1e-3),
        )
    return Certificate(ok=all(check.ok for check in checks), checks=tuple(checks))


_BINDING = (
    "TTFT p",
    "TPOT p",
    "stock of",
    "budget",
    "power",
    "cards",
    "KV traffic",
    "link units",
    "least",
    "sites in use",
    "replicas fit",
    "CO2 of",
    "vendors of",
    "nodes that come",
    "spare ",
)


def binding_of(certificate: Certificate, plan: Plan) -> tuple[Binding, ...]:
    """Constraints with less than 5 % to spare: what holds the cost up."""
    found = []
    for check in certificate.checks:
        named = any(check.name.startswith(word) or word in check.name for word in _BINDING)
        if named and "difference" not in check.name and check.rhs > 0 and check.slack <= 0.05 * abs(check.rhs):
            name, _, unit = check.name.rstrip("]").partition(" [")
            scale, unit = (1e3, "ms") if unit == "s" and check.rhs < 1 else (1.0, unit)
            found.append(
                Binding(
                    constraint=check.name,
                    message=f"{name}: {check.lhs * scale:.4g} of {check.rhs * scale:.4g} {unit}".rstrip()
                    + f" ({check.slack / check.rhs:.1%} to spare)",
                )
            )
    return tuple(found)
