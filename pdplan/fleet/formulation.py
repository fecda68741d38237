"""The fleet program, row by row: one function per block of constraints, its inequality in the docstring.

Symbols as in docs/explanation/fleet-program.md: pools j, sites s, node types h, roles q, lanes l, bands b, states w, phases p,
offers o, links i. A state is exact (whole replicas, tables by pieces) or relaxed (flows only, the best slope of each table), and
the relaxed one is never dearer, so that its bound holds for the exact program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from pdplan.fleet.problem import CapacityTable, NodeOffer, PoolOption
from pdplan.fleet.shape import Shape, is_loss, lost_nodes
from pdplan.fleet.solver import Program
from pdplan.fleet.tables import is_linear

__all__ = ["FirstStage", "Part", "Variables", "build_states", "shares_nodes"]

Terms = list[tuple[str, float]]
Place = tuple[str, str]
RoleKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStage:
    """What is bought: (offer, phase) -> nodes, offer -> owned nodes kept, (link, phase) -> units, role nodes by phase."""

    buy: dict[tuple[int, int], int]
    kept: dict[int, int]
    links: dict[tuple[int, int], int]
    role_nodes: dict[tuple[RoleKey, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Which states to build, which of them relaxed, and what is bought already."""

    states: tuple[int, ...]
    relaxed: frozenset[int] = frozenset()
    floor: FirstStage | None = None
    """At least this is bought."""
    fixed: bool = False
    """Exactly `floor` is bought."""
    pools: frozenset[str] | None = None
    """Only these pools; None is all."""
    open_roles: Mapping[tuple[str, str, int], int] = field(default_factory=dict)
    """(site, role, phase) -> whether it is opened, where that is decided already."""
    best_rate: Mapping[tuple[int, str], float] = field(default_factory=dict)
    """(state, pool) -> steepest rate per replica of a relaxed state, where it stands for several."""


@dataclass(slots=True)
class Variables:
    """Names of the program's variables; w is the index of a state."""

    replicas: dict[tuple[int, str], str] = field(default_factory=dict)
    flow: dict[tuple[int, str], str] = field(default_factory=dict)
    need: dict[tuple[int, RoleKey], Terms] = field(default_factory=dict)
    """Cards taken by the pools of a (site, role, type)."""
    nodes: dict[tuple[int, RoleKey], str] = field(default_factory=dict)
    spare: dict[tuple[int, RoleKey], str] = field(default_factory=dict)
    """Whether spare nodes are held."""
    share: dict[tuple[int, str], str] = field(default_factory=dict)
    rent: dict[tuple[int, int], str] = field(default_factory=dict)
    rent_role: dict[tuple[int, RoleKey], str] = field(default_factory=dict)
    buy: dict[tuple[int, int], str] = field(default_factory=dict)
    kept: dict[int, str] = field(default_factory=dict)
    links: dict[tuple[int, int], str] = field(default_factory=dict)
    role_nodes: dict[tuple[RoleKey, int], str] = field(default_factory=dict)
    open_roles: dict[tuple[str, str, int], str] = field(default_factory=dict)


def shares_nodes(pool: PoolOption, offer: NodeOffer) -> bool:
    """Whether replicas of this size pack without loss beside others: they divide the node, or are whole nodes."""
    a, b = pool.cards_per_replica, offer.cards_per_node
    return (b % a == 0 and a & (a - 1) == 0) or a % b == 0


