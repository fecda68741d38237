"""Measured rows of any format: one record per input row, with the deployment it describes or why it cannot be used.

A format is one module of :mod:`pdplan.calibrate.formats` with ``NAME``, ``TITLE``, ``recognises(table)`` and
``read(table, catalog, given)``; it is found by being there.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

from pdplan.catalog.load import Catalog
from pdplan.errors import InputError
from pdplan.files import read_text
from pdplan.serving.deployments import Deployment

__all__ = ["METRICS", "Cells", "Given", "MeasuredRow", "Table", "formats", "given_of", "read_rows", "rows_of"]

METRICS = ("ttft_s", "tpot_s", "output_tok_per_s", "total_tok_per_s_per_card")
"""What is compared: median (or mean) TTFT and TPOT, output tokens/s of the whole deployment, all tokens/s over all cards."""

Load = Literal["closed loop", "decode batch", "prefill pass", "static batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One input row."""

    row_id: str
    line: int
    """In the file, the header being line 1; position of the record for JSON."""
    deployment: Deployment | None = None
    load: Load = "closed loop"
    """closed loop: `concurrency` users; decode batch: so many sequences in decode and nothing else; prefill pass: so many
    prompts in one pass of every replica; static batch: so many requests prefilled together, then decoded together."""
    problem: str = ""
    """Why there is no deployment."""
    doubts: tuple[str, ...] = ()
    """What had to be assumed; each lowers the confidence of the prediction."""
    measured: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Metric -> value; those not recorded are absent."""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """model, chip, precision, mode and engine, for tables."""


class Cells:
    """A row of text with typed access: every fault names the column and the value."""

    def __init__(self, values: Mapping[str, Any], line: int) -> None:
        self.values, self.line = values, line

    def text(self, name: str, default: str = "") -> str:
        """A cell as text; `default` for a blank or an absent column."""
        value = self.values.get(name)
        return str(value).strip() if value is not None and str(value).strip() else default

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number, `default` for a blank.

        Raises
        ------
        InputError
            Blank without a default, or not a number.
        """
        text = self.text(name)
        if not text:
            if default is None:
                raise InputError(f"{name}: is blank; a number is expected")
            return default
        try:
            value = float(text)
        except ValueError:
            raise InputError(f"{name}: {text!r} is not a number") from None
        if not math.isfinite(value):
            raise InputError(f"{name}: {text!r} is not a finite number")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.number(name, default)
        if value <= 0:
            raise InputError(f"{name}: {value:g} must be greater than 0")
        return value

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1; `default` for a blank or a zero."""
        value = self.number(name, None if default is None else float(default))
        if value == 0 and default is not None:
            return default
        if value < 1 or value != round(value) or value > 1e7:
            raise InputError(f"{name}: {value:g} is not a whole number of at least 1")
        return int(value)

    def measured(self, **columns: tuple[str, float]) -> dict[str, float]:
        """Metric=(column, factor) -> the positive numbers among them; others are left out."""
        found = {}
        for metric, (column, factor) in columns.items():
            try:
                value = self.number(column) * factor
            except InputError:
                continue
            if value > 0:
                found[metric] = value
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A file as rows of named cells (CSV) or as JSON documents (one, or one per line)."""

    path: Path
    columns: frozenset[str]
    """Of a CSV; of the first document otherwise."""
    rows: tuple[Mapping[str, Any], ...]
    kind: Literal["csv", "json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the user says of the deployment where the file does not.

    Names and sizes as text, by column name of the plain format: ``model``, ``hardware``, ``engine``, ``tp`` ...
    """

    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def given_of(words: Iterable[str]) -> Given:
    """NAME=VALUE words as :class:`Given`.

    Raises
    ------
    InputError
        A word without ``=`` or without a name.
    """
    values = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--set: {word!r} is not NAME=VALUE, e.g. hardware=h200")
        values[name.strip()] = value.strip()
    return Given(values=values)


class Format(Protocol):
    """What a module of :mod:`pdplan.calibrate.formats` has."""

    NAME: str
    TITLE: str

    def recognises(self, table: Table) -> bool: ...

    def read(self, table: Table, catalog: Catalog, given: Given) -> Iterable[MeasuredRow]: ...


def formats() -> dict[str, Format]:
    """Every format by name."""
    from pdplan.calibrate import formats as package

    modules = [importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]
    return {module.NAME: module for module in sorted(modules, key=lambda m: m.NAME)}


def _table(path: Path) -> Table:
    text = read_text(path)
    if text.lstrip()[:1] in ("{", "["):
        return _json_table(path, text)
    reader = csv.DictReader(io.StringIO(text))
    try:
        rows = [{k: v for k, v in row.items() if k is not None} for row in reader]
    except csv.Error as fault:
        raise InputError(f"{path}: line {reader.line_num}: is not CSV: {fault}") from None
    columns = frozenset(reader.fieldnames or ())
    if not columns:
        raise InputError(f"{path}: is empty; a CSV with a header line, or JSON, is expected")
    return Table(path=path, columns=columns, rows=tuple(rows), kind="csv")


def _json_table(path: Path, text: str) -> Table:
    documents: list[Any]
    try:
        whole = json.loads(text)
        documents = whole if isinstance(whole, list) else [whole]
    except RecursionError:
        raise InputError(f"{path}: is nested too deeply to be a benchmark result") from None
    except json.JSONDecodeError as fault:
        documents = []
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                try:
                    documents.append(json.loads(line))
                except (json.JSONDecodeError, RecursionError):
                    where = f"line {number}: " if documents else ""
                    raise InputError(f"{path}: {where}is neither JSON nor JSON lines: {fault}") from None
    rows = tuple(row for row in documents if isinstance(row, dict))
    if not rows:
        raise InputError(f"{path}: holds no JSON object; a benchmark result or a list of them is expected")
    return Table(path=path, columns=frozenset(map(str, rows[0])), rows=rows, kind="json")


def rows_of(table: Table, build: Callable[[Cells], MeasuredRow], row_id: Callable[[Cells], str]) -> list[MeasuredRow]:
    """Build every row; one that cannot be is kept, with the reason."""
    found = []
    for i, values in enumerate(table.rows):
        cells = Cells(values, i + 2 if table.kind == "csv" else i + 1)
        try:
            found.append(build(cells))
        except InputError as fault:
            name = row_id(cells) or f"line-{cells.line}"
            found.append(MeasuredRow(row_id=name, line=cells.line, problem="; ".join(fault.faults)))
    return found


def read_rows(
    path: str | Path, catalog: Catalog, *, format_name: str | None = None, given: Given | None = None
) -> list[MeasuredRow]:
    """Rows of a file in input order, one per row of the file.

    Parameters
    ----------
    path : str or Path
        CSV, JSON or JSON lines.
    catalog : Catalog
        Where names are looked up.
    format_name : str, optional
        One of :func:`formats`; None finds it by the columns.
    given : Given, optional
        The deployment where the file does not say it.

    Raises
    ------
    InputError
        No such file, not text, no known format, or no rows.
    """
    table = _table(Path(path))
    known = formats()
    if format_name is not None and format_name not in known:
        raise InputError(f"--format: {format_name!r} is not known; choose from {', '.join(known)}")
    chosen = known[format_name] if format_name else next((f for f in known.values() if f.recognises(table)), None)
    if chosen is None:
        some = ", ".join(sorted(table.columns)[:8])
        raise InputError(
            f"{path}: the columns ({some}) are of no known format; accepted are {', '.join(known)}; --format NAME forces one"
        )
    rows = list(chosen.read(table, catalog, given or Given()))
    if not rows:
        raise InputError(f"{path}: has a header and no rows")
    return rows
