"""Architectures of Hugging Face configs: which mixer and which feed-forward half each layer has.

One small function per family of architectures; the result is the same description that a model file of
the catalog holds, so both go through :mod:`pdplan.catalog.parameters`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pdplan.catalog.hf_fields import Fields

__all__ = ["ARCHITECTURES", "Parts", "parts_of"]

Spec = dict[str, Any]


@dataclass(slots=True)
class Parts:
    """Layers in order, each a (mixer, ffn) pair of names, and what else the count needs."""

    layers: list[tuple[str, str]]
    mixers: dict[str, Spec]
    ffns: dict[str, Spec]
    mtp_layers: int = 0
    extra: Spec = field(default_factory=dict)
    """Further keys of a model file: norms_per_layer, norm_bias, extra_params, extra_per_layer."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What an architecture fixes in its code and its config does not say."""

    qkv_bias: bool | None = None
    """None: as the field attention_bias says."""
    o_bias: bool | None = None
    qk_norm: str = ""
    norms: int = 2
    norm_bias: bool = False
    plain: bool = False
    """Two matrices in the feed-forward half instead of three."""
    ffn_bias: bool | None = None
    sinks: bool = False
    shared_gate: bool = False
    alternating: int = 0
    """Every n-th layer has full attention, the others a window, where the config lists no layer types."""
    tied: bool = False
    """Whether embeddings are tied where the config does not say."""


ARCHITECTURES: dict[str, Traits] = {
    "llama": Traits(), "mistral": Traits(), "ministral3": Traits(), "mixtral": Traits(), "granite": Traits(tied=True),
    "mimo": Traits(o_bias=False), "phi3": Traits(), "internlm2": Traits(), "seed_oss": Traits(o_bias=False),
    "glm4_moe": Traits(o_bias=False), "glm4": Traits(norms=4, o_bias=False), "glm": Traits(o_bias=False),
    "qwen2": Traits(qkv_bias=True, o_bias=False), "qwen2_vl": Traits(qkv_bias=True, o_bias=False),
    "qwen2_5_vl": Traits(qkv_bias=True, o_bias=False),
    "qwen2_moe": Traits(qkv_bias=True, o_bias=False, shared_gate=True),
    "qwen3": Traits(qk_norm="head"), "qwen3_moe": Traits(qk_norm="head"), "qwen3_vl": Traits(qk_norm="head"),
    "qwen3_vl_moe": Traits(qk_norm="head"), "olmo2": Traits(qk_norm="full"), "olmoe": Traits(qk_norm="full"),
    "gemma": Traits(tied=True), "gemma2": Traits(norms=4, alternating=2, tied=True),
    "gemma3": Traits(norms=4, qk_norm="head", alternating=6, tied=True),
    "gpt_oss": Traits(qkv_bias=True, o_bias=True, sinks=True, alternating=2),
    "phimoe": Traits(norm_bias=True),
    "starcoder2": Traits(plain=True, norm_bias=True, tied=True),
    "cohere": Traits(norms=1, tied=True), "cohere2": Traits(norms=1, alternating=4, tied=True),
    "nemotron": Traits(plain=True, norm_bias=True), "minimax_m2": Traits(qk_norm="full"),
    "step3p7": Traits(), "ernie4_5_moe": Traits(), "hunyuan_v1_moe": Traits(qk_norm="head"),
}  # fmt: skip
"""Standard attention plus dense or expert feed-forward halves; the rest is in :data:`_SPECIAL`."""

_SUSPICIOUS = (
    "ssm", "mamba", "linear_attn", "rwkv", "conv_kernel", "state_size", "lora_rank", "compress", "block_configs",
    "hybrid", "num_memory", "is_encoder_decoder", "hidden_size_per_layer_input", "kv_shared",
)  # fmt: skip
"""Parts of field names that mean more than standard attention; refused for an unknown architecture."""


def parts_of(c: Fields, model_type: str) -> Parts:
    """Describe the layers of a config.

    Raises
    ------
    InputError
        A missing or unsupported field; the message names it.
    """
    kind = model_type.removesuffix("_text")
    if kind in _SPECIAL:
        return _SPECIAL[kind](c)
    if kind in ARCHITECTURES:
        return _standard(c, ARCHITECTURES[kind])
    for name, value in c.data.items():
        if value not in (None, False, 0, [], {}) and any(part in name for part in _SUSPICIOUS):
            raise c.fault(
                "model_type",
                f"{model_type!r} is not supported and its field {name!r} means more than standard attention; "
                f"supported are {', '.join(sorted((*ARCHITECTURES, *_SPECIAL)))}",
            )
    parts = _standard(c, Traits())
    parts.notes.append(
        f"model_type {model_type!r} is not known here; read as a standard decoder, so compare the parameter count"
    )
    return parts


