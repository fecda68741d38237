"""A stated confidence: margins by hand, plans that leave the room, certificates that ask for it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest

from pdplan.errors import InputError
from pdplan.files import read_yaml
from pdplan.fleet.certify import certify
from pdplan.fleet.pipeline import plan_file, scenario_of, with_overrides
from pdplan.fleet.plan import Plan, plan_from_json
from pdplan.perf.uncertainty import Situation, margin
from pdplan.scenario.load import load_scenario, parse_scenario


@pytest.fixture(scope="module")
def quantiles(root: Path) -> dict[str, list[float]]:
    """Stored quantiles of TPOT."""
    table: dict[str, list[float]] = read_yaml(root / "catalogs" / "uncertainty.yaml")["quantiles"]["tpot_s"]
    return table


def planned(root: Path, **changes: object) -> Plan:
    """The quickstart on one fitted engine, cloud machines without limit."""
    loaded = load_scenario(root / "examples" / "quickstart.yaml")
    data = {**loaded.given, "engine": "vllm", "slo": {"ttft_s": {"p90": 3.0}, "tpot_s": {"p90": 0.04}}, **changes}
    return plan_file(parse_scenario(data, name="quickstart.yaml", folder=loaded.folder))


@pytest.fixture(scope="module")
def targets(root: Path) -> dict[str, dict[str, float]]:
    """Targets 2 % above what a plan for loose ones predicts, so that any margin above that asks for more."""
    return {line.metric: {"p90": 1.02 * line.predicted} for line in planned(root).slo}


@pytest.fixture(scope="module")
def plain(root: Path, targets: dict[str, dict[str, float]]) -> Plan:
    """A plan for these targets without a confidence."""
    return planned(root, slo=targets)


@pytest.fixture(scope="module")
def sure(root: Path, targets: dict[str, dict[str, float]]) -> Plan:
    """The same with 90 % confidence."""
    return planned(root, slo=targets, confidence=0.9)


def test_margins_pass_through_the_stored_quantiles(quantiles: dict[str, list[float]]) -> None:
    """At 75 and 95 % the margin is the stored quantile; at 90 % it lies between as a log-normal does."""
    here = Situation(disaggregated=False)
    _, _, upper, most = quantiles["colocated"]
    assert margin("tpot_s", here, 0.75) == pytest.approx(max(upper, 1), rel=1e-9)
    assert margin("tpot_s", here, 0.95) == pytest.approx(max(most, 1), rel=1e-9)
    share = (1.2815515655446004 - 0.6744897501960817) / (1.6448536269514722 - 0.6744897501960817)
    expected = math.exp(math.log(upper) + share * (math.log(most) - math.log(upper)))
    assert margin("tpot_s", here, 0.9) == pytest.approx(expected, rel=1e-9)


def test_less_known_constants_widen_the_margin(quantiles: dict[str, list[float]]) -> None:
    """A guessed engine doubles the logarithm."""
    known = margin("tpot_s", Situation(disaggregated=False, other_model=True), 0.9)
    guessed = margin("tpot_s", Situation(disaggregated=False, other_model=True, engine_confidence="guess"), 0.9)
    assert guessed == pytest.approx(known**2, rel=1e-9)


def test_margins_grow_with_confidence_and_never_promise_less() -> None:
    """From 1 upwards, without a dip where the interpolation changes its pair."""
    for apart in (False, True):
        found = [margin("ttft_s", Situation(disaggregated=apart), 0.5 + 0.01 * i) for i in range(50)]
        assert found[0] >= 1
        assert all(b >= a for a, b in itertools.pairwise(found))
    with pytest.raises(ValueError, match="confidence"):
        margin("ttft_s", Situation(disaggregated=True), 1.0)


def test_a_sure_plan_leaves_the_room_and_says_what_it_costs(plain: Plan, sure: Plan) -> None:
    """Predictions times the margin meet the targets; the plan without confidence stands beside it."""
    assert plain.assurance is None
    assert sure.assurance is not None and sure.assurance.confidence == 0.9
    assert sure.assurance.usd_per_hour_without == pytest.approx(plain.cost_usd_per_hour, rel=1e-6)
    assert sure.cost_usd_per_hour > plain.cost_usd_per_hour
    for line in sure.slo:
        assert line.assured is not None
        assert line.predicted < line.assured <= line.target * (1 + 1e-6)
    tpot = next(line for line in sure.slo if line.metric == "tpot_s")
    assert tpot.assured == pytest.approx(
        tpot.predicted * margin("tpot_s", Situation(disaggregated=True, other_model=True), 0.9), rel=1e-6
    )
    assert all(line.assured == line.predicted for line in plain.slo)
    assert "with 90 % confidence" in sure.to_markdown()


def test_the_certificate_asks_for_the_confidence(plain: Plan, sure: Plan) -> None:
    """Read back, the sure plan holds; the plain plan does not pass as one of 90 % confidence."""
    again = plan_from_json(sure.to_json())
    found = certify(scenario_of(again), again)
    assert found.ok
    assert any(check.name == "TPOT p90 with 90 % confidence [s]" for check in found.checks)
    claimed = replace(plain, scenario={**plain.scenario, "confidence": 0.9})
    refused = certify(scenario_of(claimed), claimed)
    assert not refused.ok
    assert {check.name.split()[0] for check in refused.checks if not check.ok} <= {"TTFT", "TPOT"}


def test_a_confidence_that_cannot_be_had_names_the_margin(root: Path) -> None:
    """Infeasible because of the margin: the reason says that it is included, and what the plan without costs."""
    answer = planned(root, confidence=0.999, slo={"ttft_s": {"p90": 0.5}, "tpot_s": {"p90": 0.04}})
    assert answer.status == "infeasible"
    assert any("99.9 % confidence" in reason.message for reason in answer.reasons)
    assert answer.assurance is not None and answer.assurance.usd_per_hour_without is not None


@pytest.mark.parametrize("value", [0.4, 1.0, -1.0])
def test_odd_confidences_are_refused(root: Path, value: float) -> None:
    """Below one half a margin would shrink predictions; certainty is not to be had."""
    with pytest.raises(InputError, match="confidence"):
        with_overrides(root / "examples" / "quickstart.yaml", confidence=value)


def test_the_override_reaches_the_recorded_scenario(root: Path) -> None:
    """What the command line says stands in the plan, so that a check asks for it too."""
    loaded = with_overrides(root / "examples" / "quickstart.yaml", confidence=0.8)
    assert loaded.file.confidence == 0.8 and loaded.given["confidence"] == 0.8
