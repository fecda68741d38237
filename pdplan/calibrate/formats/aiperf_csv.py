"""CSV summary of AIPerf and GenAI-Perf: one metric per line, statistics in columns, then lines of single values."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pdplan.calibrate.formats.plain import filled_row
from pdplan.calibrate.measured import Given, MeasuredRow, Table
from pdplan.catalog.load import Catalog
from pdplan.errors import InputError

NAME = "aiperf-csv"
TITLE = "CSV summary of AIPerf or GenAI-Perf"
_COLUMNS = {
    "time to first token (ms)": ("ttft_s", 1e-3, True),
    "inter token latency (ms)": ("tpot_s", 1e-3, True),
    "output sequence length": ("output_tokens", 1.0, False),
    "input sequence length": ("input_tokens", 1.0, False),
    "output token throughput": ("output_tok_per_s", 1.0, False),
}


def recognises(table: Table) -> bool:
    """By its metric column and percentiles."""
    return table.kind == "csv" and "Metric" in table.columns and {"avg", "p50"} <= table.columns


def read(table: Table, catalog: Catalog, given: Given) -> Iterable[MeasuredRow]:
    """The whole file is one row; concurrency and deployment are what the user gives."""
    values: dict[str, float] = {}
    for line in table.rows:
        name = re.sub(r"\s+", " ", str(line.get("Metric") or "")).strip().lower()
        key = next((k for k in _COLUMNS if name.startswith(k)), None)
        if key is None:
            continue
        column, scale, median = _COLUMNS[key]
        text = (line.get("p50") if median else None) or line.get("avg") or ""
        try:
            values[column] = float(str(text).replace(",", "")) * scale
        except ValueError:
            continue
    try:
        return [filled_row({"row_id": "run-1", **values}, 2, catalog, given)]
    except InputError as fault:
        return [MeasuredRow(row_id="run-1", line=2, problem="; ".join(fault.faults))]
