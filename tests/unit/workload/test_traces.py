"""Readers of every format, bad lines, prefix reuse and burstiness."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from pdplan.errors import InputError
from pdplan.workload.arrivals import dispersion, gap_cv2, renewal_arrivals_s
from pdplan.workload.prefix import lru_hit_frac
from pdplan.workload.traces import read_trace

TRACES = Path(__file__).parents[4] / "shared" / "traces"

FILES = {
    "pdplan": "arrival_s,input_tokens,output_tokens\n5.0,100,10\n7.5,300,20\n",
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5000000,100,10\n2023-11-16 18:15:49.0000000,300,20\n",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,100,10,110,x\n7.5,GPT-4,300,20,320,x\n",
    "mooncake": '{"timestamp": 5000, "input_length": 100, "output_length": 10, "hash_ids": [0]}\n'
    '{"timestamp": 7500, "input_length": 300, "output_length": 20, "hash_ids": [0, 1]}\n',
    "openai-usage": '{"created": 5, "usage": {"prompt_tokens": 100, "completion_tokens": 10}}\n'
    '{"created": 7.5, "usage": {"prompt_tokens": 300, "completion_tokens": 20}}\n',
    "otel-usage": '{"timestamp": "2025-01-01T00:00:05Z", "attributes": {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 10}}\n'
    '{"timestamp": "2025-01-01T00:00:07.5Z", "attributes": {"gen_ai.usage.input_tokens": 300, "gen_ai.usage.output_tokens": 20}}\n',
    "aiperf": '{"metadata": {"request_start_ns": 1000000005000000000, "benchmark_phase": "profiling"}, "metrics": {"input_sequence_length": {"value": 100, "unit": "tokens"}, "output_sequence_length": {"value": 10, "unit": "tokens"}}, "error": null}\n'
    '{"metadata": {"request_start_ns": 1000000007500000000, "benchmark_phase": "profiling"}, "metrics": {"input_sequence_length": {"value": 300, "unit": "tokens"}, "output_sequence_length": {"value": 20, "unit": "tokens"}}, "error": null}\n',
    "serving-benchmark": json.dumps({"input_lens": [100, 300], "output_lens": [10, 20], "start_times": [5.0, 7.5]}),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("packed", [False, True])
def test_formats(tmp_path, kind, packed):
    file = tmp_path / "trace"
    file.write_bytes(gzip.compress(FILES[kind].encode()) if packed else FILES[kind].encode())
    trace = read_trace(file)
    assert trace.format == kind
    assert trace.arrival_s == pytest.approx([0.0, 2.5], abs=1e-6)
    assert trace.input_tokens.tolist() == [100, 300]
    assert trace.output_tokens.tolist() == [10, 20]
    assert trace.bad_lines == 0


def test_bad_lines_are_counted_and_named(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,input_tokens,output_tokens\n1,10,5\nx,10,5\n2,-3,5\n3,20\n4,20,6\n")
    trace = read_trace(file)
    assert trace.input_tokens.tolist() == [10, 20]
    assert trace.bad_lines == 3
    assert [text.split(":")[0] for text in trace.first_bad] == ["line 3", "line 4", "line 5"]


def test_warm_up_and_failed_requests_of_aiperf_are_named(tmp_path):
    first, second = FILES["aiperf"].splitlines()
    failed = '{"metadata": {"request_start_ns": 1000000006000000000}, "metrics": {}, "error": {"code": 500}}'
    file = tmp_path / "profile_export.jsonl"
    file.write_text("\n".join([first.replace("profiling", "warmup"), first, failed, second]) + "\n")
    trace = read_trace(file)
    assert trace.input_tokens.tolist() == [100, 300]
    assert trace.bad_lines == 2
    assert trace.first_bad[0] == "line 1: a request of the warm-up"
    assert trace.first_bad[1].startswith("line 3: ")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "no known trace"),
        ("arrival_s,input_tokens,output_tokens\n", "only a header"),
        ("arrival_s,input_tokens,output_tokens\nx,y,z\n", "line 2"),
        ('{"a": 1}\n', "no line is a request"),
    ],
)
def test_unusable_files(tmp_path, text, part):
    file = tmp_path / "trace"
    file.write_text(text)
    with pytest.raises(InputError, match=part):
        read_trace(file)


def test_missing_and_directory(tmp_path):
    for path in (tmp_path, tmp_path / "none.csv"):
        with pytest.raises(InputError):
            read_trace(path)


def test_damaged_gzip(tmp_path):
    file = tmp_path / "trace.gz"
    file.write_bytes(gzip.compress(FILES["pdplan"].encode())[:-12])
    with pytest.raises(InputError, match="damaged"):
        read_trace(file)


def test_lru_by_hand(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,input_tokens,output_tokens,block_ids\n0,1000,1,0-1\n1,1000,1,0 2\n2,1000,1,0-1\n")
    trace = read_trace(file)
    assert lru_hit_frac(trace) == pytest.approx(3 / 6)  # 0 in the second, 0 and 1 in the third
    assert lru_hit_frac(trace, 2) == pytest.approx(2 / 6)  # block 1 was pushed out by 2
    assert lru_hit_frac(trace, 1) == 0.0


@pytest.mark.skipif(not TRACES.exists(), reason="the trace folder beside the project is absent")
@pytest.mark.parametrize(
    ("capacity", "published"), [(float("inf"), 0.366), (100000, 0.364), (30000, 0.326), (10000, 0.211)]
)
def test_mooncake_hit_ratios(capacity, published):
    assert lru_hit_frac(read_trace(TRACES / "mooncake_conversation.csv.gz"), capacity) == pytest.approx(
        published, abs=6e-4
    )


def test_burstiness_of_known_processes():
    rng = np.random.default_rng(1)
    assert gap_cv2(renewal_arrivals_s(rng, 40000, 10.0)) == pytest.approx(1.0, rel=0.1)
    assert gap_cv2(renewal_arrivals_s(rng, 40000, 10.0, cv=2.0)) == pytest.approx(4.0, rel=0.15)
    assert gap_cv2(renewal_arrivals_s(rng, 1000, 10.0, cv=0.0)) == pytest.approx(0.0, abs=1e-9)
    assert dispersion(renewal_arrivals_s(rng, 40000, 10.0), [1.0])[1.0] == pytest.approx(1.0, rel=0.1)
