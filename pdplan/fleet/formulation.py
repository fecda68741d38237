"""The fleet program, row by row: one function per block of constraints, its inequality in the docstring.

Symbols as in docs/explanation/fleet-program.md: pools j, sites s, node types h, roles q, links l.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from pdplan.fleet.problem import FleetProblem, NodeOffer, PoolOption
from pdplan.fleet.solver import Program
from pdplan.fleet.tables import is_linear, replicas_for, segments

__all__ = ["Variables", "build", "node_terms", "shares_nodes"]

Terms = list[tuple[str, float]]
OfferKey = tuple[str, str]
RoleKey = tuple[str, str, str]


@dataclass(slots=True)
class Variables:
    """Names of the program's variables."""

    replicas: dict[str, str] = field(default_factory=dict)
    flow: dict[str, str] = field(default_factory=dict)
    nodes: dict[RoleKey, str] = field(default_factory=dict)
    """Shared nodes of (site, role, type)."""
    own_nodes: dict[str, str] = field(default_factory=dict)
    """Nodes of a pool whose replicas do not divide its nodes."""
    bought: dict[OfferKey, str] = field(default_factory=dict)
    kept: dict[OfferKey, str] = field(default_factory=dict)
    """Owned nodes that stay in use; only where some are owned."""
    links: dict[int, str] = field(default_factory=dict)


def shares_nodes(pool: PoolOption, offer: NodeOffer) -> bool:
    """Whether replicas of this size pack without loss beside others: they divide the node, or are whole nodes."""
    a, b = pool.cards_per_replica, offer.cards_per_node
    return (b % a == 0 and a & (a - 1) == 0) or a % b == 0


def _rate(problem: FleetProblem) -> float:
    return problem.states[0].rate_req_per_s


def add_pools(program: Program, v: Variables, problem: FleetProblem) -> None:
    """Capacity: flow[j] <= table[j](replicas[j]), exact by pieces of the table, one of which is chosen."""
    for pool in problem.pools:
        need = replicas_for(pool.capacity, _rate(problem))
        most = pool.max_replicas if need is None else min(pool.max_replicas, need)
        n = v.replicas[pool.id] = program.variable(0, most, integer=True, label="n")
        x = v.flow[pool.id] = program.variable(0, _rate(problem), label="f")
        if is_linear(pool.capacity):
            per = float(pool.capacity.rate_req_per_s[0]) / int(pool.capacity.replicas[0])
            program.row("capacity", [(x, 1.0), (n, -per)], "<=", 0.0)
            continue
        count: Terms = [(n, -1.0)]
        carried: Terms = [(x, 1.0)]
        chosen: Terms = []
        for first, last, rate, slope in segments(pool.capacity):
            if first > most or rate <= 0:
                continue
            end = most if last is None else min(last, most)
            z = program.variable(0, 1, integer=True, label="z")
            chosen.append((z, 1.0))
            count.append((z, float(first)))
            carried.append((z, -rate))
            if end > first:
                extra = program.variable(0, end - first, label="e")
                program.row("piece", [(extra, 1.0), (z, -float(end - first))], "<=", 0.0)
                count.append((extra, 1.0))
                carried.append((extra, -slope))
        program.row("choose", chosen, "<=", 1.0)
        program.row("count", count, "==", 0.0)
        program.row("capacity", carried, "<=", 0.0)


def add_coverage(program: Program, v: Variables, problem: FleetProblem) -> None:
    """Coverage: per lane, decoded plus colocated flow == its rate."""
    for lane in problem.lanes:
        terms = [(v.flow[p.id], 1.0) for p in problem.pools if p.lane == lane.id and p.role != "prefill"]
        program.row("coverage", terms, "==", _rate(problem) * lane.rate_frac)


def add_flow_balance(program: Program, v: Variables, problem: FleetProblem) -> None:
    """Flow balance: per lane, decode site and compatibility key, prefilled flow == decoded flow."""
    groups: dict[tuple[str, str, str], Terms] = defaultdict(list)
    for pool in problem.pools:
        if pool.role == "prefill":
            groups[pool.lane, pool.destination_site, pool.compatibility].append((v.flow[pool.id], 1.0))
        elif pool.role == "decode":
            groups[pool.lane, pool.site, pool.compatibility].append((v.flow[pool.id], -1.0))
    for _, terms in sorted(groups.items()):
        program.row("balance", terms, "==", 0.0)


