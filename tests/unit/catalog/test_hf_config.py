"""Hugging Face configs: small ones counted by hand, and every refusal in one sentence."""

from __future__ import annotations

import json

import pytest

from pdplan.catalog.hf_config import import_config, model_from_config
from pdplan.catalog.load import load_catalog
from pdplan.errors import InputError

TINY = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 10,
    "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip


def read(tmp_path, config, name="config.json"):
    path = tmp_path / name
    path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return model_from_config(path)


def test_a_tiny_llama_by_hand(tmp_path):
    model = read(tmp_path, TINY)
    layer = (64 + 32 + 32 + 64) + 3 * 8 * 16 + 2 * 8
    assert model.total_parameters == 2 * layer + 2 * 10 * 8 + 8
    assert model.native_precision == {"weights": "bf16"}


def test_tied_embeddings_count_once(tmp_path):
    assert (
        read(tmp_path, TINY).total_parameters - read(tmp_path, TINY | {"tie_word_embeddings": True}).total_parameters
        == 80
    )


def test_a_config_inside_text_config(tmp_path):
    outer = {"model_type": "mllama_like", "text_config": TINY, "vision_config": {"hidden_size": 99}}
    model = read(tmp_path, outer)
    assert model.hidden == 8
    assert "tower is left out" in model.notes[0]


def test_windows_by_layer_type(tmp_path):
    config = TINY | {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
    assert [(b.count, b.mixer.window_tokens) for b in read(tmp_path, config).blocks] == [(1, 16), (1, 0)]


def test_qwen2_windows_start_after_max_window_layers(tmp_path):
    config = TINY | {"model_type": "qwen2", "sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1}
    assert [(b.count, b.mixer.window_tokens) for b in read(tmp_path, config).blocks] == [(1, 0), (1, 16)]
    off = read(tmp_path, config | {"use_sliding_window": False})
    assert [b.mixer.window_tokens for b in off.blocks] == [0]


def test_an_unknown_standard_architecture_is_read_with_a_warning(tmp_path):
    model = read(tmp_path, TINY | {"model_type": "brandnew"})
    assert model.total_parameters == read(tmp_path, TINY).total_parameters
    assert "'brandnew' is not known here" in model.notes[0]


QUANTIZATIONS = {
    "fp8": ({"quant_method": "fp8", "fmt": "e4m3"}, {"weights": "fp8"}),
    "awq": ({"quant_method": "awq", "bits": 4}, {"weights": "int4"}),
    "gptq-8": ({"quant_method": "gptq", "bits": 8}, {"weights": "int8"}),
    "bnb": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, {"weights": "int4"}),
    "mxfp4": (
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
        {"weights": "fp4", "attention": "bf16"},
    ),
    "compressed-int4": (
        {
            "quant_method": "compressed-tensors", "ignore": ["re:.*self_attn.*"],
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
        },
        {"weights": "int4", "attention": "bf16"},
    ),
    "compressed-fp8": (
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}}},
        {"weights": "fp8"},
    ),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
                 {"weights": "fp4", "kv_cache": "fp8"}),
    "mixed": (
        {
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                "layers.0.mlp.up_proj": {"quant_algo": "NVFP4"}, "layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
            },
        },
        {"weights": "fp4", "attention": "fp8"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_precision_of_quantised_checkpoints(name, tmp_path):
    given, expected = QUANTIZATIONS[name]
    assert read(tmp_path, TINY | {"quantization_config": given}).native_precision == expected


def test_a_sibling_hf_quant_config_is_read(tmp_path):
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "model.layers.0.self_attn*"]},
    }), encoding="utf-8")  # fmt: skip
    assert read(tmp_path, TINY).native_precision == {"weights": "fp4", "attention": "bf16"}


def without(*names):
    return {key: value for key, value in TINY.items() if key not in names}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "line 1, column 2 is not JSON"),
        ("[1]", "a JSON object is expected"),
        (without("vocab_size"), "vocab_size: is missing; a whole number is expected"),
        (without("num_hidden_layers"), "num_hidden_layers: is missing"),
        (without("model_type"), "model_type: is missing"),
        (without("max_position_embeddings"), "max_position_embeddings: is missing"),
        (TINY | {"hidden_size": -8}, "hidden_size: -8 is not accepted; a whole number of at least 1"),
        (TINY | {"hidden_size": "big"}, "hidden_size: 'big' is not accepted"),
        (TINY | {"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide the 2 attention heads"),
        (TINY | {"layer_types": ["full_attention", "rwkv"]}, "layer_types: 'rwkv' is not one of full_attention"),
        (TINY | {"layer_types": ["full_attention"]}, "layer_types: a list of 2 entries, one per layer"),
        (TINY | {"num_experts": 4}, "num_experts_per_tok: is missing"),
        (TINY | {"num_experts": 4, "num_experts_per_tok": 9}, "9 is more than the 4 experts"),
        (TINY | {"model_type": "jamba", "mamba_d_state": 16}, "'jamba' is not supported and its field 'mamba_d_state'"),
        (TINY | {"architectures": ["BertForMaskedLM"]}, "architectures: 'BertForMaskedLM' does not generate text"),
        (TINY | {"is_encoder_decoder": True}, "is_encoder_decoder: encoder-decoder models are not supported"),
        (TINY | {"quantization_config": {"quant_method": "magic"}}, "quant_method: 'magic' is not supported"),
        (TINY | {"quantization_config": {"quant_algo": "FP3"}}, "quantization.quant_algo: 'FP3' is not supported"),
    ],
)
def test_what_cannot_be_read_gets_one_sentence_naming_file_and_field(config, message, tmp_path):
    with pytest.raises(InputError) as caught:
        read(tmp_path, config)
    assert len(caught.value.faults) == 1
    assert str(caught.value).startswith(str(tmp_path / "config.json"))
    assert message in str(caught.value)


def test_missing_and_non_utf8_files(tmp_path):
    with pytest.raises(InputError, match=r"config.json: no such file"):
        model_from_config(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(InputError, match="is not UTF-8"):
        model_from_config(tmp_path)


def test_an_imported_model_is_the_same_model(tmp_path):
    config = TINY | {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
    read(tmp_path, config)
    target, model = import_config(tmp_path / "config.json", tmp_path / "own", "my-model")
    assert target == tmp_path / "own" / "models" / "my-model.yaml"
    again = load_catalog(tmp_path / "own").model("my-model")
    assert again == model
    with pytest.raises(InputError, match="--id: 'My Model' is not lower-case"):
        import_config(tmp_path / "config.json", tmp_path / "own", "My Model")


def test_the_catalog_takes_a_path_for_a_model(tmp_path):
    read(tmp_path, TINY)
    catalog = load_catalog()
    assert catalog.model(str(tmp_path)) == catalog.model(str(tmp_path / "config.json"))
    before = catalog.digest()
    assert before != load_catalog().digest()
