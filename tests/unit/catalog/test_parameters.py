"""Parameter, cache and state counts by hand."""

from __future__ import annotations

import pytest

from pdplan.catalog.load import load_catalog
from pdplan.catalog.parameters import ffn_of, mixer_of


def test_grouped_query_attention():
    # q 8x8, k and v 8x4 each, o 8x8
    mixer = mixer_of({"type": "gqa", "heads": 2, "kv_heads": 1, "head_dim": 4}, 8)
    assert mixer.parameters == 64 + 2 * 32 + 64
    assert mixer.kv_elements_per_token == 2 * 1 * 4


def test_biases_norms_and_sinks_are_counted():
    plain = mixer_of({"type": "gqa", "heads": 2, "kv_heads": 1, "head_dim": 4}, 8).parameters
    dressed = {"type": "gqa", "heads": 2, "kv_heads": 1, "head_dim": 4, "qkv_bias": True, "o_bias": True, "sinks": True}
    assert mixer_of(dressed | {"qk_norm": "head"}, 8).parameters == plain + (8 + 4 + 4) + 8 + 2 + 2 * 4
    assert mixer_of(dressed | {"qk_norm": "full"}, 8).parameters == plain + (8 + 4 + 4) + 8 + 2 + (2 + 1) * 4


def test_latent_attention_of_deepseek_r1():
    spec = {
        "type": "mla", "heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128,
    }  # fmt: skip
    mixer = mixer_of(spec, 7168)
    query = 7168 * 1536 + 1536 + 1536 * 128 * 192
    key_value = 7168 * 576 + 512 + 512 * 128 * 256
    assert mixer.parameters == query + key_value + 128 * 128 * 7168
    assert mixer.kv_elements_per_token == 576


def test_experts_with_a_shared_one():
    ffn = ffn_of({"type": "moe", "experts": 4, "top_k": 2, "expert_size": 16, "shared_size": 16}, 8)
    assert ffn.routed_parameters == 4 * 3 * 8 * 16
    assert ffn.parameters == 5 * 3 * 8 * 16 + 8 * 4


def test_active_parameters_leave_out_idle_experts():
    model = load_catalog().model("deepseek-r1")
    expert = 3 * 7168 * 2048
    assert model.total_parameters - model.active_parameters == 58 * (256 - 8) * expert
    assert model.embedding_parameters == 2 * 129280 * 7168


@pytest.mark.parametrize(
    ("build", "spec", "message"),
    [
        (mixer_of, {"type": "rwkv"}, "mixer type 'rwkv' is not known"),
        (mixer_of, {"type": "gqa", "heads": 2, "kv_heads": 1}, "a gqa mixer needs head_dim"),
        (ffn_of, {"type": "swish"}, "ffn type 'swish' is not known"),
        (ffn_of, {"type": "moe", "experts": 2}, "a moe ffn needs expert_size"),
    ],
)
def test_what_is_missing_is_named(build, spec, message):
    with pytest.raises(ValueError, match=message):
        build(spec, 8)
