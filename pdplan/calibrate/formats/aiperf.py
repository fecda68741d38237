"""Summary of AIPerf (``profile_export_aiperf.json``) and GenAI-Perf (``profile_export_genai_perf.json``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pdplan.calibrate.formats.plain import filled_row
from pdplan.calibrate.measured import Cells, Given, MeasuredRow, Table, rows_of
from pdplan.catalog.load import Catalog

NAME = "aiperf"
TITLE = "JSON summary of AIPerf or GenAI-Perf"
_SCALE = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9}


def recognises(table: Table) -> bool:
    """By the statistics block of the first token."""
    return table.kind == "json" and "time_to_first_token" in table.columns


def read(table: Table, catalog: Catalog, given: Given) -> Iterable[MeasuredRow]:
    """One row per summary."""
    return rows_of(table, lambda cells: _row(cells, catalog, given), lambda _: "")


def _stat(document: Mapping[str, Any], metric: str, *names: str) -> float | None:
    """A statistic of a metric's block, times in seconds; None where it is absent."""
    block = document.get(metric)
    if not isinstance(block, dict):
        return None
    for name in names:
        value = block.get(name)
        if isinstance(value, int | float):
            return float(value) * _SCALE.get(str(block.get("unit", "")).lower(), 1.0)
    return None


def _find(data: Any, *names: str) -> Any:
    """First value under any of the names, at any depth."""
    if isinstance(data, dict):
        for name in names:
            if data.get(name) not in (None, "", [], {}):
                return data[name]
        for value in data.values():
            found = _find(value, *names)
            if found is not None:
                return found
    return None


def _row(cells: Cells, catalog: Catalog, given: Given) -> MeasuredRow:
    document, settings = cells.values, cells.values.get("input_config") or {}
    model = _find(settings, "model_names", "model", "model_name")
    output = _stat(document, "output_token_throughput", "avg")
    values = {
        "row_id": f"run-{cells.line}",
        "model": model[0] if isinstance(model, list) else model,
        "concurrency": _find(settings, "concurrency", "max_concurrency"),
        "input_tokens": _stat(document, "input_sequence_length", "avg"),
        "output_tokens": _stat(document, "output_sequence_length", "avg"),
        "ttft_s": _stat(document, "time_to_first_token", "p50", "avg"),
        "tpot_s": _stat(document, "inter_token_latency", "p50", "avg"),
        "output_tok_per_s": output,
    }
    if isinstance(values["concurrency"], list | dict):
        values["concurrency"] = None
    return filled_row(values, cells.line, catalog, given)
