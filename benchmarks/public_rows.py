"""Public measurements as deployments: readers shared by the accuracy and the fitting script."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pdplan.catalog.load import Catalog
from pdplan.serving.deployments import (
    BENCHMARK_RAMP_FRAC,
    ENGINE_OF,
    NODE_OF,
    Deployment,
    Worker,
    benchmark_poll_steps,
    kv_cache_of,
    precision_of,
)

DEFAULT_FOLDER = Path(__file__).resolve().parent.parent.parent / "shared" / "validation"
"""The validation data folder beside the project, if present."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Deployments with what was measured; NaN where a figure was not recorded."""

    deployments: list[Deployment]
    ttft_s: NDArray[np.float64]
    tpot_s: NDArray[np.float64]
    total_tok_per_s_per_card: NDArray[np.float64]

    def take(self, keep: NDArray[np.bool_]) -> Rows:
        """The rows where `keep` is true."""
        index = np.flatnonzero(keep)
        return Rows(
            [self.deployments[i] for i in index],
            self.ttft_s[index],
            self.tpot_s[index],
            self.total_tok_per_s_per_card[index],
        )

    def labels(self, name: str) -> NDArray[np.str_]:
        """One label of every row."""
        return np.array([str(d.labels[name]) for d in self.deployments])


def number(text: str) -> float:
    return float(text) if text not in ("", None) else float("nan")


def engine_id(framework: str, hardware: str) -> str:
    if framework == "sglang" and hardware.startswith("mi"):
        return "sglang-amd"
    return ENGINE_OF[framework]


def _worker(row: Mapping[str, str], role: str) -> Worker:
    tp, ranks = int(row[f"{role}_attn_tp"]), int(row[f"{role}_attn_dp"])
    # under attention-DP the expert-parallel labels are not reliable: experts are spread over all ranks
    ep = tp * ranks if ranks > 1 else int(row[f"{role}_moe_ep"])
    return Worker(replicas=int(row[f"{role}_workers"]), tp=tp, ep=ep, attention_dp=ranks)


def inferencex(path: Path, catalog: Catalog) -> Rows:
    """Rows fit to be used: layouts stated, not marked inconsistent, not known to be of old software."""
    deployments, measured = [], []
    model = catalog.model("deepseek-r1")
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            if row["config_quality"] in ("inconsistent", "legacy_split_inferred") or row["later_tpot_speedup"]:
                continue
            hardware, framework, disagg = row["hardware"], row["framework"], row["mode"] == "disagg"
            decode = _worker(row, "decode")
            mtp = row["spec_method"] == "mtp"
            group = "/".join(
                row[k]
                for k in row
                if k
                in (
                    "hardware",
                    "framework",
                    "precision",
                    "spec_method",
                    "mode",
                    "prefill_workers",
                    "prefill_attn_tp",
                    "prefill_attn_dp",
                    "prefill_moe_ep",
                    "decode_workers",
                    "decode_attn_tp",
                    "decode_attn_dp",
                    "decode_moe_ep",
                    "isl_max_tokens",
                    "osl_max_tokens",
                )
            )
            deployments.append(
                Deployment(
                    row_id=row["row_id"],
                    model=model.id,
                    node=NODE_OF[hardware],
                    engine=engine_id(framework, hardware),
                    precision=precision_of(model, row["precision"], kv_cache_of(framework, hardware)),
                    decode=decode,
                    prefill=_worker(row, "prefill") if disagg else None,
                    concurrency=float(row["concurrency_requests"]),
                    input_tokens=float(row["isl_mean_tokens"]),
                    output_tokens=float(row["osl_mean_tokens"]),
                    # the draft length is not recorded: 3 is usual with few sequences per rank, 1 with many
                    draft_tokens=(1 if decode.attention_dp > 1 else 3) if mtp else 0,
                    poll_steps=benchmark_poll_steps(framework, hardware),
                    ramp_frac=BENCHMARK_RAMP_FRAC,
                    token_budget=8192.0,
                    labels={
                        "hardware": hardware,
                        "framework": framework,
                        "precision": row["precision"],
                        "mode": row["mode"],
                        "spec": row["spec_method"],
                        "group": group,
                        "date": row["date"],
                        "image": row["image"],
                        "model": model.id,
                    },
                )
            )
            measured.append(
                (
                    number(row["ttft_median_s"]),
                    number(row["tpot_median_s"]),
                    number(row["total_tput_tok_per_s_per_gpu"]),
                )
            )
    table = np.array(measured)
    return Rows(deployments, table[:, 0], table[:, 1], table[:, 2])


