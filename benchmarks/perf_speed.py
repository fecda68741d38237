"""Evaluations per second of the latency model through its public call, on one core.

Usage: OMP_NUM_THREADS=1 python benchmarks/perf_speed.py
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np

from pdplan.catalog.load import load_catalog
from pdplan.perf.layout import Layouts, Machine, Precision
from pdplan.perf.model import LatencyModel

FORMATS = Precision(weights="fp8", attention_weights="fp8", output_projection="fp8", kv_cache="fp8")


def _fresh(latency: LatencyModel, layouts: Layouts, batch: np.ndarray) -> None:
    """A call that cannot reuse the coefficients of an earlier one."""
    latency.decode_step_s(layouts.take(np.arange(len(layouts))), batch, 2000.0)


def main() -> None:
    catalog = load_catalog()
    machines = []
    for name in ("h100-sxm-8", "h200-sxm-8", "b200-8", "oam-mi300x-8"):
        card = catalog.accelerator(catalog.node(name).accelerator)
        machines.append(Machine(node=catalog.node(name), accelerator=card, family=catalog.family(card.family)))
    rows = np.array([(m, tp, 1, ep, 1) for m in range(4) for tp in (1, 2, 4, 8) for ep in (1, tp)] * 16)
    layouts = Layouts(machine=rows[:, 0], tp=rows[:, 1], pp=rows[:, 2], ep=rows[:, 3], attention_dp=rows[:, 4])
    print("| model | layouts x batches | decode steps / s | prefill passes / s | new layouts each call: decode / s |")
    print("|---|---|---|---|---|")
    for name in ("deepseek-r1", "qwen3-32b", "gpt-oss-120b", "qwen3.5-397b-a17b"):
        latency = LatencyModel(catalog.model(name), machines, catalog.engine("generic"), FORMATS)
        batch = np.linspace(1, 256, 64)[:, None]
        count = batch.size * len(layouts)
        rates = []
        for call in (
            partial(latency.decode_step_s, layouts, batch, 2000.0),
            partial(latency.prefill_pass_s, layouts, 16 * batch),
            partial(_fresh, latency, layouts, batch),
        ):
            call()
            start, calls = time.perf_counter(), 0
            while time.perf_counter() - start < 1.0:
                call()
                calls += 1
            rates.append(count * calls / (time.perf_counter() - start))
        print(f"| {name} | {len(layouts)} x {batch.size} | {rates[0]:,.0f} | {rates[1]:,.0f} | {rates[2]:,.0f} |")


if __name__ == "__main__":
    main()
