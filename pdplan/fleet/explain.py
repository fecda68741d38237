"""Why a fleet problem cannot be met: drop one kind of requirement at a time and solve again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pdplan.errors import InfeasibleError, Reason
from pdplan.fleet.problem import FleetProblem, Limits, State
from pdplan.fleet.shape import lane_rate
from pdplan.fleet.solution import FleetSolution

__all__ = ["Probe", "explain"]

Probe = Callable[[FleetProblem, str], FleetSolution | None]
"""(problem, goal: cost, cards, power or carbon) -> a plan, or None."""


class _Reasons:
    def __init__(self) -> None:
        self.found: list[Reason] = []

    def tell(self, name: str, required: float | None, nearest: float | None, message: str) -> None:
        self.found.append(Reason(constraint=name, required=required, nearest=nearest, message=message))


def _without(problem: FleetProblem, **limits: Any) -> FleetProblem:
    return replace(problem, limits=replace(problem.limits, **limits))


def _nothing_there(problem: FleetProblem, reasons: _Reasons) -> None:
    """Lanes, bands and pins that no pool can serve: no solve needed."""
    for state in problem.states:
        able = [
            pool
            for pool in problem.pools
            if not {pool.site, pool.destination_site} & set(state.lost_sites)
            and (not state.variant or state.variant in pool.variants)
        ]
        served = {pool.lane for pool in able if pool.role == "colocated"}
        for pool in able:
            if pool.role == "decode" and any(
                other.role == "prefill"
                and other.lane == pool.lane
                and other.destination_site == pool.site
                and other.compatibility == pool.compatibility
                for other in able
            ):
                served.add(pool.lane)
        bands = (
            [(band.id, [lane for lane in problem.lanes if b in lane.bands]) for b, band in enumerate(problem.bands)]
            if problem.bands
            else [(lane.id, [lane]) for lane in problem.lanes]
        )
        for name, lanes in bands:
            asked = any(lane_rate(problem, lane, state) > 0 for lane in lanes)
            if asked and not any(lane.id in served for lane in lanes):
                reasons.tell(
                    f"lanes.{name}",
                    None,
                    None,
                    f"lane {name!r} has no pool that can serve it in state {state.id!r}: it needs a colocated pool, or a "
                    f"prefill pool that sends to a decode pool of the same key",
                )
    have = {(pool.site, pool.role, pool.node_type) for pool in problem.pools}
    for key, count in sorted(problem.limits.pinned_nodes.items()):
        if count and key not in have:
            reasons.tell(
                f"fleet.pinned_nodes.{'.'.join(key)}",
                float(count),
                0.0,
                f"{count} x {key[2]} are pinned as {key[1]} at {key[0]}, where no layout of that type can serve that role",
            )


def _global_limits(problem: FleetProblem, probe: Probe, reasons: _Reasons) -> None:
    limits = problem.limits
    if limits.budget_usd_per_hour is not None:
        found = probe(_without(problem, budget_usd_per_hour=None), "cost")
        if found is not None:
            reasons.tell(
                "fleet.budget_usd_per_hour",
                limits.budget_usd_per_hour,
                found.objective,
                f"the budget of {limits.budget_usd_per_hour:,.2f} USD/h is too small: the cheapest plan costs "
                f"{found.objective:,.2f} USD/h",
            )
    if limits.max_power_w is not None:
        found = probe(_without(problem, max_power_w=None), "power")
        if found is not None:
            reasons.tell(
                "fleet.max_power",
                limits.max_power_w,
                found.objective,
                f"the power cap of {limits.max_power_w / 1e3:,.0f} kW is too low: the least is "
                f"{found.objective / 1e3:,.1f} kW",
            )
    if limits.max_cards is not None:
        found = probe(_without(problem, max_cards=None), "cards")
        if found is not None:
            reasons.tell(
                "fleet.max_cards",
                float(limits.max_cards),
                found.objective,
                f"{limits.max_cards} cards are too few: the least is {found.objective:.0f}",
            )
    if limits.max_carbon_kg_per_hour is not None:
        found = probe(_without(problem, max_carbon_kg_per_hour=None), "carbon")
        if found is not None:
            reasons.tell(
                "fleet.max_carbon",
                limits.max_carbon_kg_per_hour,
                found.objective,
                f"{limits.max_carbon_kg_per_hour:,.1f} kg CO2 per hour are too few: the least is {found.objective:,.2f}",
            )
    plain: list[tuple[str, str, bool, float | None, dict[str, Any], str]] = [
        (
            "fleet.max_sites",
            "max_sites",
            limits.max_sites is not None,
            None if limits.max_sites is None else float(limits.max_sites),
            {"max_sites": None},
            f"{limits.max_sites} sites are too few",
        ),
        (
            "fleet.same_vendor",
            "same_vendor",
            limits.same_vendor,
            None,
            {"same_vendor": False},
            "no single vendor's nodes serve all of it; two vendors would do",
        ),
        (
            "fleet.pinned_nodes",
            "pinned_nodes",
            bool(limits.pinned_nodes),
            None,
            {"pinned_nodes": {}},
            "the pinned node counts do not fit; without them it can be met",
        ),
        (
            "fleet.max_changed_nodes",
            "max_changed_nodes",
            limits.max_changed_nodes is not None,
            None if limits.max_changed_nodes is None else float(limits.max_changed_nodes),
            {"max_changed_nodes": None},
            f"{limits.max_changed_nodes} changed nodes are too few",
        ),
        (
            "fleet.spare_nodes",
            "spare_nodes",
            any(limits.spare_nodes.values()),
            None,
            {"spare_nodes": {}},
            "the spare nodes do not fit; without them it can be met",
        ),
        (
            "fleet.min_cards",
            "min_cards_by_role",
            any(limits.min_cards_by_role.values()),
            None,
            {"min_cards_by_role": {}},
            "the least cards of a role do not fit; without that minimum it can be met",
        ),
        (
            "fleet.allow_role_switch",
            "allow_role_switch",
            not limits.allow_role_switch,
            None,
            {"allow_role_switch": True},
            "nodes that keep their role are too few; it can be met where they may switch",
        ),
    ]
    for name, _, given, required, dropped, message in plain:
        if given and probe(_without(problem, **dropped), "cost") is not None:
            reasons.tell(name, required, None, message)
    if any(site.max_power_w is not None or site.max_cards is not None for site in problem.sites):
        open_sites = tuple(replace(site, max_power_w=None, max_cards=None) for site in problem.sites)
        if probe(replace(problem, sites=open_sites), "cost") is not None:
            reasons.tell("sites", None, None, "the power or card limit of a site is too low")


def _links_and_stock(problem: FleetProblem, probe: Probe, reasons: _Reasons) -> None:
    if problem.links:
        wide = tuple(replace(link, max_units=10_000) for link in problem.links)
        # Links cost, all else is free: the least units that do.
        offers = tuple(
            replace(
                o,
                cost_usd_per_node_hour=0.0,
                cost_by_phase_usd_per_node_hour=(),
                owned_cost_usd_per_node_hour=0.0,
                energy_usd_per_kwh=0.0,
            )
            for o in problem.offers
        )
        priced = tuple(replace(link, usd_per_unit_hour=1.0) for link in wide)
        free = _without(replace(problem, links=priced, offers=offers), budget_usd_per_hour=None)
        found = probe(free, "cost") if probe(replace(problem, links=wide), "cost") is not None else None
        if found is not None:
            have = sum(link.max_units for link in problem.links)
            last = len(problem.phases) - 1
            need = sum(n for (_, phase), n in found.links_by_phase.items() if phase == last)
            reasons.tell(
                "links.max_units",
                float(have),
                float(need),
                f"the links are too narrow: {have} units can be had, {need} are needed",
            )
    if any(offer.max_nodes is not None for offer in problem.offers):
        unlimited = replace(problem, offers=tuple(replace(offer, max_nodes=None) for offer in problem.offers))
        found = probe(unlimited, "cards")
        if found is not None:
            for place in sorted({(o.site, o.node_type) for o in problem.offers}):
                offers_here = [o for o in problem.offers if (o.site, o.node_type) == place]
                if any(o.max_nodes is None for o in offers_here):
                    continue
                stock = sum(o.max_nodes or 0 for o in offers_here)
                need, when = max((_used(one.nodes, place), one.id) for one in found.states)
                if need > stock:
                    in_state = f" in state {when!r}" if len(problem.states) > 1 else ""
                    reasons.tell(
                        f"sites.{place[0]}.{place[1]}.max_nodes",
                        float(stock),
                        float(need),
                        f"{stock} x {place[1]} at {place[0]} are too few: {need} would do{in_state}",
                    )


def _used(nodes: Mapping[tuple[str, str, str], int], place: tuple[str, str]) -> int:
    return sum(n for (s, _, k), n in nodes.items() if (s, k) == place)


def _states(problem: FleetProblem, probe: Probe, reasons: _Reasons) -> None:
    """Which single states cannot be met, and which loss makes them so."""
    if len(problem.states) == 1 and not _lossy(problem.states[0]):
        return
    for state in problem.states:
        alone = replace(problem, states=(replace(state, hours_per_year=max(state.hours_per_year, 1.0)),))
        alone = _without(alone, budget_usd_per_hour=None, max_carbon_kg_per_hour=None)
        if probe(alone, "cards") is not None:
            continue
        whole = replace(alone.states[0], lost_nodes={}, lost_sites=(), lost_links=(), lost_link_units={})
        cause = "its demand alone is too much for what is allowed"
        if _lossy(state) and probe(replace(alone, states=(whole,)), "cards") is not None:
            lost = [*state.lost_sites, *("-".join(pair) for pair in state.lost_links)]
            lost += [f"{n if n >= 0 else 'all'} x {k} at {s}" for (s, k), n in sorted(state.lost_nodes.items())]
            lost += [f"{n} units {a}-{b}" for (a, b), n in sorted(state.lost_link_units.items())]
            cause = f"without the loss of {', '.join(lost)} it could be"
        reasons.tell(f"states.{state.id}", state.rate_req_per_s, None, f"state {state.id!r} cannot be met: {cause}")


def _lossy(state: State) -> bool:
    return bool(state.lost_nodes or state.lost_sites or state.lost_links or state.lost_link_units)


def explain(problem: FleetProblem, probe: Probe) -> InfeasibleError:
    """The requirements that break the request, each with the nearest value that works where there is one."""
    reasons = _Reasons()
    _nothing_there(problem, reasons)
    if not reasons.found:
        if problem.limits != Limits() or problem.sites:
            _global_limits(problem, probe, reasons)
        _links_and_stock(problem, probe, reasons)
        _states(problem, probe, reasons)
        rate = max(state.rate_req_per_s for state in problem.states)
        low, high = 0.0, 1.0
        for _ in range(7):
            middle = (low + high) / 2
            slower = tuple(replace(s, rate_req_per_s=s.rate_req_per_s * middle) for s in problem.states)
            if probe(replace(problem, states=slower), "cards") is None:
                high = middle
            else:
                low = middle
        if low > 0:
            possible = low * rate
            reasons.tell(
                "workload.rate_req_per_s",
                rate,
                possible,
                f"{rate:g} req/s cannot be served with what is allowed: the most is about {possible:.3g} req/s",
            )
    if not reasons.found:
        reasons.tell(
            "fleet", None, None, "no combination of the allowed machines, sites and links serves this at any rate"
        )
    return InfeasibleError("; ".join(reason.message for reason in reasons.found), reasons.found)
