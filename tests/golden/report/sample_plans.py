"""Plans written by hand, each figure chosen so that the sums can be checked by eye. No solver is involved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pdplan.fleet.plan import (
    Alternative,
    Assumption,
    Binding,
    CandidateCount,
    Certificate,
    Check,
    Cost,
    CostLine,
    DistanceLine,
    LinkLoad,
    MemoryBudget,
    Plan,
    PlanReason,
    Pool,
    PoolLayout,
    Purchase,
    SloLine,
    Solver,
    Stats,
    Totals,
)

GB = 1e9


def _layout(tp: int, pp: int, ep: int, dp: int, batch: int, budget: int) -> PoolLayout:
    return PoolLayout(
        tp=tp, pp=pp, ep=ep, attention_dp=dp, cards_per_replica=tp * pp * dp, max_batch=batch, token_budget=budget
    )


def _memory(hbm: float, weights: float, kv: float, staging: float, reserve: float) -> MemoryBudget:
    return MemoryBudget(
        hbm=hbm * GB,
        weights=weights * GB,
        kv_cache=kv * GB,
        staging=staging * GB,
        reserve=reserve * GB,
        free=(hbm - weights - kv - staging - reserve) * GB,
    )


def _slo(ttft: float, tpot: float) -> tuple[SloLine, ...]:
    return (
        SloLine(
            metric="ttft_s",
            percentile=90.0,
            target=3.0,
            predicted=ttft,
            low_90=ttft * 0.7,
            high_90=ttft * 1.4,
            met=ttft <= 3,
        ),
        SloLine(
            metric="tpot_s",
            percentile=90.0,
            target=0.05,
            predicted=tpot,
            low_90=tpot * 0.8,
            high_90=tpot * 1.1,
            met=tpot <= 0.05,
        ),
    )


def _latency(ttft: float, tpot: float) -> dict[str, Stats]:
    return {
        "ttft_s": Stats(mean=ttft / 2, p50=ttft * 0.4, p90=ttft, p99=ttft * 1.6),
        "tpot_s": Stats(mean=tpot * 0.9, p50=tpot * 0.88, p90=tpot, p99=tpot * 1.1),
        "e2e_s": Stats(mean=ttft / 2 + 400 * tpot, p50=18.0, p90=30.0, p99=44.0),
    }


def _cost(lines: tuple[CostLine, ...], per_input: float, per_output: float) -> Cost:
    total = sum(line.usd_per_hour for line in lines)
    return Cost(
        usd_per_hour=total,
        usd_per_month=total * 730,
        usd_per_year=total * 8760,
        usd_per_million_input_tokens=per_input,
        usd_per_million_output_tokens=per_output,
        breakdown=lines,
    )


_PREFILL = Pool(
    role="prefill",
    site="east",
    node_type="h800-8",
    accelerator="h800",
    destination_site="west",
    nodes=10,
    cards=80,
    replicas=10,
    layout=_layout(8, 1, 8, 1, 1, 16384),
    rate_req_per_s=12.0,
    capacity_req_per_s=13.1,
    utilization_frac=0.62,
    batch_mean=0.62,
    service_mean_s=0.5167,
    flop_frac=0.41,
    hbm_frac=0.06,
    memory_bytes_per_card=_memory(80, 42, 3, 1, 8),
    usd_per_hour=160.0,
    power_w=80_000.0,
)
_DECODE = Pool(
    role="decode",
    site="west",
    node_type="ascend-910c-64",
    accelerator="ascend-910c",
    destination_site="west",
    nodes=2,
    cards=128,
    replicas=3,
    layout=_layout(1, 1, 32, 32, 1024, 0),
    rate_req_per_s=12.0,
    capacity_req_per_s=14.5,
    utilization_frac=0.58,
    batch_mean=594.0,
    service_mean_s=0.0391,
    flop_frac=0.08,
    hbm_frac=0.47,
    memory_bytes_per_card=_memory(128, 40, 31, 2, 12),
    usd_per_hour=240.0,
    power_w=186_000.0,
)
_COLOCATED = Pool(
    role="colocated",
    site="west",
    node_type="ascend-910c-64",
    accelerator="ascend-910c",
    destination_site="west",
    nodes=5,
    cards=320,
    replicas=10,
    layout=_layout(1, 1, 32, 32, 512, 2048),
    rate_req_per_s=12.0,
    capacity_req_per_s=12.4,
    utilization_frac=0.71,
    batch_mean=210.0,
    service_mean_s=0.0466,
    flop_frac=0.19,
    hbm_frac=0.33,
    memory_bytes_per_card=_memory(128, 40, 22, 0, 12),
    usd_per_hour=600.0,
    power_w=465_000.0,
)

_SCENARIO: dict[str, Any] = {
    "schema": "pdplan.scenario/1",
    "name": "DeepSeek-R1 in two data centres",
    "model": "deepseek-r1",
    "precision": {"weights": "fp8", "kv_cache": "fp8"},
    "engine": "sglang",
    "workload": {"rate_req_per_s": 12, "lengths": "long-document", "arrivals": {"cv": 1.5}, "prefix_hit_frac": 0.3},
    "slo": {"ttft_s": {"p90": 3.0}, "tpot_s": {"p90": 0.05}},
    "sites": [
        {"name": "east", "nodes": [{"type": "h800-8", "max_nodes": 60, "usd_per_node_hour": 16.0}]},
        {
            "name": "west",
            "nodes": [{"type": "ascend-910c-64", "max_nodes": 8, "usd_per_node_hour": 120.0}],
            "max_power": "1 MW",
        },
    ],
    "links": [
        {
            "between": ["east", "west"],
            "distance_km": 80,
            "unit_bandwidth": "400 Gb/s",
            "max_units": 16,
            "usd_per_unit_month": 4000,
        }
    ],
    "fleet": {
        "prefill": {"min_cards": 64, "sites": ["east"]},
        "decode": {"min_cards": 64, "sites": ["west"]},
        "max_cards": 512,
    },
    "objective": "cost",
}

TWO_SITES = Plan(
    pdplan_version="0.0.0",
    scenario=_SCENARIO,
    catalog_digest="sha256:0123456789abcdef",
    status="optimal",
    mode="disaggregated",
    objective="cost",
    cost=_cost(
        (
            CostLine(
                item="east: 10 x h800-8",
                role="prefill",
                quantity=10.0,
                unit_usd_per_hour=16.0,
                usd_per_hour=160.0,
                basis="given in the scenario",
            ),
            CostLine(
                item="west: 2 x ascend-910c-64",
                role="decode",
                quantity=2.0,
                unit_usd_per_hour=120.0,
                usd_per_hour=240.0,
                basis="given in the scenario",
            ),
            CostLine(
                item="link east-west: 2 units",
                role="network",
                quantity=2.0,
                unit_usd_per_hour=5.0,
                usd_per_hour=10.0,
                basis="given in the scenario",
            ),
        ),
        0.2431,
        15.87,
    ),
    totals=Totals(
        cards=208,
        nodes=12,
        prefill_cards=80,
        decode_cards=128,
        prefill_nodes=10,
        decode_nodes=2,
        colocated_cards=0,
        colocated_nodes=0,
        idle_cards=32,
        power_w=266_000.0,
    ),
    pools=(_PREFILL, _DECODE),
    purchases=(
        Purchase(
            site="east",
            node_type="h800-8",
            nodes=8,
            owned_nodes=2,
            cards_per_node=8,
            idle_cards=0,
            usd_per_node_hour=16.0,
            usd_per_hour=160.0,
            price_basis="given in the scenario",
        ),
        Purchase(
            site="west",
            node_type="ascend-910c-64",
            nodes=2,
            owned_nodes=0,
            cards_per_node=64,
            idle_cards=32,
            usd_per_node_hour=120.0,
            usd_per_hour=240.0,
            price_basis="on-demand price, seen 2026-07-20",
        ),
    ),
    links=(
        LinkLoad(
            from_site="east",
            to_site="west",
            units=2,
            load_gbit_per_s=412.5,
            capacity_gbit_per_s=640.0,
            utilization_frac=0.6445,
            one_way_s=0.000392,
            transfer_mean_s=0.0312,
            usd_per_hour=10.0,
        ),
    ),
    slo=_slo(2.4, 0.0431),
    latency=_latency(2.4, 0.0431),
    colocated=Alternative(
        mode="colocated",
        status="optimal",
        reason="",
        usd_per_hour=615.0,
        usd_per_month=615.0 * 730,
        usd_per_million_input_tokens=0.7012,
        usd_per_million_output_tokens=9.3,
        cards=320,
        nodes=5,
        power_w=465_000.0,
        cost_ratio=1.5,
        pools=(_COLOCATED,),
        slo=_slo(2.9, 0.0499),
        latency=_latency(2.9, 0.0499),
    ),
    distances=(
        DistanceLine(
            distance_km=80.0,
            status="optimal",
            usd_per_hour=410.0,
            link_usd_per_hour=10.0,
            one_way_s=0.000392,
            slo=_slo(2.4, 0.0431),
            nodes=12,
        ),
        DistanceLine(
            distance_km=500.0,
            status="optimal",
            usd_per_hour=426.0,
            link_usd_per_hour=10.0,
            one_way_s=0.00245,
            slo=_slo(2.41, 0.0431),
            nodes=13,
        ),
        DistanceLine(
            distance_km=9000.0, status="infeasible", usd_per_hour=None, link_usd_per_hour=None, one_way_s=0.0441
        ),
    ),
    binding=(
        Binding(
            constraint="decode replicas fit [cards]", message="least decode cards at west: 64 of 64 (0.0% to spare)"
        ),
    ),
    certificate=Certificate(
        ok=True,
        checks=(
            Check(name="TTFT p90 [s]", lhs=2.4, rhs=3.0, slack=0.6, ok=True),
            Check(name="KV traffic east to west [Gb/s]", lhs=412.5, rhs=640.0, slack=227.5, ok=True),
            Check(
                name="cost as printed equals cost recomputed [USD/h difference]",
                lhs=0.0,
                rhs=0.00041,
                slack=0.00041,
                ok=True,
            ),
        ),
    ),
    solver=Solver(
        name="highs", proof="optimal", gap=0.00005, bound=409.98, time_s=1.25, variables=35, constraints=27, rounds=2
    ),
    candidates=CandidateCount(enumerated=1688, feasible=1290, kept=10),
    assumptions=(
        Assumption(name="model", value="DeepSeek-R1: 671.0 B parameters", basis="derived", source="config.json"),
        Assumption(name="power of h800-8", value="7.84 kW per node", basis="estimate", source="press, 2025"),
    ),
    warnings=("constants of the ascend family are copied from another family",),
    sources=("press", "vendor_datasheet"),
)
"""Everything a plan can hold."""

SINGLE_SITE = replace(
    TWO_SITES,
    scenario={
        **_SCENARIO,
        "name": "Café <b>=1+1</b> | 日本",
        "sites": [{"name": "cloud", "nodes": ["h800-8"]}],
        "links": [],
        "fleet": {},
        "workload": {"rate_req_per_s": 12, "lengths": {"fixed": {"input_tokens": 4000, "output_tokens": 500}}},
    },
    links=(),
    distances=(),
    colocated=None,
    warnings=(),
    binding=(),
    purchases=(replace(TWO_SITES.purchases[0], price_basis='=HYPERLINK("x")|\n<script>alert(1)</script>'),),
)
"""No link, no alternative, hostile names."""

INFEASIBLE = Plan(
    pdplan_version="0.0.0",
    scenario=_SCENARIO,
    catalog_digest="sha256:0123456789abcdef",
    status="infeasible",
    mode="disaggregated",
    objective="cost",
    reasons=(
        PlanReason(
            constraint="slo.ttft_s.p90", required=0.05, nearest=0.31, message="the fastest prefill needs 310 ms"
        ),
        PlanReason(constraint="fleet.max_power", required=1000.0, nearest=7840.0, message="one node draws more"),
        PlanReason(constraint="fleet.budget_usd_per_hour", required=1.0, nearest=16.0, message="one node costs more"),
        PlanReason(constraint="engine", required=None, nearest=None, message="no layout of this engine fits"),
    ),
    colocated=Alternative(mode="colocated", status="infeasible", reason="no card holds the weights"),
    candidates=CandidateCount(enumerated=1688, feasible=0, kept=0),
    sources=("press",),
)
"""No plan at all."""

COLOCATED_ONLY = replace(
    TWO_SITES,
    status="feasible",
    mode="colocated",
    pools=(_COLOCATED,),
    purchases=(replace(TWO_SITES.purchases[1], nodes=5, idle_cards=0, usd_per_hour=600.0),),
    cost=_cost(
        (
            CostLine(
                item="west: 5 x ascend-910c-64",
                role="colocated",
                quantity=5.0,
                unit_usd_per_hour=120.0,
                usd_per_hour=600.0,
                basis="given in the scenario",
            ),
        ),
        0.7012,
        9.3,
    ),
    totals=replace(
        TWO_SITES.totals,
        cards=320,
        nodes=5,
        prefill_cards=0,
        decode_cards=0,
        prefill_nodes=0,
        decode_nodes=0,
        colocated_cards=320,
        colocated_nodes=5,
        idle_cards=0,
        power_w=465_000.0,
    ),  # type: ignore[type-var]
    links=(),
    distances=(),
    slo=_slo(3.2, 0.0499),
    colocated=None,
    solver=replace(TWO_SITES.solver, proof="feasible", gap=0.031),  # type: ignore[type-var]
)
"""One pool, a missed target, not proven."""

PLANS = {"two_sites": TWO_SITES, "single_site": SINGLE_SITE, "infeasible": INFEASIBLE, "colocated_only": COLOCATED_ONLY}
