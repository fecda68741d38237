"""A day of operating states: what is bought once, what runs and is rented in each, and what is lost."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdplan.errors import InputError
from pdplan.fleet.certify import certify
from pdplan.fleet.pipeline import plan_file, scenario_of
from pdplan.fleet.plan import Plan, plan_from_json
from pdplan.scenario.load import parse_scenario


@pytest.fixture(scope="module")
def base(root: Path) -> dict[str, Any]:
    """The shipped example."""
    data: dict[str, Any] = yaml.safe_load((root / "examples" / "day_and_night.yaml").read_text(encoding="utf-8"))
    data["fleet"]["modes"] = ["disaggregated"]
    return data


def planned(base: dict[str, Any], *, rent: float | None = 27.0, **changes: Any) -> Plan:
    """The example with parts of workload or fleet replaced."""
    data = copy.deepcopy(base)
    node = data["sites"][0]["nodes"][0]
    if rent is None:
        del node["rent_usd_per_node_hour"], node["max_rented_nodes"]
    else:
        node["rent_usd_per_node_hour"] = rent
    for key, value in changes.items():
        data["fleet" if key == "survive" else "workload"][key] = value
    return plan_file(parse_scenario(data, name="s.yaml", folder=Path()))


@pytest.fixture(scope="module")
def day(base: dict[str, Any]) -> Plan:
    """As shipped."""
    return planned(base)


def test_states_are_the_levels_of_the_day_and_the_losses(day: Plan) -> None:
    """Hours add up to a year, equal levels are one state, the peak comes first."""
    assert sum(period.hours_per_year for period in day.periods) == pytest.approx(8760)
    assert len({period.id for period in day.periods}) == len(day.periods) == 9
    assert day.periods[0].rate_req_per_s == max(p.rate_req_per_s for p in day.periods) == pytest.approx(96.0)
    assert day.periods[-1].hours_per_year == 0
    for period in day.periods:
        served = sum(pool.rate_req_per_s for pool in period.pools if pool.role == "decode")
        assert served == pytest.approx(period.rate_req_per_s)
        assert all(line.met for line in period.slo)


def test_the_bill_is_what_is_bought_and_what_is_rented_in_its_hours(day: Plan) -> None:
    """Recomputed by hand from nodes, hours and prices."""
    (purchase,) = day.purchases
    rented_hours = sum(line.nodes * period.hours_per_year for period in day.periods for line in period.rented)
    assert day.cost_usd_per_hour == pytest.approx(purchase.nodes * 14.0 + rented_hours / 8760 * 27.0)
    assert purchase.rented_mean_nodes == pytest.approx(rented_hours / 8760)


def test_renting_never_costs_more_and_prices_decide(base: dict[str, Any], day: Plan) -> None:
    """Dear rents are not used, cheap ones replace purchases."""
    without = planned(base, rent=None)
    assert day.cost_usd_per_hour <= without.cost_usd_per_hour + 1e-9
    assert not any(period.rented for period in without.periods)
    cheap = planned(base, rent=14.5, survive=[])
    assert any(period.rented for period in cheap.periods)
    assert cheap.cost_usd_per_hour < without.cost_usd_per_hour


def test_a_loss_to_survive_never_costs_less(base: dict[str, Any]) -> None:
    """With the loss at the full peak, a node more is had than the peak needs."""
    free = planned(base, rent=None, survive=[])
    loss = {"lose_nodes": {"site": "east", "type": "h100-sxm-8", "nodes": 1}, "rate_frac": 1.0}
    safe = planned(base, rent=None, survive=[loss])
    assert safe.purchases[0].nodes == free.purchases[0].nodes + 1


def test_the_only_site_cannot_be_lost(base: dict[str, Any]) -> None:
    """Infeasible, with a reason."""
    plan = planned(base, survive=[{"lose_site": "east"}])
    assert plan.status == "infeasible"
    assert plan.reasons


def test_plans_of_a_day_stand_alone_and_tampering_shows(day: Plan) -> None:
    """The written plan passes; with a node less in the purchases it does not."""
    again = plan_from_json(day.to_json())
    assert certify(scenario_of(again), again).ok
    fewer = replace(again, purchases=(replace(again.purchases[0], nodes=again.purchases[0].nodes - 1),))
    certificate = certify(scenario_of(again), fewer)
    assert any("nodes in use" in check.name and not check.ok for check in certificate.checks)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"day_curve": [1.0]}, "day_curve"),
        ({"day_curve": [1.0, -1.0]}, "day_curve"),
        ({"survive": [{"lose_site": "west"}]}, "unknown site 'west'"),
        ({"survive": [{}]}, "either lose_site or lose_nodes"),
    ],
)
def test_days_that_cannot_be_meant_are_refused(base: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    """One sentence, naming the field."""
    with pytest.raises(InputError, match=words):
        planned(base, **changes)
