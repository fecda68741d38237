"""A plan as a decision paper: what was asked, the answer, what else was possible, what it rests on."""

from __future__ import annotations

from collections.abc import Sequence

from pdplan.fleet.plan import Alternative, Plan, Pool
from pdplan.report.blocks import Bar, Bars, Block, Heading, Items, Paragraph, Segment, Span, Strong, Table
from pdplan.report.evidence import assumptions, binding, confidence, proof
from pdplan.report.periods import periods
from pdplan.report.question import question
from pdplan.report.simulation import simulation
from pdplan.report.view import (
    bytes_gb,
    count,
    layout_text,
    metric_name,
    money,
    nearest_text,
    number,
    percent,
    plural,
    power,
    price,
    ratio_words,
    seconds,
    slo_text,
    target_name,
)

__all__ = ["paper"]

_SERVING = {
    "colocated": "Colocated serving (both phases on the same replicas)",
    "disaggregated": "Disaggregated serving (prefill and decode on replicas of their own)",
}


def _fleet_words(pools: Sequence[Pool]) -> str:
    parts = []
    for role in ("prefill", "decode", "colocated"):
        nodes: dict[tuple[str, str], int] = {}
        mine = [pool for pool in pools if pool.role == role]
        for pool in mine:
            nodes[pool.site, pool.node_type] = nodes.get((pool.site, pool.node_type), 0) + pool.nodes
        if mine:
            machines = " and ".join(f"{n:,} x {kind} at {site}" for (site, kind), n in sorted(nodes.items()))
            parts.append(f"{role} on {machines} ({plural(sum(p.cards for p in mine), 'card')})")
    return "; ".join(parts)


def _answer(plan: Plan) -> list[Block]:
    assert plan.cost is not None and plan.totals is not None
    cost, totals = plan.cost, plan.totals
    fleet = (
        f": {_fleet_words(plan.pools)}. In all {plural(totals.nodes, 'node')} with {plural(totals.cards, 'card')}, "
        f"of which {count(totals.idle_cards)} idle; {power(totals.power_w)}."
    )
    bill = (
        f": {money(cost.usd_per_hour)} USD per hour, {money(cost.usd_per_month, 0)} per month, "
        f"{money(cost.usd_per_year, 0)} per year; {price(cost.usd_per_million_input_tokens)} USD per million input tokens "
        f"and {price(cost.usd_per_million_output_tokens)} per million output tokens."
    )
    blocks: list[Block] = [
        Heading(level=2, text="The answer"),
        Items(
            numbered=True,
            items=(
                (Strong("Fleet"), fleet),
                (Strong("Cost"), bill),
                (Strong("Latency"), f": {slo_text(plan.slo)}."),
            ),
        ),
    ]
    unsure = [target_name(line) for line in plan.slo if line.met and line.high_90 > line.target]
    if unsure and plan.assurance is None:
        words = " and ".join([", ".join(unsure[:-1]), unsure[-1]] if len(unsure) > 1 else unsure)
        verb = "lies" if len(unsure) == 1 else "lie"
        blocks.append(
            Paragraph(
                tone="warning",
                spans=(
                    Strong("Not certain: "),
                    f"{words} {verb} within the target as predicted, but the upper end of the 90 % interval "
                    "is above it. Measure a replica, or plan with a stated confidence (--confidence 0.9), before buying.",
                ),
            )
        )
    return blocks


def _no_answer(plan: Plan) -> list[Block]:
    reasons: list[tuple[Span, ...]] = []
    for reason in plan.reasons:
        spans: list[Span] = [Strong(reason.constraint), f": {reason.message}"]
        if reason.nearest is not None:
            asked = "" if reason.required is None else f" (asked: {nearest_text(reason.constraint, reason.required)})"
            spans += [". Nearest that works: ", Strong(nearest_text(reason.constraint, reason.nearest)), f"{asked}."]
        reasons.append(tuple(spans))
    return [
        Heading(level=2, text="The answer"),
        Paragraph(tone="bad", spans=(Strong(f"No {plan.mode} plan meets this request."),)),
        Items(items=tuple(reasons) or (("No single limit explains it: several have to move together.",),)),
    ]


