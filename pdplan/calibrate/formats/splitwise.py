"""Profiles of one engine and a static batch: the whole batch is prefilled, then decoded."""

from __future__ import annotations

from collections.abc import Iterable

from pdplan.calibrate.common import assemble
from pdplan.calibrate.measured import Cells, Given, MeasuredRow, Table, rows_of
from pdplan.catalog.load import Catalog
from pdplan.serving.deployments import Worker

NAME = "splitwise"
TITLE = "prefill_time_ms and decode_step_time_ms of a static batch"


def recognises(table: Table) -> bool:
    """By its phase times."""
    return table.kind == "csv" and {"tensor_parallel", "prompt_tokens", "batch_seqs"} <= table.columns


def read(table: Table, catalog: Catalog, given: Given) -> Iterable[MeasuredRow]:
    """Every row."""
    return rows_of(table, lambda cells: _row(cells, catalog), lambda cells: cells.text("row_id"))


def _row(cells: Cells, catalog: Catalog) -> MeasuredRow:
    capped = "pcap" in cells.text("hardware")
    doubts = ("the card's power was capped; predicted as uncapped",) if capped else ()
    return assemble(
        cells,
        catalog,
        row_id=cells.text("row_id", f"line-{cells.line}"),
        model=cells.text("model"),
        hardware=cells.text("hardware"),
        framework=cells.text("framework", "vllm-2023"),
        precision=cells.text("precision", "fp16"),
        kv_cache="bf16",
        decode=Worker(tp=cells.count("tensor_parallel")),
        prefill=None,
        concurrency=cells.positive("batch_seqs"),
        input_tokens=cells.positive("prompt_tokens"),
        output_tokens=cells.positive("output_tokens", 1.0),
        load="static batch",
        doubts=doubts,
        measured=cells.measured(ttft_s=("prefill_time_ms", 1e-3), tpot_s=("decode_step_time_ms", 1e-3)),
        labels={"hardware": cells.text("hardware"), "mode": "static batch", "framework": "vllm 2023"},
    )
