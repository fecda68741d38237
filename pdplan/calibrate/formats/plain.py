"""pdplan's own table: everything a prediction needs, under plain names (docs/reference/measured-rows.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pdplan.calibrate.common import assemble
from pdplan.calibrate.measured import METRICS, Cells, Given, MeasuredRow, Table, rows_of
from pdplan.catalog.load import Catalog
from pdplan.serving.deployments import Worker

NAME = "plain"
TITLE = (
    "pdplan's own columns: model, hardware, engine, tp, concurrency, input_tokens, output_tokens, ttft_s, tpot_s ..."
)


def recognises(table: Table) -> bool:
    """By model, hardware and lengths under their plain names."""
    return table.kind == "csv" and {"model", "hardware", "input_tokens", "output_tokens"} <= table.columns


def read(table: Table, catalog: Catalog, given: Given) -> Iterable[MeasuredRow]:
    """Every row; what the user gives fills blanks."""
    return rows_of(
        table, lambda cells: filled_row(cells.values, cells.line, catalog, given), lambda cells: cells.text("row_id")
    )


def filled_row(values: Mapping[str, Any], line: int, catalog: Catalog, given: Given) -> MeasuredRow:
    """A row of plain columns, blanks filled by what the user gives; other formats are turned into these columns first."""
    known = {name: value for name, value in values.items() if value not in (None, "")}
    return plain_row(Cells({**given.values, **known}, line), catalog)


def _worker(cells: Cells, role: str) -> Worker:
    """A role's own columns (``prefill_tp``), else the common ones (``tp``)."""

    def size(name: str, default: int = 1) -> int:
        own = f"{role}_{name}"
        return cells.count(own) if cells.text(own) else cells.count(name, default)

    tp, ranks = size("tp"), size("attention_dp")
    return Worker(
        replicas=cells.count(f"{role}_replicas", 0) or cells.count("replicas", 1)
        if role
        else cells.count("replicas", 1),
        tp=tp,
        pp=size("pp"),
        ep=size("ep"),
        attention_dp=ranks,
    )


def plain_row(cells: Cells, catalog: Catalog) -> MeasuredRow:
    """One row of plain columns."""
    apart = bool(cells.text("prefill_tp") or cells.text("prefill_attention_dp"))
    decode = _worker(cells, "decode")
    prefill = _worker(cells, "prefill") if apart else None
    drafts = cells.count("draft_tokens", 0)
    return assemble(
        cells,
        catalog,
        row_id=cells.text("row_id", f"line-{cells.line}"),
        model=cells.text("model"),
        hardware=cells.text("hardware"),
        framework=cells.text("engine"),
        precision=cells.text("precision"),
        kv_cache=cells.text("kv_cache"),
        decode=decode,
        prefill=prefill,
        concurrency=cells.positive("concurrency"),
        input_tokens=cells.positive("input_tokens"),
        output_tokens=cells.positive("output_tokens"),
        cached_tokens=cells.number("cached_tokens", 0.0),
        draft_tokens=drafts,
        acceptance_frac=cells.positive("acceptance_frac") if cells.text("acceptance_frac") else None,
        max_batch_per_rank=cells.count("max_batch_per_rank", 0),
        token_budget=cells.positive("token_budget") if cells.text("token_budget") else None,
        poll=False,
        measured=cells.measured(**{metric: (metric, 1.0) for metric in METRICS}),
        labels={"framework": cells.text("engine"), "hardware": cells.text("hardware"), "group": cells.text("group")},
    )
