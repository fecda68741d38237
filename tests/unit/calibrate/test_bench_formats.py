"""Outputs of benchmark clients: small files in their shape, written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pdplan.calibrate.measured import MeasuredRow, given_of, read_rows
from pdplan.catalog.load import load_catalog

GIVEN = ("hardware=h100", "tp=4", "precision=fp8", "model=llama-3.3-70b")

VLLM = {
    "date": "20261101-101010", "backend": "vllm", "label": None, "model_id": "meta-llama/Llama-3.3-70B-Instruct", "num_prompts": 100,
    "request_rate": "inf", "max_concurrency": 16, "duration": 50.0, "completed": 100, "total_input_tokens": 100000,
    "total_output_tokens": 20000, "request_throughput": 2.0, "output_throughput": 400.0, "mean_ttft_ms": 300.0,
    "median_ttft_ms": 250.0, "mean_tpot_ms": 31.0, "median_tpot_ms": 30.0,
}  # fmt: skip
SGLANG = {
    "backend": "sglang", "dataset_name": "random", "request_rate": 4.0, "max_concurrency": None, "sharegpt_output_len": None,
    "duration": 50.0, "completed": 100, "total_input_tokens": 100000, "total_output_tokens": 20000, "output_throughput": 400.0,
    "mean_e2e_latency_ms": 8000.0, "median_ttft_ms": 250.0, "median_tpot_ms": 30.0,
}  # fmt: skip
AIPERF = {
    "time_to_first_token": {"unit": "ms", "avg": 300.0, "p50": 250.0},
    "inter_token_latency": {"unit": "ms", "avg": 31.0, "p50": 30.0},
    "input_sequence_length": {"unit": "tokens", "avg": 1000.0},
    "output_sequence_length": {"unit": "tokens", "avg": 200.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 400.0},
    "input_config": {
        "endpoint": {"model_names": ["meta-llama/Llama-3.3-70B-Instruct"]},
        "loadgen": {"concurrency": 16},
    },
}
GUIDELLM = {
    "benchmarks": [
        {
            "args": {"strategy": {"type_": "concurrent", "streams": 16}},
            "metrics": {
                "time_to_first_token_ms": {"successful": {"mean": 300.0, "median": 250.0}},
                "inter_token_latency_ms": {"successful": {"mean": 31.0, "median": 30.0}},
                "prompt_token_count": {"successful": {"mean": 1000.0}},
                "output_token_count": {"successful": {"mean": 200.0}},
                "output_tokens_per_second": {"successful": {"mean": 400.0}},
            },
        }
    ]
}
CSV = """Metric,avg,min,max,p99,p50
Time To First Token (ms),300,200,400,390,250
Inter Token Latency (ms),31,29,35,34,30
Input Sequence Length (tokens),1000,1000,1000,1000,1000
Output Sequence Length (tokens),200,200,200,200,200

Metric,Value
Output Token Throughput (tokens/sec),400
"""


def read_one(tmp_path: Path, text: str, *more: str) -> MeasuredRow:
    """The only row of a file."""
    path = tmp_path / "result.json"
    path.write_text(text, encoding="utf-8")
    rows = read_rows(path, load_catalog(), given=given_of([*GIVEN, *more]))
    assert len(rows) == 1
    return rows[0]


@pytest.mark.parametrize("data", [VLLM, AIPERF, GUIDELLM, SGLANG], ids=["vllm", "aiperf", "guidellm", "sglang"])
def test_client_results_give_load_lengths_and_medians(tmp_path: Path, data: dict[str, Any]) -> None:
    """1000 tokens in, 200 out, 16 in flight, 250 ms and 30 ms."""
    row = read_one(tmp_path, json.dumps(data))
    assert row.deployment is not None, row.problem
    assert (row.deployment.model, row.deployment.decode.tp) == ("llama-3.3-70b", 4)
    assert row.deployment.concurrency == pytest.approx(16.0)  # SGLang: 2 req/s x 8 s
    assert (row.deployment.input_tokens, row.deployment.output_tokens) == (1000.0, 200.0)
    assert dict(row.measured) == pytest.approx({"ttft_s": 0.25, "tpot_s": 0.03, "output_tok_per_s": 400.0})


def test_csv_summaries_need_the_load(tmp_path: Path) -> None:
    """The file does not say how many were in flight."""
    row = read_one(tmp_path, CSV, "concurrency=16")
    assert row.deployment is not None, row.problem
    assert row.measured["ttft_s"] == pytest.approx(0.25)
    assert row.measured["tpot_s"] == pytest.approx(0.03)
    assert "concurrency: is blank" in read_one(tmp_path, CSV).problem


def test_json_lines_are_one_run_each(tmp_path: Path) -> None:
    """Appended runs keep their order."""
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(json.dumps({**SGLANG, "completed": n}) for n in (100, 50)), encoding="utf-8")
    rows = read_rows(path, load_catalog(), given=given_of(GIVEN))
    assert [row.deployment.input_tokens for row in rows if row.deployment] == [1000.0, 2000.0]


def test_inferencex_results(tmp_path: Path) -> None:
    """Layouts and nominal lengths as its result files have them."""
    data = {
        "hw": "b200-dgxc", "framework": "sglang", "precision": "fp8", "spec_decoding": "none", "disagg": False, "tp": 8, "ep": 1,
        "dp_attention": "false", "conc": 64, "isl": 1024, "osl": 1024, "median_ttft": 0.2, "median_tpot": 0.015, "tput_per_gpu": 800.0,
        "model": "deepseek-ai/DeepSeek-R1-0528",
    }  # fmt: skip
    path = tmp_path / "agg.json"
    apart = {
        **data, "disagg": True, "framework": "dynamo-trt", "hw": "gb200", "prefill_tp": 4, "prefill_dp_attention": True,
        "prefill_num_workers": 2, "decode_tp": 8, "decode_ep": 8, "decode_dp_attention": "true", "decode_num_workers": 1,
    }  # fmt: skip
    path.write_text(json.dumps([data, apart]), encoding="utf-8")
    first, second = read_rows(path, load_catalog())
    assert first.deployment is not None
    assert first.deployment.node == "b200-8"
    assert first.deployment.input_tokens == pytest.approx(921.6)
    assert first.measured["total_tok_per_s_per_card"] == 800.0
    assert second.deployment is not None
    assert second.deployment.prefill is not None
    assert (second.deployment.prefill.replicas, second.deployment.prefill.attention_dp) == (2, 4)
    assert (second.deployment.decode.attention_dp, second.deployment.engine) == (8, "trtllm-dynamo")


@pytest.mark.parametrize("data", [VLLM, AIPERF, GUIDELLM, SGLANG], ids=["vllm", "aiperf", "guidellm", "sglang"])
def test_any_field_may_be_missing_or_odd(tmp_path: Path, data: dict[str, Any]) -> None:
    """Each key in turn is dropped or replaced: a row with a reason, never an exception."""
    path = tmp_path / "result.json"
    for key in data:
        for value in (None, "x", -1, [], {}):
            path.write_text(json.dumps({**data, key: value}), encoding="utf-8")
            try:
                rows = read_rows(path, load_catalog(), given=given_of(GIVEN))
            except Exception as fault:
                assert type(fault).__name__ == "InputError", (key, value, fault)
            else:
                assert all((row.deployment is None) == bool(row.problem) for row in rows)
