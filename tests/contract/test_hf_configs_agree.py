"""A model's Hugging Face config and its catalog file give the same architecture.

The configs hold the fields their publishers' config.json has, without those that do not touch shapes.
"""

from __future__ import annotations

import json

import pytest

from pdplan.catalog.hf_config import model_from_config
from pdplan.catalog.load import load_catalog

CATALOG = load_catalog()
STANDARD = {"max_position_embeddings": 8192, "tie_word_embeddings": False}


def shape(hidden, layers, heads, kv_heads, width, vocab, **further):
    return {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": width, "vocab_size": vocab,
    } | STANDARD | further  # fmt: skip


MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
KIMI_FULL = [4, 8, 12, 16, 20, 24, 27]
CONFIGS = {
    "llama-3.1-8b": shape(4096, 32, 32, 8, 14336, 128256, model_type="llama"),
    "llama-3.3-70b": shape(8192, 80, 64, 8, 28672, 128256, model_type="llama"),
    "qwen2.5-7b": shape(3584, 28, 28, 4, 18944, 152064, model_type="qwen2", use_sliding_window=False),
    "qwen3-32b": shape(5120, 64, 64, 8, 25600, 151936, model_type="qwen3", head_dim=128, attention_bias=False),
    "qwen3-30b-a3b": shape(
        2048, 48, 32, 4, 6144, 151936, model_type="qwen3_moe", head_dim=128, num_experts=128, num_experts_per_tok=8,
        moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[],
    ),
    "mixtral-8x7b": shape(
        4096, 32, 32, 8, 14336, 32000, model_type="mixtral", num_local_experts=8, num_experts_per_tok=2,
    ),
    "gemma-2-27b": {
        **shape(4608, 46, 32, 16, 36864, 256000, model_type="gemma2", head_dim=128, sliding_window=4096),
        "tie_word_embeddings": None,
    },
    "gemma-3-27b": {
        "model_type": "gemma3", "vision_config": {}, "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {
            **shape(5376, 62, 32, 16, 21504, 262144, model_type="gemma3_text", head_dim=128, sliding_window=1024),
            "sliding_window_pattern": 6, "tie_word_embeddings": None,
        },
    },
    "gpt-oss-20b": shape(
        2880, 24, 64, 8, 2880, 201088, model_type="gpt_oss", head_dim=64, num_local_experts=32, num_experts_per_tok=4,
        sliding_window=128, attention_bias=True, layer_types=["sliding_attention", "full_attention"] * 12,
        quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
    ),
    "deepseek-r1": shape(
        7168, 61, 128, 128, 18432, 129280, model_type="deepseek_v3", q_lora_rank=1536, n_routed_experts=256,
        num_experts_per_tok=8, n_shared_experts=1, moe_intermediate_size=2048, first_k_dense_replace=3,
        num_nextn_predict_layers=1, quantization_config={"quant_method": "fp8", "fmt": "e4m3"}, **MLA,
    ),
    "deepseek-v2-lite": shape(
        2048, 27, 16, 16, 10944, 102400, model_type="deepseek_v2", q_lora_rank=None, n_routed_experts=64,
        num_experts_per_tok=6, n_shared_experts=2, moe_intermediate_size=1408, first_k_dense_replace=1, **MLA,
    ),
    "glm-4.5": shape(
        5120, 92, 96, 8, 12288, 151552, model_type="glm4_moe", head_dim=128, attention_bias=True, use_qk_norm=True,
        n_routed_experts=160, num_experts_per_tok=8, n_shared_experts=1, moe_intermediate_size=1536,
        first_k_dense_replace=3, num_nextn_predict_layers=1,
    ),
    "qwen3-next-80b-a3b": shape(
        2048, 48, 16, 2, 5120, 151936, model_type="qwen3_next", head_dim=256, linear_num_key_heads=16,
        linear_key_head_dim=128, linear_num_value_heads=32, linear_value_head_dim=128, linear_conv_kernel_dim=4,
        full_attention_interval=4, num_experts=512, num_experts_per_tok=10, moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
    ),
    "kimi-linear-48b-a3b": shape(
        2304, 27, 32, 32, 9216, 163840, model_type="kimi_linear", q_lora_rank=None, num_experts=256,
        num_experts_per_token=8, num_shared_experts=1, moe_intermediate_size=1024, first_k_dense_replace=1,
        linear_attn_config={
            "full_attn_layers": KIMI_FULL, "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4,
            "kda_layers": [i for i in range(1, 28) if i not in KIMI_FULL],
        }, **MLA,
    ),
    "minimax-m1": shape(
        6144, 80, 64, 8, 9216, 200064, model_type="minimax_m1", head_dim=128, num_local_experts=32,
        num_experts_per_tok=2, attn_type_list=([0] * 7 + [1]) * 10,
    ),
    "nemotron-3-nano-30b-a3b": shape(
        2688, 52, 32, 2, 1856, 131072, model_type="nemotron_h", head_dim=128, mamba_num_heads=64, mamba_head_dim=64,
        n_groups=8, ssm_state_size=128, conv_kernel=4, n_routed_experts=128, num_experts_per_tok=6,
        moe_intermediate_size=1856, n_shared_experts=1, moe_shared_expert_intermediate_size=3712,
        hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    ),
    "llama-4-maverick": {
        "model_type": "llama4", "vision_config": {},
        "text_config": shape(
            5120, 48, 40, 8, 8192, 202048, model_type="llama4_text", head_dim=128, intermediate_size_mlp=16384,
            num_local_experts=128, num_experts_per_tok=1, interleave_moe_layer_step=2, attention_chunk_size=8192,
        ),
    },
    "phi-3.5-moe": shape(
        4096, 32, 32, 8, 6400, 32064, model_type="phimoe", num_local_experts=16, num_experts_per_tok=2,
        attention_bias=True,
    ),
    "opt-66b": {
        "model_type": "opt", "hidden_size": 9216, "num_hidden_layers": 64, "num_attention_heads": 72, "ffn_dim": 36864,
        "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 9216,
    },
    "bloom-176b": {
        "model_type": "bloom", "hidden_size": 14336, "n_layer": 70, "n_head": 112, "vocab_size": 250880,
        "seq_length": 2048,
    },
    "falcon-40b": {
        "model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128,
        "num_kv_heads": 8, "new_decoder_architecture": True, "vocab_size": 65024, "max_position_embeddings": 2048,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_config_and_catalog_agree(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
    read, kept = model_from_config(tmp_path), CATALOG.model(name)
    assert (read.total_parameters, read.active_parameters) == (kept.total_parameters, kept.active_parameters)
    assert (read.layers, read.hidden, read.vocab) == (kept.layers, kept.hidden, kept.vocab)
    assert (read.mtp_layers, read.mtp_parameters) in ((kept.mtp_layers, kept.mtp_parameters), (0, 0))

    def cache(model):
        return sorted(
            (block.count, block.mixer.window_tokens, block.mixer.kv_elements_per_token, block.mixer.state_elements)
            for block in model.blocks
        )

    assert cache(read) == cache(kept)


def test_vision_towers_are_left_out_with_a_note(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["gemma-3-27b"]), encoding="utf-8")
    assert any("tower is left out" in note for note in model_from_config(tmp_path).notes)
