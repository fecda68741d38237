"""The plan of a state, run down to a lower demand of the same kind: fewer replicas, fewer nodes, less rent."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from pdplan.errors import SolverError
from pdplan.fleet.formulation import FirstStage, shares_nodes
from pdplan.fleet.limits import price
from pdplan.fleet.shape import Shape, is_loss, lost_nodes
from pdplan.fleet.solution import StateSolution
from pdplan.fleet.tables import table_rate

__all__ = ["had_nodes", "running_usd", "shrink"]

Key = tuple[str, str, str]


def had_nodes(shape: Shape, bought: FirstStage, place: tuple[str, str], phase: int) -> int:
    """Nodes of a place that are there whether used or not."""
    here = set(shape.offers_at[place])
    total = sum(n for (o, p), n in bought.buy.items() if o in here and p <= phase)
    return total + sum(n for o, n in bought.kept.items() if o in here)


def running_usd(shape: Shape, one: StateSolution) -> float:
    """USD per hour of this state's rented nodes and energy."""
    offers = {(o.site, o.node_type, o.term): o for o in shape.problem.offers}
    total = sum(n * price(offers[key], one.phase) for key, n in one.rented.items())
    for (s, _, k), n in one.nodes.items():
        offer = shape.offer((s, k))
        total += n * offer.power_w_per_node / 1e3 * offer.energy_usd_per_kwh
    return total


