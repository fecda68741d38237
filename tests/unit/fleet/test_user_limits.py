"""Limits a user can state: each holds in the plan, costs no less, and has its line in the certificate."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from pdplan.errors import InputError
from pdplan.fleet.pipeline import plan_file
from pdplan.fleet.plan import Plan
from pdplan.scenario.load import parse_scenario

BASE: dict[str, Any] = {
    "schema": "pdplan.scenario/1",
    "name": "limits",
    "model": "qwen3-32b",
    "precision": {"weights": "fp8", "kv_cache": "fp8"},
    "workload": {"rate_req_per_s": 6, "lengths": {"fixed": {"input_tokens": 2000, "output_tokens": 200}}},
    "slo": {"ttft_s": {"p90": 1.0}, "tpot_s": {"p90": 0.04}},
    "sites": [
        {
            "name": "one",
            "grid_co2_kg_per_kwh": 0.4,
            "pue": 1.2,
            "nodes": [
                {"type": "h100-sxm-8", "usd_per_node_hour": 20.0},
                {"type": "oam-mi300x-8", "usd_per_node_hour": 14.0},
                {"type": "l40s-8", "usd_per_node_hour": 7.0},
            ],
        }
    ],
    "fleet": {"modes": ["disaggregated"]},
}


def planned(fleet: dict[str, Any] | None = None, **site: Any) -> Plan:
    """The base scenario with rules of the fleet and of its site changed."""
    data = copy.deepcopy(BASE)
    data["fleet"].update(fleet or {})
    data["sites"][0].update(site)
    return plan_file(parse_scenario(data, name="s.yaml", folder=Path()))


def line(plan: Plan, start: str) -> float:
    """Left side of the certificate line that starts so."""
    assert plan.certificate is not None
    assert plan.certificate.ok
    return next(check.lhs for check in plan.certificate.checks if check.name.startswith(start))


@pytest.fixture(scope="module")
def free() -> Plan:
    """Without any limit."""
    return planned()


def types(plan: Plan, role: str) -> set[str]:
    """Node types of a role."""
    return {pool.node_type for pool in plan.pools if pool.role == role}


def test_forbidden_types_are_not_used(free: Plan) -> None:
    """What was used is forbidden: another type is."""
    used = sorted(types(free, "decode"))
    plan = planned({"decode": {"forbidden_node_types": used}})
    assert not types(plan, "decode") & set(used)
    assert plan.cost_usd_per_hour >= free.cost_usd_per_hour


def test_racks_that_give_too_little_exclude_a_node(free: Plan) -> None:
    """8-card nodes draw about 10 kW: 5 kW racks leave L40S alone, which cannot meet the targets; 50 kW racks change nothing."""
    assert planned(rack_power="5 kW").status == "infeasible"
    assert planned(rack_power="50 kW").cost_usd_per_hour == free.cost_usd_per_hour


def test_one_vendor_for_both_roles(free: Plan) -> None:
    """The certificate counts vendors."""
    plan = planned({"same_vendor": True})
    assert line(plan, "vendors of prefill and decode") == 1.0
    assert plan.cost_usd_per_hour >= free.cost_usd_per_hour


def test_spare_nodes_are_bought(free: Plan) -> None:
    """N + 1 in decode: one node more, and its line."""
    plan = planned({"decode": {"spare_nodes": 1}})
    assert line(plan, "spare decode nodes") == 1.0
    assert plan.cost_usd_per_hour > free.cost_usd_per_hour


def test_pinned_counts_are_exact() -> None:
    """Three H100 nodes decode because the user says so."""
    plan = planned({"pinned": [{"site": "one", "role": "decode", "type": "h100-sxm-8", "nodes": 3}]})
    assert sum(p.nodes for p in plan.pools if p.role == "decode" and p.node_type == "h100-sxm-8") == 3
    assert line(plan, "pinned decode nodes") == 0.0


def test_few_changes_keep_what_runs() -> None:
    """With no change allowed the fleet of today is the plan; with none today nothing can be planned."""
    today = planned()
    current = [{"site": p.site, "type": p.node_type, "nodes": p.nodes} for p in today.purchases]
    plan = planned({"current": current, "max_changed_nodes": 0})
    assert line(plan, "nodes that come or go") == 0.0
    assert plan.cost_usd_per_hour == pytest.approx(today.cost_usd_per_hour)
    none = planned({"current": [{"site": "one", "type": "l40s-8", "nodes": 0}], "max_changed_nodes": 0})
    assert none.status == "infeasible"


def test_carbon_is_counted_and_limited(free: Plan) -> None:
    """kW x PUE x kg/kWh of the nodes in use; the least-carbon plan emits no more than the cheapest."""
    data = copy.deepcopy(BASE)
    data["objective"] = "carbon"
    least = plan_file(parse_scenario(data, name="s.yaml", folder=Path()))
    emitted = least.totals.power_w / 1e3 * 1.2 * 0.4 if least.totals else 0.0
    plan = planned({"max_carbon_kg_per_hour": emitted * 1.0001})
    assert line(plan, "CO2 of the fleet") == pytest.approx(emitted, rel=1e-3)
    assert planned({"max_carbon_kg_per_hour": emitted * 0.9}).status == "infeasible"


@pytest.mark.parametrize(
    ("fleet", "site", "words"),
    [
        ({"max_changed_nodes": 2}, {}, "needs fleet.current"),
        ({"max_carbon_kg_per_hour": 5}, {"grid_co2_kg_per_kwh": None}, "lacks grid_co2_kg_per_kwh"),
        ({"pinned": [{"site": "two", "role": "decode", "type": "l40s-8", "nodes": 1}]}, {}, "unknown site 'two'"),
        ({"pinned": [{"site": "one", "role": "decode", "type": "h20", "nodes": 1}]}, {}, "unknown node type 'h20'"),
        ({"decode": {"forbidden_node_types": ["h99"]}}, {}, "unknown node type 'h99'"),
    ],
)
def test_limits_that_cannot_be_meant_are_refused(fleet: dict[str, Any], site: dict[str, Any], words: str) -> None:
    """One sentence, naming the field."""
    with pytest.raises(InputError, match=words):
        planned(fleet, **site)


def test_next_best_fleets_differ_and_cost_no_less(tmp_path: Path) -> None:
    """Three other structures in order of cost, and the solver's own words in a file; the plan itself stays the same."""
    loaded = parse_scenario(copy.deepcopy(BASE), name="s.yaml", folder=Path())
    log = tmp_path / "solver.log"
    plan = plan_file(loaded, alternatives=3, solver_log=log)
    costs = [plan.cost_usd_per_hour, *(line.usd_per_hour for line in plan.near_optimal)]
    assert len(plan.near_optimal) == 3
    assert costs == sorted(costs)
    assert len({line.fleet for line in plan.near_optimal}) == 3
    assert plan.near_optimal[0].cost_ratio == pytest.approx(costs[1] / costs[0])
    assert log.read_text(encoding="utf-8").strip()
    assert "The next best fleets" in plan.to_markdown()
    assert plan_file(loaded).pools == plan.pools
