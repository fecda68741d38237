"""Result files of InferenceX: one JSON object (or a list) per deployment and concurrency, latencies in seconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pdplan.calibrate.common import RANDOM_LENGTH_FRAC, assemble
from pdplan.calibrate.measured import Cells, Given, MeasuredRow, Table, rows_of
from pdplan.catalog.load import Catalog
from pdplan.errors import InputError
from pdplan.serving.deployments import BENCHMARK_RAMP_FRAC, Worker

NAME = "inferencex-json"
TITLE = "JSON result files of InferenceX (hw, framework, tp, ep, conc, median_ttft ...)"


def recognises(table: Table) -> bool:
    """By hardware, load and result under its names."""
    return table.kind == "json" and {"hw", "conc", "framework"} <= table.columns


def read(table: Table, catalog: Catalog, given: Given) -> Iterable[MeasuredRow]:
    """Every result."""
    return rows_of(table, lambda cells: _row(cells, catalog, given), lambda cells: cells.text("row_id"))


def _true(value: Any) -> bool:
    return str(value).strip().lower() in ("1", "true", "yes")


def _worker(cells: Cells, role: str) -> Worker:
    prefix = f"{role}_" if role else ""
    tp = cells.count(f"{prefix}tp")
    if _true(cells.values.get(f"{prefix}dp_attention")):
        ranks = max(tp, cells.count(f"{prefix}ep", 1))
        return Worker(replicas=cells.count(f"{prefix}num_workers", 1), tp=1, ep=ranks, attention_dp=ranks)
    return Worker(replicas=cells.count(f"{prefix}num_workers", 1), tp=tp, ep=min(cells.count(f"{prefix}ep", 1), tp))


def _row(cells: Cells, catalog: Catalog, given: Given) -> MeasuredRow:
    apart = _true(cells.values.get("disagg")) or bool(cells.text("prefill_tp"))
    hardware = cells.text("hw").split("-")[0]
    model = given.values.get("model") or cells.text("model") or cells.text("infmax_model_prefix")
    if not model:
        raise InputError("model: is blank; --set model=... gives it")
    mtp = cells.text("spec_decoding", "none").lower() not in ("none", "")
    decode = _worker(cells, "decode" if apart else "")
    return assemble(
        cells,
        catalog,
        row_id=cells.text("row_id", f"record-{cells.line}"),
        model=model,
        hardware=hardware,
        framework=cells.text("framework"),
        precision=cells.text("precision"),
        decode=decode,
        prefill=_worker(cells, "prefill") if apart else None,
        concurrency=cells.positive("conc"),
        input_tokens=RANDOM_LENGTH_FRAC * cells.positive("isl"),
        output_tokens=RANDOM_LENGTH_FRAC * cells.positive("osl"),
        # the draft length is not recorded: 3 is usual with few sequences per rank, 1 with many
        draft_tokens=(1 if decode.attention_dp > 1 else 3) if mtp else 0,
        ramp_frac=BENCHMARK_RAMP_FRAC,
        token_budget=8192.0,
        measured=cells.measured(
            ttft_s=("median_ttft", 1.0), tpot_s=("median_tpot", 1.0), total_tok_per_s_per_card=("tput_per_gpu", 1.0)
        ),
        labels={
            "framework": cells.text("framework"),
            "hardware": hardware,
            "group": "/".join(cells.text(n) for n in ("hw", "framework", "precision", "tp", "ep", "isl", "osl")),
        },
    )
