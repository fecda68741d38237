"""Properties of the latency model that hold for any constants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdplan.catalog.load import load_catalog
from pdplan.errors import InputError
from pdplan.perf.layout import Layouts, Machine, Precision
from pdplan.perf.model import LatencyModel
from pdplan.perf.operators import mean_capped
from pdplan.perf.uncertainty import Situation, prediction_interval

CATALOG = load_catalog()
BF16 = Precision(weights="bf16", attention_weights="bf16", output_projection="bf16", kv_cache="bf16")


def layouts(*rows: tuple[int, int, int, int, int]) -> Layouts:
    table = np.array(rows, dtype=np.int64)
    return Layouts(machine=table[:, 0], tp=table[:, 1], pp=table[:, 2], ep=table[:, 3], attention_dp=table[:, 4])


def model(name: str, **kwargs) -> LatencyModel:
    node = CATALOG.node("h100-sxm-8")
    card = CATALOG.accelerator(node.accelerator)
    machine = Machine(node=node, accelerator=card, family=CATALOG.family(card.family))
    return LatencyModel(CATALOG.model(name), [machine], CATALOG.engine("generic"), BF16, **kwargs)


@given(st.integers(0, 5000), st.integers(1, 500), st.integers(1, 6000))
@settings(deadline=None, max_examples=50)
def test_mean_capped_is_the_integral(start, count, cap):
    x = start + (np.arange(20_000) + 0.5) / 20_000 * count
    value = mean_capped(np.array(float(start)), np.array(float(count)), float(cap))
    assert value == pytest.approx(np.minimum(x, cap).mean(), rel=1e-6)


@pytest.mark.parametrize("name", ["llama-3-70b", "gpt-oss-120b", "qwen3.5-397b-a17b", "deepseek-v3.2"])
def test_time_grows_with_batch_and_context(name):
    latency, one = model(name), layouts((0, 8, 1, 1, 1))
    batch, context = np.array([1, 8, 64, 256.0])[:, None, None], np.array([100, 1000, 10_000.0])[None, :, None]
    step = latency.decode_step_s(one, batch, context)
    assert step.shape == (4, 3, 1)
    assert (np.diff(step, axis=0) > 0).all()
    assert (np.diff(step, axis=1) >= 0).all()
    prefill = latency.prefill_pass_s(one, np.array([64, 512, 4096.0])[:, None])
    assert (np.diff(prefill, axis=0) > 0).all()


def test_a_cached_prefix_costs_attention_only():
    latency, one = model("llama-3-70b"), layouts((0, 8, 1, 1, 1))
    cold, warm = latency.breakdown_prefill(one, 1000.0), latency.breakdown_prefill(one, 1000.0, 8000.0)
    assert warm["attention"] > cold["attention"]
    assert warm["dense_ffn"] == cold["dense_ffn"]
    assert latency.prefill_pass_s(one, 9000.0) > warm["total"]


def test_breakdown_adds_up():
    latency, some = model("deepseek-r1"), layouts((0, 8, 1, 1, 1), (0, 1, 1, 8, 8), (0, 4, 2, 4, 1))
    for parts in (latency.breakdown_decode(some, 100.0, 3000.0), latency.breakdown_prefill(some, 2000.0)):
        assert sum(v for k, v in parts.items() if k != "total") == pytest.approx(parts["total"])


def test_a_window_caps_the_cache():
    latency = model("gpt-oss-120b")
    long, longer = latency.kv_bytes_per_sequence(10_000), latency.kv_bytes_per_sequence(20_000)
    # 18 of 36 layers keep 128 tokens, the others all: 2 x 8 heads x 64 x 2 B
    assert longer - long == 18 * 10_000 * 2 * 8 * 64 * 2
    assert long == 18 * (10_000 + 128) * 2 * 8 * 64 * 2


def test_memory_adds_up_and_is_halved_by_twice_the_cards():
    latency, two = model("llama-3-70b"), layouts((0, 4, 1, 1, 1), (0, 8, 1, 1, 1))
    budget = latency.memory(two)
    used = budget.weights_bytes_per_card + budget.reserve_bytes_per_card + budget.kv_bytes_per_card
    assert used == pytest.approx(budget.hbm_bytes)
    assert budget.weights_bytes_per_card[0] == pytest.approx(2 * budget.weights_bytes_per_card[1])
    assert budget.weights_bytes_per_card[1] * 8 == pytest.approx(70.55e9 * 2, rel=0.01)


def test_rules_name_what_they_refuse():
    latency = model("llama-3-70b")
    ok, broken = latency.valid(
        layouts((0, 8, 1, 1, 1), (0, 3, 1, 1, 1), (0, 4, 1, 4, 1), (0, 16, 1, 1, 1), (0, 1, 1, 1, 8))
    )
    assert ok.tolist() == [True, False, False, False, False]
    assert any("64 heads" in text for text in broken)
    assert any("scale-up domain" in text for text in broken)


def test_eager_engines_are_bound_by_the_host():
    slow = model("llama-3-70b", overrides={"engine.eager_layer_latency_us": 570.0})
    both = layouts((0, 4, 1, 1, 1), (0, 8, 1, 1, 1))
    step = slow.decode_step_s(both, 1.0, 500.0)
    assert (step > 80 * 570e-6).all()
    assert step[0] == pytest.approx(step[1], rel=0.02)


@pytest.mark.parametrize("key", ["engine.nonsense", "family.memory_efficiency", "wrong.name"])
def test_overrides_are_checked(key):
    with pytest.raises(InputError):
        model("llama-3-70b", overrides={key: 1.5})


def test_intervals_contain_each_other_and_widen_with_doubt():
    fitted = prediction_interval("tpot_s", Situation(disaggregated=True), np.array([0.1, 0.9]))
    assert (fitted.low_90 < fitted.low_50).all()
    assert (fitted.low_50 < fitted.high_50).all()
    assert (fitted.high_50 < fitted.high_90).all()
    assert fitted.high_90[1] / fitted.low_90[1] > fitted.high_90[0] / fitted.low_90[0]
    guess = prediction_interval("tpot_s", Situation(disaggregated=True, family_confidence="guess"), 0.1)
    assert guess.high_90 > fitted.high_90[0]