def _verdict(plan: Plan, other: Alternative) -> list[Block]:
    if other.cost_ratio is None or plan.cost is None or other.usd_per_month is None:
        return []
    ratio = other.cost_ratio
    saved = other.usd_per_month - plan.cost.usd_per_month
    if plan.mode not in _SERVING or other.mode not in _SERVING:
        verdict, tone = "", ""
    elif abs(ratio - 1) < 0.005:
        verdict, tone = "Disaggregation neither pays nor costs here.", ""
    elif (saved > 0) == (plan.mode == "disaggregated"):
        verdict, tone = f"Disaggregation saves {money(abs(saved), 0)} USD per month here.", "good"
    else:
        verdict = f"Disaggregation does not pay here: it costs {money(abs(saved), 0)} USD more per month."
        tone = "warning"
    words = f"{_SERVING.get(other.mode, other.mode)} costs {ratio_words(ratio)}. "
    if plan.objective != "cost":
        verdict += f" Both plans minimise {plan.objective}, not cost."
    if other.status == "feasible":
        verdict += " The alternative is not proven optimal."
    return [Paragraph(tone=tone, spans=(words, Strong(verdict.strip())))]


def _alternative(plan: Plan, other: Alternative) -> list[Block]:
    blocks: list[Block] = [Heading(level=2, text=f"Instead: {other.mode} serving")]
    if other.status in ("infeasible", "not solved") or not other.pools:
        why = other.reason or other.status
        opening = "Not solved: " if other.status == "not solved" else "Not possible here: "
        return [*blocks, Paragraph(spans=(opening, f"{why.rstrip('.')}."))]
    if plan.cost is None:
        blocks.append(Paragraph(tone="good", spans=(Strong(f"This request can be met by {other.mode} serving."),)))
    blocks += _verdict(plan, other)
    blocks.append(Paragraph(spans=(f"It takes {_fleet_words(other.pools)}.",)))
    bill, size = plan.cost, plan.totals
    rows: list[tuple[str, str, str]] = []

    def row(name: str, ours: str, theirs: str) -> None:
        rows.append((name, ours, theirs))

    row("USD per hour", money(bill.usd_per_hour if bill else None), money(other.usd_per_hour))
    row("USD per month", money(bill.usd_per_month if bill else None, 0), money(other.usd_per_month, 0))
    row(
        "USD per million input tokens",
        price(bill.usd_per_million_input_tokens if bill else None),
        price(other.usd_per_million_input_tokens),
    )
    row(
        "USD per million output tokens",
        price(bill.usd_per_million_output_tokens if bill else None),
        price(other.usd_per_million_output_tokens),
    )
    row("nodes", count(size.nodes if size else None), count(other.nodes))
    row("cards", count(size.cards if size else None), count(other.cards))
    row("power", power(size.power_w if size else None), power(other.power_w))
    for metric in dict.fromkeys([*plan.latency, *other.latency]):
        for field in ("mean", "p50", "p90", "p99"):
            mine, its = plan.latency.get(metric), other.latency.get(metric)
            row(
                f"{metric_name(metric)} {field}",
                seconds(getattr(mine, field) if mine else None),
                seconds(getattr(its, field) if its else None),
            )
    for line in other.slo:
        if not line.met:
            blocks.append(Paragraph(tone="bad", spans=(f"It misses {target_name(line)}.",)))
    blocks.append(Table(caption="Side by side", headers=("", f"this plan ({plan.mode})", other.mode), rows=rows))
    return blocks


