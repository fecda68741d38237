"""Closed-loop serving: worked example 8 of the latency model, limits and monotony."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pdplan.catalog.load import load_catalog
from pdplan.perf.layout import Layouts, Machine, Precision
from pdplan.perf.model import LatencyModel
from pdplan.serving.closed_loop import PrefillPool, closed_loop

CATALOG = load_catalog()
FP8 = Precision(weights="fp8", attention_weights="fp8", output_projection="fp8", kv_cache="fp8")
FP4 = Precision(weights="fp4", attention_weights="bf16", output_projection="fp4", kv_cache="fp8")
# The engine constants of the worked example; the catalog's may be refitted.
FROZEN = json.loads((Path(__file__).parent / "worked_constants.json").read_text(encoding="utf-8"))
TRTLLM = {
    **FROZEN["general"],
    "engine.host_latency_us": 373.65, "engine.per_sequence_latency_us": 18.632, "engine.all_to_all_latency_us": 23.81,
    "engine.request_overhead_ms": 84.445, "engine.prefill_time_factor": 0.9598, "engine.first_token_steps": 1.1411,
    "engine.launch_factor": 1.0, "engine.collective_latency_factor": 1.0,
}  # fmt: skip
DYNAMO = {
    **FROZEN["general"],
    "engine.host_latency_us": 343.05, "engine.per_sequence_latency_us": 8.6082, "engine.all_to_all_latency_us": 24.695,
    "engine.request_overhead_ms": 71.17, "engine.prefill_time_factor": 1.1095, "engine.first_token_steps": 1.8797,
    "engine.launch_factor": 1.0, "engine.collective_latency_factor": 1.0,
}  # fmt: skip
MEAN = 0.9 * 1024


def layouts(*rows: tuple[int, int, int, int, int]) -> Layouts:
    table = np.array(rows, dtype=np.int64)
    return Layouts(machine=table[:, 0], tp=table[:, 1], pp=table[:, 2], ep=table[:, 3], attention_dp=table[:, 4])


def machine(node: str, **changes: float) -> Machine:
    spec = replace(CATALOG.node(node), **changes)
    card = CATALOG.accelerator(spec.accelerator)
    family = CATALOG.family(card.family)
    return Machine(
        node=spec,
        accelerator=card,
        family=replace(family, constants=FROZEN["families"].get(family.id, family.constants)),
    )


@pytest.fixture(scope="module")
def h200() -> LatencyModel:
    return LatencyModel(
        CATALOG.model("deepseek-r1"), [machine("h200-sxm-8")], CATALOG.engine("trtllm"), FP8, overrides=TRTLLM
    )


TP8 = layouts((0, 8, 1, 1, 1))


def test_colocated_example(h200):
    r = closed_loop(h200, TP8, concurrency=64, input_tokens=MEAN, output_tokens=MEAN, ramp_frac=0.05)
    assert r.ttft_s == pytest.approx(0.188, rel=2e-2)
    assert r.tpot_s == pytest.approx(34.4e-3, rel=2e-2)
    assert r.request_rate_per_s / 0.95 == pytest.approx(2.01, rel=2e-2)
    assert r.total_tok_per_s_per_card == pytest.approx(440, rel=2e-2)
    assert r.batch == pytest.approx(63.7, rel=2e-2)
    assert r.bottleneck[0] == "load"


def test_disaggregated_example():
    gb200 = machine("gb200-nvl72", nic_bandwidth_bytes_per_s_per_card=100e9)
    latency = LatencyModel(
        CATALOG.model("deepseek-r1"), [gb200], CATALOG.engine("trtllm-dynamo"), FP4, overrides=DYNAMO
    )
    pool = PrefillPool(latency=latency, layouts=layouts((0, 1, 1, 4, 4)), replicas=2, token_budget=8192)
    r = closed_loop(
        latency, layouts((0, 1, 1, 16, 16)), concurrency=2048, input_tokens=MEAN, output_tokens=MEAN, prefill=pool,
        ramp_frac=0.05,
    )  # fmt: skip
    assert r.ttft_s == pytest.approx(0.498, rel=2e-2)
    assert r.tpot_s == pytest.approx(22.1e-3, rel=2e-2)
    assert r.total_tok_per_s_per_card == pytest.approx(7169, rel=2e-2)


def test_one_user_waits_for_nobody(h200):
    r = closed_loop(h200, TP8, concurrency=1, input_tokens=MEAN, output_tokens=MEAN)
    alone = h200.prefill_pass_s(TP8, MEAN) + h200.engine_constants["request_overhead_ms"]
    assert r.ttft_s == pytest.approx(alone, rel=0.02)
    assert r.tpot_s == pytest.approx(h200.decode_step_s(TP8, 1, MEAN * 1.5), rel=1e-3)


def test_crowds_run_into_the_prefill_pool_and_say_so(h200):
    pool = PrefillPool(latency=h200, layouts=TP8)
    r = closed_loop(h200, TP8, concurrency=20_000, input_tokens=8000, output_tokens=100, prefill=pool)
    budget = h200.prefill_requests_per_pass(TP8, 8000)
    capacity = budget / h200.prefill_pass_s(TP8, 8000, 0.0, budget)
    assert r.request_rate_per_s == pytest.approx(capacity, rel=1e-3)
    assert r.saturated[0]
    assert r.bottleneck[0] == "prefill"


def test_little_and_memory(h200):
    r = closed_loop(h200, TP8, concurrency=5000, input_tokens=2000, output_tokens=1000)
    held = r.request_rate_per_s * (r.ttft_s + 999 * r.tpot_s)
    assert held == pytest.approx(5000, rel=1e-6)
    assert r.batch <= r.max_batch * (1 + 1e-9)
    assert r.bottleneck[0] == "memory"
    assert r.saturated[0]


def test_rate_and_tpot_grow_with_users(h200):
    many = Layouts(**{name: np.repeat(getattr(TP8, name), 12) for name in Layouts.__slots__})
    r = closed_loop(h200, many, concurrency=2.0 ** np.arange(12), input_tokens=1000, output_tokens=1000)
    # once memory is full one more waiting user raises the share of prefill a little
    assert (np.diff(r.request_rate_per_s) >= -2e-3 * r.request_rate_per_s[1:]).all()
    assert (np.diff(r.tpot_s) >= -1e-9).all()


def test_nothing_fits():
    small = LatencyModel(CATALOG.model("deepseek-r1"), [machine("l40s-8")], CATALOG.engine("generic"), FP8)
    r = closed_loop(small, TP8, concurrency=8, input_tokens=100, output_tokens=100)
    assert r.bottleneck[0] == "none fits"
    assert np.isnan(r.tpot_s[0])
