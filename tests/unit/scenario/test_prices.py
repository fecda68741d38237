"""Which price row a scenario gets, and what it says about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdplan.catalog.load import PRICE_COLUMNS, Catalog, load_catalog
from pdplan.errors import InputError
from pdplan.scenario.load import parse_scenario
from pdplan.scenario.resolve import Offer, resolve

BASE = {
    "schema": "pdplan.scenario/1",
    "model": "qwen3-8b",
    "workload": {"rate_req_per_s": 1, "lengths": {"fixed": {"input_tokens": 100, "output_tokens": 10}}},
    "slo": {"ttft_s": {"p90": 1.0}, "tpot_s": {"p90": 0.1}},
}


def offer(catalog: Catalog, node: dict[str, object], **more: object) -> tuple[Offer, tuple[str, ...]]:
    """The resolved offer of a one-node scenario, and the warnings."""
    data = {**BASE, "sites": [{"name": "s", "nodes": [node], **more.pop("site", {})}], **more}  # type: ignore[dict-item]
    scenario = resolve(parse_scenario(data), catalog)
    return scenario.sites[0].offers[0], scenario.warnings


def overlay(folder: Path, *rows: str) -> Catalog:
    """A user's folder with one price file."""
    (folder / "prices").mkdir()
    (folder / "prices" / "ours.csv").write_text(",".join(PRICE_COLUMNS) + "\n" + "\n".join(rows) + "\n")
    return load_catalog(folder)


def test_the_scenarios_own_figure_wins() -> None:
    found, _ = offer(load_catalog(), {"type": "aws-p5-48xlarge", "usd_per_node_hour": 1.25})

    assert found.usd_per_node_hour == 1.25
    assert found.price_row is None


def test_list_price_names_its_row_and_age() -> None:
    found, _ = offer(load_catalog(), {"type": "aws-p5-48xlarge"})
    cheapest = min(
        row.price_per_node_hour
        for row in load_catalog().price_rows("aws-p5-48xlarge")
        if row.pricing_model == "on-demand" and row.price_per_node_hour
    )

    assert found.price_row is not None
    assert found.usd_per_node_hour == cheapest
    assert "days before" in found.price_basis


def test_the_users_row_wins_even_when_dearer(tmp_path: Path) -> None:
    row = "ours/any/aws-p5-48xlarge/on-demand/2026-09-01,aws-p5-48xlarge,ours,,on-demand,USD,999,,2026-09-01,vendor,vendor_datasheet,no,"
    found, _ = offer(overlay(tmp_path, row), {"type": "aws-p5-48xlarge"})

    assert found.usd_per_node_hour == 999.0


def test_an_old_price_warns(tmp_path: Path) -> None:
    row = "ours/any/h100-sxm-8/on-demand/2020-01-01,h100-sxm-8,ours,,on-demand,USD,9,,2020-01-01,vendor,vendor_datasheet,no,"
    _, warnings = offer(overlay(tmp_path, row), {"type": "h100-sxm-8"})

    assert any("days old" in warning for warning in warnings)


def test_another_currency_is_never_taken_for_dollars(tmp_path: Path) -> None:
    row = "ours/any/h800-8/on-demand/2026-09-01,h800-8,ours,,on-demand,CNY,60,,2026-09-01,vendor,vendor_datasheet,no,"
    with pytest.raises(InputError, match="is in CNY"):
        offer(overlay(tmp_path, row), {"type": "h800-8"})


def test_a_purchase_becomes_an_annuity_with_metered_energy() -> None:
    """1,000,000 USD over 5 years at 10 %: 30.11 USD/h; 10.96 kW (8 x 1.37) at PUE 1.2 and 0.1 USD/kWh: 1.3152 USD/h."""
    found, _ = offer(
        load_catalog(),
        {"type": "h100-sxm-8", "purchase_usd_per_node": 1_000_000},
        site={"electricity_usd_per_kwh": 0.1, "pue": 1.2},
    )
    annuity = 1_000_000 * 0.1 / (1 - 1.1**-5) / 8760

    assert found.usd_per_node_hour == pytest.approx(annuity + found.node.power_w / 1000 * 1.2 * 0.1)
    assert annuity == pytest.approx(30.11, abs=0.01)
