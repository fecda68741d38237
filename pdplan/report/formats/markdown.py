"""The decision paper in markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pdplan.fleet.plan import Alternative, Plan, Pool
from pdplan.report.format import Format
from pdplan.report.view import bytes_gb, layout_text, metric_name, money, percent, power, seconds, slo_text, table

__all__ = ["FORMAT"]


def _question(plan: Plan) -> list[str]:
    given = plan.scenario
    load: Any = given.get("workload", {})
    lengths = load.get("lengths")
    slo: Any = given.get("slo", {})
    targets = ", ".join(
        f"{metric_name(metric)} {key} at most {seconds(float(limit))}"
        for metric in ("ttft_s", "tpot_s")
        for key, limit in (slo.get(metric) or {}).items()
    )
    places = ", ".join(
        f"{site['name']} ({', '.join(n if isinstance(n, str) else str(n.get('type')) for n in site['nodes'])})"
        for site in given.get("sites", [])
    )
    peak = load.get("peak_multiplier", 1)
    rate = f"{load.get('rate_req_per_s')} requests per second" + (f", sized for {peak} times that" if peak != 1 else "")
    return [
        "## The question",
        "",
        f"Serve **{given.get('model')}** at {rate}, lengths `{lengths}`, with {targets}.",
        f"Allowed machines: {places}. Objective: least {plan.objective}.",
        "",
    ]


def _fleet_words(pools: Sequence[Pool]) -> str:
    parts = []
    for role in ("prefill", "decode", "colocated"):
        mine = [pool for pool in pools if pool.role == role]
        if mine:
            nodes: dict[tuple[str, str], int] = {}
            for pool in mine:
                nodes[pool.site, pool.node_type] = nodes.get((pool.site, pool.node_type), 0) + pool.nodes
            parts.append(
                f"{role} on "
                + " and ".join(f"{n} x {kind} at {site}" for (site, kind), n in sorted(nodes.items()))
                + f" ({sum(p.cards for p in mine)} cards)"
            )
    return "; ".join(parts)


def _answer(plan: Plan) -> list[str]:
    assert plan.cost is not None and plan.totals is not None
    cost = plan.cost
    return [
        "## The answer",
        "",
        f"1. **Fleet**: {_fleet_words(plan.pools)}. In all {plan.totals.nodes} nodes, {plan.totals.cards} cards "
        f"({plan.totals.idle_cards} idle), {power(plan.totals.power_w)}.",
        f"2. **Cost**: {money(cost.usd_per_hour)} USD per hour, {money(cost.usd_per_month, 0)} per month, "
        f"{money(cost.usd_per_year, 0)} per year; {money(cost.usd_per_million_input_tokens, 4)} USD per million input tokens and "
        f"{money(cost.usd_per_million_output_tokens, 4)} per million output tokens.",
        f"3. **Latency**: {slo_text(plan.slo)}.",
        "",
    ]


def _alternative(plan: Plan, other: Alternative) -> list[str]:
    lines = [f"## Instead: {other.mode} serving", ""]
    if other.reason:
        return [*lines, f"Not possible here: {other.reason}.", ""]
    if other.cost_ratio is not None and plan.cost is not None:
        ratio = other.cost_ratio
        if ratio >= 1.005:
            verdict = f"costs {percent(ratio - 1)} more: the {plan.mode} plan saves {money((other.usd_per_month or 0) - plan.cost.usd_per_month, 0)} USD per month"
        elif ratio <= 0.995:
            verdict = (
                f"costs {percent(1 - ratio)} less: for this scenario the {plan.mode} plan does not pay "
                f"(it costs {money(plan.cost.usd_per_month - (other.usd_per_month or 0), 0)} USD more per month)"
            )
        else:
            verdict = "costs the same"
        lines.append(
            f"Serving both phases {'on the same replicas' if other.mode == 'colocated' else 'on separate pools'} {verdict}."
        )
    lines += [
        f"It takes {_fleet_words(other.pools)}: {money(other.usd_per_hour)} USD per hour, {power(other.power_w)}; "
        f"{slo_text(other.slo)}.",
        "",
        table(
            ["mode", "metric", "mean", "p50", "p90", "p99"],
            [
                [mode, metric_name(metric), *(seconds(v) for v in (s.mean, s.p50, s.p90, s.p99))]
                for mode, stats in ((plan.mode, plan.latency), (other.mode, other.latency))
                for metric, s in stats.items()
            ],
        ),
        "",
    ]
    return lines


def _pool_tables(pools: Sequence[Pool]) -> list[str]:
    return [
        "## Pools and layouts",
        "",
        table(
            [
                "role",
                "site",
                "node",
                "nodes",
                "replicas",
                "layout",
                "cards each",
                "req/s",
                "capacity",
                "in use",
                "batch",
                "pass or step",
                "FLOP",
                "HBM",
            ],
            [
                [
                    p.role,
                    p.site if p.site == p.destination_site else f"{p.site} to {p.destination_site}",
                    p.node_type,
                    p.nodes,
                    p.replicas,
                    layout_text(p),
                    p.layout.cards_per_replica,
                    f"{p.rate_req_per_s:.3g}",
                    f"{p.capacity_req_per_s:.3g}",
                    percent(p.utilization_frac),
                    f"{p.batch_mean:.1f}",
                    seconds(p.service_mean_s),
                    percent(p.flop_frac),
                    percent(p.hbm_frac),
                ]
                for p in pools
            ],
        ),
        "",
        "In use: busy share of the replicas (prefill), or mean batch over the largest that fits (decode). FLOP and HBM: share of "
        "the datasheet peak.",
        "",
        "### Memory per card (GB)",
        "",
        table(
            ["role", "node", "HBM", "weights", "KV cache", "staging", "reserve", "free"],
            [
                [
                    p.role,
                    p.node_type,
                    *(
                        bytes_gb(getattr(p.memory_bytes_per_card, name))
                        for name in ("hbm", "weights", "kv_cache", "staging", "reserve", "free")
                    ),
                ]
                for p in pools
            ],
        ),
        "",
    ]


def _network(plan: Plan) -> list[str]:
    if not plan.links:
        return []
    lines = [
        "## KV transfer",
        "",
        table(
            ["from", "to", "units", "load Gb/s", "capacity Gb/s", "in use", "one way", "transfer in TTFT", "USD/h"],
            [
                [
                    link.from_site,
                    link.to_site,
                    link.units or "inside",
                    f"{link.load_gbit_per_s:.2f}",
                    f"{link.capacity_gbit_per_s:.0f}",
                    percent(link.utilization_frac),
                    seconds(link.one_way_s),
                    seconds(link.transfer_mean_s),
                    money(link.usd_per_hour),
                ]
                for link in plan.links
            ],
        ),
        "",
    ]
    if plan.distances:
        far = [line for line in plan.links if line.from_site != line.to_site]
        for line in far:
            lines.append(
                f"The fibre from {line.from_site} to {line.to_site} costs {money(line.usd_per_hour)} USD per hour and puts "
                f"{seconds(line.transfer_mean_s)} of KV transfer into TTFT, {seconds(2 * line.one_way_s)} of it propagation."
            )
        lines += [
            "",
            "How the answer moves with the length of the fibre (solved again at each):",
            "",
            table(
                ["km", "one way", "status", "nodes", "USD/h", "of it links", "targets"],
                [
                    [
                        f"{d.distance_km:g}",
                        seconds(d.one_way_s),
                        d.status,
                        d.nodes if d.nodes is not None else "-",
                        money(d.usd_per_hour),
                        money(d.link_usd_per_hour),
                        slo_text(d.slo),
                    ]
                    for d in plan.distances
                ],
            ),
            "",
        ]
    return lines


def _money(plan: Plan) -> list[str]:
    assert plan.cost is not None
    return [
        "## What to buy",
        "",
        table(
            ["site", "node", "buy", "owned", "cards each", "idle cards", "USD per node-hour", "USD/h", "price"],
            [
                [
                    p.site,
                    p.node_type,
                    p.nodes,
                    p.owned_nodes,
                    p.cards_per_node,
                    p.idle_cards,
                    money(p.usd_per_node_hour, 4),
                    money(p.usd_per_hour),
                    p.price_basis,
                ]
                for p in plan.purchases
            ],
        ),
        "",
        "### Cost breakdown",
        "",
        table(
            ["item", "role", "quantity", "USD each per hour", "USD/h", "share"],
            [
                [
                    c.item,
                    c.role,
                    f"{c.quantity:g}",
                    money(c.unit_usd_per_hour, 4),
                    money(c.usd_per_hour),
                    percent(c.usd_per_hour / plan.cost.usd_per_hour if plan.cost.usd_per_hour else 0.0),
                ]
                for c in plan.cost.breakdown
            ],
        ),
        "",
    ]


def _sure(plan: Plan) -> list[str]:
    return [
        "## How sure",
        "",
        table(
            ["target", "limit", "predicted", "90 % interval", "met"],
            [
                [
                    f"{metric_name(s.metric)} p{s.percentile:g}",
                    seconds(s.target),
                    seconds(s.predicted),
                    f"{seconds(s.low_90)} to {seconds(s.high_90)}",
                    "yes" if s.met else "no",
                ]
                for s in plan.slo
            ],
        ),
        "",
        "The interval is that of the latency model against measurements it was not fitted to; see the accuracy page of the documentation.",
        "",
        "### Binding constraints",
        "",
        *([f"- {b.message}" for b in plan.binding] or ["- none has less than 5 % to spare"]),
        "",
    ]


def _proof(plan: Plan) -> list[str]:
    lines = ["## Proof", ""]
    if plan.solver is not None:
        s = plan.solver
        lines.append(
            f"Solver {s.name}: {s.proof}, gap {percent(s.gap)}, bound {money(s.bound)}; {s.variables} variables, "
            f"{s.constraints} constraints."
        )
    if plan.candidates is not None:
        c = plan.candidates
        lines.append(
            f"Candidates: {c.enumerated} layouts enumerated, {c.feasible} valid and large enough, {c.kept} kept after dominance."
        )
    if plan.certificate is not None:
        checks = plan.certificate.checks
        lines += [
            "",
            f"Certificate: {sum(c.ok for c in checks)} of {len(checks)} constraints recomputed outside the solver hold.",
            "",
            table(
                ["constraint", "left side", "right side", "slack", ""],
                [
                    [c.name, f"{c.lhs:.4g}", f"{c.rhs:.4g}", f"{c.slack:.3g}", "ok" if c.ok else "VIOLATED"]
                    for c in checks
                ],
            ),
        ]
    return [*lines, ""]


def _rest(plan: Plan) -> list[str]:
    lines = [
        "## Assumptions and sources",
        "",
        table(
            ["assumption", "value", "basis", "source"], [[a.name, a.value, a.basis, a.source] for a in plan.assumptions]
        ),
        "",
    ]
    if plan.warnings:
        lines += ["## Warnings", "", *(f"- {w}" for w in plan.warnings), ""]
    lines.append(
        f"pdplan {plan.pdplan_version}, catalog {plan.catalog_digest[:19]}; sources: {', '.join(plan.sources)}."
    )
    return lines


def _render(plan: Plan) -> dict[str, str]:
    lines = [f"# {plan.scenario.get('name', 'Plan')}", "", *_question(plan)]
    if plan.status == "infeasible":
        lines += ["## The answer", "", f"**No {plan.mode} plan meets this request.**", ""]
        lines += [
            f"- {r.message}" + (f" (nearest: {r.nearest:.4g})" if r.nearest is not None else "") for r in plan.reasons
        ]
        lines.append("")
    else:
        lines += _answer(plan)
    if plan.colocated is not None:
        lines += _alternative(plan, plan.colocated)
    if plan.pools:
        lines += [*_pool_tables(plan.pools), *_network(plan), *_money(plan), *_sure(plan)]
    lines += [*_proof(plan), *_rest(plan)]
    return {"plan.md": "\n".join(lines) + "\n"}


FORMAT = Format(suffix="md", render=_render)
