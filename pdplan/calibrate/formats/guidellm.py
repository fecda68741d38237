"""Report of GuideLLM: a list of benchmarks, each with distributions of its successful requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pdplan.calibrate.formats.plain import filled_row
from pdplan.calibrate.measured import Given, MeasuredRow, Table
from pdplan.catalog.load import Catalog
from pdplan.errors import InputError

NAME = "guidellm"
TITLE = "JSON report of GuideLLM"


def recognises(table: Table) -> bool:
    """By its list of benchmarks."""
    return table.kind == "json" and isinstance(table.rows[0].get("benchmarks"), list)


def read(table: Table, catalog: Catalog, given: Given) -> Iterable[MeasuredRow]:
    """One row per benchmark of the report."""
    rows = []
    entries = [
        entry for document in table.rows for entry in document.get("benchmarks") or [] if isinstance(entry, dict)
    ]
    for number, entry in enumerate(entries, start=1):
        name = str(entry.get("id_") or entry.get("id") or f"run-{number}")
        try:
            rows.append(filled_row({"row_id": name, **_values(entry)}, number, catalog, given))
        except InputError as fault:
            rows.append(MeasuredRow(row_id=name, line=number, problem="; ".join(fault.faults)))
    return rows


def _stat(metrics: Mapping[str, Any], names: tuple[str, ...], statistic: str) -> float | None:
    """A statistic over successful requests of the first metric that is there."""
    for name in names:
        block = metrics.get(name)
        if isinstance(block, dict):
            block = block.get("successful", block)
            value = block.get(statistic) if isinstance(block, dict) else None
            if isinstance(value, int | float):
                return float(value)
    return None


def _values(entry: Mapping[str, Any]) -> dict[str, Any]:
    metrics = entry.get("metrics")
    if not isinstance(metrics, dict):
        raise InputError("metrics: is missing; a GuideLLM benchmark with its metrics is expected")
    settings = entry.get("args") or entry.get("config") or {}
    strategy = settings.get("strategy") if isinstance(settings, dict) else None
    streams = strategy.get("streams") if isinstance(strategy, dict) else None
    ttft = _stat(metrics, ("time_to_first_token_ms",), "median")
    tpot = _stat(metrics, ("inter_token_latency_ms", "time_per_output_token_ms"), "median")
    return {
        "concurrency": streams or _stat(metrics, ("request_concurrency",), "mean"),
        "input_tokens": _stat(metrics, ("prompt_token_count", "prompt_tokens"), "mean"),
        "output_tokens": _stat(metrics, ("output_token_count", "output_tokens"), "mean"),
        "ttft_s": None if ttft is None else ttft * 1e-3,
        "tpot_s": None if tpot is None else tpot * 1e-3,
        "output_tok_per_s": _stat(metrics, ("output_tokens_per_second",), "mean"),
    }
