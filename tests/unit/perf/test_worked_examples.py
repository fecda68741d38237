"""Worked examples of the latency model (docs/explanation/latency-model.md, section 10), constants stated there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pdplan.catalog.load import load_catalog
from pdplan.catalog.specs import EngineSpec
from pdplan.perf.constants import hardware_of
from pdplan.perf.layout import Layouts, Machine, Precision
from pdplan.perf.model import LatencyModel, Speculation
from pdplan.perf.operators import all_reduce, all_to_all, gemm, grouped_gemm
from pdplan.perf.transfer import kv_transfer_s

FP8 = Precision(weights="fp8", attention_weights="fp8", output_projection="fp8", kv_cache="fp8")
FP4 = Precision(weights="fp4", attention_weights="bf16", output_projection="fp4", kv_cache="fp8")
BF16 = Precision(weights="bf16", attention_weights="bf16", output_projection="bf16", kv_cache="bf16")
ENGINE = EngineSpec(id="bare", name="no host time", version="", confidence="guess", constants={
    "host_latency_us": 0.0, "per_sequence_latency_us": 0.0, "all_to_all_latency_us": 35.0,
})  # fmt: skip
CATALOG = load_catalog()
# Section 6 of the latency model as first published; frozen so that a refit of the catalog does not move the examples.
FROZEN = json.loads((Path(__file__).parent / "worked_constants.json").read_text(encoding="utf-8"))
CONSTANTS = FROZEN["families"]


def machine(node: str, **changes: float) -> Machine:
    spec = CATALOG.node(node)
    card = CATALOG.accelerator(spec.accelerator)
    family = replace(CATALOG.family(card.family), constants=CONSTANTS[card.family])
    return Machine(node=replace(spec, **changes), accelerator=card, family=family)


MACHINES = [machine("h200-sxm-8"), machine("b200-8"), machine("gb200-nvl72"), machine("h100-sxm-8")]
H200, B200, GB200, H100 = range(4)


def layouts(*rows: tuple[int, int, int, int, int]) -> Layouts:
    """Rows of (machine, tp, pp, ep, attention_dp)."""
    table = np.array(rows, dtype=np.int64)
    return Layouts(machine=table[:, 0], tp=table[:, 1], pp=table[:, 2], ep=table[:, 3], attention_dp=table[:, 4])


@pytest.fixture(scope="module")
def hw():
    return hardware_of(MACHINES, np.array([H200]), {})


def model(name: str, precision: Precision, **kwargs) -> LatencyModel:
    overrides = {
        **FROZEN["general"],
        "general.hot_rank_factor": 0.0,
        "general.prefill_factor": 1.0,
        **kwargs.pop("overrides", {}),
    }
    return LatencyModel(CATALOG.model(name), MACHINES, ENGINE, precision, overrides=overrides, **kwargs)


@pytest.mark.parametrize(("m", "n", "k", "precision", "microseconds"), [
    (64, 7168, 2048, "fp8", 10.376), (8192, 7168, 2048, "fp8", 238.24), (1, 4096, 4096, "bf16", 15.753),
])  # fmt: skip
def test_gemm(hw, m, n, k, precision, microseconds):
    assert gemm(hw, float(n), float(k), precision).time_s(np.array(float(m))) * 1e6 == pytest.approx(
        microseconds, rel=1e-3
    )


@pytest.mark.parametrize(("tokens", "microseconds"), [(64, 16.794), (8192, 629.2)])
def test_all_reduce(hw, tokens, microseconds):
    assert all_reduce(hw, 7168 * 2.0, 8).time_s(np.array(float(tokens))) * 1e6 == pytest.approx(microseconds, rel=1e-3)


@pytest.mark.parametrize(("tokens", "ep", "distinct", "microseconds"), [
    (64, 1, 209.85, 342.6), (64, 8, 26.23, 339.6), (8192, 8, 32.0, 2164.5),
])  # fmt: skip
def test_grouped_gemm(hw, tokens, ep, distinct, microseconds):
    experts = grouped_gemm(
        hw, experts=256, top_k=8, hidden=7168.0, width=2048 * ep / 8, ep=ep, precision="fp8", imbalance=1.53,
        correlation=0.843,
    )  # fmt: skip
    t = np.array(float(tokens))
    assert experts.distinct(t) == pytest.approx(distinct, rel=1e-3)
    assert experts.time_s(t) * 1e6 == pytest.approx(microseconds, rel=1e-2)
    if ep == 8:
        assert experts.imbalance == pytest.approx(2.3387, rel=1e-3)


@pytest.mark.parametrize(("ranks", "microseconds"), [(8, 45.93), (32, 161.5)])
def test_all_to_all(hw, ranks, microseconds):
    assert all_to_all(hw, 7168.0, ranks, 8, 40e-6).time_s(np.array(64.0)) * 1e6 == pytest.approx(microseconds, rel=1e-3)


def test_deepseek_decode_and_prefill_in_fp8():
    latency = model("deepseek-r1", FP8)
    both = layouts((H200, 8, 1, 1, 1), (B200, 8, 1, 1, 1))
    assert latency.decode_step_s(both, 32, 1500) * 1e3 == pytest.approx([23.86, 16.18], rel=1e-2)
    assert latency.prefill_pass_s(both, 8192)[0] * 1e3 == pytest.approx(290.3, rel=1e-2)
    parts = latency.breakdown_decode(both, 32, 1500)
    assert parts["attention"][0] * 1e3 == pytest.approx(3.861, rel=1e-2)
    assert parts["elementwise"][0] * 1e3 == pytest.approx(1.958, rel=1e-2)
    assert parts["communication"][0] * 1e3 == pytest.approx(1.558 * 61 / 58, rel=1e-2)
    # the note's 15.24 counts the router with the experts, ours with the shared expert
    assert (parts["experts"] + parts["beside_experts"])[0] * 1e3 == pytest.approx(15.24 + 1.011, rel=1e-2)


def test_deepseek_in_fp4():
    latency = model("deepseek-r1", FP4)
    both = layouts((B200, 4, 1, 1, 1), (GB200, 1, 1, 32, 32))
    step = latency.decode_step_s(both, np.array([16, 1024]), np.array([8000, 1500]))
    assert step * 1e3 == pytest.approx([12.58, 15.42], rel=1e-2)
    assert latency.prefill_pass_s(both, 8192)[0] * 1e3 == pytest.approx(200.2, rel=1e-2)


def test_dense_llama():
    latency = model("llama-3-70b", BF16)
    one = layouts((H100, 4, 1, 1, 1))
    assert latency.decode_step_s(one, 32, 2048) * 1e3 == pytest.approx(22.27, rel=1e-2)
    assert latency.prefill_pass_s(one, 4096) * 1e3 == pytest.approx(276.9, rel=1e-2)


@pytest.mark.parametrize(("drafts", "tokens"), [(1, 1.75), (2, 2.3125), (3, 2.7344)])
def test_speculation(drafts, tokens):
    latency = model("deepseek-r1", FP8, speculation=Speculation(draft_tokens=drafts, acceptance_frac=0.75))
    assert latency.tokens_per_step(layouts((H200, 8, 1, 1, 1))) == pytest.approx(tokens, rel=1e-4)


def test_cache_bytes_and_transfer():
    deepseek, llama = model("deepseek-r1", FP8), model("llama-3-70b", BF16)
    assert deepseek.kv_bytes_per_sequence(1) == 35_136
    assert llama.kv_bytes_per_sequence(1) == 327_680
    one = layouts((H200, 8, 1, 1, 1))
    size = deepseek.kv_transfer_bytes(one, 8192)
    assert size == pytest.approx(287.8e6, rel=1e-3)
    assert deepseek.kv_transfer_senders(one) == 1
    time = kv_transfer_s(size, sender_bandwidth_bytes_per_s=50e9, handshake_s=0.026)
    assert time == pytest.approx(37.5e-3, rel=1e-3)


def test_replication_doubles_what_leaves_a_replica_with_more_ranks_than_kv_heads():
    qwen = model("qwen3-235b-a22b", BF16)
    sent = qwen.kv_transfer_bytes(layouts((H200, 4, 1, 1, 1), (H200, 8, 1, 1, 1)), 32_768)
    assert sent == pytest.approx([94 * 4 * 128 * 2 * 2 * 32_768, 2 * 94 * 4 * 128 * 2 * 2 * 32_768], rel=1e-12)
    held = qwen.kv_bytes_per_sequence_per_card(layouts((H200, 4, 1, 1, 1), (H200, 8, 1, 1, 1)), 32_768)
    assert held[0] == held[1] == 94 * 128 * 2 * 2 * 32_768


def test_distance_costs_two_crossings_and_a_thin_path_sets_the_rate():
    near = kv_transfer_s(1e9, sender_bandwidth_bytes_per_s=50e9, handshake_s=0.0)
    far = kv_transfer_s(1e9, sender_bandwidth_bytes_per_s=50e9, handshake_s=0.0, distance_km=500)
    assert far - near == pytest.approx(2 * 500 * 4.9e-6)
    thin = kv_transfer_s(1e9, sender_bandwidth_bytes_per_s=50e9, handshake_s=0.0, path_bandwidth_bytes_per_s=1e9)
    assert thin == pytest.approx(1.0)
    hidden = kv_transfer_s(
        1e9, sender_bandwidth_bytes_per_s=50e9, handshake_s=0.0, path_bandwidth_bytes_per_s=1e9, layers=50,
        layerwise_overlap=True, prefill_s=2.0,
    )  # fmt: skip
    assert hidden == pytest.approx(1 / 50)
