"""An independent look at an answer: every constraint of a fleet problem, in plain loops over its numbers, with slack.

Shares no code with the program it checks, save the reading of a capacity table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pdplan.fleet.problem import FleetProblem, NodeOffer, State
from pdplan.fleet.solution import FleetSolution, StateSolution
from pdplan.fleet.tables import table_rate

__all__ = ["Check", "audit", "cost_usd_per_hour", "failures"]

TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """left <= right, or left == right where `equal`."""

    name: str
    left: float
    right: float
    equal: bool = False

    @property
    def slack(self) -> float:
        """Right minus left; for equalities minus the distance."""
        return -abs(self.left - self.right) if self.equal else self.right - self.left

    @property
    def ok(self) -> bool:
        """Met, to a millionth of the larger side."""
        return self.slack >= -TOLERANCE * max(1.0, abs(self.left), abs(self.right))


def _price(offer: NodeOffer, phase: int) -> float:
    prices = offer.cost_by_phase_usd_per_node_hour
    if prices:
        return prices[phase] if phase < len(prices) else prices[-1]
    return offer.cost_usd_per_node_hour


def _hours(problem: FleetProblem, state: State) -> float:
    """Share of the horizon a state stands for."""
    total = 0.0
    for other in problem.states:
        if other.phase == state.phase:
            total += other.hours_per_year
    return problem.phases[state.phase].weight * state.hours_per_year / total


def _lossy(state: State) -> bool:
    return bool(state.lost_nodes or state.lost_sites or state.lost_links or state.lost_link_units)


def _offer(problem: FleetProblem, site: str, kind: str) -> NodeOffer:
    for offer in sorted(problem.offers, key=lambda one: one.term):
        if offer.site == site and offer.node_type == kind:
            return offer
    raise KeyError((site, kind))


def _watts(problem: FleetProblem, state: State, found: StateSolution, site: str | None = None) -> float:
    total = 0.0
    for (s, role, kind), n in found.nodes.items():
        if site is not None and s != site:
            continue
        offer = _offer(problem, s, kind)
        spare = 0 if _lossy(state) else min(problem.limits.spare_nodes.get(role, 0), n)
        idle = offer.power_w_per_node if offer.idle_power_w_per_node is None else offer.idle_power_w_per_node
        total += (n - spare) * offer.power_w_per_node + spare * idle
    return total


def cost_usd_per_hour(problem: FleetProblem, found: FleetSolution) -> float:
    """The bill: nodes bought from their phase on, owned ones kept, links, rented nodes and energy in their hours."""
    offers = {(o.site, o.node_type, o.term): o for o in problem.offers}
    total = 0.0
    for (site, kind, term, phase), n in found.bought_by_phase.items():
        for later in range(phase, len(problem.phases)):
            total += n * _price(offers[site, kind, term], phase) * problem.phases[later].weight
    for key, n in found.kept.items():
        total += n * offers[key].owned_cost_usd_per_node_hour
    for (i, phase), n in found.links_by_phase.items():
        total += n * problem.links[i].usd_per_unit_hour * problem.phases[phase].weight
    for state, one in zip(problem.states, found.states, strict=True):
        hours = _hours(problem, state)
        for key, n in one.rented.items():
            total += n * _price(offers[key], state.phase) * hours
        for place, kind in sorted({(s, k) for s, _, k in one.nodes}):
            tariff = _offer(problem, place, kind).energy_usd_per_kwh
            if tariff:
                part = {key: n for key, n in one.nodes.items() if (key[0], key[2]) == (place, kind)}
                only = StateSolution(id="", rate_req_per_s=0.0, replicas={}, flow_req_per_s={}, nodes=part)
                total += _watts(problem, state, only) / 1e3 * tariff * hours
    return total


def _had(problem: FleetProblem, found: FleetSolution, site: str, kind: str, phase: int) -> int:
    bought = sum(n for (s, k, _, p), n in found.bought_by_phase.items() if (s, k) == (site, kind) and p <= phase)
    return bought + sum(n for (s, k, _), n in found.kept.items() if (s, k) == (site, kind))


def _audit_purchases(problem: FleetProblem, found: FleetSolution) -> list[Check]:
    checks = []
    for offer in problem.offers:
        key = (offer.site, offer.node_type, offer.term)
        bought = {p: n for (s, k, t, p), n in found.bought_by_phase.items() if (s, k, t) == key}
        name = ".".join(part for part in key if part)
        kept = found.kept.get(key, 0)
        checks.append(Check(name=f"kept:{name}", left=kept, right=offer.owned_nodes))
        if offer.paid == "when_used":
            checks.append(Check(name=f"bought:{name}", left=sum(bought.values()), right=0))
            continue
        if offer.max_nodes is not None:
            most = max(offer.max_nodes - offer.owned_nodes, 0)
            checks.append(Check(name=f"stock:{name}", left=sum(bought.values()), right=most))
        for phase, n in bought.items():
            checks.append(Check(name=f"lead_time:{name}", left=offer.from_phase, right=phase))
            checks.append(Check(name=f"lot:{name}", left=n % offer.lot_nodes, right=0))
        if sum(bought.values()) + kept and offer.min_nodes_if_used:
            have = sum(bought.values()) + offer.owned_nodes
            checks.append(Check(name=f"least:{name}", left=offer.min_nodes_if_used, right=have))
    last: dict[int, int] = {}
    for (i, phase), n in sorted(found.links_by_phase.items()):
        link = problem.links[i]
        checks.append(Check(name=f"link_units:{i}", left=n, right=link.max_units))
        checks.append(Check(name=f"link_least:{i}", left=link.min_units, right=n))
        checks.append(Check(name=f"link_stays:{i}", left=last.get(i, 0), right=n))
        checks.append(Check(name=f"link_from:{i}", left=link.from_phase, right=phase))
        last[i] = n
    return checks


def _audit_flows(problem: FleetProblem, state: State, one: StateSolution) -> list[Check]:
    checks = []
    pools = {pool.id: pool for pool in problem.pools}
    for pool_id, x in one.flow_req_per_s.items():
        pool = pools[pool_id]
        table = pool.variants.get(state.variant) if state.variant else pool.capacity
        dark = pool.site in state.lost_sites or pool.destination_site in state.lost_sites or table is None
        if dark or table is None:
            checks.append(Check(name=f"serves:{state.id}:{pool_id}", left=x, right=0.0))
        elif pool.group:
            per = float(table.rate_req_per_s[0]) / int(table.replicas[0])
            most = one.group_replicas.get(pool_id, 0.0) * per
            checks.append(Check(name=f"capacity:{state.id}:{pool_id}", left=x, right=most))
        else:
            most = table_rate(table, one.replicas.get(pool_id, 0))
            checks.append(Check(name=f"capacity:{state.id}:{pool_id}", left=x, right=most))
    for pool_id, n in one.replicas.items():
        checks.append(Check(name=f"replicas:{state.id}:{pool_id}", left=n, right=pools[pool_id].max_replicas))
    bands = [
        (band.rate_frac, [lane for lane in problem.lanes if b in lane.bands]) for b, band in enumerate(problem.bands)
    ]
    for b, (_, lanes) in enumerate(bands):
        total = sum(one.lane_share.get(lane.id, 0.0) for lane in lanes)
        checks.append(Check(name=f"band:{state.id}:{b}", left=total, right=1.0, equal=True))
    for at, lane in enumerate(problem.lanes):
        frac = lane.rate_frac
        if state.band_frac:
            frac = sum(state.band_frac[b] for b in lane.bands) if problem.bands else state.band_frac[at]
        rate = state.rate_req_per_s * frac * (one.lane_share.get(lane.id, 0.0) if problem.bands else 1.0)
        served = sum(
            x for i, x in one.flow_req_per_s.items() if pools[i].lane == lane.id and pools[i].role != "prefill"
        )
        checks.append(Check(name=f"coverage:{state.id}:{lane.id}", left=served, right=rate, equal=True))
        ends = {
            (pools[i].destination_site if pools[i].role == "prefill" else pools[i].site, pools[i].compatibility)
            for i in one.flow_req_per_s
            if pools[i].lane == lane.id and pools[i].role != "colocated"
        }
        for site, key in sorted(ends):
            into = out = 0.0
            for i, x in one.flow_req_per_s.items():
                pool = pools[i]
                if pool.lane != lane.id or pool.compatibility != key:
                    continue
                into += x if pool.role == "prefill" and pool.destination_site == site else 0.0
                out += x if pool.role == "decode" and pool.site == site else 0.0
            checks.append(Check(name=f"balance:{state.id}:{lane.id}:{site}", left=into, right=out, equal=True))
    return checks


def _audit_nodes(problem: FleetProblem, found: FleetSolution, state: State, one: StateSolution) -> list[Check]:
    checks = []
    limits = problem.limits
    pools = {pool.id: pool for pool in problem.pools}
    taken: dict[tuple[str, str, str], float] = {}
    whole: dict[tuple[str, str, str], int] = {}
    groups: dict[str, float] = {}
    for i, n in one.group_replicas.items():
        groups[pools[i].group] = groups.get(pools[i].group, 0.0) + n
    filled = [(pools[i], float(n)) for i, n in one.replicas.items()]
    for group, n in groups.items():
        filled.append((next(p for p in problem.pools if p.group == group), float(math.ceil(n - 1e-6))))
    for pool, n in filled:
        key = (pool.site, pool.role, pool.node_type)
        size, cards = pool.cards_per_replica, _offer(problem, pool.site, pool.node_type).cards_per_node
        if size % cards == 0:
            whole[key] = whole.get(key, 0) + int(n) * (size // cards)
        elif cards % size == 0 and size in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            taken[key] = taken.get(key, 0.0) + n * size
        elif size < cards:
            whole[key] = whole.get(key, 0) + math.ceil(n / (cards // size))
        else:
            whole[key] = whole.get(key, 0) + int(n) * math.ceil(size / cards)
    for place in sorted({*taken, *whole}):
        cards = _offer(problem, place[0], place[2]).cards_per_node
        spare = 0 if _lossy(state) else limits.spare_nodes.get(place[1], 0)
        need = math.ceil(taken.get(place, 0.0) / cards - 1e-9) + whole.get(place, 0) + spare
        checks.append(Check(name=f"packing:{state.id}:{'.'.join(place)}", left=need, right=one.nodes.get(place, 0)))
    for site, kind in sorted({(s, k) for s, _, k in one.nodes} | {(s, k) for s, k, _ in one.rented}):
        lost = -1 if site in state.lost_sites else state.lost_nodes.get((site, kind), 0)
        had = 0 if lost == -1 else max(_had(problem, found, site, kind, state.phase) - lost, 0)
        used = sum(n for (s, _, k), n in one.nodes.items() if (s, k) == (site, kind))
        rented = sum(n for (s, k, _), n in one.rented.items() if (s, k) == (site, kind))
        checks.append(Check(name=f"supply:{state.id}:{site}.{kind}", left=used, right=had + rented))
        if rented:
            may = state.can_rent and lost != -1
            checks.append(Check(name=f"rent:{state.id}:{site}.{kind}", left=0 if may else rented, right=0))
    offers = {(o.site, o.node_type, o.term): o for o in problem.offers}
    for rent, n in one.rented.items():
        offer = offers[rent]
        name = f"{state.id}:{'.'.join(rent)}"
        checks.append(Check(name=f"paid:{name}", left=0 if offer.paid == "when_used" else n, right=0))
        checks.append(Check(name=f"rent_from:{name}", left=offer.from_phase, right=state.phase))
        checks.append(Check(name=f"rent_lot:{name}", left=n % offer.lot_nodes, right=0))
        checks.append(Check(name=f"rent_least:{name}", left=offer.min_nodes_if_used, right=n))
        if offer.max_nodes is not None:
            checks.append(Check(name=f"rent_stock:{name}", left=n, right=offer.max_nodes))
    for pin, count in limits.pinned_nodes.items():
        lost = pin[0] in state.lost_sites or state.lost_nodes.get((pin[0], pin[2]), 0) != 0
        n = one.nodes.get(pin, 0)
        checks.append(Check(name=f"pinned:{state.id}:{'.'.join(pin)}", left=n, right=count, equal=not lost))
    return checks


def _audit_limits(problem: FleetProblem, found: FleetSolution, state: State, one: StateSolution) -> list[Check]:
    checks = []
    limits = problem.limits
    for site_id, max_w, max_cards in [
        (None, limits.max_power_w, limits.max_cards),
        *((site.id, site.max_power_w, site.max_cards) for site in problem.sites),
    ]:
        name = f"{state.id}:{site_id or 'fleet'}"
        if max_w is not None:
            checks.append(Check(name=f"power:{name}", left=_watts(problem, state, one, site_id), right=max_w))
        if max_cards is not None:
            cards = sum(
                n * _offer(problem, s, k).cards_per_node for (s, _, k), n in one.nodes.items() if site_id in (None, s)
            )
            checks.append(Check(name=f"cards:{name}", left=cards, right=max_cards))
    loads = _loads(problem, one)
    for i, link in enumerate(problem.links):
        pair = {link.site_a, link.site_b}
        if any({a.site_a, a.site_b} == pair for a in problem.links[:i]):
            continue  # parallel links are one line
        units = [
            (other.unit_bandwidth_bytes_per_s * other.usable_frac, found.links_by_phase.get((k, state.phase), 0))
            for k, other in enumerate(problem.links)
            if {other.site_a, other.site_b} == pair
        ]
        have = sum(each * n for each, n in units)
        for ends, n in state.lost_link_units.items():
            if set(ends) == pair:
                have = max(have - n * max(each for each, _ in units), 0.0)
        if any(set(ends) == pair for ends in state.lost_links):
            have = 0.0
        for a, b in ((link.site_a, link.site_b), (link.site_b, link.site_a)):
            load = loads.get((a, b), 0.0)
            checks.append(Check(name=f"link:{state.id}:{a}-{b}", left=load / 1e9, right=have / 1e9))
    joined = [{link.site_a, link.site_b} for link in problem.links]
    pools = {pool.id: pool for pool in problem.pools}
    for pool_id, x in one.flow_req_per_s.items():
        pool = pools[pool_id]
        apart = pool.role == "prefill" and pool.site != pool.destination_site
        if apart and {pool.site, pool.destination_site} not in joined:
            checks.append(Check(name=f"no_link:{state.id}:{pool.id}", left=x, right=0.0))
    return checks


def _loads(problem: FleetProblem, one: StateSolution) -> dict[tuple[str, str], float]:
    """Bytes per second of KV by (from, to)."""
    size = {lane.id: lane.kv_bytes_per_request for lane in problem.lanes}
    total: dict[tuple[str, str], float] = {}
    for pool in problem.pools:
        if pool.role == "prefill" and pool.id in one.flow_req_per_s:
            way = (pool.site, pool.destination_site)
            each = pool.kv_bytes_per_request or size[pool.lane]
            total[way] = total.get(way, 0.0) + one.flow_req_per_s[pool.id] * each
    return total


def _audit_fleet(problem: FleetProblem, found: FleetSolution) -> list[Check]:
    checks = []
    limits = problem.limits
    pools = {pool.id: pool for pool in problem.pools}
    both = list(zip(problem.states, found.states, strict=True))
    for role, least in limits.min_cards_by_role.items():
        for site in problem.sites:
            for phase in range(len(problem.phases)):
                mine = [(s, one) for s, one in both if s.phase == phase]
                opened = any(
                    pools[i].site == site.id and pools[i].role == role for _, one in mine for i in one.flow_req_per_s
                )
                for state, one in mine if opened and least else []:
                    if _lossy(state):
                        continue
                    cards = sum(
                        n * _offer(problem, s, k).cards_per_node
                        for (s, q, k), n in one.nodes.items()
                        if (s, q) == (site.id, role)
                    )
                    checks.append(Check(name=f"min_cards:{state.id}:{site.id}:{role}", left=least, right=cards))
    if limits.budget_usd_per_hour is not None:
        cost = cost_usd_per_hour(problem, found)
        checks.append(Check(name="budget", left=cost, right=limits.budget_usd_per_hour))
    if limits.max_carbon_kg_per_hour is not None:
        total = 0.0
        for state, one in both:
            for (s, _, k), n in one.nodes.items():
                total += n * _offer(problem, s, k).carbon_kg_per_node_hour * _hours(problem, state)
        checks.append(Check(name="carbon", left=total, right=limits.max_carbon_kg_per_hour))
    if limits.max_sites is not None:
        used = {pools[i].site for _, one in both for i in one.flow_req_per_s}
        checks.append(Check(name="max_sites", left=len(used), right=limits.max_sites))
    if limits.same_vendor:
        vendors = {_offer(problem, s, k).vendor for _, one in both for s, _, k in one.nodes}
        checks.append(Check(name="same_vendor", left=len(vendors), right=1))
    if limits.max_changed_nodes is not None:
        places = {(o.site, o.node_type) for o in problem.offers} | set(limits.current_nodes)
        for phase in range(len(problem.phases)):
            change = sum(
                abs(_had(problem, found, s, k, phase) - limits.current_nodes.get((s, k), 0)) for s, k in places
            )
            checks.append(Check(name=f"max_change:{phase}", left=change, right=limits.max_changed_nodes))
    if not limits.allow_role_switch:
        checks += _audit_roles(problem, found)
    return checks


def _audit_roles(problem: FleetProblem, found: FleetSolution) -> list[Check]:
    """Without role switch: each role's largest use of nodes that are there, losses added, fits side by side."""
    checks = []
    for site, kind in sorted({(o.site, o.node_type) for o in problem.offers}):
        for phase in range(len(problem.phases)):
            slots = 0
            for role in ("prefill", "decode", "colocated"):
                most = 0
                for state, one in zip(problem.states, found.states, strict=True):
                    if state.phase > phase:
                        continue
                    n = one.nodes.get((site, role, kind), 0)
                    rented = sum(m for (s, k, _), m in one.rented.items() if (s, k) == (site, kind))
                    lost = max(state.lost_nodes.get((site, kind), 0), 0)
                    # Rented nodes may stand for any of the roles; only what exceeds all of them must be there.
                    most = max(most, n - rented + (lost if n > rented else 0))
                slots += most
            checks.append(
                Check(name=f"roles:{site}.{kind}:{phase}", left=slots, right=_had(problem, found, site, kind, phase))
            )
    return checks


def audit(problem: FleetProblem, found: FleetSolution) -> list[Check]:
    """Every constraint of the problem with its two sides, for an answer however it was found."""
    checks = _audit_purchases(problem, found)
    for state, one in zip(problem.states, found.states, strict=True):
        checks.append(Check(name=f"rate:{state.id}", left=one.rate_req_per_s, right=state.rate_req_per_s, equal=True))
        checks += _audit_flows(problem, state, one)
        checks += _audit_nodes(problem, found, state, one)
        checks += _audit_limits(problem, found, state, one)
    return checks + _audit_fleet(problem, found)


def failures(problem: FleetProblem, found: FleetSolution) -> list[Check]:
    """The constraints that are not met."""
    return [check for check in audit(problem, found) if not check.ok]