def shrink(shape: Shape, bought: FirstStage, one: StateSolution, w: int) -> StateSolution:
    """`one` at the lower demand of state `w`, which shares all else with its own; feasible whenever `one` is."""
    problem = shape.problem
    state = problem.states[w]
    scale = state.rate_req_per_s / one.rate_req_per_s if one.rate_req_per_s else 1.0
    flows = _rerouted(shape, one, w, scale)
    replicas: dict[str, int] = {}
    shared: dict[Key, float] = defaultdict(float)
    nodes: dict[Key, int] = defaultdict(int)
    grouped = set()
    for pool in problem.pools:
        key = (pool.site, pool.role, pool.node_type)
        if pool.id in one.group_replicas:
            grouped.add(key)  # fractions of several pools: left as they are
        if pool.id not in one.replicas:
            continue
        table = shape.table(pool, w)
        need = 0 if pool.id not in flows or table is None else shape.reading(table).replicas_for(flows[pool.id])
        n = one.replicas[pool.id] if need is None else min(one.replicas[pool.id], need)
        if not n:
            continue
        replicas[pool.id] = n
        offer = shape.offer((pool.site, pool.node_type))
        if shares_nodes(pool, offer):
            shared[key] += n * pool.cards_per_replica
        else:
            nodes[key] += shape.nodes_for(pool, n)
    spares = {} if is_loss(state) else problem.limits.spare_nodes
    pinned = problem.limits.pinned_nodes
    used: dict[Key, int] = {}
    for at, before in one.nodes.items():
        cards = shape.offer((at[0], at[2])).cards_per_node
        filled = nodes[at] + int(-(-shared[at] // cards))
        filled += spares.get(at[1], 0) if filled else 0
        used[at] = before if at in pinned or at in grouped else min(before, filled)
    for role, least in problem.limits.min_cards_by_role.items():
        for site in problem.sites:
            mine = [at for at in used if at[:2] == (site.id, role)]
            missing = least - sum(used[at] * shape.offer((at[0], at[2])).cards_per_node for at in mine)
            for at in mine:
                cards = shape.offer((at[0], at[2])).cards_per_node
                back = min(one.nodes[at] - used[at], max(-(-missing // cards), 0))
                used[at] += back
                missing -= back * cards
    rented = dict(one.rented)
    if problem.limits.allow_role_switch:
        for place in shape.offers_at:
            lost = lost_nodes(state, place)
            there = 0 if lost == -1 else max(had_nodes(shape, bought, place, state.phase) - lost, 0)
            need = max(sum(n for (s, _, k), n in used.items() if (s, k) == place) - there, 0)
            _rent_less(shape, rented, place, need, state.phase)
    return replace(
        one,
        id=state.id,
        rate_req_per_s=state.rate_req_per_s,
        replicas=replicas,
        flow_req_per_s=flows,
        nodes={key: n for key, n in used.items() if n},
        rented=rented,
    )


def _rerouted(shape: Shape, one: StateSolution, w: int, scale: float) -> dict[str, float]:
    """Flows at the lower demand, off the rented nodes first: a linear program over the replicas that run.

    Lanes keep their shares, every pool its capacity, every direction of a link at most its load so far.
    """
    problem = shape.problem
    scaled = {name: x * scale for name, x in one.flow_req_per_s.items()}
    offers = {(o.site, o.node_type, o.term): o for o in problem.offers}
    rent: dict[tuple[str, str], float] = {}
    for place_term, _ in one.rented.items():
        usd = price(offers[place_term], one.phase)
        rent[place_term[:2]] = max(rent.get(place_term[:2], 0.0), usd)
    if scale >= 1.0 or not rent or one.group_replicas:
        return scaled
    from pdplan.fleet.solver import Program

    program = Program()
    by_lane = {lane.id: lane.kv_bytes_per_request for lane in problem.lanes}
    names: dict[str, str] = {}
    usd_terms: list[tuple[str, float]] = []
    sums: dict[tuple[str, ...], list[tuple[str, float]]] = defaultdict(list)
    lanes: dict[str, float] = defaultdict(float)
    loads: dict[tuple[str, str], float] = defaultdict(float)
    for pool in problem.pools:
        table = shape.table(pool, w)
        if pool.id not in one.replicas or pool.id not in scaled or table is None:
            continue
        n = one.replicas[pool.id]
        carried = max(table_rate(table, n), one.flow_req_per_s[pool.id])
        x = names[pool.id] = program.variable(0, carried, label="f")
        cards = n * pool.cards_per_replica / shape.offer((pool.site, pool.node_type)).cards_per_node
        usd_terms.append((x, rent.get((pool.site, pool.node_type), 0.0) * cards / carried))
        if pool.role == "prefill":
            sums["balance", pool.lane, pool.destination_site, pool.compatibility].append((x, 1.0))
            if pool.site != pool.destination_site:
                size = (pool.kv_bytes_per_request or by_lane[pool.lane]) / 1e9
                sums["link", pool.site, pool.destination_site].append((x, size))
                loads[pool.site, pool.destination_site] += one.flow_req_per_s[pool.id] * size
        else:
            sums["lane", pool.lane].append((x, 1.0))
            lanes[pool.lane] += scaled[pool.id]
            if pool.role == "decode":
                sums["balance", pool.lane, pool.site, pool.compatibility].append((x, -1.0))
    for key, terms in sums.items():
        if key[0] == "lane":
            program.row("lane", terms, "==", lanes[key[1]])
        elif key[0] == "balance":
            program.row("balance", terms, "==", 0.0)
        else:
            program.row("link", terms, "<=", loads[key[1], key[2]])
    program.minimise(usd_terms)
    try:
        outcome = program.solve(time_limit_s=5.0)
    except SolverError:
        return scaled
    if outcome.proof == "infeasible":
        return scaled
    return {name: x for name, x in ((pool, outcome.value[v]) for pool, v in names.items()) if x > 1e-9}


def _rent_less(shape: Shape, rented: dict[Key, int], place: tuple[str, str], need: int, phase: int) -> None:
    """Give back the dearest rented nodes that are not needed, in whole lots, none below an offer's minimum."""
    offers = [shape.problem.offers[o] for o in shape.offers_at[place]]
    mine = [(o, (o.site, o.node_type, o.term)) for o in offers if (o.site, o.node_type, o.term) in rented]
    surplus = sum(rented[key] for _, key in mine) - need
    for offer, key in sorted(mine, key=lambda one: (-price(one[0], phase), one[1])):
        have = rented[key]
        if surplus >= have:
            left = 0
        else:
            lots = -(-max(have - max(surplus, 0), offer.min_nodes_if_used) // offer.lot_nodes) * offer.lot_nodes
            left = min(have, lots)
        surplus -= have - left
        if left:
            rented[key] = left
        else:
            del rented[key]
