"""Candidates and their capacity tables -> the fleet program's input, dominated candidates dropped."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pdplan.errors import InfeasibleError, Reason
from pdplan.fleet.candidates import Candidates, Fleet, offers_for
from pdplan.fleet.confidence import margin_groups, margins, tightened
from pdplan.fleet.pools import (
    BATCH_GRID,
    PrefillModel,
    colocated_model,
    decode_model,
    link_between,
    prefill_model,
)
from pdplan.fleet.problem import (
    CapacityTable,
    FleetProblem,
    Lane,
    Limits,
    LinkOption,
    NodeOffer,
    Objective,
    PoolOption,
    Role,
    SiteOption,
    State,
)
from pdplan.fleet.tables import table_rate
from pdplan.perf.layout import Layouts
from pdplan.scenario.resolve import Scenario, SiteLink
from pdplan.serving import colocated, decode, prefill

__all__ = ["Built", "build_problem", "floors"]

Floats = NDArray[np.float64]
LANE = "all"
RENTED = "rented"
"""Term of nodes that are paid in the hours they are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The program's input and where its pools come from."""

    problem: FleetProblem
    candidates: Candidates
    kept: int
    """Candidates that some pool uses."""
    transfer_s: dict[str, float]
    """Mean KV transfer per prefill pool."""


def _replica_grid(need: Floats) -> NDArray[np.int64]:
    """Replica counts (N, C) at which tables are filled: every small one, then geometric up to what is needed."""
    top = np.maximum(np.ceil(need), 8.0)
    small = np.array([1, 2, 3, 4, 6, 8], dtype=np.float64)[:, None] * np.ones_like(top)
    large = np.exp(np.linspace(np.log(8.0), np.log(top), 6))[1:]
    return np.asarray(np.maximum.accumulate(np.ceil(np.vstack([small, large])), axis=0), dtype=np.int64)


def _first_step_s(scenario: Scenario, fleet: Fleet) -> float:
    """Upper bound of what the decode side adds to TTFT: its steps at the slowest pace the targets allow."""
    engine = fleet.latency.engine_constants
    least = float(margins(scenario, fleet, "tpot_s", disaggregated=True).min())
    pace = min(limit for _, limit in tightened(scenario.tpot_targets(), least))
    per_step = float(sum((fleet.latency.tokens_per_step(_one(fleet))).tolist()))
    return (engine["first_token_steps"] + engine["poll_interval_steps"] / 2) * pace * per_step


def _one(fleet: Fleet) -> Layouts:
    unit = np.array([1], dtype=np.int64)
    return Layouts(machine=np.array([0], dtype=np.int64), tp=unit, pp=unit, ep=unit, attention_dp=unit)


def _name(role: str, site: str, node: str, destination: str, c: Candidates, i: int) -> str:
    l = c.layouts  # noqa: E741
    return (
        f"{role}|{site}|{node}|{destination}|tp{l.tp[i]}-pp{l.pp[i]}-ep{l.ep[i]}-dp{l.attention_dp[i]}"
        f"|{c.token_budget[i]}|{c.batch_cap[i]}"
    )


def _drop_dominated(pools: list[PoolOption]) -> list[PoolOption]:
    """Drop a pool that another of the same role, place and key serves with no more cards at every size.

    Exact where card counts divide: m smaller replicas fit wherever one larger does.
    """
    groups: dict[tuple[str, ...], list[PoolOption]] = defaultdict(list)
    for pool in pools:
        groups[pool.role, pool.site, pool.node_type, pool.destination_site, pool.compatibility, pool.lane].append(pool)
    kept: list[PoolOption] = []
    for group in groups.values():
        group.sort(key=lambda p: (p.cards_per_replica, -float(p.capacity.rate_req_per_s[0]), p.id))
        winners: list[PoolOption] = []
        for pool in group:
            if not any(_dominates(other, pool) for other in winners):
                winners = [other for other in winners if not _dominates(pool, other)]
                winners.append(pool)
        kept += winners
    return kept


def _dominates(a: PoolOption, b: PoolOption) -> bool:
    if b.cards_per_replica % a.cards_per_replica or a.kv_bytes_per_request > b.kv_bytes_per_request * (1 + 1e-9):
        return False
    ratio = b.cards_per_replica // a.cards_per_replica
    return all(
        table_rate(a.capacity, int(n) * ratio) >= float(rate) * (1 - 1e-9)
        for n, rate in zip(b.capacity.replicas, b.capacity.rate_req_per_s, strict=True)
    )


