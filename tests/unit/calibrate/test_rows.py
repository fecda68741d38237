"""Measured rows: names, formats, robustness and predictions."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import numpy as np
import pytest

from pdplan.calibrate.measured import METRICS, Given, formats, given_of, read_rows
from pdplan.calibrate.names import engine_of, model_id_of, node_id_of, precision_label
from pdplan.calibrate.predict import predict_rows
from pdplan.calibrate.tables import PREDICTION_COLUMNS, predictions_csv
from pdplan.catalog.load import Catalog, load_catalog
from pdplan.errors import InputError


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    """The shipped catalog."""
    return load_catalog()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1"),
        ("nvidia/DeepSeek-R1-0528-FP4-v2", "deepseek-r1"),
        ("amd/DeepSeek-R1-0528-MXFP4-Preview", "deepseek-r1"),
        ("deepseek-v3/r1", "deepseek-r1"),
        ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("nvidia/Llama-3.3-70B-Instruct-FP8", "llama-3.3-70b"),
        ("llama2-70b", "llama-2-70b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("zai-org/GLM-5-FP8", "glm-5"),
        ("zhipuai/GLM-5", "glm-5"),
        ("moonshotai/Kimi-K2.5", "kimi-k2.5"),
        ("MiniMaxAI/MiniMax-M2.5", "minimax-m2.5"),
        ("Qwen/Qwen3.5-397B-A17B", "qwen3.5-397b-a17b"),
        ("dsr1", "deepseek-r1"),
    ],
)
def test_models_are_found_under_the_names_of_checkpoints(catalog: Catalog, name: str, expected: str) -> None:
    """Organisation, format, date and tuning do not matter."""
    assert model_id_of(name, catalog) == expected


def test_every_catalog_model_is_found_by_its_own_names(catalog: Catalog) -> None:
    """Id and Hugging Face id lead back to the model."""
    for entry in catalog.ids("models"):
        assert model_id_of(entry, catalog) == entry
        assert model_id_of(entry.upper(), catalog) == entry
        hf_id = catalog.raw("models", entry).get("hf_id")
        if hf_id:
            assert model_id_of(hf_id, catalog) == entry, hf_id


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h100", "h100-sxm-8"),
        ("NVIDIA H200", "h200-sxm-8"),
        ("a100-80gb", "a100-sxm-80-8"),
        ("h20-96gb", "h20-96-8"),
        ("gb300", "gb300-nvl72"),
        ("GB200-NVL72", "gb200-nvl72"),
        ("MI355X", "oam-mi355x-8"),
        ("h200-sxm-8", "h200-sxm-8"),
        ("b300", "b300-8"),
    ],
)
def test_hardware_is_found_under_the_names_of_benchmarks(catalog: Catalog, name: str, expected: str) -> None:
    """The common node of a card."""
    assert node_id_of(name, catalog) == expected


def test_every_accelerator_has_a_node(catalog: Catalog) -> None:
    """Any card of the catalog can stand in a measured row, on a node that has it."""
    for card in catalog.ids("accelerators"):
        if any(catalog.raw("nodes", node).get("accelerator") == card for node in catalog.ids("nodes")):
            assert catalog.node(node_id_of(card, catalog)).accelerator, card


def test_unknown_names_say_what_is_near(catalog: Catalog) -> None:
    """One sentence each, with a suggestion."""
    with pytest.raises(InputError, match="hardware: unknown"):
        node_id_of("abacus-9000", catalog)
    with pytest.raises(InputError, match="model: unknown"):
        model_id_of("no-such-model", catalog)
    with pytest.raises(InputError, match="precision: 'fp3'"):
        precision_label("fp3")


def test_engines_never_fail_but_say_what_stands_in(catalog: Catalog) -> None:
    """Known frameworks have their own constants, others lower the confidence."""
    cases = {
        ("sglang", "b200", False): ("sglang", False),
        ("sglang", "mi300x", False): ("sglang-amd", False),
        ("trtllm", "gb200", True): ("trtllm-dynamo", False),
        ("dynamo-trt", "gb300", True): ("trtllm-dynamo", False),
        ("dynamo-vllm", "gb200", True): ("vllm", True),
        ("llm-d", "h100", False): ("generic", True),
        ("", "h100", False): ("generic", True),
    }
    for (framework, hardware, apart), (engine, doubted) in cases.items():
        match = engine_of(framework, hardware, disaggregated=apart, catalog=catalog)
        assert (match.id, bool(match.stands_in)) == (engine, doubted), framework


PLAIN = """row_id,model,hardware,engine,precision,tp,concurrency,input_tokens,output_tokens,tpot_s,ttft_s
a,llama-3.3-70b,h100,vllm,fp8,8,16,1000,200,0.014,0.2
b,no-such,h100,vllm,fp8,8,16,1000,200,0.014,0.2
c,llama-3.3-70b,h100,vllm,fp8,8,,1000,200,0.014,0.2
d,llama-3.3-70b,h100,vllm,fp8,1,16,1000,200,,
e,llama-3.1-405b,h100,vllm,bf16,8,16,1000,200,,
"""


def test_plain_rows_keep_their_order_and_say_why_not(tmp_path: Path, catalog: Catalog) -> None:
    """One line per row; a fault of one row does not touch the others."""
    path = tmp_path / "rows.csv"
    path.write_text(PLAIN, encoding="utf-8")
    rows = read_rows(path, catalog)
    found = predict_rows(rows, catalog)
    table = list(csv.DictReader(io.StringIO(predictions_csv(rows, found))))
    assert tuple(table[0]) == PREDICTION_COLUMNS
    assert [line["row_id"] for line in table] == ["a", "b", "c", "d", "e"]
    assert [line["status"] for line in table] == ["ok", "unsupported", "unsupported", "ok", "unsupported"]
    assert "unknown model" in table[1]["reason"]
    assert table[2]["reason"].startswith("concurrency: is blank")
    assert "not one sequence fits" in table[4]["reason"]
    for metric in METRICS:
        low, value, high = (float(table[0][metric + end]) for end in ("_low_90", "", "_high_90"))
        assert 0 < low < value < high


def test_blanks_are_filled_by_what_the_user_says(tmp_path: Path, catalog: Catalog) -> None:
    """A file without the deployment plus NAME=VALUE gives the same as a file with it."""
    path = tmp_path / "rows.csv"
    path.write_text(
        "model,hardware,input_tokens,output_tokens,concurrency,tp\nllama-3.1-8b,,500,100,4,\n", encoding="utf-8"
    )
    given = given_of(["hardware=h100", "tp=2", "engine=vllm", "precision=fp8"])
    row = read_rows(path, catalog, given=given)[0]
    assert row.deployment is not None
    assert (row.deployment.node, row.deployment.decode.tp, row.deployment.engine) == ("h100-sxm-8", 2, "vllm")
    with pytest.raises(InputError, match="NAME=VALUE"):
        given_of(["tp"])


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", "model,hardware,input_tokens,output_tokens\n", "{}", "[1]", "{nope", "\ufffd"]
)
def test_files_of_no_format_are_one_sentence(tmp_path: Path, catalog: Catalog, text: str) -> None:
    """Bad files raise InputError that names the file."""
    path = tmp_path / "x.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"x\.csv"):
        read_rows(path, catalog)


def test_formats_have_distinct_names_and_titles() -> None:
    """The registry is the folder."""
    known = formats()
    assert {"plain", "inferencex", "silicon", "published"} <= set(known)
    assert all(module.TITLE for module in known.values())


PUBLIC = ("inferencex_train.csv", "silicon_refs.csv", "token_position.csv", "published.csv", "splitwise_profile.csv")


@pytest.mark.parametrize("name", PUBLIC)
def test_any_damaged_cell_leaves_the_other_rows_alone(root: Path, tmp_path: Path, catalog: Catalog, name: str) -> None:
    """Every column in turn is blanked, negated and filled with nonsense: always one line per row, never an exception."""
    source = root.parent / "shared" / "validation" / name
    if not source.exists():
        pytest.skip("the validation data folder beside the project is not here")
    with source.open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))[:3]
    columns = list(lines[0])
    damaged = []
    for column in columns:
        for value in ("", "-1", "x", "1e9", "0", "nan"):
            damaged.append({**lines[len(damaged) % len(lines)], column: value})
    path = tmp_path / name
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows([*damaged, *lines])
    rows = read_rows(path, catalog)
    assert len(rows) == len(damaged) + len(lines)
    found = predict_rows(rows, catalog)
    untouched = predict_rows(read_rows(path, catalog)[-len(lines) :], catalog)
    for metric in METRICS:
        np.testing.assert_allclose(found.value[metric][-len(lines) :], untouched.value[metric], rtol=1e-12)
    for i, problem in enumerate(found.problem):
        known = [found.value[m][i] for m in METRICS if math.isfinite(found.value[m][i])]
        assert bool(problem) != bool(known), rows[i]


def test_measured_columns_may_be_absent(root: Path, tmp_path: Path, catalog: Catalog) -> None:
    """Blind rows are predicted all the same."""
    source = root.parent / "shared" / "validation" / "inferencex_train.csv"
    if not source.exists():
        pytest.skip("the validation data folder beside the project is not here")
    with source.open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))[:20]
    kept = [c for c in lines[0] if not c.startswith(("ttft", "tpot", "itl", "e2e")) and "tput" not in c]
    path = tmp_path / "blind.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, kept, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(lines)
    found = predict_rows(read_rows(path, catalog), catalog)
    assert found.supported().all()


def test_given_defaults_to_nothing() -> None:
    """No deployment is assumed."""
    assert dict(Given().values) == {}


def test_a_row_that_ran_is_predicted_on_the_last_of_the_memory(tmp_path: Path, catalog: Catalog) -> None:
    """Weights that fit but leave only the reserve: predicted with a doubt; weights that do not fit: not supported."""
    path = tmp_path / "rows.csv"
    path.write_text(
        "row_id,model,hardware,engine,precision,tp,concurrency,input_tokens,output_tokens\n"
        "tight,qwen3-next-80b-a3b,h100,vllm,bf16,2,1,500,100\n"
        "no,qwen3-next-80b-a3b,h100,vllm,bf16,1,1,500,100\n"
        "roomy,qwen3-next-80b-a3b,h100,vllm,bf16,4,1,500,100\n",
        encoding="utf-8",
    )
    rows = read_rows(path, catalog)
    found = predict_rows(rows, catalog)
    assert list(found.supported()) == [True, False, True]
    assert "without reserve" in found.note[0] and "without reserve" not in found.note[2]
    assert found.value["tpot_s"][0] > found.value["tpot_s"][2] > 0
    assert found.confidence[0] != found.confidence[2]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gb300-nv", "gb300-nvl72"), ("h100-dgxc-slurm", "h100-sxm-8"), ("MI355X_cluster", "oam-mi355x-8")],
)
def test_names_of_clusters_behind_the_card_are_dropped(catalog: Catalog, name: str, expected: str) -> None:
    """Public benchmarks name the machine room too."""
    assert node_id_of(name, catalog) == expected
