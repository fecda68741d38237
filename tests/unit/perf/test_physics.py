"""No prediction beats the datasheet: every model on every accelerator of the catalog."""

from __future__ import annotations

import numpy as np
import pytest

from pdplan.catalog.load import load_catalog
from pdplan.perf.layout import Layouts, Machine, Precision
from pdplan.perf.model import LatencyModel, Speculation

CATALOG = load_catalog()
FORMATS = {
    "bf16": Precision(weights="bf16", attention_weights="bf16", output_projection="bf16", kv_cache="bf16"),
    "fp8": Precision(weights="fp8", attention_weights="fp8", output_projection="fp8", kv_cache="fp8"),
    "fp4": Precision(weights="fp4", attention_weights="bf16", output_projection="fp4", kv_cache="fp8"),
}


def machines() -> list[Machine]:
    """One machine per accelerator: the node of it with the most cards."""
    best: dict[str, Machine] = {}
    for name in CATALOG.ids("nodes"):
        node = CATALOG.node(name)
        card = CATALOG.accelerator(node.accelerator)
        kept = best.get(card.id)
        if kept is None or node.cards_per_node > kept.node.cards_per_node:
            best[card.id] = Machine(node=node, accelerator=card, family=CATALOG.family(card.family))
    return list(best.values())


MACHINES = machines()


@pytest.mark.parametrize("name", CATALOG.ids("models"))
def test_no_prediction_is_faster_than_the_datasheet_allows(name):
    model = CATALOG.model(name)
    moe = any(block.ffn.experts for block in model.blocks)
    shapes = [(1, 1, 1, 1), (2, 1, 1, 1), (8, 1, 1, 1), (4, 2, 1, 1)] + [(1, 1, 8, 8), (8, 1, 8, 1), (1, 1, 1, 8)] * moe
    rows = np.array([(m, *shape) for m in range(len(MACHINES)) for shape in shapes])
    layouts = Layouts(machine=rows[:, 0], tp=rows[:, 1], pp=rows[:, 2], ep=rows[:, 3], attention_dp=rows[:, 4])
    for engine in ("generic", "sglang", "sglang-amd"):
        for formats in FORMATS.values():
            for speculation in (None, Speculation(draft_tokens=3)):
                latency = LatencyModel(model, MACHINES, CATALOG.engine(engine), formats, speculation=speculation)
                vendors = CATALOG.engine(engine).vendors
                runs = np.array([not vendors or m.accelerator.vendor in vendors for m in MACHINES])[layouts.machine]
                for batch, context in ((1.0, 100.0), (64.0, 4000.0), (4096.0, 60_000.0)):
                    bound = latency.roofline_decode_s(layouts, batch, context)
                    assert (latency.decode_step_s(layouts, batch, context) >= bound)[runs].all()
                    assert (bound > 0).all()
            for new, cached, requests in ((128.0, 0.0, 1.0), (8192.0, 0.0, 8.0), (32_768.0, 100_000.0, 1.0)):
                bound = latency.roofline_prefill_s(layouts, new, cached, requests)
                assert (latency.prefill_pass_s(layouts, new, cached, requests) >= bound)[runs].all()
                assert (bound > 0).all()