def _table(replicas: NDArray[np.int64], rates: Floats) -> CapacityTable | None:
    """A strictly increasing table from one column; None where no size serves anything."""
    n, first = np.unique(replicas, return_index=True)
    rate = np.maximum.accumulate(rates[first])
    useful = rate > 1e-9
    if not useful.any():
        return None
    return CapacityTable(replicas=n[useful], rate_req_per_s=rate[useful])


def _key(scenario: Scenario, tp: int) -> str:
    return f"tp{tp}" if scenario.engine.equal_tp else ""


def _linear(rate: float) -> CapacityTable:
    return CapacityTable(replicas=np.array([1], dtype=np.int64), rate_req_per_s=np.array([rate]))


def _single_replica_pools(
    scenario: Scenario, role: Role, c: Candidates, rates: Floats, fleet: Fleet
) -> list[PoolOption]:
    """Pools whose replicas work alone: n of them carry n times the rate of one."""
    pools: list[PoolOption] = []
    for offer in offers_for(scenario, role):
        mine = np.flatnonzero((c.layouts.machine == fleet.index[offer.node.id]) & (rates > 1e-9))
        for i in mine:
            pools.append(
                PoolOption(
                    id=_name(role, offer.site, offer.node.id, offer.site, c, int(i)),
                    role=role,
                    lane=LANE,
                    site=offer.site,
                    node_type=offer.node.id,
                    destination_site=offer.site,
                    cards_per_replica=int(c.layouts.cards_per_replica[i]),
                    capacity=_linear(float(rates[i])),
                    compatibility=_key(scenario, int(c.layouts.tp[i])) if role == "decode" else "",
                    candidate=int(i),
                )
            )
    return pools


def decode_rates(scenario: Scenario, fleet: Fleet, c: Candidates) -> Floats:
    """Rate per replica of every decode candidate, (C,)."""
    result = np.zeros(len(c))
    for index, _, tpot_margin in margin_groups(scenario, fleet, c.layouts.machine, disaggregated=True):
        model = decode_model(scenario, fleet, c.layouts.take(index), c.batch_cap[index])
        result[index] = decode.decode_capacity_req_per_s(
            BATCH_GRID,
            model.step_s,
            model.mean_tokens,
            tightened(scenario.tpot_targets(), tpot_margin),
            model.max_batch,
            tokens_per_step=model.tokens_per_step,
            context_spread_s=model.context_spread_s,
            arrival_cv2=scenario.arrival_cv2,
            staging_s=model.staging_s,
        ).rate_req_per_s
    return result


def colocated_rates(scenario: Scenario, fleet: Fleet, c: Candidates) -> Floats:
    """Rate per replica of every colocated candidate, (C,)."""
    engine = fleet.latency.engine_constants
    result = np.zeros(len(c))
    for index, ttft_margin, tpot_margin in margin_groups(scenario, fleet, c.layouts.machine, disaggregated=False):
        part = c.take(index)
        model = colocated_model(scenario, fleet, part.layouts, part.token_budget)
        limits = decode_model(scenario, fleet, part.layouts, part.batch_cap)
        tpot_targets = tightened(scenario.tpot_targets(), tpot_margin)
        # The first token waits for whole iterations: at the slowest pace the targets allow.
        pace = min(limit for _, limit in tpot_targets) * model.tokens_per_step
        extra = engine["request_overhead_ms"] + (engine["first_token_steps"] + engine["poll_interval_steps"] / 2) * pace
        rates = colocated.colocated_capacity_req_per_s(
            model,
            tightened(scenario.ttft_targets(), ttft_margin),
            tpot_targets,
            limits.max_batch / part.layouts.attention_dp,
            extra_s=extra,
        ).rate_req_per_s
        result[index] = rates * part.layouts.attention_dp
    return result


