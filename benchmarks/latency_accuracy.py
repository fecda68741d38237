"""Predicted against measured: error tables over the public measurements, in markdown.

Usage: python benchmarks/latency_accuracy.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from public_rows import DEFAULT_FOLDER, Rows, error_line, inferencex, silicon

from pdplan.catalog.load import Catalog, load_catalog
from pdplan.perf.layout import Layouts, Machine
from pdplan.perf.model import LatencyModel, Speculation
from pdplan.serving.closed_loop import ClosedLoopResult
from pdplan.serving.deployments import precision_of, predict_deployments


def table(rows: Rows, result: ClosedLoopResult, by: tuple[str, ...]) -> str:
    metrics = [
        ("TPOT", result.tpot_s, rows.tpot_s),
        ("tok/s/card", result.total_tok_per_s_per_card, rows.total_tok_per_s_per_card),
        ("TTFT", result.ttft_s, rows.ttft_s),
    ]
    metrics = [m for m in metrics if np.isfinite(m[2]).any()]
    head = [*by, "rows", *(f"{name} {what}" for name, _, _ in metrics for what in ("median", "P90", "bias"))]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    keys = list(zip(*(rows.labels(name) for name in by), strict=True)) if by else [()] * len(rows.deployments)
    for key in sorted(set(keys)):
        keep = np.array([k == key for k in keys])
        cells = [*key, str(keep.sum())]
        for _, predicted, measured in metrics:
            median, _, p90, bias = error_line(predicted[keep], measured[keep])
            cells += [f"{median:.1f}", f"{p90:.1f}", f"{bias:+.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


# (source, node, engine, weights, phase, ranks, context or prompt, requests or prompt tokens per card, drafts,
#  acceptance, measured tokens/s per card)
PUBLISHED = (
    ("DeepSeek profile, decode EP128", "h800-8", "sglang-large-ep", "fp8", "decode", 128, 4096, 128, 0, 0.0, 18598 / 8),
    (
        "SGLang 96 x H100, prefill EP32, 1k",
        "h100-sxm-8",
        "sglang-large-ep",
        "fp8",
        "prefill",
        32,
        1024,
        16384,
        0,
        0.0,
        57674 / 8,
    ),
    (
        "SGLang 96 x H100, prefill EP32, 4k",
        "h100-sxm-8",
        "sglang-large-ep",
        "fp8",
        "prefill",
        32,
        4096,
        16384,
        0,
        0.0,
        50302 / 8,
    ),
    (
        "SGLang 96 x H100, decode EP72, 2k",
        "h100-sxm-8",
        "sglang-large-ep",
        "fp8",
        "decode",
        72,
        2050,
        256,
        0,
        0.0,
        22282 / 8,
    ),
    ("SGLang GB200, decode EP48, 2k", "gb200-nvl72", "sglang-large-ep", "fp4", "decode", 48, 2000, 1408, 0, 0.0, 13386),
    ("H20, decode EP16, 32 per card", "h20-96-8", "sglang-large-ep", "fp8", "decode", 16, 4864, 32, 1, 0.85, 675),
    ("H20, decode EP32, 32 per card", "h20-96-8", "sglang-large-ep", "fp8", "decode", 32, 4864, 32, 1, 0.85, 585),
    ("H20, decode EP16, 8 per card", "h20-96-8", "sglang-large-ep", "fp8", "decode", 16, 4864, 8, 1, 0.85, 278),
    (
        "CloudMatrix 384, prefill EP32 (dies)",
        "ascend-910c-64",
        "generic",
        "int8",
        "prefill",
        16,
        4096,
        16384,
        0,
        0.0,
        5655,
    ),
    ("CloudMatrix 384, decode EP320 (dies)", "ascend-910c-384", "generic", "int8", "decode", 160, 4096, 8, 1, 0.7, 538),
)


def published(catalog: Catalog) -> str:
    """One pool alone at a stated batch: tokens/s per card."""
    model = catalog.model("deepseek-r1")
    lines = [
        "| source | measured tok/s/card | predicted | error % |",
        "|---|---|---|---|",
    ]
    for name, node_id, engine, weights, phase, ranks, length, per_card, drafts, accepted, measured in PUBLISHED:
        node = catalog.node(node_id)
        card = catalog.accelerator(node.accelerator)
        machine = Machine(node=node, accelerator=card, family=catalog.family(card.family))
        formats = precision_of(model, weights, "fp8" if weights == "fp4" else "bf16")
        one = np.array([1])
        layouts = Layouts(machine=one * 0, tp=one, pp=one, ep=one * ranks, attention_dp=one * ranks)
        latency = LatencyModel(
            model,
            [machine],
            catalog.engine(engine),
            formats,
            speculation=Speculation(draft_tokens=drafts, acceptance_frac=accepted) if drafts else None,
        )
        if phase == "decode":
            step = latency.decode_step_s(layouts, per_card * ranks, float(length))
            rate = float((per_card * latency.tokens_per_step(layouts) / step)[0])
        else:
            rate = per_card / float(latency.prefill_pass_s(layouts, length, 0.0, per_card * ranks / length)[0])
        cells = [f"{rate:,.0f}", f"{(rate / measured - 1) * 100:+.0f}"]
        lines.append(f"| {name} | {measured:,.0f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER
    catalog = load_catalog()
    rows = inferencex(folder / "inferencex_train.csv", catalog)
    result = predict_deployments(rows.deployments, catalog)
    print(f"DeepSeek-R1, {len(rows.deployments)} rows; absolute error in %, bias in % (predicted over measured)\n")
    for by in ((), ("mode", "speculation"), ("hardware", "precision", "mode"), ("framework",)):
        print(table(rows, result, by) + "\n")
    for name in ("silicon_refs.csv", "silicon_extra.csv"):
        rows = silicon(folder / name, catalog)
        result = predict_deployments(rows.deployments, catalog)
        print(f"Other models, {name}: {len(rows.deployments)} colocated rows\n")
        for by in ((), ("model",), ("model", "framework", "hardware")):
            print(table(rows, result, by) + "\n")
    print("Published single-pool figures, DeepSeek-V3/R1\n\n" + published(catalog))


if __name__ == "__main__":
    main()
