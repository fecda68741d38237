"""Output of ``sglang.bench_serving --output-file``: JSON lines, one run per line."""

from __future__ import annotations

from collections.abc import Iterable

from pdplan.calibrate.formats.vllm_bench import run_row
from pdplan.calibrate.measured import Given, MeasuredRow, Table, rows_of
from pdplan.catalog.load import Catalog

NAME = "sglang-bench"
TITLE = "JSON lines of `sglang.bench_serving`"


def recognises(table: Table) -> bool:
    """By its dataset fields."""
    keys = {"total_input_tokens", "total_output_tokens", "completed", "sharegpt_output_len"}
    return table.kind == "json" and keys <= table.columns


def read(table: Table, catalog: Catalog, given: Given) -> Iterable[MeasuredRow]:
    """One row per run; the deployment is what the user gives."""
    return rows_of(
        table, lambda cells: run_row(cells, catalog, given, engine="sglang"), lambda cells: cells.text("label")
    )