def _prefill_pools(
    scenario: Scenario, fleet: Fleet, c: Candidates, destinations: set[str], transfer: dict[str, float]
) -> list[PoolOption]:
    pools: list[PoolOption] = []
    first = _first_step_s(scenario, fleet)
    ttft_margin = margins(scenario, fleet, "ttft_s", disaggregated=True)
    done: dict[tuple[str, SiteLink | None], tuple[NDArray[np.int64], NDArray[np.int64], Floats, Floats, Floats]] = {}
    for offer in offers_for(scenario, "prefill"):
        mine = np.flatnonzero(c.layouts.machine == fleet.index[offer.node.id])
        if not len(mine):
            continue
        for destination in sorted(destinations):
            same = destination == offer.site
            link = None if same else link_between(scenario, offer.site, destination)
            if not same and link is None:
                continue
            path = (offer.node.id, link)
            targets = tightened(scenario.ttft_targets(), float(ttft_margin[fleet.index[offer.node.id]]))
            if path not in done:
                model = prefill_model(scenario, fleet, c.layouts.take(mine), link, same_site=same)
                keep = _undominated(scenario, c.layouts.take(mine), model)
                model = model.take(keep)
                need = 1.5 * prefill.prefill_utilisation(scenario.rate_req_per_s, 1, model.service(scenario)) + 1.0
                grid = _replica_grid(np.minimum(need, 512.0))
                rates = _grid_rates(scenario, model, grid, targets, first)
                done[path] = mine[keep], grid, rates, model.kv_bytes_per_request, model.weight @ model.transfer_s
            kept, grid, rates, size, sent = done[path]
            for column, i in enumerate(kept):
                table = _table(grid[:, column], rates[:, column])
                if table is None:
                    continue
                name = _name("prefill", offer.site, offer.node.id, destination, c, int(i))
                transfer[name] = float(sent[column])
                pools.append(
                    PoolOption(
                        id=name,
                        role="prefill",
                        lane=LANE,
                        site=offer.site,
                        node_type=offer.node.id,
                        destination_site=destination,
                        cards_per_replica=int(c.layouts.cards_per_replica[i]),
                        capacity=table,
                        compatibility=_key(scenario, int(c.layouts.tp[i])),
                        kv_bytes_per_request=float(size[column]),
                        candidate=int(i),
                    )
                )
    return pools


def _undominated(scenario: Scenario, layouts: Layouts, model: PrefillModel) -> NDArray[np.int64]:
    """Candidates that no other of the machine beats outright, so that tables are filled for few.

    A beats B when A's cards divide B's, A is no slower for any request, alone and in a full pass, on the server and to
    the end of the transfer, sends no more, and as many A as fit in B serve at least as many requests side by side.
    """
    cards, ranks = layouts.cards_per_replica, model.ranks
    total = model.single_s + model.extra_s
    order = np.lexsort((model.weight @ model.full_s, cards))
    kept: list[int] = []
    for b in order:
        beaten = False
        for a in kept:
            ratio = cards[b] // cards[a]
            if cards[b] % cards[a] or ranks[a] * ratio < ranks[b]:
                continue
            if scenario.engine.equal_tp and layouts.tp[a] != layouts.tp[b]:
                continue
            if (
                model.kv_bytes_per_request[a] <= model.kv_bytes_per_request[b] * (1 + 1e-9)
                and (model.send_s[:, a] / ranks[a] <= model.send_s[:, b] / ranks[b] * ratio * (1 + 1e-9)).all()
                and (model.single_s[:, a] <= model.single_s[:, b]).all()
                and (model.full_s[:, a] <= model.full_s[:, b]).all()
                and (total[:, a] <= total[:, b]).all()
            ):
                beaten = True
                break
        if not beaten:
            kept.append(int(b))
    return np.sort(np.array(kept, dtype=np.int64))


def _grid_rates(
    scenario: Scenario, model: PrefillModel, grid: NDArray[np.int64], targets: list[tuple[float, float]], first: float
) -> Floats:
    """Capacity on a grid of replica counts (N, C) that differs by candidate."""
    return prefill.prefill_capacity_req_per_s(model.service(scenario), grid, targets, model.extra_s + first)


