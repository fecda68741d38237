"""A solved program -> the parts of a plan: what to buy, pools, links, money, targets. Arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdplan.fleet.build import RENTED, Built
from pdplan.fleet.confidence import situation_of
from pdplan.fleet.evaluate import Evaluation, PoolSpec
from pdplan.fleet.plan import (
    Cost,
    CostLine,
    LinkLoad,
    Pool,
    PoolLayout,
    Purchase,
    SloLine,
    Totals,
)
from pdplan.fleet.pools import link_between
from pdplan.fleet.problem import PoolOption
from pdplan.fleet.solve import FleetSolution, StateSolution
from pdplan.fleet.tables import table_rate
from pdplan.scenario.resolve import Scenario
from pdplan.units import HOURS_PER_MONTH, HOURS_PER_YEAR

__all__ = ["Solved", "parts_of", "slo_of", "specs_of", "totals_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """One mode, solved."""

    built: Built
    solution: FleetSolution
    specs: tuple[PoolSpec, ...]
    ids: tuple[str, ...]
    evaluation: Evaluation


def _balanced(built: Built, solution: StateSolution) -> dict[str, float]:
    """Flows shared out in proportion to capacity among pools of one role, place, destination and key.

    The program cares only for their sum; a router would not leave one pool full and another half empty. Pools that send
    different amounts per request keep their shares, since links were filled with them.
    """
    groups: dict[tuple[object, ...], list[PoolOption]] = {}
    for pool in built.problem.pools:
        if solution.replicas.get(pool.id):
            key = (
                pool.role,
                pool.lane,
                pool.site,
                pool.destination_site,
                pool.compatibility,
                pool.kv_bytes_per_request,
            )
            groups.setdefault(key, []).append(pool)
    flows: dict[str, float] = {}
    for members in groups.values():
        total = sum(solution.flow_req_per_s.get(pool.id, 0.0) for pool in members)
        carried = {pool.id: table_rate(pool.capacity, solution.replicas[pool.id]) for pool in members}
        flows |= {name: total * rate / sum(carried.values()) for name, rate in carried.items()}
    return flows


def specs_of(built: Built, solution: StateSolution) -> tuple[tuple[PoolSpec, ...], tuple[str, ...]]:
    """Pools with traffic, prefill first, and their names in the program."""
    pools = {pool.id: pool for pool in built.problem.pools}
    specs, ids = [], []
    flows = _balanced(built, solution)
    order = {"prefill": 0, "decode": 1, "colocated": 2}
    for pool_id in sorted(solution.replicas, key=lambda i: (order[pools[i].role], i)):
        flow = flows.get(pool_id, 0.0)
        if flow <= 0:
            continue
        pool = pools[pool_id]
        c, i = built.candidates, pool.candidate
        specs.append(
            PoolSpec(
                role=pool.role,
                site=pool.site,
                node_type=pool.node_type,
                destination_site=pool.destination_site,
                tp=int(c.layouts.tp[i]),
                pp=int(c.layouts.pp[i]),
                ep=int(c.layouts.ep[i]),
                attention_dp=int(c.layouts.attention_dp[i]),
                token_budget=int(c.token_budget[i]),
                batch_cap=int(c.batch_cap[i]),
                replicas=solution.replicas[pool_id],
                rate_req_per_s=flow,
            )
        )
        ids.append(pool_id)
    return tuple(specs), tuple(ids)


def _nodes_of(pool: PoolOption, replicas: int, cards_per_node: int) -> float:
    """Nodes a pool fills; a fraction where it shares the last one."""
    if pool.cards_per_replica % cards_per_node == 0 or cards_per_node % pool.cards_per_replica == 0:
        return replicas * pool.cards_per_replica / cards_per_node
    if pool.cards_per_replica < cards_per_node:
        return float(-(-replicas // (cards_per_node // pool.cards_per_replica)))
    return float(replicas * -(-pool.cards_per_replica // cards_per_node))


def _whole_nodes(solved: Solved) -> dict[str, int]:
    """Whole nodes per pool: a pool gets what it fills, the rounding of a shared group goes to its largest pools."""
    pools = {pool.id: pool for pool in solved.built.problem.pools}
    offers = {(o.site, o.node_type): o for o in solved.built.problem.offers}
    result: dict[str, int] = {}
    for key, total in solved.solution.nodes.items():
        members = [i for i in solved.ids if (pools[i].site, pools[i].role, pools[i].node_type) == key]
        exact = {
            i: _nodes_of(pools[i], solved.solution.replicas[i], offers[key[0], key[2]].cards_per_node) for i in members
        }
        for i in members:
            result[i] = int(exact[i] + 1e-9)
        left = total - sum(result[i] for i in members)
        for i in sorted(members, key=lambda i: (result[i] - exact[i], i)):
            if left <= 0:
                break
            take = left if i == members[-1] and len(members) == 1 else 1
            result[i] += take
            left -= take
        if members and left > 0:
            result[members[0]] += left
    return result


def slo_of(scenario: Scenario, solved: Solved) -> tuple[SloLine, ...]:
    """Targets against predictions, each with its 90 % interval."""
    evaluation = solved.evaluation
    lines = []
    for target in scenario.targets:
        predicted = evaluation.quantile(target.metric, target.percentile)
        assured = evaluation.assured(target.metric, target.percentile)
        low, high = _interval(scenario, evaluation, solved.specs, target.metric)
        lines.append(
            SloLine(
                metric=target.metric,
                percentile=target.percentile,
                target=target.limit_s,
                predicted=predicted,
                low_90=predicted * low,
                high_90=predicted * high,
                assured=assured,
                met=assured <= target.limit_s * (1 + 1e-6),
            )
        )
    return tuple(lines)


def _interval(
    scenario: Scenario, evaluation: Evaluation, specs: Sequence[PoolSpec], metric: str
) -> tuple[float, float]:
    """Multiplicative 90 % interval from the cross-validated residuals of the latency model.

    The least trusted family of the pools behind the metric counts (prefill for TTFT, decode for TPOT, colocated for
    both), and the busiest prefill pool.
    """
    from pdplan.perf.uncertainty import prediction_interval

    families = {(o.site, o.node.id): o.family for site in scenario.sites for o in site.offers}
    order = ("fitted", "op-tables", "transferred", "guess")
    roles = ("colocated", "prefill" if metric == "ttft_s" else "decode")
    weakest = max((families[s.site, s.node_type].confidence for s in specs if s.role in roles), key=order.index)
    busy = max(
        (st.utilization_frac for s, st in zip(specs, evaluation.states, strict=True) if s.role == "prefill"),
        default=0.0,
    )
    situation = situation_of(scenario, weakest, disaggregated=any(spec.role == "prefill" for spec in specs))
    interval = prediction_interval("ttft_s" if metric == "ttft_s" else "tpot_s", situation, busy)
    return float(interval.low_90), float(interval.high_90)


def _purchases(scenario: Scenario, solved: Solved) -> tuple[Purchase, ...]:
    lines: list[Purchase] = []
    pools = {pool.id: pool for pool in solved.built.problem.pools}
    for site in scenario.sites:
        for offer in site.offers:
            key = (site.name, offer.node.id)
            bought = solved.solution.bought.get((*key, ""), 0)
            rented = {state.id: state.rented.get((*key, RENTED), 0) for state in solved.solution.states}
            # what the state that needs most of them takes of the nodes that are had
            used = max(
                sum(n for (s, _, h), n in state.nodes.items() if (s, h) == key) - rented[state.id]
                for state in solved.solution.states
            )
            if not used and not bought and not any(rented.values()):
                continue
            owned = max(min(used, offer.owned_nodes), used - bought, 0)
            busy = sum(
                solved.solution.replicas[i] * pools[i].cards_per_replica
                for i in solved.ids
                if (pools[i].site, pools[i].node_type) == key
            )
            owned_used = min(owned, used - min(bought, used)) if used > bought else 0
            hours = {period.id: period.hours_per_year for period in scenario.periods}
            rented_mean = sum(n * hours[state] for state, n in rented.items()) / HOURS_PER_YEAR
            cost = bought * offer.usd_per_node_hour + owned_used * offer.owned_usd_per_node_hour
            cost += rented_mean * (offer.rent_usd_per_node_hour or 0.0)
            nodes = bought + owned_used + rented[solved.solution.peak.id]
            lines.append(
                Purchase(
                    site=site.name,
                    node_type=offer.node.id,
                    nodes=bought,
                    owned_nodes=owned_used,
                    cards_per_node=offer.node.cards_per_node,
                    idle_cards=nodes * offer.node.cards_per_node - busy,
                    usd_per_node_hour=offer.usd_per_node_hour,
                    usd_per_hour=cost,
                    price_basis=offer.price_basis,
                    rented_nodes=max(rented.values()),
                    rented_mean_nodes=rented_mean,
                )
            )
    return tuple(lines)


def _role_costs(scenario: Scenario, solved: Solved, purchases: Sequence[Purchase]) -> dict[tuple[str, str, str], float]:
    """Hourly cost per (site, role, type): a type's bill in proportion to the nodes each role uses."""
    bills = {(p.site, p.node_type): p.usd_per_hour for p in purchases}
    used: dict[tuple[str, str], int] = {}
    for (s, _, h), n in solved.solution.nodes.items():
        used[s, h] = used.get((s, h), 0) + n
    return {(s, q, h): bills[s, h] * n / used[s, h] for (s, q, h), n in solved.solution.nodes.items()}


