"""One layout, or many, without a fleet: latency, throughput, memory and roofline of prefill and decode."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdplan.catalog.load import Catalog, load_catalog
from pdplan.errors import InputError
from pdplan.perf.bounds import Resources
from pdplan.perf.layout import Layouts, Machine, Precision
from pdplan.perf.model import LatencyModel, Speculation
from pdplan.perf.uncertainty import Interval, Situation, prediction_interval

__all__ = ["Estimate", "estimate"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Arrays broadcast over all inputs of :func:`estimate`."""

    ttft_s: Floats
    """Unloaded: overhead, prefill of one request, KV transfer and the engine's steps before the first token."""
    tpot_s: Floats
    """At `concurrency` sequences in the replica."""
    prefill_pass_s: Floats
    decode_step_s: Floats
    throughput_tok_per_s_per_card: Floats
    """Output tokens of a decode replica over its cards."""
    prefill_tok_per_s_per_card: Floats
    """Input tokens of a busy prefill replica over its cards."""
    max_batch: Floats
    """Resident sequences of input + output tokens."""
    weights_bytes_per_card: Floats
    kv_free_bytes_per_card: Floats
    reserve_bytes_per_card: Floats
    kv_bytes_per_request: Floats
    """Sent from prefill to decode."""
    prefill_roofline_s: Floats
    decode_roofline_s: Floats
    prefill_use: Resources
    """Seconds that FLOPs, memory and links need at their datasheet peaks for the prefill pass."""
    decode_use: Resources
    """The same for the decode step."""
    ttft_interval: Interval
    """Factors on `ttft_s`: the measured value lay between them in 50 and 90 % of the cross-validated rows."""
    tpot_interval: Interval
    confidence: str
    """fitted, transferred, op-tables or guess: the weaker of family and engine."""


def _slowest(use: Resources) -> Floats:
    """No pass is faster than its busiest resource at peak."""
    return np.maximum(np.maximum(use.flop_s, use.hbm_s), use.link_s)


_ORDER = ("fitted", "op-tables", "transferred", "guess")