def build_problem(scenario: Scenario, fleet: Fleet, candidates: Candidates, mode: str) -> Built:
    """The fleet program's input for one mode (disaggregated or colocated).

    Raises
    ------
    InfeasibleError
        A role has no candidate that meets its targets even when idle; names the best that can be had.
    """
    transfer: dict[str, float] = {}
    pools: list[PoolOption] = []
    if mode == "colocated":
        part = candidates.take(candidates.role == "colocated")
        pools = (
            _single_replica_pools(scenario, "colocated", part, colocated_rates(scenario, fleet, part), fleet)
            if len(part)
            else []
        )
        if not pools:
            raise floors(scenario, fleet, candidates, mode)
        source = part
    else:
        decode_part = candidates.take(candidates.role == "decode")
        prefill_part = candidates.take(candidates.role == "prefill")
        decodes = (
            _single_replica_pools(scenario, "decode", decode_part, decode_rates(scenario, fleet, decode_part), fleet)
            if len(decode_part)
            else []
        )
        prefills = (
            _prefill_pools(scenario, fleet, prefill_part, {pool.site for pool in decodes}, transfer)
            if len(prefill_part)
            else []
        )
        if not decodes or not prefills:
            raise floors(scenario, fleet, candidates, mode)
        source = Candidates(
            role=np.concatenate([prefill_part.role, decode_part.role]),
            layouts=Layouts(
                **{
                    name: np.concatenate([getattr(prefill_part.layouts, name), getattr(decode_part.layouts, name)])
                    for name in ("machine", "tp", "pp", "ep", "attention_dp")
                }
            ),
            token_budget=np.concatenate([prefill_part.token_budget, decode_part.token_budget]),
            batch_cap=np.concatenate([prefill_part.batch_cap, decode_part.batch_cap]),
        )
        shift = len(prefill_part)
        pools = prefills + [replace(pool, candidate=pool.candidate + shift) for pool in decodes]
    kept = sorted(_drop_dominated(pools), key=lambda pool: pool.id)
    fleet_rules = scenario.fleet
    offers = tuple(
        NodeOffer(
            site=offer.site,
            node_type=offer.node.id,
            cards_per_node=offer.node.cards_per_node,
            cost_usd_per_node_hour=offer.usd_per_node_hour,
            power_w_per_node=offer.node.power_w,
            max_nodes=offer.max_nodes,
            min_nodes_if_used=offer.min_nodes,
            lot_nodes=offer.lot_nodes,
            owned_nodes=offer.owned_nodes,
            owned_cost_usd_per_node_hour=offer.owned_usd_per_node_hour,
            carbon_kg_per_node_hour=offer.carbon_kg_per_node_hour,
            vendor=offer.accelerator.vendor,
        )
        for site in scenario.sites
        for offer in site.offers
    )
    offers += tuple(
        replace(
            offers[i],
            term=RENTED,
            paid="when_used",
            cost_usd_per_node_hour=offer.rent_usd_per_node_hour,
            max_nodes=offer.max_rented_nodes,
            min_nodes_if_used=0,
            lot_nodes=1,
            owned_nodes=0,
        )
        for i, offer in enumerate(offer for site in scenario.sites for offer in site.offers)
        if offer.rent_usd_per_node_hour is not None
    )
    objective: Objective = scenario.objective  # type: ignore[assignment]
    problem = FleetProblem(
        pools=tuple(kept),
        lanes=(Lane(id=LANE, rate_frac=1.0),),
        sites=tuple(SiteOption(id=s.name, max_power_w=s.max_power_w, max_cards=s.max_cards) for s in scenario.sites),
        offers=offers,
        links=tuple(
            LinkOption(
                site_a=link.site_a,
                site_b=link.site_b,
                unit_bandwidth_bytes_per_s=link.unit_bandwidth_bytes_per_s,
                usable_frac=link.usable_frac,
                min_units=link.min_units if mode != "colocated" else 0,
                max_units=link.max_units,
                usd_per_unit_hour=link.usd_per_unit_hour,
            )
            for link in scenario.links
        )
        if mode != "colocated"
        else (),
        limits=Limits(
            budget_usd_per_hour=fleet_rules.budget_usd_per_hour,
            max_power_w=fleet_rules.max_power,
            max_cards=fleet_rules.max_cards,
            max_sites=fleet_rules.max_sites,
            min_cards_by_role={
                role: getattr(fleet_rules, role).min_cards
                for role in ("prefill", "decode", "colocated")
                if getattr(fleet_rules, role).min_cards
            },
            pinned_nodes={
                (pin.site, pin.role, pin.type): pin.nodes
                for pin in fleet_rules.pinned
                if (pin.role == "colocated") == (mode == "colocated")
            },
            max_carbon_kg_per_hour=fleet_rules.max_carbon_kg_per_hour,
            same_vendor=fleet_rules.same_vendor,
            current_nodes={(entry.site, entry.type): entry.nodes for entry in fleet_rules.current},
            max_changed_nodes=fleet_rules.max_changed_nodes,
            spare_nodes={
                role: getattr(fleet_rules, role).spare_nodes
                for role in ("prefill", "decode", "colocated")
                if getattr(fleet_rules, role).spare_nodes
            },
        ),
        states=tuple(
            State(
                id=period.id,
                rate_req_per_s=period.rate_req_per_s,
                hours_per_year=period.hours_per_year,
                lost_sites=(period.lost_site,) if period.lost_site else (),
                # nothing can be rented in the minutes after a loss
                can_rent=not (period.lost_site or period.lost_nodes),
                lost_nodes={period.lost_nodes[:2]: period.lost_nodes[2]} if period.lost_nodes else {},
            )
            for period in scenario.periods
        ),
        objective=objective,
    )
    return Built(
        problem=problem,
        candidates=source,
        kept=len({(p.role, p.candidate) for p in kept}),
        transfer_s=transfer,
    )