def _layers(c: Fields) -> int:
    return c.integer("num_hidden_layers", "n_layer", "num_layers", "n_layers")


def _hidden(c: Fields) -> int:
    return c.integer("hidden_size", "n_embd", "d_model")


def _attention(c: Fields, t: Traits = Traits()) -> Spec:
    heads = c.integer("num_attention_heads", "n_head", "n_heads")
    kv_heads = c.integer("num_key_value_heads", "n_head_kv", "num_kv_heads", default=heads)
    if heads % kv_heads:
        raise c.fault("num_key_value_heads", f"{kv_heads} does not divide the {heads} attention heads")
    head_dim = c.integer("head_dim", "attention_head_dim", "kv_channels", default=max(_hidden(c) // heads, 1))
    biased = c.flag("attention_bias", "use_bias", "qkv_bias")
    spec: Spec = {"type": "gqa", "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    if biased if t.qkv_bias is None else t.qkv_bias:
        spec["qkv_bias"] = True
    if biased if t.o_bias is None else t.o_bias:
        spec["o_bias"] = True
    norm = t.qk_norm
    if (asked := c.get("use_qk_norm", "qk_layernorm")) is not None:
        norm = (norm or "head") if asked is True else ""
    if norm:
        spec["qk_norm"] = norm
    if t.sinks:
        spec["sinks"] = True
    return spec


def _windows(c: Fields, t: Traits, layers: int) -> list[int]:
    """Window of each layer, 0 for full attention."""
    size = c.integer("sliding_window", "sliding_window_size", default=0, least=0)
    chunk = c.integer("attention_chunk_size", default=0, least=0)
    types = c.per_layer("layer_types", layers)
    if types is not None:
        known = {"full_attention": 0, "sliding_attention": size, "chunked_attention": chunk}
        for name in types:
            if name not in known:
                raise c.fault("layer_types", f"{name!r} is not one of {', '.join(known)}")
            if name != "full_attention" and not known[name]:
                raise c.fault("sliding_window", f"is missing although layer_types has {name!r}")
        return [known[name] for name in types]
    if not size or c.get("use_sliding_window") is False:
        return [0] * layers
    if every := c.integer("sliding_window_pattern", "_sliding_window_pattern", default=t.alternating, least=0):
        return [0 if (i + 1) % every == 0 else size for i in range(layers)]
    if c.get("use_sliding_window") is True:  # Qwen2: the first max_window_layers layers see everything
        first = c.integer("max_window_layers", default=0, least=0)
        return [size if i >= first else 0 for i in range(layers)]
    return [size] * layers


def _sparse_layers(c: Fields, layers: int) -> list[bool]:
    """Which layers have experts."""
    frequency = c.get("moe_layer_freq")
    if isinstance(frequency, list):
        return [bool(x) for x in c.per_layer("moe_layer_freq", layers) or []]
    if (kinds := c.per_layer("mlp_layer_types", layers)) is not None:
        return [kind == "sparse" for kind in kinds]
    first = c.integer("first_k_dense_replace", "moe_layer_start_index", default=0, least=0)
    only_dense = set(c.get("mlp_only_layers", default=[]))
    step = c.integer("decoder_sparse_step", "interleave_moe_layer_step", default=1)
    stride = c.integer("moe_layer_freq", default=1)
    return [i >= first and i not in only_dense and (i + 1) % step == 0 and i % stride == 0 for i in range(layers)]


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_topk", "moe_k")


def _moe(c: Fields, t: Traits = Traits()) -> Spec | None:
    experts = c.integer(*_EXPERTS, default=0, least=0)
    if experts <= 1:
        return None
    size = c.integer("moe_intermediate_size", "expert_intermediate_size", "intermediate_size")
    spec: Spec = {"type": "moe", "experts": experts, "top_k": c.integer(*_TOP_K), "expert_size": size}
    if spec["top_k"] > experts:
        raise c.fault("num_experts_per_tok", f"{spec['top_k']} is more than the {experts} experts")
    shared = c.integer(
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "share_expert_dim",
        "shared_intermediate_size", default=0, least=0,
    )  # fmt: skip
    if not shared:
        shared = size * c.integer(
            "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", default=0, least=0
        )
    if shared:
        spec["shared_size"] = shared
        if t.shared_gate:
            spec["shared_gate"] = True
    return spec


def _dense(c: Fields, t: Traits = Traits(), *names: str) -> Spec:
    size = c.integer(*(names or ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner")))
    spec: Spec = {"type": "plain" if t.plain else "gated", "size": size}
    biased = c.flag("mlp_bias") or (t.plain and c.flag("use_bias"))
    if biased if t.ffn_bias is None else t.ffn_bias:
        spec["bias"] = True
    return spec


def _feed_forward(c: Fields, t: Traits, layers: int, *dense_names: str) -> tuple[list[str], dict[str, Spec]]:
    moe = _moe(c, t)
    if moe is None:
        return ["dense"] * layers, {"dense": _dense(c, t, *dense_names)}
    names = ["moe" if sparse else "dense" for sparse in _sparse_layers(c, layers)]
    ffns = {"moe": moe}
    if "dense" in names:
        ffns["dense"] = _dense(c, t, *dense_names)
    return names, ffns


def _mtp(c: Fields) -> int:
    return c.integer("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0, least=0)


def _standard(c: Fields, t: Traits) -> Parts:
    layers = _layers(c)
    base = _attention(c, t)
    windows = _windows(c, t, layers)
    mixers = {"full": base} if 0 in windows else {}
    for window in sorted(set(windows) - {0}):
        mixers[f"window_{window}"] = base | {"window": window}
    ffn, ffns = _feed_forward(c, t, layers)
    names = [f"window_{w}" if w else "full" for w in windows]
    extra: Spec = {}
    if t.norms != 2:
        extra["norms_per_layer"] = t.norms
    if t.norm_bias:
        extra["norm_bias"] = True
    if t.sinks:  # gpt-oss: router and experts carry biases too
        for spec in ffns.values():
            spec |= {"router_bias": True, "expert_bias": True}
    return Parts(list(zip(names, ffn, strict=True)), mixers, ffns, _mtp(c), extra)


def _mla(c: Fields) -> Spec:
    spec: Spec = {"type": "mla", "heads": c.integer("num_attention_heads")}
    if rank := c.integer("q_lora_rank", default=0, least=0):
        spec["q_lora_rank"] = rank
    for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        spec[name] = c.integer(name)
    if c.flag("mla_use_output_gate"):
        spec["output_gate"] = True
    return spec


def _deepseek(c: Fields) -> Parts:
    """DeepSeek-V2/V3/V3.2, Kimi-K2, GLM-5: latent attention, experts, optionally a sparse indexer."""
    layers = _layers(c)
    ffn, ffns = _feed_forward(c, Traits(), layers)
    mixers = {"mla": _mla(c)}
    names = ["mla"] * layers
    if heads := c.integer("index_n_heads", default=0, least=0):
        indexer = {"heads": heads, "dim": c.integer("index_head_dim"), "top_k": c.integer("index_topk")}
        mixers["mla_indexed"] = mixers["mla"] | {"indexer": indexer}
        every = c.integer("index_topk_freq", default=1)
        offset = c.integer("index_skip_topk_offset", default=1)
        # layers in between reuse the last indexer's choice (GLM-5.2)
        names = ["mla_indexed" if max(i - offset + 1, 0) % every == 0 else "mla" for i in range(layers)]
    return Parts(list(zip(names, ffn, strict=True)), mixers, ffns, _mtp(c))


def _deepseek_v4(c: Fields) -> Parts:
    layers, hidden = _layers(c), _hidden(c)
    base: Spec = {
        "type": "dsv4", "heads": c.integer("num_attention_heads"),
        "kv_heads": c.integer("num_key_value_heads", default=1), "head_dim": c.integer("head_dim"),
        "rope_dim": c.integer("qk_rope_head_dim"),
        "q_lora_rank": c.integer("q_lora_rank"), "o_groups": c.integer("o_groups"),
        "o_lora_rank": c.integer("o_lora_rank"), "local_window": c.integer("sliding_window"),
    }  # fmt: skip
    ratios = c.per_layer("compress_ratios", layers)
    if ratios is None:
        raise c.fault("compress_ratios", "is missing; a list with one ratio per layer is expected")
    indexer = {
        "heads": c.integer("index_n_heads"),
        "dim": c.integer("index_head_dim"),
        "top_k": c.integer("index_topk"),
    }
    mixers: dict[str, Spec] = {}
    for ratio in dict.fromkeys(ratios):
        spec = base | ({"compress_ratio": ratio} if ratio else {})
        if 0 < ratio <= 16:  # the finely compressed layers overlap their windows and choose with an indexer
            spec |= {"overlap": True, "indexer": indexer}
        mixers[f"ratio_{ratio}"] = spec
    moe = _moe(c)
    if moe is None:
        raise c.fault("n_routed_experts", "is missing; a whole number is expected")
    streams = c.integer("hc_mult", default=1)
    mixes = streams * streams + 2 * streams  # hyper-connection weights, biases and scales, twice a layer
    extra = {
        "extra_per_layer": 2 * (streams * hidden * mixes + mixes + 3),
        "extra_params": streams * hidden * streams + streams + 1,
    }
    notes = ["multi-token-prediction layers are not counted"] if _mtp(c) else []
    return Parts([(f"ratio_{ratio}", "moe") for ratio in ratios], mixers, {"moe": moe}, 0, extra, notes)


def _qwen_next(c: Fields) -> Parts:
    """Qwen3-Next and Qwen3.5: gated delta rule in three layers of four, gated attention in the fourth."""
    layers = _layers(c)
    every = c.integer("full_attention_interval", default=4)
    types = c.per_layer("layer_types", layers) or [
        "full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(layers)
    ]
    full = _attention(c, Traits(qk_norm="head")) | {"output_gate": c.flag("attn_output_gate", default=True)}
    linear: Spec = {
        "type": "gated_deltanet", "key_heads": c.integer("linear_num_key_heads"),
        "key_dim": c.integer("linear_key_head_dim"), "value_heads": c.integer("linear_num_value_heads"),
        "value_dim": c.integer("linear_value_head_dim"), "conv": c.integer("linear_conv_kernel_dim"),
    }  # fmt: skip
    known = {"full_attention": "full", "linear_attention": "linear"}
    for name in types:
        if name not in known:
            raise c.fault("layer_types", f"{name!r} is not one of {', '.join(known)}")
    ffn, ffns = _feed_forward(c, Traits(shared_gate=True), layers)
    pairs = [(known[name], ffn[i]) for i, name in enumerate(types)]
    return Parts(pairs, {"full": full, "linear": linear}, ffns, _mtp(c))


def _kimi_linear(c: Fields) -> Parts:
    layers = _layers(c)
    linear = c.table("linear_attn_config")
    if linear is None:
        raise c.fault("linear_attn_config", "is missing; a mapping with full_attn_layers is expected")
    full = {int(i) for i in linear.get("full_attn_layers", default=[])}  # counted from 1
    kda: Spec = {
        "type": "kda", "heads": linear.integer("num_heads"), "head_dim": linear.integer("head_dim"),
        "conv": linear.integer("short_conv_kernel_size"),
    }  # fmt: skip
    if linear.flag("use_full_rank_gate"):
        kda["full_rank_gate"] = True
    ffn, ffns = _feed_forward(c, Traits(), layers)
    notes = []
    if latent := c.integer("routed_expert_hidden_size", default=0, least=0):
        ffns["moe"] |= {"latent_size": latent, "latent_norm": c.flag("latent_moe_use_norm")}
    if c.get("attn_res_block_size"):
        notes.append("weights of the cross-block residuals (attn_res_block_size) are not counted")
    pairs = [("mla" if i + 1 in full else "kda", ffn[i]) for i in range(layers)]
    return Parts(pairs, {"mla": _mla(c), "kda": kda}, ffns, _mtp(c), notes=notes)


def _minimax(c: Fields) -> Parts:
    """MiniMax-Text-01 and M1: lightning attention with full attention in every eighth layer."""
    layers = _layers(c)
    full = _attention(c)
    kinds = c.per_layer("attn_type_list", layers)
    if kinds is None:
        types = c.per_layer("layer_types", layers)
        if types is None:
            raise c.fault("attn_type_list", "is missing (or layer_types); one entry per layer is expected")
        kinds = [int(name == "full_attention") for name in types]
    lightning = {"type": "lightning", "heads": full["heads"], "head_dim": full["head_dim"]}
    ffn, ffns = _feed_forward(c, Traits(), layers)
    pairs = [("full" if kind else "lightning", ffn[i]) for i, kind in enumerate(kinds)]
    return Parts(pairs, {"full": full, "lightning": lightning}, ffns, _mtp(c))


def _minimax_m2(c: Fields) -> Parts:
    parts = _standard(c, Traits(qk_norm="full"))
    parts.notes += _uncounted_mtp(c)
    return parts


def _uncounted_mtp(c: Fields) -> list[str]:
    if not c.integer("num_mtp_modules", default=0, least=0):
        return []
    return ["num_mtp_modules is not counted: released weights hold fewer modules than the field says"]


def _minimax_m3(c: Fields) -> Parts:
    layers = _layers(c)
    full = _attention(c, Traits(qk_norm="head"))
    mixers = {"full": full}
    names = ["full"] * layers
    notes = _uncounted_mtp(c)
    sparse = c.table("sparse_attention_config")
    if sparse is not None and sparse.flag("use_sparse_attention", default=True):
        blocks = {
            "block": sparse.integer("sparse_block_size"), "top_k": sparse.integer("sparse_topk_blocks"),
            "index_heads": sparse.integer("sparse_num_index_heads"), "index_dim": sparse.integer("sparse_index_dim"),
        }  # fmt: skip
        mixers["sparse"] = full | {"sparse_blocks": blocks}
        chosen = sparse.per_layer("sparse_attention_freq", layers) or [1] * layers
        names = ["sparse" if flag else "full" for flag in chosen]
        notes.append("weights of the sparse index are not counted: the config does not give their shape")
    ffn, ffns = _feed_forward(c, Traits(), layers, "dense_intermediate_size", "intermediate_size")
    return Parts(list(zip(names, ffn, strict=True)), mixers, ffns, 0, notes=notes)


def _mimo_flash(c: Fields) -> Parts:
    layers = _layers(c)
    full = _attention(c) | {"v_head_dim": c.integer("v_head_dim")}
    window: Spec = {
        "type": "gqa", "heads": c.integer("swa_num_attention_heads"), "kv_heads": c.integer("swa_num_key_value_heads"),
        "head_dim": c.integer("swa_head_dim"), "v_head_dim": c.integer("swa_v_head_dim"),
        "window": c.integer("sliding_window", "sliding_window_size"),
    }  # fmt: skip
    for spec, name in ((full, "add_full_attention_sink_bias"), (window, "add_swa_attention_sink_bias")):
        if c.flag(name):
            spec["sinks"] = True
    pattern = c.per_layer("hybrid_layer_pattern", layers)
    if pattern is None:
        raise c.fault("hybrid_layer_pattern", "is missing; one entry per layer is expected")
    ffn, ffns = _feed_forward(c, Traits(), layers)
    pairs = [("window" if flag else "full", ffn[i]) for i, flag in enumerate(pattern)]
    return Parts(pairs, {"full": full, "window": window}, ffns, _mtp(c))


_NEMOTRON = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


def _nemotron_h(c: Fields) -> Parts:
    """Nemotron-H and Nemotron 3: each layer is a Mamba-2 mixer, attention, experts or a dense half alone."""
    pattern = c.get("layers_block_type") or [_NEMOTRON.get(x, x) for x in c.get("hybrid_override_pattern", default="")]
    if not isinstance(pattern, list) or not pattern:
        raise c.fault("hybrid_override_pattern", "is missing (or layers_block_type); one letter per layer is expected")
    mamba: Spec = {
        "type": "mamba2", "heads": c.integer("mamba_num_heads"), "head_dim": c.integer("mamba_head_dim"),
        "groups": c.integer("n_groups"), "state": c.integer("ssm_state_size"), "conv": c.integer("conv_kernel"),
    }  # fmt: skip
    mixers: dict[str, Spec] = {"mamba": mamba, "full": _attention(c), "none": {"type": "none"}}
    ffns: dict[str, Spec] = {"none": {"type": "none"}}
    pairs = {
        "mamba": ("mamba", "none"),
        "attention": ("full", "none"),
        "moe": ("none", "moe"),
        "mlp": ("none", "dense"),
    }
    for name in dict.fromkeys(pattern):
        if name not in pairs:
            raise c.fault("hybrid_override_pattern", f"{name!r} is not one of {', '.join(_NEMOTRON)} (or their names)")
    if "mlp" in pattern:
        ffns["dense"] = _dense(c, Traits(plain=True))
    if "moe" in pattern:
        moe = _moe(c)
        if moe is None:
            raise c.fault("n_routed_experts", "is missing although the layer pattern has experts")
        moe["gated"] = False
        if latent := c.integer("moe_latent_size", default=0, least=0):
            moe["latent_size"] = latent
        ffns["moe"] = moe
    notes = ["multi-token-prediction layers are not counted"] if _mtp(c) else []
    return Parts([pairs[name] for name in pattern], mixers, ffns, 0, {"norms_per_layer": 1}, notes)


def _nemotron_nas(c: Fields) -> Parts:
    """Llama-Nemotron after neural architecture search: every layer has its own shape, or none."""
    hidden, heads = _hidden(c), c.integer("num_attention_heads")
    configs = c.per_layer("block_configs", _layers(c))
    if configs is None:
        raise c.fault("block_configs", "is missing; one entry per layer is expected")
    mixers: dict[str, Spec] = {}
    ffns: dict[str, Spec] = {}
    pairs = []
    for block in configs:
        attention, mlp = (Fields(block.get(k) or {}, c.file, f"block_configs.{k}.") for k in ("attention", "ffn"))
        for part in (attention, mlp):
            if part.flag("replace_with_linear"):
                raise part.fault("replace_with_linear", "is not supported")
        if attention.flag("no_op"):
            mixer = "none"
            mixers[mixer] = {"type": "none"}
        else:
            kv_heads = heads // attention.integer("n_heads_in_group")
            mixer = f"kv_{kv_heads}"
            mixers[mixer] = {"type": "gqa", "heads": heads, "kv_heads": kv_heads, "head_dim": hidden // heads}
        if mlp.flag("no_op"):
            ffn = "none"
            ffns[ffn] = {"type": "none"}
        else:
            factor = mlp.get("ffn_mult")
            if not isinstance(factor, int | float) or not factor > 0:
                raise mlp.fault("ffn_mult", "is missing; a number greater than 0 is expected")
            size = -(-int(2 * factor * hidden / 3) // 256) * 256  # rounded up to 256, as the architecture does
            ffn = f"width_{size}"
            ffns[ffn] = {"type": "gated", "size": size}
        pairs.append((mixer, ffn))
    return Parts(pairs, mixers, ffns)


def _llama4(c: Fields) -> Parts:
    layers = _layers(c)
    spec = _attention(c)
    spec.pop("qk_norm", None)  # its norm has no weights
    chunk = c.integer("attention_chunk_size", default=8192)
    rope = c.get("no_rope_layers")  # 1: rotary and chunked, 0: global
    types = c.per_layer("layer_types", layers)
    if types is not None:
        chunked = [name == "chunked_attention" for name in types]
    elif rope:
        chunked = [bool(flag) for flag in c.per_layer("no_rope_layers", layers) or []]
    else:
        every = c.integer("no_rope_layer_interval", default=4)
        chunked = [(i + 1) % every != 0 for i in range(layers)]
    moe = _moe(c)
    if moe is None:
        raise c.fault("num_local_experts", "is missing; a whole number is expected")
    moe["shared_size"] = moe["expert_size"]
    sparse = _sparse_layers(c, layers)
    ffns = {"moe": moe}
    if not all(sparse):
        ffns["dense"] = _dense(c, Traits(), "intermediate_size_mlp")
    pairs = [("chunked" if chunked[i] else "global", "moe" if sparse[i] else "dense") for i in range(layers)]
    return Parts(pairs, {"chunked": spec | {"window": chunk}, "global": spec}, ffns)


def _gemma4(c: Fields) -> Parts:
    layers = _layers(c)
    for name in ("hidden_size_per_layer_input", "num_kv_shared_layers", "use_double_wide_mlp"):
        if c.get(name):
            raise c.fault(
                name, f"{c.get(name)!r} is not supported (per-layer embeddings and shared caches of E models)"
            )
    window = _attention(c, Traits(qk_norm="head"))
    full = window | {"head_dim": c.integer("global_head_dim", default=window["head_dim"])}
    if c.flag("attention_k_eq_v"):
        full |= {"k_eq_v": True, "kv_heads": c.integer("num_global_key_value_heads", default=window["kv_heads"])}
    size = c.integer("sliding_window")
    types = c.per_layer("layer_types", layers) or [
        "full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(layers)
    ]
    moe = _moe(c) if c.flag("enable_moe_block") else None
    ffns = {"moe": moe | {"parallel_dense": c.integer("intermediate_size")}} if moe else {"dense": _dense(c)}
    pairs = [("full" if name == "full_attention" else "window", next(iter(ffns))) for name in types]
    return Parts(pairs, {"full": full, "window": window | {"window": size}}, ffns, extra={"norms_per_layer": 4})


def _opt(c: Fields) -> Parts:
    hidden = _hidden(c)
    if c.integer("word_embed_proj_dim", default=hidden) != hidden:
        raise c.fault("word_embed_proj_dim", "differs from hidden_size, which is not supported")
    t = Traits(qkv_bias=True, o_bias=True, plain=True, ffn_bias=True)
    pairs = [("full", "dense")] * _layers(c)
    extra = {"norm_bias": True, "extra_params": (c.integer("max_position_embeddings") + 2) * hidden}
    return Parts(pairs, {"full": _attention(c, t)}, {"dense": _dense(c, t, "ffn_dim")}, extra=extra)


def _bloom(c: Fields) -> Parts:
    hidden = _hidden(c)
    ffn = {"type": "plain", "size": c.integer("n_inner", default=4 * hidden), "bias": True}
    mixers = {"full": _attention(c, Traits(qkv_bias=True, o_bias=True))}
    extra = {"norm_bias": True, "extra_params": 2 * hidden}
    return Parts([("full", "dense")] * _layers(c), mixers, {"dense": ffn}, extra=extra)


def _gpt2(c: Fields) -> Parts:
    hidden = _hidden(c)
    ffn = {"type": "plain", "size": c.integer("n_inner", default=4 * hidden), "bias": True}
    mixers = {"full": _attention(c, Traits(qkv_bias=True, o_bias=True))}
    extra = {"norm_bias": True, "extra_params": c.integer("n_positions", "max_position_embeddings") * hidden}
    return Parts([("full", "dense")] * _layers(c), mixers, {"dense": ffn}, extra=extra)


def _gpt_neox(c: Fields) -> Parts:
    t = Traits(qkv_bias=True, o_bias=True, plain=True, ffn_bias=True)
    pairs = [("full", "dense")] * _layers(c)
    return Parts(pairs, {"full": _attention(c, t)}, {"dense": _dense(c, t)}, extra={"norm_bias": True})


def _falcon(c: Fields) -> Parts:
    spec = _attention(c)
    new = c.flag("new_decoder_architecture")
    if not new:
        spec["kv_heads"] = 1 if c.flag("multi_query", default=True) else spec["heads"]
    biased = c.flag("bias")
    if biased:
        spec |= {"qkv_bias": True, "o_bias": True}
    ffn = {"type": "plain", "size": c.integer("ffn_hidden_size", default=4 * _hidden(c)), "bias": biased}
    norms = 2 if new or not c.flag("parallel_attn", default=True) else 1
    extra = {"norm_bias": True, "norms_per_layer": norms}
    return Parts([("full", "dense")] * _layers(c), {"full": spec}, {"dense": ffn}, extra=extra)


_SPECIAL: dict[str, Callable[[Fields], Parts]] = {
    "deepseek_v2": _deepseek, "deepseek_v3": _deepseek, "deepseek_v32": _deepseek, "kimi_k2": _deepseek,
    "glm_moe_dsa": _deepseek, "glm4_moe_lite": _deepseek, "deepseek_v4": _deepseek_v4, "deepseek_ref": _deepseek_v4,
    "qwen3_next": _qwen_next, "qwen3_5": _qwen_next, "qwen3_5_moe": _qwen_next, "kimi_linear": _kimi_linear,
    "minimax": _minimax, "minimax_m1": _minimax, "minimax_text_01": _minimax, "minimax_m2": _minimax_m2,
    "minimax_m3": _minimax_m3, "minimax_m3_vl": _minimax_m3, "mimo_v2_flash": _mimo_flash, "nemotron_h": _nemotron_h,
    "nemotron-nas": _nemotron_nas, "llama4": _llama4, "gemma4": _gemma4, "opt": _opt, "bloom": _bloom, "gpt2": _gpt2,
    "gpt_neox": _gpt_neox, "falcon": _falcon,
}  # fmt: skip