def _links(scenario: Scenario, solved: Solved) -> tuple[LinkLoad, ...]:
    loads: dict[tuple[str, str], tuple[float, float, float]] = {}
    for spec, state in zip(solved.specs, solved.evaluation.states, strict=True):
        if spec.role == "prefill":
            rate, sent, weighted = loads.get((spec.site, spec.destination_site), (0.0, 0.0, 0.0))
            loads[spec.site, spec.destination_site] = (
                rate + spec.rate_req_per_s,
                sent + spec.rate_req_per_s * state.kv_bytes_per_request,
                weighted + spec.rate_req_per_s * state.transfer_mean_s,
            )
    units = {
        frozenset((link.site_a, link.site_b)): solved.solution.link_units.get(i, 0)
        for i, link in enumerate(solved.built.problem.links)
    }
    lines = []
    for (a, b), (rate, sent, weighted) in sorted(loads.items()):
        load = sent * 8 / 1e9
        if a == b:
            nic = (
                sum(
                    offer.node.nic_bandwidth_bytes_per_s_per_card
                    * offer.node.cards_per_node
                    * solved.solution.nodes.get((a, "prefill", offer.node.id), 0)
                    for site in scenario.sites
                    if site.name == a
                    for offer in site.offers
                )
                * 8
                / 1e9
            )
            lines.append(
                LinkLoad(
                    from_site=a,
                    to_site=b,
                    units=0,
                    load_gbit_per_s=load,
                    capacity_gbit_per_s=nic,
                    utilization_frac=load / nic if nic else 0.0,
                    one_way_s=0.0,
                    transfer_mean_s=weighted / rate,
                    usd_per_hour=0.0,
                )
            )
            continue
        link = link_between(scenario, a, b)
        assert link is not None
        n = units[frozenset((a, b))]
        capacity = n * link.unit_bandwidth_bytes_per_s * link.usable_frac * 8 / 1e9
        lines.append(
            LinkLoad(
                from_site=a,
                to_site=b,
                units=n,
                load_gbit_per_s=load,
                capacity_gbit_per_s=capacity,
                utilization_frac=load / capacity if capacity else 0.0,
                one_way_s=link.one_way_s,
                transfer_mean_s=weighted / rate,
                usd_per_hour=n * link.usd_per_unit_hour,
            )
        )
    return tuple(lines)