def silicon(path: Path, catalog: Catalog) -> Rows:
    """Colocated rows of other models with mean TTFT and TPOT; models the catalog lacks are left out."""
    by_name = {catalog.model(m).hf_id.lower(): m for m in catalog.ids("models")}
    deployments, measured = [], []
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            name = next((m for hf, m in by_name.items() if hf.startswith(row["model"].lower())), None)
            if name is None or row["mode"] != "agg" or row["hardware"] not in NODE_OF:
                continue
            model, framework, hardware = catalog.model(name), row["framework"], row["hardware"]
            if framework not in ENGINE_OF or not row["precision"]:
                continue
            tp, ranks = int(row["tp"] or 1), int(row["attn_dp"] or 1)
            moe = any(b.ffn.experts for b in model.blocks)
            share = 0.9 if row["origin"] == "inferencex_dashboard" else 1.0
            ep = max(int(row["moe_ep"] or 1), 1) if moe else 1
            if ranks > 1 and ranks == tp and ep == tp * ranks:  # both columns hold the cards of the worker
                tp, ep = 1, ranks
            elif ep > 1 and ranks == 1 and tp == int(row["moe_tp"] or 1) * ep and tp > 8:  # cards counted tp x ep
                tp = tp // ep
            replicas = 1
            if ranks > 1 and not moe:  # data parallel copies of a dense model
                replicas, ranks = ranks, 1
            precision = {
                "bf16": "bf16",
                "fp16": "bf16",
                "fp8": "fp8",
                "fp8_block": "fp8",
                "fp4": "fp4",
                "nvfp4": "fp4",
                "mxfp4": "fp4",
                "int4": "int4",
            }.get(row["precision"], row["precision"])
            concurrency = number(row["concurrency_requests"])
            if not concurrency > 0:
                continue
            deployments.append(
                Deployment(
                    row_id=row["row_id"],
                    model=name,
                    node=NODE_OF[hardware],
                    engine=engine_id(framework, hardware),
                    precision=precision_of(model, precision, kv_cache_of(framework, hardware)),
                    decode=Worker(replicas=replicas, tp=tp, pp=int(row["pp"] or 1), attention_dp=ranks, ep=ep),
                    concurrency=concurrency,
                    input_tokens=share * float(row["isl_tokens"]),
                    output_tokens=share * float(row["osl_tokens"]),
                    labels={
                        "hardware": hardware,
                        "framework": framework,
                        "precision": precision,
                        "mode": "agg",
                        "spec": "none",
                        "model": name,
                        "origin": row["origin"],
                    },
                )
            )
            measured.append((number(row["ttft_mean_ms"]) / 1e3, number(row["tpot_mean_ms"]) / 1e3, float("nan")))
    table = np.array(measured).reshape(-1, 3)
    return Rows(deployments, table[:, 0], table[:, 1], table[:, 2])


def error_line(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Median, mean and P90 of the absolute percentage error, and the median bias in percent."""
    known = np.isfinite(measured) & np.isfinite(predicted)
    if not known.any():
        return (float("nan"),) * 4
    ape = np.abs(predicted[known] / measured[known] - 1) * 100
    bias = (np.exp(np.median(np.log(predicted[known] / measured[known]))) - 1) * 100
    return float(np.median(ape)), float(ape.mean()), float(np.percentile(ape, 90)), float(bias)
