"""Result of ``vllm bench serve --save-result``: one JSON object per run."""

from __future__ import annotations

from collections.abc import Iterable

from pdplan.calibrate.formats.plain import filled_row
from pdplan.calibrate.measured import Cells, Given, MeasuredRow, Table, rows_of
from pdplan.catalog.load import Catalog

NAME = "vllm-bench"
TITLE = "JSON of `vllm bench serve` (and of `benchmark_serving.py`)"


def recognises(table: Table) -> bool:
    """By its token totals and medians."""
    keys = {"total_input_tokens", "total_output_tokens", "completed"}
    return table.kind == "json" and keys <= table.columns and "sharegpt_output_len" not in table.columns


def read(table: Table, catalog: Catalog, given: Given) -> Iterable[MeasuredRow]:
    """One row per run; the deployment is what the user gives."""
    return rows_of(
        table, lambda cells: run_row(cells, catalog, given, engine="vllm"), lambda cells: cells.text("label")
    )


def run_row(cells: Cells, catalog: Catalog, given: Given, *, engine: str) -> MeasuredRow:
    """A run of a client that reports totals over `completed` requests and medians in milliseconds."""
    completed, duration = cells.positive("completed"), cells.positive("duration")
    found = cells.measured(
        ttft_s=("median_ttft_ms", 1e-3), tpot_s=("median_tpot_ms", 1e-3), output_tok_per_s=("output_throughput", 1.0)
    )
    concurrency = cells.text("max_concurrency")
    if not concurrency:
        # Little's law over the run, where the client did not cap the requests in flight
        found_e2e = cells.measured(e2e=("mean_e2el_ms", 1e-3), other=("mean_e2e_latency_ms", 1e-3))
        e2e = max(found_e2e.values(), default=0.0)
        concurrency = cells.text("concurrency") or (str(completed / duration * e2e) if e2e else "")
    values = {
        "row_id": cells.text("label") or cells.text("date"),
        "model": cells.text("model_id") or cells.text("model"),
        "engine": engine,
        "concurrency": concurrency,
        "input_tokens": cells.positive("total_input_tokens") / completed,
        "output_tokens": cells.positive("total_output_tokens") / completed,
        **found,
    }
    return filled_row(values, cells.line, catalog, given)