def _latency(plan: Plan) -> list[Block]:
    """Percentiles of the plan where no alternative table shows them."""
    if not plan.latency or (plan.colocated is not None and plan.colocated.pools):
        return []
    return [
        Heading(level=2, text="Latency"),
        Table(
            caption="Predicted latency",
            headers=("", "mean", "p50", "p90", "p99"),
            rows=[
                (metric_name(metric), *(seconds(value) for value in (s.mean, s.p50, s.p90, s.p99)))
                for metric, s in plan.latency.items()
            ],
        ),
    ]


def _pools(pools: Sequence[Pool]) -> list[Block]:
    return [
        Heading(level=2, text="Pools and layouts"),
        Table(
            caption="What runs where",
            headers=(
                "pool",
                "role",
                "site",
                "node",
                "nodes",
                "replicas",
                "layout",
                "cards each",
                "largest batch",
                "USD/h",
            ),
            left=frozenset({1, 2, 3, 6}),
            rows=[
                (
                    str(i),
                    p.role,
                    p.site if p.site == p.destination_site else f"{p.site} (decodes at {p.destination_site})",
                    p.node_type,
                    count(p.nodes),
                    count(p.replicas),
                    layout_text(p),
                    count(p.layout.cards_per_replica),
                    count(p.layout.max_batch),
                    money(p.usd_per_hour),
                )
                for i, p in enumerate(pools, 1)
            ],
        ),
        Table(
            caption="How busy it is",
            headers=(
                "pool",
                "role",
                "req/s",
                "capacity",
                "in use",
                "mean batch",
                "pass or step",
                "FLOP",
                "HBM bandwidth",
            ),
            left=frozenset({1}),
            rows=[
                (
                    str(i),
                    p.role,
                    number(p.rate_req_per_s),
                    number(p.capacity_req_per_s),
                    percent(p.utilization_frac),
                    f"{p.batch_mean:,.1f}",
                    seconds(p.service_mean_s),
                    percent(p.flop_frac),
                    percent(p.hbm_frac),
                )
                for i, p in enumerate(pools, 1)
            ],
        ),
        Paragraph(
            spans=(
                "Layout: TP tensor, PP pipeline, EP expert parallel, DP attention ranks of one replica. Capacity: the rate at "
                "which the pool still meets every target. In use: busy share of the replicas (prefill), or mean batch over "
                "the largest admitted (decode). FLOP and HBM bandwidth: share of the datasheet peak.",
            )
        ),
        *_memory(pools),
    ]


_MEMORY = (
    ("weights", "weights"),
    ("kv_cache", "KV cache"),
    ("staging", "KV in transfer"),
    ("reserve", "reserve"),
    ("free", "free"),
)


def _memory(pools: Sequence[Pool]) -> list[Block]:
    return [
        Heading(level=3, text="Memory of one card"),
        Bars(
            caption="What fills it",
            legend=_MEMORY,
            bars=tuple(
                Bar(
                    label=f"{i} {p.role}, {p.accelerator}",
                    value=f"{bytes_gb(p.memory_bytes_per_card.hbm)} GB",
                    segments=tuple(
                        Segment(kind=kind, frac=getattr(p.memory_bytes_per_card, kind) / p.memory_bytes_per_card.hbm)
                        for kind, _ in _MEMORY
                    ),
                )
                for i, p in enumerate(pools, 1)
            ),
        ),
        Table(
            caption="GB per card",
            headers=("pool", "role", "accelerator", "HBM", *(words for _, words in _MEMORY)),
            left=frozenset({1, 2}),
            rows=[
                (
                    str(i),
                    p.role,
                    p.accelerator,
                    *(
                        bytes_gb(getattr(p.memory_bytes_per_card, name))
                        for name in ("hbm", *(kind for kind, _ in _MEMORY))
                    ),
                )
                for i, p in enumerate(pools, 1)
            ],
        ),
    ]