def _pools(scenario: Scenario, solved: Solved, role_costs: Mapping[tuple[str, str, str], float]) -> tuple[Pool, ...]:
    options = {pool.id: pool for pool in solved.built.problem.pools}
    offers = {(o.site, o.node.id): o for s in scenario.sites for o in s.offers}
    whole = _whole_nodes(solved)
    result = []
    for pool_id, spec, state in zip(solved.ids, solved.specs, solved.evaluation.states, strict=True):
        option, offer = options[pool_id], offers[spec.site, spec.node_type]
        nodes = whole[pool_id]
        key = (spec.site, spec.role, spec.node_type)
        busy = {
            i: solved.solution.replicas[i] * options[i].cards_per_replica
            for i, other in zip(solved.ids, solved.specs, strict=True)
            if (other.site, other.role, other.node_type) == key
        }
        share = busy[pool_id] / sum(busy.values())
        result.append(
            Pool(
                role=option.role,
                site=spec.site,
                node_type=spec.node_type,
                accelerator=offer.accelerator.id,
                destination_site=spec.destination_site,
                nodes=nodes,
                cards=nodes * offer.node.cards_per_node,
                replicas=spec.replicas,
                layout=PoolLayout(
                    tp=spec.tp,
                    pp=spec.pp,
                    ep=spec.ep,
                    attention_dp=spec.attention_dp,
                    cards_per_replica=option.cards_per_replica,
                    max_batch=min(state.max_batch, spec.batch_cap),
                    token_budget=spec.token_budget if spec.role != "prefill" else scenario.engine.prefill_token_budget,
                ),
                rate_req_per_s=spec.rate_req_per_s,
                capacity_req_per_s=table_rate(option.capacity, spec.replicas),
                utilization_frac=state.utilization_frac,
                batch_mean=state.batch_mean,
                service_mean_s=state.service_mean_s,
                flop_frac=state.flop_frac,
                hbm_frac=state.hbm_frac,
                memory_bytes_per_card=state.memory,
                usd_per_hour=role_costs[key] * share,
                power_w=nodes * offer.node.power_w,
            )
        )
    return tuple(result)