def _cards_per_replica(pool: PoolOption, offer: NodeOffer) -> float:
    """Cards a replica takes where nodes may be split without end: the least it can cost."""
    if shares_nodes(pool, offer):
        return float(pool.cards_per_replica)
    if pool.cards_per_replica <= offer.cards_per_node:
        return offer.cards_per_node / (offer.cards_per_node // pool.cards_per_replica)
    return float(-(-pool.cards_per_replica // offer.cards_per_node) * offer.cards_per_node)


def _rate(shape: Shape, w: int) -> float:
    return sum(shape.lane_rates[w, lane.id] for lane in shape.problem.lanes)


def _relaxed_pools(program: Program, v: Variables, shape: Shape, part: Part, w: int) -> None:
    """Relaxed capacity: cards taken >= flow x least cards per req/s of the pools that do the same.

    A table is convex, so the line through its origin and its steepest point lies above it: replicas >= flow / best rate per
    replica, whatever whole number they are. Of pools with one role, lane, place, destination and key only the least cards
    and the fewest bytes matter.
    """
    best: dict[tuple[str, str, str, str, str, str], tuple[float, float, list[PoolOption]]] = {}
    for pool in shape.problem.pools:
        if part.pools is not None and pool.id not in part.pools:
            continue
        table = shape.table(pool, w)
        if table is None:
            continue
        rate = part.best_rate.get((w, pool.id)) or shape.steepest(pool, w)
        if rate <= 0:
            continue
        cards = _cards_per_replica(pool, shape.offer((pool.site, pool.node_type))) / rate
        key = (pool.role, pool.lane, pool.site, pool.node_type, pool.destination_site, pool.compatibility)
        least, fewest, members = best.get(key, (cards, pool.kv_bytes_per_request, []))
        best[key] = (min(least, cards), min(fewest, pool.kv_bytes_per_request), [*members, pool])
    for (role, lane, site, kind, _, _), (cards, fewest, members) in best.items():
        # The flow stands in the name of the pool that sends the fewest bytes.
        pool = min(members, key=lambda one: (one.kv_bytes_per_request, one.id))
        assert pool.kv_bytes_per_request == fewest
        x = v.flow[w, pool.id] = program.variable(0, shape.lane_rates[w, lane], label="f")
        v.need.setdefault((w, (site, role, kind)), []).append((x, cards))


def _table_rows(
    program: Program, shape: Shape, table: CapacityTable, n: str, x: str, most: int, rate_max: float
) -> None:
    """Capacity: flow <= table(replicas), exact by pieces of the table, one of which is chosen."""
    if is_linear(table):
        per = float(table.rate_req_per_s[0]) / int(table.replicas[0])
        program.row("capacity", [(x, 1.0), (n, -per)], "<=", 0.0)
        return
    count: Terms = [(n, -1.0)]
    carried: Terms = [(x, 1.0)]
    chosen: Terms = []
    for first, last, rate, slope in shape.reading(table).pieces:
        if first > most or rate <= 0:
            continue
        end = most if last is None else min(last, most)
        z = program.variable(0, 1, integer=True, label="z")
        chosen.append((z, 1.0))
        count.append((z, float(first)))
        carried.append((z, -min(rate, rate_max)))
        if end > first:
            extra = program.variable(0, end - first, label="e")
            program.row("piece", [(extra, 1.0), (z, -float(end - first))], "<=", 0.0)
            count.append((extra, 1.0))
            carried.append((extra, -slope))
    program.row("choose", chosen, "<=", 1.0)
    program.row("count", count, "==", 0.0)
    program.row("capacity", carried, "<=", 0.0)


def add_pools(program: Program, v: Variables, shape: Shape, part: Part, w: int) -> None:
    """Pools of an exact state: flow[j] <= table[j](replicas[j]); a group's fractions sum to a whole number."""
    groups: dict[str, Terms] = defaultdict(list)
    for pool in shape.problem.pools:
        if part.pools is not None and pool.id not in part.pools:
            continue
        table = shape.table(pool, w)
        if table is None:
            continue
        lane = shape.lane_rates[w, pool.lane]
        most = shape.most_replicas(pool, w)
        n = v.replicas[w, pool.id] = program.variable(0, most, integer=not pool.group, label="n")
        x = v.flow[w, pool.id] = program.variable(0, lane, label="f")
        _table_rows(program, shape, table, n, x, most, lane)
        offer = shape.offer((pool.site, pool.node_type))
        need = v.need.setdefault((w, (pool.site, pool.role, pool.node_type)), [])
        if pool.group:
            groups[pool.group].append((n, 1.0))
        if shares_nodes(pool, offer):
            if not pool.group:
                need.append((n, float(pool.cards_per_replica)))
            elif len(groups[pool.group]) == 1:
                whole = program.variable(0, None, integer=True, label="group")
                groups[pool.group].append((whole, -1.0))
                need.append((whole, float(pool.cards_per_replica)))
            continue
        own = program.variable(0, None, integer=True, label="own")
        need.append((own, float(offer.cards_per_node)))
        if pool.cards_per_replica <= offer.cards_per_node:
            fits = offer.cards_per_node // pool.cards_per_replica
            program.row("own", [(n, 1.0), (own, -float(fits))], "<=", 0.0)
        else:
            whole_nodes = -(-pool.cards_per_replica // offer.cards_per_node)
            program.row("own", [(n, float(whole_nodes)), (own, -1.0)], "<=", 0.0)
    for _, terms in sorted(groups.items()):
        program.row("group", terms, "<=", 0.0)


def add_coverage(program: Program, v: Variables, shape: Shape, w: int) -> None:
    """Coverage: per lane, decoded plus colocated flow == its rate x share; per band, shares of its lanes sum to 1."""
    for lane in shape.problem.lanes:
        rate = shape.lane_rates[w, lane.id]
        terms = [
            (v.flow[w, p.id], 1.0)
            for p in shape.problem.pools
            if p.lane == lane.id and p.role != "prefill" and (w, p.id) in v.flow
        ]
        if lane.id in shape.chosen_lanes:
            share = v.share[w, lane.id] = program.variable(0, 1, label="share")
            program.row("coverage", [*terms, (share, -rate)], "==", 0.0)
        elif rate > 0:
            program.row("coverage", terms, "==", rate)
    for lanes in shape.band_lanes:
        if len(lanes) > 1:
            program.row("band", [(v.share[w, lane], 1.0) for lane in lanes], "==", 1.0)


def add_flow_balance(program: Program, v: Variables, shape: Shape, w: int) -> None:
    """Flow balance: per lane, decode site and compatibility key, prefilled flow == decoded flow."""
    groups: dict[tuple[str, str, str], Terms] = defaultdict(list)
    for pool in shape.problem.pools:
        if (w, pool.id) not in v.flow:
            continue
        if pool.role == "prefill":
            groups[pool.lane, pool.destination_site, pool.compatibility].append((v.flow[w, pool.id], 1.0))
        elif pool.role == "decode":
            groups[pool.lane, pool.site, pool.compatibility].append((v.flow[w, pool.id], -1.0))
    for _, terms in sorted(groups.items()):
        program.row("balance", terms, "==", 0.0)


def add_packing(program: Program, v: Variables, shape: Shape, part: Part, w: int) -> None:
    """Packing and N + k: cards taken <= cards_per_node x (nodes[s,q,h] - k held[s,q,h]); nodes <= M held.

    The spare nodes stand for a loss to come, so a state in which something is lost has none of them to hold.
    """
    spares = {} if is_loss(shape.problem.states[w]) else shape.problem.limits.spare_nodes
    for (state, key), terms in sorted(v.need.items()):
        if state != w:
            continue
        nodes = v.nodes[w, key] = program.variable(0, None, integer=w not in part.relaxed, label="nodes")
        cards = float(shape.offer((key[0], key[2])).cards_per_node)
        row = [*terms, (nodes, -cards)]
        k = spares.get(key[1], 0)
        if k:
            held = v.spare[w, key] = program.variable(0, 1, integer=w not in part.relaxed, label="held")
            program.row("held", [(nodes, 1.0), (held, -float(shape.most_nodes[key]))], "<=", 0.0)
            row.append((held, cards * k))
        program.row("packing", row, "<=", 0.0)


def _had(v: Variables, shape: Shape, place: Place, phase: int) -> Terms:
    """Nodes that are there in a phase whether used or not."""
    terms: Terms = []
    for o in shape.offers_at[place]:
        terms += [(name, 1.0) for (i, p), name in v.buy.items() if i == o and p <= phase]
        if o in v.kept:
            terms.append((v.kept[o], 1.0))
    return terms


def add_purchases(program: Program, v: Variables, shape: Shape, part: Part) -> None:
    """Stock: owned + bought <= max; lots; at least the minimum where any is bought or kept; kept <= owned."""
    floor = part.floor
    needed = {(p.site, p.node_type) for p in shape.problem.pools if part.pools is None or p.id in part.pools}
    for o, offer in enumerate(shape.problem.offers):
        if offer.paid != "always" or (
            (offer.site, offer.node_type) not in needed and shape.problem.limits.max_changed_nodes is None
        ):
            continue
        most = None if offer.max_nodes is None else max(offer.max_nodes - offer.owned_nodes, 0)
        bought: Terms = []
        for p in range(offer.from_phase, len(shape.problem.phases)):
            low = floor.buy.get((o, p), 0) if floor else 0
            high = low if part.fixed else most
            buy = v.buy[o, p] = program.variable(low, high, integer=True, label="buy")
            bought.append((buy, 1.0))
            if offer.lot_nodes > 1:
                lots = program.variable(0, None, integer=True, label="lots")
                program.row("lots", [(buy, 1.0), (lots, -float(offer.lot_nodes))], "==", 0.0)
        if most is not None and len(bought) > 1:
            program.row("stock", bought, "<=", float(most))
        supply = list(bought)
        if offer.owned_nodes:
            low = floor.kept.get(o, 0) if floor else 0
            high = low if part.fixed else offer.owned_nodes
            v.kept[o] = program.variable(low, high, integer=True, label="kept")
            supply.append((v.kept[o], 1.0))
        if offer.min_nodes_if_used > 0 and bought:
            big = float(offer.max_nodes if offer.max_nodes is not None else 1_000_000)
            use = program.variable(0, 1, integer=True, label="use")
            program.row("use", [*supply, (use, -big)], "<=", 0.0)
            least = -float(offer.min_nodes_if_used)
            program.row("least", [*bought, (use, least)], ">=", -float(offer.owned_nodes))


def add_rent(program: Program, v: Variables, shape: Shape, part: Part, w: int) -> None:
    """Rented nodes: as many as are used, within stock, lots and minimum; none where they cannot be had."""
    state = shape.problem.states[w]
    whole = w not in part.relaxed
    for o, offer in enumerate(shape.problem.offers):
        place = (offer.site, offer.node_type)
        if offer.paid != "when_used" or not state.can_rent or state.phase < offer.from_phase:
            continue
        if lost_nodes(state, place) == -1 or not any((w, (place[0], q, place[1])) in v.nodes for q in _roles()):
            continue
        rent = v.rent[w, o] = program.variable(0, offer.max_nodes, integer=whole, label="rent")
        if offer.lot_nodes > 1 and whole:
            lots = program.variable(0, None, integer=True, label="lots")
            program.row("lots", [(rent, 1.0), (lots, -float(offer.lot_nodes))], "==", 0.0)
        if offer.min_nodes_if_used > 1 and whole:
            big = float(offer.max_nodes if offer.max_nodes is not None else 1_000_000)
            use = program.variable(0, 1, integer=True, label="use")
            program.row("use", [(rent, 1.0), (use, -big)], "<=", 0.0)
            program.row("least", [(rent, 1.0), (use, -float(offer.min_nodes_if_used))], ">=", 0.0)


def _roles() -> tuple[str, str, str]:
    return ("prefill", "decode", "colocated")


def _available(program: Program, v: Variables, had: Terms, lost: int, most: float) -> Terms:
    """Terms of max(had - lost, 0): there <= had - lost + lost (1 - up), there <= M up."""
    if lost == 0:
        return had
    if lost == -1 or not had:
        return []
    there = program.variable(0, None, label="there")
    up = program.variable(0, 1, integer=True, label="up")
    program.row("lost", [(there, 1.0), *((n, -a) for n, a in had), (up, float(lost))], "<=", 0.0)
    program.row("up", [(there, 1.0), (up, -most)], "<=", 0.0)
    return [(there, 1.0)]


def add_supply(program: Program, v: Variables, shape: Shape, part: Part, w: int) -> None:
    """Supply: sum over roles of nodes[s,q,h] <= max(had[s,h] - lost, 0) + rented[s,h].

    Where a node may not change its role, had and rented are split by role for good, and a loss may hit any of them.
    """
    state = shape.problem.states[w]
    switch = shape.problem.limits.allow_role_switch
    for place in shape.offers_at:
        keys = [(place[0], q, place[1]) for q in _roles() if (w, (place[0], q, place[1])) in v.nodes]
        if not keys:
            continue
        lost = lost_nodes(state, place)
        rented: Terms = [(v.rent[w, o], 1.0) for o in shape.offers_at[place] if (w, o) in v.rent]
        had = _had(v, shape, place, state.phase)
        most = float(sum(shape.most_nodes[key] for key in keys))
        there = _available(program, v, had, lost, most)
        used: Terms = [(v.nodes[w, key], 1.0) for key in keys]
        program.row("supply", [*used, *((n, -a) for n, a in (*there, *rented))], "<=", 0.0)
        if switch or (len(keys) == 1 and not _split(shape, place)):
            continue
        by_role: Terms = []
        for key in keys:
            role = _available(program, v, [(v.role_nodes[key, state.phase], 1.0)], lost, most)
            if rented:
                rent = v.rent_role[w, key] = program.variable(0, None, integer=w not in part.relaxed, label="rent_role")
                by_role.append((rent, 1.0))
                role = [*role, (rent, 1.0)]
            program.row("role", [(v.nodes[w, key], 1.0), *((n, -a) for n, a in role)], "<=", 0.0)
        if by_role:
            program.row("rent_roles", [*by_role, *((n, -a) for n, a in rented)], "<=", 0.0)


def _split(shape: Shape, place: Place) -> bool:
    return sum((place[0], q, place[1]) in shape.pools_of for q in _roles()) > 1


def add_roles(program: Program, v: Variables, shape: Shape, part: Part) -> None:
    """No role switch: per place and phase, sum over roles of role_nodes[s,q,h,p] <= had[s,h,p]; they never shrink."""
    if shape.problem.limits.allow_role_switch:
        return
    for place in shape.offers_at:
        keys = [key for key in shape.pools_of if (key[0], key[2]) == place]
        if len(keys) < 2:
            continue
        for p in range(len(shape.problem.phases)):
            terms: Terms = []
            for key in keys:
                low = part.floor.role_nodes.get((key, p), 0) if part.floor else 0
                high = low if part.fixed else None
                name = v.role_nodes[key, p] = program.variable(low, high, integer=True, label="role_nodes")
                terms.append((name, 1.0))
                if p:
                    program.row("grow", [(name, 1.0), (v.role_nodes[key, p - 1], -1.0)], ">=", 0.0)
            program.row("roles", [*terms, *((n, -a) for n, a in _had(v, shape, place, p))], "<=", 0.0)


def add_minimum_units(program: Program, v: Variables, shape: Shape, part: Part) -> None:
    """Minimum units: a role that serves at a site in any state of a phase has at least min_cards there in every state.

    Not in states that lose something: what is left may be less.
    """
    for role, least in sorted(shape.problem.limits.min_cards_by_role.items()):
        if least <= 0:
            continue
        for site in shape.problem.sites:
            for p in range(len(shape.problem.phases)):
                open_ = ""
                known = part.open_roles.get((site.id, role, p))
                for w in part.states:
                    if shape.problem.states[w].phase != p:
                        continue
                    counted = _nodes(v, w, site=site.id, role=role)
                    flows = _flows(v, shape, w, site.id, role)
                    if not flows:
                        continue
                    if not open_:
                        open_ = program.variable(known or 0, 1 if known is None else known, integer=True, label="open")
                        v.open_roles[site.id, role, p] = open_
                    program.row("opened", [*flows, (open_, -_rate(shape, w))], "<=", 0.0)
                    if is_loss(shape.problem.states[w]):
                        continue
                    cards = [(name, float(shape.offer((s, h)).cards_per_node)) for name, (s, _, h) in counted]
                    program.row("min_cards", [*cards, (open_, -float(least))], ">=", 0.0)


def _nodes(
    v: Variables, w: int, *, site: str | None = None, role: str | None = None, node_type: str | None = None
) -> list[tuple[str, RoleKey]]:
    """Variables that count nodes in use of a site, role and type (None is any) in a state."""
    return [
        (name, key)
        for (state, key), name in v.nodes.items()
        if state == w and site in (None, key[0]) and role in (None, key[1]) and node_type in (None, key[2])
    ]


def _flows(v: Variables, shape: Shape, w: int, site: str, role: str | None = None) -> Terms:
    return [
        (v.flow[w, p.id], 1.0)
        for p in shape.problem.pools
        if p.site == site and role in (None, p.role) and (w, p.id) in v.flow
    ]


def add_link_units(program: Program, v: Variables, shape: Shape, part: Part) -> None:
    """Links: units[i,p] within their limits from their first phase on, and never fewer than before."""
    for i in shape.link_order:
        link = shape.problem.links[i]
        for p in range(link.from_phase, len(shape.problem.phases)):
            low = max(part.floor.links.get((i, p), 0) if part.floor else 0, link.min_units)
            high = low if part.fixed else link.max_units
            name = v.links[i, p] = program.variable(low, high, integer=True, label="link")
            if (i, p - 1) in v.links:
                program.row("link_grow", [(name, 1.0), (v.links[i, p - 1], -1.0)], ">=", 0.0)


def add_link_load(program: Program, v: Variables, shape: Shape, w: int) -> None:
    """Link load: KV bytes per second of each direction <= sum of units x bandwidth x usable share; no link, no flow."""
    problem, state = shape.problem, shape.problem.states[w]
    by_lane = {lane.id: lane.kv_bytes_per_request for lane in problem.lanes}
    gone = {frozenset(pair) for pair in state.lost_links}
    lost = {frozenset(pair): n for pair, n in state.lost_link_units.items()}
    loads: dict[tuple[str, str], Terms] = defaultdict(list)
    for pool in problem.pools:
        if pool.role == "prefill" and pool.site != pool.destination_site and (w, pool.id) in v.flow:
            bytes_ = pool.kv_bytes_per_request or by_lane[pool.lane]
            # In GB/s, so that coefficients stay near 1.
            loads[pool.site, pool.destination_site].append((v.flow[w, pool.id], bytes_ / 1e9))
    for way, terms in sorted(loads.items()):
        pair = frozenset(way)
        between = [
            i
            for i in shape.link_order
            if frozenset((problem.links[i].site_a, problem.links[i].site_b)) == pair and (i, state.phase) in v.links
        ]
        if pair in gone or not between:
            program.row("no_link", [(name, 1.0) for name, _ in terms], "<=", 0.0)
            continue
        unit = {i: problem.links[i].unit_bandwidth_bytes_per_s * problem.links[i].usable_frac / 1e9 for i in between}
        row = [*terms, *((v.links[i, state.phase], -unit[i]) for i in between)]
        if pair in lost and lost[pair] > 0:
            # The widest units are the ones lost; nothing flows where fewer are there than lost.
            up = program.variable(0, 1, integer=True, label="up")
            most = sum(c * shape.lane_rates[w, p.lane] for (_, c), p in zip(terms, _way(v, shape, w, way), strict=True))
            row.append((up, max(unit.values()) * lost[pair]))
            program.row("link_up", [*terms, (up, -most)], "<=", 0.0)
        program.row("link", row, "<=", 0.0)


def _way(v: Variables, shape: Shape, w: int, way: tuple[str, str]) -> list[PoolOption]:
    return [
        p
        for p in shape.problem.pools
        if p.role == "prefill" and (p.site, p.destination_site) == way and (w, p.id) in v.flow
    ]


def build_states(shape: Shape, part: Part) -> tuple[Program, Variables]:
    """The program over some states, limits and objective left open (see `limits.build`)."""
    program, v = Program(), Variables()
    add_purchases(program, v, shape, part)
    add_roles(program, v, shape, part)
    add_link_units(program, v, shape, part)
    for w in part.states:
        if w in part.relaxed:
            _relaxed_pools(program, v, shape, part, w)
        else:
            add_pools(program, v, shape, part, w)
        add_coverage(program, v, shape, w)
        add_flow_balance(program, v, shape, w)
        add_packing(program, v, shape, part, w)
        add_rent(program, v, shape, part, w)
        add_supply(program, v, shape, part, w)
        add_link_load(program, v, shape, w)
    add_minimum_units(program, v, shape, part)
    return program, v
