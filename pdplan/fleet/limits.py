"""Limits and objectives of the fleet program, one function each; `build` puts the whole program together."""

from __future__ import annotations

from pdplan.fleet.formulation import Part, Variables, build_states
from pdplan.fleet.problem import NodeOffer
from pdplan.fleet.shape import ROLES, Shape, is_loss, lost_nodes
from pdplan.fleet.solver import Program

__all__ = ["build", "cost_terms", "goal_terms", "price", "running_terms"]

Terms = list[tuple[str, float]]


def price(offer: NodeOffer, phase: int) -> float:
    """USD per hour of a node had from a phase on."""
    by_phase = offer.cost_by_phase_usd_per_node_hour
    return by_phase[min(phase, len(by_phase) - 1)] if by_phase else offer.cost_usd_per_node_hour


def watts(shape: Shape, v: Variables, w: int, site: str | None = None) -> Terms:
    """Watts of the nodes in use in a state, spare ones idle; nodes that nothing uses are taken as switched off."""
    terms: Terms = []
    for (state, key), name in v.nodes.items():
        if state == w and site in (None, key[0]):
            terms.append((name, shape.offer((key[0], key[2])).power_w_per_node))
            if (w, key) in v.spare:
                terms.append((v.spare[w, key], -_saved_w(shape, key)))
    return terms


def _saved_w(shape: Shape, key: tuple[str, str, str]) -> float:
    """Watts that the spare nodes of a (site, role, type) draw less than busy ones."""
    offer = shape.offer((key[0], key[2]))
    idle = offer.power_w_per_node if offer.idle_power_w_per_node is None else offer.idle_power_w_per_node
    return shape.problem.limits.spare_nodes.get(key[1], 0) * (offer.power_w_per_node - idle)


def cards(shape: Shape, v: Variables, w: int, site: str | None = None) -> Terms:
    """Cards of the nodes in use in a state."""
    return [
        (name, float(shape.offer((key[0], key[2])).cards_per_node))
        for (state, key), name in v.nodes.items()
        if state == w and site in (None, key[0])
    ]


def cost_terms(shape: Shape, v: Variables) -> Terms:
    """USD per hour, mean over phases and states: bought and kept nodes and link units in all hours, rent and energy by use."""
    problem = shape.problem
    terms: Terms = []
    for (o, p), name in v.buy.items():
        terms.append((name, price(problem.offers[o], p) * shape.weight_from(p)))
    terms += [(name, problem.offers[o].owned_cost_usd_per_node_hour) for o, name in v.kept.items()]
    for (i, p), name in v.links.items():
        terms.append((name, problem.links[i].usd_per_unit_hour * problem.phases[p].weight))
    return terms + running_terms(shape, v)


def running_terms(shape: Shape, v: Variables) -> Terms:
    """USD per hour that depend on what runs: rented nodes and energy, by the hours of their states."""
    problem = shape.problem
    terms: Terms = []
    for (w, o), name in v.rent.items():
        terms.append((name, price(problem.offers[o], problem.states[w].phase) * shape.hours_share[w]))
    for (w, key), name in v.nodes.items():
        tariff = shape.offer((key[0], key[2])).energy_usd_per_kwh / 1e3 * shape.hours_share[w]
        if tariff > 0:
            terms.append((name, shape.offer((key[0], key[2])).power_w_per_node * tariff))
            if (w, key) in v.spare:
                terms.append((v.spare[w, key], -_saved_w(shape, key) * tariff))
    return terms


def carbon_terms(shape: Shape, v: Variables) -> Terms:
    """kg CO2 per hour of the nodes in use, mean over phases and states."""
    return [
        (name, shape.offer((key[0], key[2])).carbon_kg_per_node_hour * shape.hours_share[w])
        for (w, key), name in v.nodes.items()
    ]


def goal_terms(program: Program, v: Variables, shape: Shape, part: Part, objective: str) -> Terms:
    """The objective by name.

    cost and carbon are means over the hours; power is the largest draw of any state; cards are those of the nodes that any
    state uses, each (site, type) at its largest.
    """
    if objective == "cost":
        return cost_terms(shape, v)
    if objective == "carbon":
        return carbon_terms(shape, v)
    one = len(part.states) == 1
    if objective == "power":
        if one:
            return watts(shape, v, part.states[0])
        peak = program.variable(0, None, label="peak")
        for w in part.states:
            program.row("peak", [*((n, a / 1e3) for n, a in watts(shape, v, w)), (peak, -1.0)], "<=", 0.0)
        return [(peak, 1e3)]
    if one:
        return cards(shape, v, part.states[0])
    terms: Terms = []
    for place in shape.offers_at:
        by_state = {
            w: [(v.nodes[w, key], 1.0) for q in ROLES if (w, (key := (place[0], q, place[1]))) in v.nodes]
            for w in part.states
        }
        if any(by_state.values()):
            most = program.variable(0, None, label="most")
            for row in by_state.values():
                if row:
                    program.row("most", [*row, (most, -1.0)], "<=", 0.0)
            terms.append((most, float(shape.offer(place).cards_per_node)))
    return terms