def _cost(
    scenario: Scenario,
    solved: Solved,
    pools: Sequence[Pool],
    purchases: Sequence[Purchase],
    links: Sequence[LinkLoad],
    role_costs: Mapping[tuple[str, str, str], float],
) -> Cost:
    lines = [
        CostLine(
            item=f"{site}: {n} x {node_type}",
            role=role,
            quantity=float(n),
            unit_usd_per_hour=role_costs[site, role, node_type] / n,
            usd_per_hour=role_costs[site, role, node_type],
            basis=next(p.price_basis for p in purchases if (p.site, p.node_type) == (site, node_type)),
        )
        for (site, role, node_type), n in sorted(solved.solution.nodes.items())
    ]
    for i, link in enumerate(solved.built.problem.links):
        units = solved.solution.link_units.get(i, 0)
        if units:
            lines.append(
                CostLine(
                    item=f"link {link.site_a}-{link.site_b}: {units} units",
                    role="network",
                    quantity=float(units),
                    unit_usd_per_hour=link.usd_per_unit_hour,
                    usd_per_hour=units * link.usd_per_unit_hour,
                    basis="given in the scenario",
                )
            )
    total = sum(line.usd_per_hour for line in lines)
    prompt_side = sum(line.usd_per_hour for line in lines if line.role in ("prefill", "network"))
    for pool, state in zip(pools, solved.evaluation.states, strict=True):
        if pool.role == "colocated":
            # A colocated node's bill follows the share of its time that is prefill work.
            busy = min(max(state.prefill_work_frac, 0.0), 1.0)
            prompt_side += pool.usd_per_hour * busy
    mix, rate = scenario.mix, scenario.mean_rate_req_per_s
    million_in = rate * float(mix.mean(mix.input_tokens)) * 3600 / 1e6
    million_out = rate * float(mix.mean(mix.output_tokens)) * 3600 / 1e6
    return Cost(
        usd_per_hour=total,
        usd_per_month=total * HOURS_PER_MONTH,
        usd_per_year=total * HOURS_PER_YEAR,
        usd_per_million_input_tokens=prompt_side / million_in,
        usd_per_million_output_tokens=(total - prompt_side) / million_out,
        breakdown=tuple(lines),
    )


def totals_of(pools: Sequence[Pool], purchases: Sequence[Purchase]) -> Totals:
    """Size of the fleet."""

    def count(role: str | None, field: str) -> int:
        return sum(getattr(pool, field) for pool in pools if role in (None, pool.role))

    return Totals(
        cards=count(None, "cards"),
        nodes=count(None, "nodes"),
        prefill_cards=count("prefill", "cards"),
        decode_cards=count("decode", "cards"),
        prefill_nodes=count("prefill", "nodes"),
        decode_nodes=count("decode", "nodes"),
        colocated_cards=count("colocated", "cards"),
        colocated_nodes=count("colocated", "nodes"),
        idle_cards=sum(p.idle_cards for p in purchases),
        power_w=sum(pool.power_w for pool in pools),
    )


def parts_of(
    scenario: Scenario, solved: Solved
) -> tuple[tuple[Purchase, ...], tuple[Pool, ...], tuple[LinkLoad, ...], Cost]:
    """Purchases, pools, links and cost of a solved mode."""
    purchases = _purchases(scenario, solved)
    costs = _role_costs(scenario, solved, purchases)
    pools, links = _pools(scenario, solved, costs), _links(scenario, solved)
    return purchases, pools, links, _cost(scenario, solved, pools, purchases, links, costs)