def _purchases(plan: Plan) -> list[Block]:
    assert plan.cost is not None
    idle = [p for p in plan.purchases if p.idle_cards]
    words = "Nodes are bought whole. " + (
        "No card stands idle."
        if not idle
        else "Idle: "
        + ", ".join(f"{plural(p.idle_cards, 'card')} of {p.node_type} at {p.site}" for p in idle)
        + "; they are paid for, and free for other work."
    )
    total = plan.cost.usd_per_hour

    def share(usd: float) -> float:
        return usd / total if total else 0.0

    return [
        Heading(level=2, text="What to buy"),
        Paragraph(spans=(words,)),
        Table(
            caption="Nodes",
            headers=(
                "site",
                "node",
                "buy",
                "owned",
                "cards each",
                "idle cards",
                "USD per node-hour",
                "USD/h",
                "price from",
            ),
            left=frozenset({0, 1, 8}),
            rows=[
                (
                    p.site,
                    p.node_type,
                    count(p.nodes),
                    count(p.owned_nodes),
                    count(p.cards_per_node),
                    count(p.idle_cards),
                    price(p.usd_per_node_hour),
                    money(p.usd_per_hour),
                    p.price_basis,
                )
                for p in plan.purchases
            ],
        ),
        Heading(level=3, text="Cost breakdown"),
        Bars(
            caption="Where the money goes",
            bars=tuple(
                Bar(
                    label=f"{line.item} ({line.role})",
                    value=f"{money(line.usd_per_hour)} USD/h, {percent(share(line.usd_per_hour))}",
                    segments=(Segment(kind=line.role, frac=share(line.usd_per_hour)),),
                )
                for line in plan.cost.breakdown
            ),
        ),
        Table(
            caption="Line by line",
            headers=("item", "role", "quantity", "USD each per hour", "USD/h", "share"),
            left=frozenset({0, 1}),
            rows=[
                *(
                    (
                        line.item,
                        line.role,
                        number(line.quantity, 6),
                        price(line.unit_usd_per_hour),
                        money(line.usd_per_hour),
                        percent(share(line.usd_per_hour)),
                    )
                    for line in plan.cost.breakdown
                ),
                ("total", "", "", "", money(total), percent(1.0 if total else 0.0)),
            ],
        ),
    ]


def _network(plan: Plan) -> list[Block]:
    if not plan.links:
        return []
    blocks: list[Block] = [
        Heading(level=2, text="KV transfer"),
        Table(
            caption="KV-cache traffic from prefill to decode",
            headers=(
                "from",
                "to",
                "units",
                "load Gb/s",
                "capacity Gb/s",
                "in use",
                "one way",
                "transfer in TTFT",
                "USD/h",
            ),
            left=frozenset({0, 1}),
            rows=[
                (
                    link.from_site,
                    link.to_site,
                    count(link.units) if link.from_site != link.to_site else "inside",
                    number(link.load_gbit_per_s),
                    number(link.capacity_gbit_per_s),
                    percent(link.utilization_frac),
                    seconds(link.one_way_s) if link.from_site != link.to_site else "-",
                    seconds(link.transfer_mean_s),
                    money(link.usd_per_hour),
                )
                for link in plan.links
            ],
        ),
    ]
    for link in plan.links:
        if link.from_site != link.to_site and plan.cost is not None:
            share = link.usd_per_hour / plan.cost.usd_per_hour if plan.cost.usd_per_hour else 0.0
            blocks.append(
                Paragraph(
                    spans=(
                        f"The fibre from {link.from_site} to {link.to_site} costs {money(link.usd_per_hour)} USD per hour "
                        f"({percent(share)} of the fleet). The hand-over adds {seconds(link.transfer_mean_s)} to TTFT on "
                        f"average, of which {seconds(2 * link.one_way_s)} is the way there and back.",
                    )
                )
            )
    return blocks + _distances(plan)