def add_packing(program: Program, v: Variables, problem: FleetProblem) -> None:
    """Packing: sum_j cards[j] replicas[j] <= cards_per_node nodes[s,q,h]; odd sizes get nodes of their own."""
    offers = {(o.site, o.node_type): o for o in problem.offers}
    shared: dict[RoleKey, Terms] = defaultdict(list)
    for pool in problem.pools:
        offer = offers[pool.site, pool.node_type]
        key: RoleKey = (pool.site, pool.role, pool.node_type)
        if shares_nodes(pool, offer):
            shared[key].append((v.replicas[pool.id], float(pool.cards_per_replica)))
            continue
        own = v.own_nodes[pool.id] = program.variable(0, None, integer=True, label="own")
        if pool.cards_per_replica <= offer.cards_per_node:
            fits = offer.cards_per_node // pool.cards_per_replica
            program.row("own", [(v.replicas[pool.id], 1.0), (own, -float(fits))], "<=", 0.0)
        else:
            whole = -(-pool.cards_per_replica // offer.cards_per_node)
            program.row("own", [(v.replicas[pool.id], float(whole)), (own, -1.0)], "<=", 0.0)
    for role_key, terms in sorted(shared.items()):
        nodes = v.nodes[role_key] = program.variable(0, None, integer=True, label="nodes")
        cards = offers[role_key[0], role_key[2]].cards_per_node
        program.row("packing", [*terms, (nodes, -float(cards))], "<=", 0.0)


def node_terms(
    problem: FleetProblem,
    v: Variables,
    *,
    site: str | None = None,
    role: str | None = None,
    node_type: str | None = None,
) -> list[tuple[str, NodeOffer]]:
    """Variables that count nodes of a site, role and type (None is any), with their offers."""
    offers = {(o.site, o.node_type): o for o in problem.offers}
    pools = {p.id: p for p in problem.pools}
    found = [
        (name, offers[s, h])
        for (s, q, h), name in v.nodes.items()
        if site in (None, s) and role in (None, q) and node_type in (None, h)
    ]
    for pool_id, name in v.own_nodes.items():
        pool = pools[pool_id]
        if site in (None, pool.site) and role in (None, pool.role) and node_type in (None, pool.node_type):
            found.append((name, offers[pool.site, pool.node_type]))
    return found


def add_stock(program: Program, v: Variables, problem: FleetProblem) -> None:
    """Stock: nodes[s,h] <= bought[s,h] + kept[s,h]; kept <= owned; owned + bought <= max; lots; at least min if used."""
    for offer in problem.offers:
        used = [(name, 1.0) for name, _ in node_terms(problem, v, site=offer.site, node_type=offer.node_type)]
        most = None if offer.max_nodes is None else max(offer.max_nodes - offer.owned_nodes, 0)
        bought = v.bought[offer.site, offer.node_type] = program.variable(0, most, integer=True, label="buy")
        if not used:
            program.row("unused", [(bought, 1.0)], "==", 0.0)
            continue
        supply: Terms = [(bought, -1.0)]
        if offer.owned_nodes:
            kept = v.kept[offer.site, offer.node_type] = program.variable(
                0, offer.owned_nodes, integer=True, label="kept"
            )
            supply.append((kept, -1.0))
        program.row("stock", [*used, *supply], "<=", 0.0)
        if offer.lot_nodes > 1:
            lots = program.variable(0, None, integer=True, label="lots")
            program.row("lots", [(bought, 1.0), (lots, -float(offer.lot_nodes))], "==", 0.0)
        if offer.min_nodes_if_used > 0:
            big = float(offer.max_nodes if offer.max_nodes is not None else 1_000_000)
            open_ = program.variable(0, 1, integer=True, label="use")
            program.row("use", [*used, (open_, -big)], "<=", 0.0)
            program.row(
                "least", [(bought, 1.0), (open_, -float(offer.min_nodes_if_used))], ">=", -float(offer.owned_nodes)
            )


def add_minimum_units(program: Program, v: Variables, problem: FleetProblem) -> None:
    """Minimum units: a role opened at a site has at least min_cards there; open[s,q] is binary."""
    for role, least in sorted(problem.limits.min_cards_by_role.items()):
        if least <= 0:
            continue
        for site in problem.sites:
            counted = node_terms(problem, v, site=site.id, role=role)
            if not counted:
                continue
            flows = [(v.flow[p.id], 1.0) for p in problem.pools if p.site == site.id and p.role == role]
            open_ = program.variable(0, 1, integer=True, label="open")
            program.row("opened", [*flows, (open_, -_rate(problem))], "<=", 0.0)
            program.row(
                "min_cards",
                [*((name, float(o.cards_per_node)) for name, o in counted), (open_, -float(least))],
                ">=",
                0.0,
            )


def _load_terms(problem: FleetProblem, v: Variables, a: str, b: str) -> Terms:
    by_lane = {lane.id: lane.kv_bytes_per_request for lane in problem.lanes}
    return [
        (v.flow[p.id], p.kv_bytes_per_request or by_lane[p.lane])
        for p in problem.pools
        if p.role == "prefill" and p.site == a and p.destination_site == b
    ]


def add_links(program: Program, v: Variables, problem: FleetProblem) -> None:
    """Links: KV bytes per second of each direction <= sum of units x bandwidth x usable share; no link, no flow."""
    between: dict[frozenset[str], Terms] = defaultdict(list)
    for i, link in enumerate(problem.links):
        units = v.links[i] = program.variable(link.min_units, link.max_units, integer=True, label="link")
        carried = link.unit_bandwidth_bytes_per_s * link.usable_frac
        between[frozenset((link.site_a, link.site_b))].append((units, -carried / 1e9))
    for pair, capacity in sorted((sorted(ends), terms) for ends, terms in between.items()):
        a, b = pair
        for way in ((a, b), (b, a)):
            if terms := _load_terms(problem, v, *way):
                # In GB/s, so that coefficients stay near 1.
                program.row("link", [*((n, c / 1e9) for n, c in terms), *capacity], "<=", 0.0)
    for pool in problem.pools:
        ends = frozenset((pool.site, pool.destination_site))
        if pool.role == "prefill" and len(ends) == 2 and ends not in between:
            program.row("no_link", [(v.flow[pool.id], 1.0)], "==", 0.0)


def cost_terms(problem: FleetProblem, v: Variables) -> Terms:
    """USD per hour: bought nodes at their price, used owned nodes at their running cost, link units."""
    terms: Terms = []
    for offer in problem.offers:
        place = (offer.site, offer.node_type)
        terms.append((v.bought[place], offer.cost_usd_per_node_hour))
        if place in v.kept:
            terms.append((v.kept[place], offer.owned_cost_usd_per_node_hour))
    terms += [(name, problem.links[i].usd_per_unit_hour) for i, name in v.links.items()]
    return terms


def power_terms(problem: FleetProblem, v: Variables, site: str | None = None) -> Terms:
    """Watts of the nodes in use; nodes bought beyond them (lots, least orders) are taken as switched off."""
    return [(name, offer.power_w_per_node) for name, offer in node_terms(problem, v, site=site)]


def cards_terms(problem: FleetProblem, v: Variables, site: str | None = None) -> Terms:
    """Cards of the nodes in use."""
    return [(name, float(offer.cards_per_node)) for name, offer in node_terms(problem, v, site=site)]


def add_limits(program: Program, v: Variables, problem: FleetProblem) -> None:
    """Limits: budget, power and cards of the fleet and of each site, number of sites, pinned node counts."""
    limits = problem.limits
    if limits.budget_usd_per_hour is not None:
        program.row("budget", cost_terms(problem, v), "<=", limits.budget_usd_per_hour)
    if limits.max_power_w is not None:
        program.row("power", [(n, w / 1e3) for n, w in power_terms(problem, v)], "<=", limits.max_power_w / 1e3)
    if limits.max_cards is not None:
        program.row("cards", cards_terms(problem, v), "<=", float(limits.max_cards))
    for site in problem.sites:
        if site.max_power_w is not None:
            program.row(
                "site_power", [(n, w / 1e3) for n, w in power_terms(problem, v, site.id)], "<=", site.max_power_w / 1e3
            )
        if site.max_cards is not None:
            program.row("site_cards", cards_terms(problem, v, site.id), "<=", float(site.max_cards))
    if limits.max_sites is not None:
        used: Terms = []
        for site in problem.sites:
            flows = [(v.flow[p.id], 1.0) for p in problem.pools if p.site == site.id]
            if flows:
                open_ = program.variable(0, 1, integer=True, label="site")
                program.row("site_used", [*flows, (open_, -2 * _rate(problem))], "<=", 0.0)
                used.append((open_, 1.0))
        program.row("max_sites", used, "<=", float(limits.max_sites))
    for (site_id, role, node_type), count in sorted(limits.pinned_nodes.items()):
        terms = [(n, 1.0) for n, _ in node_terms(problem, v, site=site_id, role=role, node_type=node_type)]
        program.row("pinned", terms, "==", float(count))


def build(problem: FleetProblem) -> tuple[Program, Variables]:
    """The whole program, objective left open."""
    program, v = Program(), Variables()
    for block in (
        add_pools,
        add_coverage,
        add_flow_balance,
        add_packing,
        add_stock,
        add_minimum_units,
        add_links,
        add_limits,
    ):
        block(program, v, problem)
    return program, v


def objective_terms(problem: FleetProblem, v: Variables, objective: str) -> Terms:
    """The objective by name."""
    if objective == "cost":
        return cost_terms(problem, v)
    return power_terms(problem, v) if objective == "power" else cards_terms(problem, v)
