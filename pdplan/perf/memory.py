"""What a replica holds in memory: weights, reserve, cache; and the bytes that leave it with a request.

Source: pdplan latency model, section 4 (docs/explanation/latency-model.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdplan.catalog.specs import Mixer, ModelSpec
from pdplan.perf.constants import WEIGHT_BYTES
from pdplan.perf.layout import Layouts, Precision
from pdplan.perf.mixers import STATE_BYTES

__all__ = [
    "MemoryBudget",
    "kv_bytes_of_sequence",
    "kv_bytes_on_card",
    "kv_senders",
    "transfer_bytes",
    "weights_on_card",
]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Memory of one card of each layout; arrays are (C,), bytes."""

    hbm_bytes: Floats
    weights_bytes_per_card: Floats
    reserve_bytes_per_card: Floats
    """Runtime, workspace and fragmentation."""
    kv_bytes_per_card: Floats
    """Left for the cache; 0 where the weights do not fit."""


def _attention_weight_bytes(mixer: Mixer, hidden: int, precision: Precision) -> float:
    """Bytes of one mixer: its output projection may have another format than the rest."""
    output = 0.0
    if mixer.type in ("gqa", "mla"):
        output = min(mixer.heads * (mixer.v_head_dim or mixer.head_dim) * hidden, mixer.parameters)
    rest = mixer.parameters - output
    return rest * WEIGHT_BYTES[precision.attention_weights] + output * WEIGHT_BYTES[precision.output_projection]


def weights_on_card(model: ModelSpec, layouts: Layouts, precision: Precision, *, with_mtp: bool) -> Floats:
    """Weights on one card, bytes, shape (C,).

    Routed experts are split over all cards of a stage, everything else over `tp` only (attention-DP
    replicates it); embeddings, head, routers and norms are bf16.
    """
    weight = WEIGHT_BYTES[precision.weights]
    routed = attention = feed_forward = counted = 0.0
    for block in model.blocks:
        routed += block.count * block.ffn.routed_parameters * weight
        router = block.ffn.experts * model.hidden
        other = block.ffn.parameters - block.ffn.routed_parameters - router
        feed_forward += block.count * (other * weight + router * 2.0)
        attention += block.count * _attention_weight_bytes(block.mixer, model.hidden, precision)
        counted += block.count * (block.mixer.parameters + block.ffn.parameters)
    embedding = (model.total_parameters - counted) * 2.0
    if with_mtp:
        feed_forward += model.mtp_parameters * weight
    stage_cards = layouts.tp * layouts.attention_dp
    result: Floats = (routed / stage_cards + (attention + feed_forward + embedding) / layouts.tp) / layouts.pp
    return result


def _cached_tokens(mixer: Mixer, context: Floats) -> Floats:
    """Tokens kept in a mixer's cache."""
    return np.minimum(context, mixer.window_tokens) if mixer.window_tokens else context


def _fixed_elements(mixer: Mixer) -> float:
    """Cache elements that do not depend on the context (the local window beside a compressed context)."""
    return mixer.extra.get("local_window", 0.0) * mixer.head_dim if mixer.type == "dsv4" else 0.0


def kv_bytes_of_sequence(model: ModelSpec, context_tokens: ArrayLike, precision: Precision) -> Floats:
    """Cache and state of one sequence, stored once, bytes; the shape of `context_tokens`."""
    context = np.asarray(context_tokens, dtype=np.float64)
    total = np.zeros_like(context)
    per_element = WEIGHT_BYTES[precision.kv_cache]
    for block in model.blocks:
        mixer = block.mixer
        elements = mixer.kv_elements_per_token * _cached_tokens(mixer, context) + _fixed_elements(mixer)
        total = total + block.count * (elements * per_element + mixer.state_elements * STATE_BYTES)
    return total


def kv_bytes_on_card(model: ModelSpec, layouts: Layouts, context_tokens: ArrayLike, precision: Precision) -> Floats:
    """Cache and state of one sequence on one card of the rank that holds it, bytes, shape (..., C).

    Heads are divided by `tp` until one is left, then replicated; a latent (MLA) or shared (dsv4) cache
    is on every card of the tensor-parallel group. Layers are divided by `pp`.
    """
    context = np.asarray(context_tokens, dtype=np.float64)
    total = np.zeros(np.broadcast_shapes(context.shape, layouts.tp.shape))
    per_element = WEIGHT_BYTES[precision.kv_cache]
    for block in model.blocks:
        mixer = block.mixer
        share = np.maximum(mixer.kv_heads / layouts.tp, 1.0) / mixer.kv_heads if mixer.type == "gqa" else 1.0
        elements = mixer.kv_elements_per_token * _cached_tokens(mixer, context) + _fixed_elements(mixer)
        total = total + block.count * (elements * share * per_element + mixer.state_elements * STATE_BYTES / layouts.tp)
    return total / layouts.pp


def transfer_bytes(model: ModelSpec, layouts: Layouts, tokens: ArrayLike, precision: Precision) -> Floats:
    """Bytes that leave a prefill replica for one request, shape (..., C).

    Every tensor-parallel rank sends the heads it holds, so more ranks than KV heads send copies; a latent
    cache is sent once.
    """
    count = np.asarray(tokens, dtype=np.float64)
    total = np.zeros(np.broadcast_shapes(count.shape, layouts.tp.shape))
    per_element = WEIGHT_BYTES[precision.kv_cache]
    for block in model.blocks:
        mixer = block.mixer
        copies = np.maximum(layouts.tp / mixer.kv_heads, 1.0) if mixer.type == "gqa" else 1.0
        elements = mixer.kv_elements_per_token * _cached_tokens(mixer, count) + _fixed_elements(mixer)
        total = total + block.count * (elements * copies * per_element + mixer.state_elements * STATE_BYTES)
    return total


def kv_senders(model: ModelSpec, layouts: Layouts) -> Floats:
    """Cards that send one request's cache side by side, shape (C,): the ranks that hold parts of it."""
    # a latent or shared cache is replicated, one rank of each stage sends it
    shared = all(block.mixer.type not in ("gqa",) for block in model.blocks if block.mixer.kv_elements_per_token)
    return np.asarray(layouts.pp * (1 if shared else layouts.tp), dtype=np.float64)
