"""A fleet problem put in one order and checked, with the look-ups the program needs.

Everything is sorted by name first, so that the order of the input cannot change the answer, ties included.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cached_property

from pdplan.errors import InputError
from pdplan.fleet.problem import CapacityTable, FleetProblem, Lane, NodeOffer, PoolOption, State
from pdplan.fleet.tables import Reading

__all__ = ["ROLES", "Shape", "lane_rate", "lost_nodes"]

ROLES = ("prefill", "decode", "colocated")
Place = tuple[str, str]
"""(site, node type)."""


def lane_rate(problem: FleetProblem, lane: Lane, state: State) -> float:
    """Requests per second of a whole lane (share 1) in a state."""
    if not state.band_frac:
        return state.rate_req_per_s * lane.rate_frac
    bands = lane.bands if problem.bands else (problem.lanes.index(lane),)
    return state.rate_req_per_s * sum(state.band_frac[b] for b in bands)


def lost_nodes(state: State, place: Place) -> int:
    """Nodes of a place that are down in a state; -1 is all of them."""
    return -1 if place[0] in state.lost_sites else state.lost_nodes.get(place, 0)


def is_loss(state: State) -> bool:
    """Whether something is lost in a state."""
    return bool(state.lost_nodes or state.lost_sites or state.lost_links or state.lost_link_units)


def faults_of(problem: FleetProblem) -> list[str]:
    """What contradicts itself, in words."""
    faults = []

    def twice(where: str, ids: list[object]) -> None:
        for one, n in sorted(Counter(ids).items(), key=str):
            if n > 1:
                faults.append(f"{where}: {one!r} is used twice; each must be there once")

    twice("pools", [pool.id for pool in problem.pools])
    twice("lanes", [lane.id for lane in problem.lanes])
    twice("sites", [site.id for site in problem.sites])
    twice("states", [state.id for state in problem.states])
    twice("offers", [(offer.site, offer.node_type, offer.term) for offer in problem.offers])
    if not problem.states:
        faults.append("states: none given; at least one is needed")
    cards: dict[Place, int] = {}
    for offer in problem.offers:
        place = (offer.site, offer.node_type)
        if cards.setdefault(place, offer.cards_per_node) != offer.cards_per_node:
            faults.append(f"offers: {offer.node_type!r} at {offer.site!r} has two card counts; one type has one")
        if offer.paid == "when_used" and offer.owned_nodes:
            faults.append(f"offers.{offer.term}: owned nodes are there always; give them an offer with paid: always")
    sites = {site.id for site in problem.sites}
    lanes = {lane.id for lane in problem.lanes}
    for pool in problem.pools:
        if (pool.site, pool.node_type) not in cards:
            faults.append(f"pools.{pool.id}: no offer of {pool.node_type!r} at {pool.site!r}; add one to offers")
        if pool.lane not in lanes:
            faults.append(f"pools.{pool.id}.lane: {pool.lane!r} is not one of {', '.join(sorted(lanes))}")
        if pool.site not in sites:
            faults.append(f"pools.{pool.id}.site: {pool.site!r} is not one of {', '.join(sorted(sites))}")
    bands = len(problem.bands) or len(problem.lanes)
    if problem.bands:
        for lane in problem.lanes:
            if not lane.bands or any(not 0 <= b < bands for b in lane.bands):
                faults.append(f"lanes.{lane.id}.bands: {lane.bands} are not indices of the {bands} bands")
        for b, band in enumerate(problem.bands):
            if not any(b in lane.bands for lane in problem.lanes):
                faults.append(f"bands.{band.id}: no lane serves it; add a lane that contains it")
    for state in problem.states:
        if not 0 <= state.phase < len(problem.phases):
            faults.append(f"states.{state.id}.phase: {state.phase} is not one of the {len(problem.phases)} phases")
        if state.band_frac and len(state.band_frac) != bands:
            faults.append(f"states.{state.id}.band_frac: {len(state.band_frac)} given; one for each of {bands} bands")
    for p, phase in enumerate(problem.phases):
        hours = [state.hours_per_year for state in problem.states if state.phase == p]
        if hours and sum(hours) <= 0:
            faults.append(f"phases.{phase.id}: its states have no hours; give at least one hours_per_year above 0")
    places = set(cards)
    for site, role, kind in problem.limits.pinned_nodes:
        if (site, kind) not in places or role not in ROLES:
            faults.append(f"limits.pinned_nodes: ({site}, {role}, {kind}) is not offered; pin a type of offers")
    return faults


class Shape:
    """Sorted problem and look-ups. Raises InputError where the problem contradicts itself."""

    def __init__(self, problem: FleetProblem) -> None:
        faults = faults_of(problem)
        if faults:
            raise InputError(*faults)
        # Bands of lanes are positions; without bands a lane is its own band, at its place in the input.
        self.lane_rates = {
            (w, lane.id): lane_rate(problem, lane, state)
            for w, state in enumerate(problem.states)
            for lane in problem.lanes
        }
        self.given = problem
        self._readings: dict[int, Reading] = {}
        self.link_order = sorted(
            range(len(problem.links)),
            key=lambda i: (
                *sorted((problem.links[i].site_a, problem.links[i].site_b)),
                problem.links[i].usd_per_unit_hour,
                i,
            ),
        )
        self.problem = replace(
            problem,
            pools=tuple(sorted(problem.pools, key=lambda pool: pool.id)),
            sites=tuple(sorted(problem.sites, key=lambda site: site.id)),
            offers=tuple(sorted(problem.offers, key=lambda o: (o.site, o.node_type, o.term))),
        )

    @cached_property
    def offers_at(self) -> dict[Place, list[int]]:
        """(site, type) -> indices of its offers."""
        found: dict[Place, list[int]] = defaultdict(list)
        for i, offer in enumerate(self.problem.offers):
            found[offer.site, offer.node_type].append(i)
        return dict(found)

    def offer(self, place: Place) -> NodeOffer:
        """An offer of the place: cards, power, carbon and vendor are the same in all of them."""
        return self.problem.offers[self.offers_at[place][0]]

    @cached_property
    def pools_of(self) -> dict[tuple[str, str, str], list[PoolOption]]:
        """(site, role, type) -> its pools."""
        found: dict[tuple[str, str, str], list[PoolOption]] = defaultdict(list)
        for pool in self.problem.pools:
            found[pool.site, pool.role, pool.node_type].append(pool)
        return dict(sorted(found.items()))

    @cached_property
    def band_lanes(self) -> list[list[str]]:
        """Per band, the lanes that contain it."""
        problem = self.problem
        if not problem.bands:
            return [[lane.id] for lane in problem.lanes]
        return [[lane.id for lane in problem.lanes if b in lane.bands] for b in range(len(problem.bands))]

    @cached_property
    def chosen_lanes(self) -> set[str]:
        """Lanes whose share is decided: those that overlap another."""
        return {lane for lanes in self.band_lanes if len(lanes) > 1 for lane in lanes}

    @cached_property
    def hours_share(self) -> list[float]:
        """Per state, the share of the horizon it stands for; sums to the weights of the phases that have states."""
        hours: dict[int, float] = defaultdict(float)
        for state in self.problem.states:
            hours[state.phase] += state.hours_per_year
        phases = self.problem.phases
        return [phases[s.phase].weight * s.hours_per_year / hours[s.phase] for s in self.problem.states]

    def weight_from(self, phase: int) -> float:
        """Share of the horizon from a phase on."""
        return sum(p.weight for p in self.problem.phases[phase:])

    def table(self, pool: PoolOption, w: int) -> CapacityTable | None:
        """A pool's table in a state; None where it cannot serve then."""
        state = self.problem.states[w]
        gone = {pool.site, pool.destination_site} & set(state.lost_sites)
        if gone or self.lane_rates[w, pool.lane] <= 0:
            return None
        return pool.variants.get(state.variant) if state.variant else pool.capacity

    def reading(self, table: CapacityTable) -> Reading:
        """A table of this problem, worked out once."""
        found = self._readings.get(id(table))
        if found is None:
            found = self._readings[id(table)] = Reading(table)
        return found

    def steepest(self, pool: PoolOption, w: int) -> float:
        """Rate per replica that a pool cannot exceed in a state, whatever its size; 0 where it cannot serve."""
        table = self.table(pool, w)
        if table is None:
            return 0.0
        rate_max = None if pool.group else self.lane_rates[w, pool.lane]
        return self.reading(table).steepest(pool.max_replicas, rate_max)

    def most_replicas(self, pool: PoolOption, w: int) -> int:
        """As many as the whole lane needs, or may be had."""
        table = self.table(pool, w)
        if table is None:
            return 0
        need = self.reading(table).replicas_for(self.lane_rates[w, pool.lane])
        return pool.max_replicas if need is None else min(pool.max_replicas, need)

    def nodes_for(self, pool: PoolOption, replicas: int) -> int:
        """Whole nodes that replicas fill on their own."""
        cards = self.offer((pool.site, pool.node_type)).cards_per_node
        if pool.cards_per_replica <= cards:
            return -(-replicas // (cards // pool.cards_per_replica))
        return replicas * -(-pool.cards_per_replica // cards)

    @cached_property
    def _highest(self) -> list[int]:
        """The states with the highest demand of each mix of lanes and kind of table."""
        best: dict[tuple[object, ...], int] = {}
        for w, state in enumerate(self.problem.states):
            key = (state.band_frac, state.variant)
            if key not in best or state.rate_req_per_s > self.problem.states[best[key]].rate_req_per_s:
                best[key] = w
        return sorted(best.values())

    @cached_property
    def most_nodes(self) -> dict[tuple[str, str, str], int]:
        """More nodes than any state needs of a (site, role, type): the big M of its binaries."""
        limits, found = self.problem.limits, {}
        for (site, role, kind), pools in self.pools_of.items():
            cards = self.offer((site, kind)).cards_per_node
            extra = limits.spare_nodes.get(role, 0) + limits.pinned_nodes.get((site, role, kind), 0)
            extra += math.ceil(limits.min_cards_by_role.get(role, 0) / cards)
            most = 0
            for w in self._highest:
                by_lane: dict[str, int] = defaultdict(int)
                for pool in pools:
                    n = self.most_replicas(pool, w)
                    by_lane[pool.lane] = max(by_lane[pool.lane], self.nodes_for(pool, n))
                most = max(most, sum(by_lane.values()))
            most += extra + len(pools)  # each pool may round up once
            stock = [self.problem.offers[i].max_nodes for i in self.offers_at[site, kind]]
            if None not in stock:
                most = min(most, sum(n or 0 for n in stock))
            found[site, role, kind] = most
        return found