def estimate(
    *,
    model: str,
    node: str,
    tp: ArrayLike = 1,
    pp: ArrayLike = 1,
    ep: ArrayLike = 1,
    attention_dp: ArrayLike = 1,
    input_tokens: ArrayLike = 1024,
    output_tokens: ArrayLike = 256,
    cached_tokens: ArrayLike = 0,
    concurrency: ArrayLike = 1,
    weights: str | None = None,
    kv_cache: str | None = None,
    engine: str = "generic",
    draft_tokens: int = 0,
    overrides: dict[str, float] | None = None,
    profile: str | Path | None = None,
    catalog: Catalog | str | Path | None = None,
) -> Estimate:
    """Latency of one layout (or arrays of layouts) of one model on one node type.

    Parameters
    ----------
    model, node, engine : str
        Catalog ids; the model may be a path to a Hugging Face config.json.
    tp, pp, ep, attention_dp : array_like of int, shape (C,)
        Layout of a replica.
    input_tokens, output_tokens, cached_tokens, concurrency : array_like, broadcast against (C,)
    weights, kv_cache : str, optional
        Number formats; default as released.
    overrides : dict, optional
        Constants by name, as in a scenario's ``latency_overrides``.
    profile : str or Path, optional
        File written by ``pdplan calibrate``.

    Raises
    ------
    InputError
        Unknown names, or a layout the model or the machine does not allow.
    """
    book = catalog if isinstance(catalog, Catalog) else load_catalog(catalog)
    if profile is not None:
        from pdplan.catalog.profile import read_profile

        measured = read_profile(profile)
        book, overrides = measured.over(book), {**measured.overrides(), **(overrides or {})}
    spec, machine_node, engine_spec = book.model(model), book.node(node), book.engine(engine)
    accelerator = book.accelerator(machine_node.accelerator)
    family = book.family(accelerator.family)
    chosen = weights or spec.native_precision.get("weights", "bf16")
    attention = spec.native_precision.get("attention", chosen) if weights is None else chosen
    precision = Precision(
        weights=chosen,
        attention_weights=attention,
        output_projection=chosen,
        kv_cache=kv_cache or ("fp8" if chosen in ("fp8", "fp4") else "bf16"),
    )
    degrees: list[Any] = [np.asarray(v, dtype=np.int64) for v in (tp, pp, ep, attention_dp)]
    shaped = np.broadcast_arrays(*[np.atleast_1d(v) for v in degrees])
    if any((v < 1).any() for v in shaped):
        raise InputError("tp, pp, ep and attention_dp must be at least 1")
    layouts = Layouts(
        machine=np.zeros(len(shaped[0]), dtype=np.int64),
        tp=shaped[0].copy(),
        pp=shaped[1].copy(),
        ep=shaped[2].copy(),
        attention_dp=shaped[3].copy(),
    )
    latency = LatencyModel(
        spec,
        [Machine(node=machine_node, accelerator=accelerator, family=family)],
        engine_spec,
        precision,
        speculation=Speculation(draft_tokens=draft_tokens) if draft_tokens else None,
        overrides=overrides or {},
    )
    valid, reasons = latency.valid(layouts)
    if not valid.all():
        raise InputError(*[f"layout of {spec.id} on {machine_node.id}: {reason}" for reason in reasons])
    tokens_in, out, cached, batch = (
        np.asarray(v, dtype=np.float64) for v in (input_tokens, output_tokens, cached_tokens, concurrency)
    )
    longest = float(np.max(tokens_in + out))
    if longest > spec.max_context_tokens:
        raise InputError(
            f"{longest:.0f} tokens (input + output) exceed the context of {spec.id}, {spec.max_context_tokens}"
        )
    if (
        (tokens_in < 1).any()
        or (out < 1).any()
        or (batch < 1).any()
        or (cached < 0).any()
        or (cached >= tokens_in).any()
    ):
        raise InputError(
            "input_tokens, output_tokens and concurrency must be at least 1, cached_tokens from 0 to less than input_tokens"
        )
    new = tokens_in - cached
    passes = latency.prefill_pass_s(layouts, new, cached, 1.0)
    full = latency.prefill_interval_s(layouts, new, cached, layouts.attention_dp)
    context = tokens_in + out / 2
    step = latency.decode_step_s(layouts, batch, context)
    per_step = latency.tokens_per_step(layouts)
    from pdplan.perf.transfer import kv_transfer_s

    size = latency.kv_transfer_bytes(layouts, new)
    transfer = kv_transfer_s(
        size,
        sender_bandwidth_bytes_per_s=latency.nic_bandwidth_bytes_per_s(layouts),
        parallel_senders=latency.kv_transfer_senders(layouts),
        layers=spec.layers,
        layerwise_overlap=True,
        prefill_s=passes,
    )
    constants = latency.engine_constants
    steps = constants["first_token_steps"] + constants["poll_interval_steps"] / 2
    cards = layouts.cards_per_replica
    memory = latency.memory(layouts)
    ttft, tpot = constants["request_overhead_ms"] + passes + transfer + steps * step, step / per_step
    situation = Situation(
        disaggregated=False,
        other_model="deepseek" not in spec.family.lower(),
        family_confidence=family.confidence,
        engine_confidence=engine_spec.confidence,
    )
    prefill_use = latency.prefill_resources(layouts, new, cached, 1.0)
    decode_use = latency.decode_resources(layouts, batch, context)
    return Estimate(
        ttft_s=ttft,
        tpot_s=tpot,
        prefill_pass_s=passes,
        decode_step_s=step,
        throughput_tok_per_s_per_card=batch * per_step / step / cards,
        prefill_tok_per_s_per_card=layouts.attention_dp * new / full / cards,
        max_batch=np.floor(latency.max_batch(layouts, tokens_in + out)),
        weights_bytes_per_card=memory.weights_bytes_per_card,
        kv_free_bytes_per_card=memory.kv_bytes_per_card,
        reserve_bytes_per_card=memory.reserve_bytes_per_card,
        kv_bytes_per_request=size,
        prefill_roofline_s=_slowest(prefill_use),
        decode_roofline_s=_slowest(decode_use),
        prefill_use=prefill_use,
        decode_use=decode_use,
        ttft_interval=prediction_interval("ttft_s", situation),
        tpot_interval=prediction_interval("tpot_s", situation),
        confidence=max((family.confidence, engine_spec.confidence), key=_ORDER.index),
    )