def floors(scenario: Scenario, fleet: Fleet, candidates: Candidates, mode: str) -> InfeasibleError:
    """Why no layout will do, with the best latency an idle replica gives: adding nodes cannot help there."""
    reasons: list[Reason] = []

    def tell(name: str, required: float | None, nearest: float | None, message: str) -> None:
        reasons.append(Reason(constraint=name, required=required, nearest=nearest, message=message))

    def label(c: Candidates, i: int) -> str:
        l = c.layouts  # noqa: E741
        return f"{fleet.machines[int(l.machine[i])].node.id} with tp {l.tp[i]}, pp {l.pp[i]}, attention-dp {l.attention_dp[i]}"

    sure = "" if scenario.confidence is None else f"; margin for {scenario.confidence * 100:g} % confidence included"
    roles = ("colocated",) if mode == "colocated" else ("prefill", "decode")
    for role in roles:
        part = candidates.take(candidates.role == role)
        if not len(part):
            tell(
                f"fleet.{role}",
                None,
                None,
                f"no layout of the allowed machines holds {scenario.model.id} in {scenario.weights} with its longest request "
                f"for {role}; allow larger machines or replicas, or a narrower precision",
            )
            continue
        if role != "decode":
            same = prefill_model(scenario, fleet, part.layouts, None, same_site=True)
            overhead = fleet.latency.engine_constants["request_overhead_ms"]
            own = same.single_s + (same.extra_s if role == "prefill" else overhead)
            own = own + (_first_step_s(scenario, fleet) if role == "prefill" else 0.0)
            own = own * margins(scenario, fleet, "ttft_s", disaggregated=role == "prefill")[part.layouts.machine]
            share = np.cumsum(same.weight)
            for target in scenario.ttft_targets():
                at = min(int(np.searchsorted(share, target.percentile / 100 - 1e-9)), len(share) - 1)
                best = int(np.argmin(own[at]))
                if own[at, best] > target.limit_s * 0.95:
                    nearest = float(own[at, best]) * 1.05
                    tell(
                        f"slo.ttft_s.{target.label}",
                        target.limit_s,
                        nearest,
                        f"TTFT {target.label} <= {target.limit_s:g} s cannot be met by any allowed machine: prefill of one "
                        f"{same.input_tokens[at]:.0f}-token request alone takes {own[at, best]:.3g} s on the fastest "
                        f"({label(part, best)}{sure}); the nearest target is about {nearest:.3g} s; more nodes do not help",
                    )
        if role != "prefill":
            model = decode_model(scenario, fleet, part.layouts, part.batch_cap)
            alone = model.step_s[0] / model.tokens_per_step
            alone = alone * margins(scenario, fleet, "tpot_s", disaggregated=role == "decode")[part.layouts.machine]
            best = int(np.argmin(alone))
            for target in scenario.tpot_targets():
                if alone[best] > target.limit_s * 0.95:
                    tell(
                        f"slo.tpot_s.{target.label}",
                        target.limit_s,
                        float(alone[best]) * 1.05,
                        f"TPOT {target.label} <= {target.limit_s * 1e3:g} ms cannot be met by any allowed machine: one sequence "
                        f"alone takes {alone[best] * 1e3:.3g} ms per token on the fastest ({label(part, best)}{sure}); the nearest "
                        f"target is about {alone[best] * 1.05e3:.3g} ms; more nodes do not help",
                    )
    if not reasons:
        tell(
            "slo",
            None,
            None,
            f"no {mode} layout of the allowed machines meets all targets at once; relax ttft_s or tpot_s",
        )
    return InfeasibleError("; ".join(reason.message for reason in reasons), reasons)
