"""`pdplan catalog ...` as a person or a script uses it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from pdplan.catalog.load import KINDS
from pdplan.cli.catalog import app
from pdplan.errors import InputError


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, InputError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


@pytest.mark.parametrize("kind", [*KINDS, "prices", "sources"])
def test_list_prints_a_table_and_json(kind):
    assert run("list", kind).stdout.strip()
    document = json.loads(run("list", kind, "--json").stdout)
    assert document["schema"] == "pdplan.catalog-list/1"


def test_list_json_is_in_si_units():
    entries = {e["id"]: e for e in json.loads(run("list", "accelerators", "--json").stdout)["entries"]}
    assert entries["h100-sxm"]["hbm_bandwidth_bytes_per_s"] == 3.35e12
    assert entries["h100-sxm"]["provenance"]["power"]["basis"] == "vendor"


def test_show_prints_unit_basis_source_and_date():
    text = run("show", "h100-sxm").stdout
    line = next(line for line in text.splitlines() if line.startswith("memory bandwidth"))
    for word in ("3.35 TB/s", "vendor", "aiconfigurator_systems", "2026-08-21"):
        assert word in line


def test_show_of_a_node_has_its_prices():
    document = json.loads(run("show", "aws-p5.48xlarge", "--json").stdout)
    (entry,) = document["entries"]
    assert entry["id"] == "aws-p5-48xlarge"
    assert {p["pricing_model"] for p in entry["prices"]} >= {"on-demand", "spot"}


def test_show_of_a_name_with_two_meanings_shows_both():
    document = json.loads(run("show", "gb200-nvl72", "--json").stdout)
    assert [e["kind"] for e in document["entries"]] == ["accelerators", "nodes"]
    document = json.loads(run("show", "nodes/gb200-nvl72", "--json").stdout)
    assert [e["record"]["cards_per_node"] for e in document["entries"]] == [72]


def test_unknown_names_and_kinds():
    with pytest.raises(InputError, match=r"unknown catalog entry 'h100-smx'\. Did you mean 'h100-sxm'"):
        run("show", "h100-smx")
    with pytest.raises(InputError, match="unknown kind 'gpus'"):
        run("list", "gpus")


def test_search_finds_ids_names_and_aliases():
    assert "h20-96-8" in run("search", "h20-8").stdout
    rows = json.loads(run("search", "cloudmatrix", "--json").stdout)["rows"]
    assert ("nodes", "ascend-910c-384") in {(r["kind"], r["id"]) for r in rows}
    nothing = run("search", "no-such-thing")
    assert "nothing in the catalog" in nothing.stderr


def test_check_of_the_shipped_catalog_and_of_a_broken_folder(tmp_path):
    assert run("check").stdout.startswith("sound: ")
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "bad-8.yaml").write_text("id: bad-8\n", encoding="utf-8")
    result = run("check", "--catalog", tmp_path, "--json", code=2)
    assert json.loads(result.stdout)["ok"] is False
    assert "error: " in result.stderr
    assert "bad-8.yaml" in result.stderr


def test_import_model_and_diff(tmp_path):
    config = {
        "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 10,
        "num_key_value_heads": 1, "intermediate_size": 16, "max_position_embeddings": 64,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    own = tmp_path / "own"
    assert "2 layers" in run("import-model", tmp_path / "config.json", "--catalog", own, "--id", "tiny").stdout
    assert "tiny" in run("diff", "--catalog", own).stdout
    assert "2 heads / 1 kv" in run("show", tmp_path / "config.json").stdout
    assert "2 x (attention 2 heads / 1 kv x 4; gated ffn 16)" in run("show", "tiny", "--catalog", own).stdout
    assert run("check", "--catalog", own).stdout.startswith("sound: ")


def test_import_prices_reports_what_was_lost(tmp_path):
    table = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice\n"
    table += "p5.48xlarge,H100,8,192,2048,50.0,eu-west-1,x,\nx9.huge,Z900,8,1,1,9,eu-west-1,x,\n"
    (tmp_path / "aws.csv").write_text(table, encoding="utf-8")
    arguments = ("import-prices", tmp_path / "aws.csv", "--catalog", tmp_path / "own", "--provider", "aws")
    result = run(*arguments, "--seen", "2026-11-30")
    assert "1 SkyPilot catalog rows placed on 1 nodes" in result.stdout
    assert "Z900: accelerator is not in the catalog (1 rows)" in result.stderr
    with pytest.raises(InputError, match="--seen: 'soon' is no day"):
        run(*arguments, "--seen", "soon")
