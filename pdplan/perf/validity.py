"""Which layouts exist at all: divisibility, domains and the engine's rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pdplan.catalog.specs import EngineSpec, ModelSpec
from pdplan.perf.constants import domain_cards
from pdplan.perf.layout import Layouts, Machine

__all__ = ["valid_layouts"]

Bools = NDArray[np.bool_]


def _rules(
    model: ModelSpec, machines: Sequence[Machine], engine: EngineSpec, layouts: Layouts
) -> list[tuple[Bools, str]]:
    """(which layouts obey, what the rule says), one entry per rule."""
    tp, ep, ranks = layouts.tp, layouts.ep, layouts.attention_dp
    stage = tp * ranks
    rules: list[tuple[Bools, str]] = []
    for mixer in dict.fromkeys(block.mixer for block in model.blocks):
        heads = mixer.heads or mixer.value_heads
        if not heads:
            continue
        rules.append((heads % tp == 0, f"tp must divide the {heads} heads of {model.id}"))
        if mixer.type == "gqa":
            kv = mixer.kv_heads
            rules.append(
                ((kv % tp == 0) | (tp % kv == 0), f"tp must divide the {kv} KV heads of {model.id}, or be a multiple")
            )
    experts = sorted({block.ffn.experts for block in model.blocks if block.ffn.experts})
    rules.extend((count % ep == 0, f"ep must divide the {count} experts of {model.id}") for count in experts)
    if not experts:
        rules.append((ep == 1, f"ep must be 1: {model.id} has no experts"))
        rules.append((ranks == 1, f"attention_dp must be 1: {model.id} has no experts to share between ranks"))
    rules.append((stage % ep == 0, "ep must divide tp x attention_dp"))
    for ffn in dict.fromkeys(block.ffn for block in model.blocks):
        if ffn.experts:
            shards = stage // np.maximum(ep, 1)
            rules.append(
                (
                    ffn.expert_size % shards == 0,
                    f"tp x attention_dp / ep must divide the expert width {ffn.expert_size}",
                )
            )
        elif ffn.dense_size:
            rules.append((ffn.dense_size % tp == 0, f"tp must divide the feed-forward width {ffn.dense_size}"))
    rules.append((layouts.pp <= model.layers, f"pp must be at most the {model.layers} layers of {model.id}"))
    domain = np.asarray([domain_cards(m) for m in machines])[layouts.machine]
    rules.append((tp <= domain, "tp must stay inside one scale-up domain (or one host without a scale-up fabric)"))
    if not engine.expert_parallel_across_domain:
        rules.append((ep <= domain, f"{engine.name}: an expert-parallel group must stay inside one scale-up domain"))
    if engine.allowed_tp:
        rules.append((np.isin(tp, engine.allowed_tp), f"{engine.name}: tp must be one of {engine.allowed_tp}"))
    if engine.allowed_ep:
        rules.append((np.isin(ep, engine.allowed_ep), f"{engine.name}: ep must be one of {engine.allowed_ep}"))
    if engine.vendors:
        runs = np.asarray([m.accelerator.vendor in engine.vendors for m in machines], dtype=bool)[layouts.machine]
        rules.append((runs, f"{engine.name} runs on accelerators of {', '.join(engine.vendors)} only"))
    return rules


def valid_layouts(
    model: ModelSpec, machines: Sequence[Machine], engine: EngineSpec, layouts: Layouts
) -> tuple[Bools, list[str]]:
    """Which layouts obey every rule, shape (C,), and the rules that some layout broke."""
    ok = np.ones(len(layouts), dtype=bool)
    broken: list[str] = []
    for obeyed, text in _rules(model, machines, engine, layouts):
        held = np.broadcast_to(obeyed, ok.shape)
        if not held.all() and text not in broken:
            broken.append(text)
        ok &= held
    return ok, broken