def _distances(plan: Plan) -> list[Block]:
    lines = plan.distances
    if not lines:
        return []
    blocks: list[Block] = [Heading(level=3, text="How the answer moves with distance")]
    possible = [line for line in lines if line.usd_per_hour is not None]
    if len(possible) > 1:
        near, far = possible[0], possible[-1]
        assert near.usd_per_hour is not None and far.usd_per_hour is not None
        moves = [
            f"{target_name(a)} {'rises' if b.predicted > a.predicted else 'falls'} by "
            f"{seconds(abs(b.predicted - a.predicted))} to {seconds(b.predicted)}"
            for a, b in zip(near.slo, far.slo, strict=False)
            if abs(b.predicted - a.predicted) > 1e-4 * a.predicted
        ]
        money_moves = (
            "the cost stays the same"
            if abs(far.usd_per_hour - near.usd_per_hour) < 0.005
            else f"the cost goes from {money(near.usd_per_hour)} to {money(far.usd_per_hour)} USD per hour"
        )
        text = (
            f"From {number(near.distance_km)} to {number(far.distance_km)} km, {' and '.join([*moves, money_moves])}."
        )
        blocks.append(Paragraph(spans=(text,)))
    impossible = [line for line in lines if line.usd_per_hour is None]
    if impossible:
        far_words = ", ".join(number(line.distance_km) for line in impossible)
        blocks.append(Paragraph(tone="warning", spans=(f"No plan meets the targets at {far_words} km.",)))
    targets = [target_name(line) for line in next((d.slo for d in lines if d.slo), ())]
    blocks.append(
        Table(
            caption="The same question, solved again with the fibre at other lengths",
            headers=("km", "one way", "status", "nodes", "USD/h", "of it links", *targets),
            left=frozenset({2}),
            rows=[
                (
                    number(d.distance_km, 6),
                    seconds(d.one_way_s),
                    d.status,
                    count(d.nodes),
                    money(d.usd_per_hour),
                    money(d.link_usd_per_hour),
                    *([seconds(s.predicted) + ("" if s.met else " (missed)") for s in d.slo] or ["-"] * len(targets)),
                )
                for d in lines
            ],
        )
    )
    return blocks


def _near_optimal(plan: Plan) -> list[Block]:
    if not plan.near_optimal or plan.cost is None:
        return []
    rows = [
        (
            str(line.rank),
            line.fleet,
            count(line.nodes),
            count(line.cards),
            money(line.usd_per_hour),
            f"{line.cost_ratio:.3f}",
        )
        for line in plan.near_optimal
    ]
    return [
        Heading(level=2, text="The next best fleets"),
        Paragraph(spans=("Each uses another set of machine types, roles and sites, at the least cost of that set.",)),
        Table(
            caption="Other structures",
            headers=("rank", "fleet", "nodes", "cards", "USD/h", "cost against the plan"),
            left=frozenset({1}),
            rows=rows,
        ),
    ]


def paper(plan: Plan) -> list[Block]:
    """The decision paper, as blocks, for a plan or for a request that cannot be met."""
    blocks: list[Block] = [
        Heading(level=1, text=str(plan.scenario.get("name") or "Unnamed scenario")),
        *question(plan.scenario, plan.objective),
        *(_no_answer(plan) if plan.status == "infeasible" or plan.cost is None else _answer(plan)),
    ]
    if plan.warnings:
        blocks += [Heading(level=3, text="Warnings"), Items(items=tuple((warning,) for warning in plan.warnings))]
    if plan.colocated is not None:
        blocks += _alternative(plan, plan.colocated)
    blocks += [*_near_optimal(plan), *_latency(plan)]
    if plan.pools:
        blocks += _pools(plan.pools)
    if plan.cost is not None:
        blocks += _purchases(plan)
    blocks += [*periods(plan), *_network(plan), *binding(plan), *confidence(plan)]
    if plan.simulation is not None:
        blocks += simulation(plan.simulation)
    blocks += [*assumptions(plan), *proof(plan)]
    return blocks
