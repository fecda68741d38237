"""Calibration: recovers constants that were changed, says what is not determined, and plans use the profile."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from pdplan.calibrate.fit import calibrate
from pdplan.calibrate.measured import MeasuredRow, read_rows
from pdplan.calibrate.predict import predict_rows
from pdplan.catalog.load import Catalog, load_catalog
from pdplan.catalog.profile import profile_from_data
from pdplan.errors import InputError
from pdplan.fleet.certify import certify
from pdplan.fleet.estimate import estimate
from pdplan.fleet.pipeline import plan_file, scenario_of, with_overrides
from pdplan.fleet.plan import plan_from_json


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    """The shipped catalog."""
    return load_catalog()


def rows_with(
    tmp_path: Path, catalog: Catalog, lines: list[str], truth: Catalog, metrics: tuple[str, ...]
) -> list[MeasuredRow]:
    """Rows whose measured values are the predictions of another catalog."""
    path = tmp_path / "rows.csv"
    head = "row_id,model,hardware,engine,precision,tp,concurrency,input_tokens,output_tokens"
    path.write_text("\n".join([head, *lines, ""]), encoding="utf-8")
    rows = read_rows(path, catalog)
    found = predict_rows(rows, truth)
    return [replace(row, measured={m: float(found.value[m][i]) for m in metrics}) for i, row in enumerate(rows)]


def scaled(catalog: Catalog, names: tuple[str, ...], factor: float) -> Catalog:
    """The catalog with some Hopper constants multiplied."""
    constants = catalog.family("hopper").constants
    return catalog.with_constants({"hopper": {name: constants[name] * factor for name in names}}, {})


FIXED = (
    "kernel_latency_us", "moe_latency_us", "moe_latency_fp4_us", "elementwise_latency_us", "attention_latency_us",
    "accumulation_latency_ns",
)  # fmt: skip
MEMORY = ("memory_efficiency", "moe_memory_efficiency", "kv_memory_efficiency")


def test_one_tpot_at_low_batch_finds_the_fixed_latencies(tmp_path: Path, catalog: Catalog) -> None:
    """A machine 30 % slower in launches: one point removes most of the error, and elsewhere too."""
    truth = scaled(catalog, FIXED, 1.3)
    rows = rows_with(tmp_path, catalog, ["a,llama-3.1-8b,h100,vllm,fp8,8,1,500,200"], truth, ("tpot_s",))
    found = calibrate(rows, catalog, name="t", source="t.csv")
    assert [m.label for m, _, _ in found.fitted] == ["hopper: fixed latencies"]
    assert found.fitted[0][1] == pytest.approx(1.3, rel=0.03)
    before, after, unseen = found.errors["tpot_s"]
    assert before > 0.08
    assert after < 0.01
    assert np.isnan(unseen)
    assert found.undetermined
    elsewhere = rows_with(tmp_path, catalog, ["b,qwen3-32b,h100,vllm,fp8,4,8,2000,300"], truth, ("tpot_s",))
    plain = predict_rows(elsewhere, catalog).value["tpot_s"][0]
    better = predict_rows(elsewhere, found.profile.over(catalog)).value["tpot_s"][0]
    measured = elsewhere[0].measured["tpot_s"]
    assert abs(better / measured - 1) < 0.3 * abs(plain / measured - 1)


def test_low_and_high_batch_separate_latency_from_memory(tmp_path: Path, catalog: Catalog) -> None:
    """Two constants changed at once are found from a handful of loads."""
    truth = scaled(scaled(catalog, FIXED, 1.25), MEMORY, 0.8)
    lines = [
        "a,llama-3.1-8b,h100,vllm,fp8,8,1,500,200", "b,llama-3.3-70b,h100,vllm,fp8,2,1,4000,200",
        "c,llama-3.3-70b,h100,vllm,fp8,4,64,200,800", "d,llama-3.3-70b,h100,vllm,bf16,4,4,500,200",
    ]  # fmt: skip
    rows = rows_with(tmp_path, catalog, lines, truth, ("tpot_s",))
    found = calibrate(rows, catalog, name="t", source="t.csv")
    values = {m.label: value for m, value, _ in found.fitted}
    assert values["hopper: fixed latencies"] == pytest.approx(1.25, rel=0.06)
    assert values["hopper: memory"] == pytest.approx(0.8, rel=0.05)
    assert found.errors["tpot_s"][1] < 0.01


def test_rows_without_measurements_are_refused(tmp_path: Path, catalog: Catalog) -> None:
    """Nothing is fitted to nothing, and not to a queue that grows."""
    rows = rows_with(tmp_path, catalog, ["a,llama-3.1-8b,h100,vllm,fp8,8,1,500,200"], catalog, ())
    with pytest.raises(InputError, match=r"no row has a measured ttft_s or tpot_s"):
        calibrate(rows, catalog, name="t", source="t.csv")


def test_a_profile_with_wrong_names_or_values_is_refused(catalog: Catalog) -> None:
    """Every fault at once, with what would be accepted."""
    with pytest.raises(InputError, match=r"schema is not 'pdplan\.profile/1'"):
        profile_from_data({"schema": "x"}, name="p.yaml")
    bad = {
        "schema": "pdplan.profile/1",
        "families": {"hopper": {"memory_efficiency": 1.5, "kernel_latency_us": "4"}},
        "colour": 1,
    }
    with pytest.raises(InputError) as caught:
        profile_from_data(bad, name="p.yaml")
    assert len(caught.value.faults) == 3
    good = profile_from_data({"schema": "pdplan.profile/1", "families": {"hopper": {"no_such": 1.0}}}, name="p.yaml")
    with pytest.raises(InputError, match="unknown constant 'no_such'"):
        good.over(catalog)


def test_a_plan_with_a_profile_stands_alone(root: Path, tmp_path: Path, catalog: Catalog) -> None:
    """The profile changes the plan, is recorded in it, and the certificate holds without the file."""
    constants = catalog.family("hopper").constants
    path = tmp_path / "slow.yaml"
    data = {
        "schema": "pdplan.profile/1",
        "name": "slow memory",
        "families": {"hopper": {name: 0.6 * constants[name] for name in MEMORY}},
    }
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    scenario = root / "examples" / "quickstart.yaml"
    plain = plan_file(with_overrides(scenario))
    slow = plan_file(with_overrides(scenario, profile=path))
    assert slow.cost_usd_per_hour > plain.cost_usd_per_hour
    path.unlink()
    again = plan_from_json(slow.to_json())
    assert certify(scenario_of(again), again).ok
    assert json.loads(slow.to_json())["inputs"]["profile"]["name"] == "slow memory"


def test_estimate_takes_a_profile(tmp_path: Path, catalog: Catalog) -> None:
    """Slower constants give a slower step."""
    path = tmp_path / "p.yaml"
    data = {"schema": "pdplan.profile/1", "name": "p", "families": {"hopper": {"memory_efficiency": 0.5}}}
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    kinds = {"model": "llama-3.3-70b", "node": "h100-sxm-8", "tp": 8, "weights": "fp8"}
    assert estimate(**kinds, profile=path).decode_step_s > estimate(**kinds).decode_step_s  # type: ignore[arg-type]
