"""Predicted against measured: error tables over the public measurements, in markdown.

Usage: python benchmarks/latency_accuracy.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from public_rows import DEFAULT_FOLDER, Rows, error_line, inferencex, silicon

from pdplan.catalog.load import load_catalog
from pdplan.serving.closed_loop import ClosedLoopResult
from pdplan.serving.deployments import predict_deployments


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


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER
    catalog = load_catalog()
    rows = inferencex(folder / "inferencex_train.csv", catalog)
    result = predict_deployments(rows.deployments, catalog)
    print(f"DeepSeek-R1, {len(rows.deployments)} rows; absolute error in %, bias in % (predicted over measured)\n")
    for by in ((), ("mode", "spec"), ("hardware", "precision", "mode"), ("framework",)):
        print(table(rows, result, by) + "\n")
    for name in ("silicon_refs.csv", "silicon_extra.csv"):
        rows = silicon(folder / name, catalog)
        result = predict_deployments(rows.deployments, catalog)
        print(f"Other models, {name}: {len(rows.deployments)} colocated rows\n")
        for by in ((), ("model",), ("model", "framework", "hardware")):
            print(table(rows, result, by) + "\n")


if __name__ == "__main__":
    main()
