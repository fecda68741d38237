"""Latency laws fitted by others: no measured points, so nothing to compare."""

from __future__ import annotations

from collections.abc import Iterable

from pdplan.calibrate.measured import Cells, Given, MeasuredRow, Table, rows_of
from pdplan.catalog.load import Catalog

NAME = "distserve"
TITLE = "coefficients of fitted latency laws (recognised, not comparable)"


def recognises(table: Table) -> bool:
    """By its coefficients."""
    return table.kind == "csv" and {"phase", "coef_const_ms"} <= table.columns


def read(table: Table, catalog: Catalog, given: Given) -> Iterable[MeasuredRow]:
    """Every row, unsupported."""

    def build(cells: Cells) -> MeasuredRow:
        return MeasuredRow(
            row_id=cells.text("row_id", f"line-{cells.line}"),
            line=cells.line,
            problem="the row holds coefficients of a fitted law, not a measured point with a length and a load",
        )

    return rows_of(table, build, lambda cells: cells.text("row_id"))