def add_budget(program: Program, v: Variables, shape: Shape) -> None:
    """Budget: mean cost <= budget."""
    limit = shape.problem.limits.budget_usd_per_hour
    if limit is not None:
        program.row("budget", cost_terms(shape, v), "<=", limit)


def add_carbon(program: Program, v: Variables, shape: Shape) -> None:
    """Carbon: mean kg CO2 per hour <= limit."""
    limit = shape.problem.limits.max_carbon_kg_per_hour
    if limit is not None:
        program.row("carbon", carbon_terms(shape, v), "<=", limit)


def add_power_and_cards(program: Program, v: Variables, shape: Shape, w: int) -> None:
    """Power and cards in use in a state, of the fleet and of each site."""
    limits = shape.problem.limits
    for site, max_w, max_cards in (
        (None, limits.max_power_w, limits.max_cards),
        *((s.id, s.max_power_w, s.max_cards) for s in shape.problem.sites),
    ):
        if max_w is not None and (terms := watts(shape, v, w, site)):
            program.row("power", [(n, a / 1e3) for n, a in terms], "<=", max_w / 1e3)
        if max_cards is not None and (terms := cards(shape, v, w, site)):
            program.row("cards", terms, "<=", float(max_cards))


def add_max_sites(program: Program, v: Variables, shape: Shape, part: Part) -> None:
    """Sites: in use in any state <= max_sites."""
    problem = shape.problem
    if problem.limits.max_sites is None:
        return
    used: Terms = []
    for site in problem.sites:
        open_ = ""
        for w in part.states:
            flows = [
                (v.flow[w, p.id], 1.0)
                for p in problem.pools
                if (w, p.id) in v.flow and site.id in (p.site, p.destination_site)
            ]
            if flows:
                open_ = open_ or program.variable(0, 1, integer=True, label="site")
                total = sum(shape.lane_rates[w, lane.id] for lane in problem.lanes)
                program.row("site_used", [*flows, (open_, -3 * total)], "<=", 0.0)
        if open_:
            used.append((open_, 1.0))
    program.row("max_sites", used, "<=", float(problem.limits.max_sites))


def add_pins(program: Program, v: Variables, shape: Shape, w: int) -> None:
    """Pinned counts: nodes[s,q,h] == count in every state; at most that where some of the place are lost."""
    state = shape.problem.states[w]
    for key, count in sorted(shape.problem.limits.pinned_nodes.items()):
        lost = is_loss(state) and lost_nodes(state, (key[0], key[2])) != 0
        terms = [(v.nodes[w, key], 1.0)] if (w, key) in v.nodes else []
        if terms or not lost:
            program.row("pinned", terms, "<=" if lost else "==", float(count))


def add_same_vendor(program: Program, v: Variables, shape: Shape) -> None:
    """Same vendor: nodes[s,q,h] <= M chosen[vendor of h]; one vendor is chosen."""
    if not shape.problem.limits.same_vendor:
        return
    vendors = sorted({shape.offer((key[0], key[2])).vendor for _, key in v.nodes})
    chosen = {vendor: program.variable(0, 1, integer=True, label="vendor") for vendor in vendors}
    for (_, key), name in v.nodes.items():
        vendor = shape.offer((key[0], key[2])).vendor
        program.row("vendor", [(name, 1.0), (chosen[vendor], -float(shape.most_nodes[key]))], "<=", 0.0)
    program.row("one_vendor", [(name, 1.0) for name in chosen.values()], "<=", 1.0)


def add_max_change(program: Program, v: Variables, shape: Shape) -> None:
    """Maximum change: in every phase, sum over places of |had[s,h] - nodes today| <= limit; rented nodes do not count."""
    limits = shape.problem.limits
    if limits.max_changed_nodes is None:
        return
    for p in range(len(shape.problem.phases)):
        changed: Terms = []
        missing = 0.0
        for place in sorted({*shape.offers_at, *limits.current_nodes}):
            today = float(limits.current_nodes.get(place, 0))
            had: Terms = []
            for o in shape.offers_at.get(place, []):
                had += [(name, 1.0) for (i, q), name in v.buy.items() if i == o and q <= p]
                had += [(v.kept[o], 1.0)] if o in v.kept else []
            if not had:
                missing += today
                continue
            apart = program.variable(0, None, label="apart")
            program.row("more", [*had, (apart, -1.0)], "<=", today)
            program.row("fewer", [*had, (apart, 1.0)], ">=", today)
            changed.append((apart, 1.0))
        program.row("max_change", changed, "<=", float(limits.max_changed_nodes) - missing)


def build(shape: Shape, part: Part) -> tuple[Program, Variables]:
    """The whole program over the states of `part`, objective left open."""
    program, v = build_states(shape, part)
    add_budget(program, v, shape)
    add_carbon(program, v, shape)
    for w in part.states:
        add_power_and_cards(program, v, shape, w)
        add_pins(program, v, shape, w)
    add_max_sites(program, v, shape, part)
    add_same_vendor(program, v, shape)
    add_max_change(program, v, shape)
    return program, v
