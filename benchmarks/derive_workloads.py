"""Rewrite catalogs/workloads/ from the public traces (README of that data names the sources).

python benchmarks/derive_workloads.py FOLDER_WITH_TRACES
"""

from __future__ import annotations

import csv
import gzip
import sys
from pathlib import Path

import numpy as np

from pdplan.workload.lengths import compress, read_lengths

AZURE = ("Azure LLM inference trace 2023 (Azure Public Dataset; data of Splitwise, ISCA 2024)", "CC BY 4.0", "2023-11")
MOONCAKE = ("Mooncake trace release (repository kvcache-ai/Mooncake; FAST 2025)", "Apache-2.0", "2025")
SERVEGEN = ("ServeGen client data (repository alibaba/ServeGen; arXiv 2505.09999)", "Apache-2.0", "2025")
TRACES = {
    "azure-conversation-2023": ("azure2023_conv.csv.gz", 0, 0, AZURE, "chat: one hour, 19366 requests"),
    "azure-code-2023": ("azure2023_code.csv.gz", 0, 0, AZURE, "code completion: one hour, 8819 requests"),
    "mooncake-conversation": ("mooncake_conversation.csv.gz", 0, 0, MOONCAKE, "long chats: one hour, 12031 requests"),
    "mooncake-synthetic": ("mooncake_synthetic.csv.gz", 0, 0, MOONCAKE, "built from public long-context data sets"),
    "long-document": (
        "mooncake_conversation.csv.gz",
        8192,
        32768,
        MOONCAKE,
        "long documents: the requests of the Mooncake conversation trace with 8192 to 32768 input tokens",
    ),
}
SHAPES = {
    "servegen-m-large": "language/m-large",
    "servegen-m-mid": "language/m-mid",
    "servegen-m-small": "language/m-small",
    "servegen-deepseek-r1": "reason/deepseek-r1",
}


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(__file__).parent.parent / "catalogs" / "workloads"
    out.mkdir(exist_ok=True)
    for name, (file, least, most, (source, licence, date), note) in TRACES.items():
        inputs, outputs = read_lengths(folder / file)
        keep = (inputs >= least) & (inputs <= (most or np.inf))
        inputs, outputs = inputs[keep], outputs[keep]
        points = compress(inputs, outputs)
        lines = [f"id: {name}", f"title: '{note}'", f"source: '{source}'", f"licence: {licence}", f"date: '{date}'"]
        for field, values in (("input_tokens", inputs), ("output_tokens", outputs)):
            quantiles = {f"p{q}": float(np.percentile(values, q)) for q in (50, 90, 99)}
            text = ", ".join(f"{k}: {v:.4g}" for k, v in {"mean": float(values.mean()), **quantiles}.items())
            lines.append(f"{field}_of_trace: {{{text}}}")
        lines.append("joint:  # input tokens, output tokens, weight")
        lines += [f"- [{a:.1f}, {b:.1f}, {w:.6f}]" for a, b, w in zip(*points, strict=True)]
        (out / f"{name}.yaml").write_text("\n".join(lines) + "\n")
    with gzip.open(folder / "servegen_lengths.csv.gz", "rt") as stream:
        rows = list(csv.DictReader(stream))
    source, licence, date = SERVEGEN
    for name, workload in SHAPES.items():
        lines = [
            f"id: {name}",
            f"title: 'ServeGen {workload}, rate-weighted over clients and windows'",
            f"source: '{source}'",
            f"licence: {licence}",
            f"date: '{date}'",
        ]
        for field in ("input_tokens", "output_tokens"):
            of = [row for row in rows if row["workload"] == workload and row["field"] == field]
            means = {key: float(np.mean([float(row[key]) for row in of])) for key in ("mean", "p50", "p90", "p99")}
            lines.append(f"{field}: {{{', '.join(f'{k}: {v:.4g}' for k, v in means.items())}}}")
        (out / f"{name}.yaml").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
