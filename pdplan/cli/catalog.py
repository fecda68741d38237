"""``pdplan catalog``: look at, check and extend the catalog."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pdplan.cli.console import emit, note
from pdplan.errors import InputError

if TYPE_CHECKING:
    from pdplan.catalog.view import Table

__all__ = ["app", "check", "diff", "import_model", "import_prices", "list_", "search", "show"]

app = typer.Typer(
    help="Hardware, models, links and prices: every number with its source.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_FOLDER = typer.Option(None, "--catalog", help="Your catalog folder, laid over the shipped one.")
_JSON = typer.Option(False, "--json", help="Print JSON on stdout.")


def _print(table: Table, kind: str, as_json: bool) -> None:
    if as_json:
        rows = [dict(zip(table.headers, row, strict=True)) for row in table.rows]
        _json(kind, rows=rows)
        return
    from tabulate import tabulate

    emit(tabulate(table.rows, headers=table.headers, disable_numparse=False, floatfmt=".10g"))


def _json(name: str, /, **content: Any) -> None:
    emit(json.dumps({"schema": f"pdplan.catalog-{name}/1", **content}, indent=1))


@app.command(name="list")
def list_(
    kind: str = typer.Argument(
        "accelerators",
        help="accelerators, nodes, links, models, families, engines, workloads, prices or sources.",
    ),
    catalog: Path | None = _FOLDER,
    json_: bool = _JSON,
) -> None:
    """One line per entry of a kind.

    Example: pdplan catalog list nodes
    """
    from pdplan.catalog.load import KINDS, load_catalog
    from pdplan.catalog.view import listing, plain, record_of

    loaded = load_catalog(catalog)
    table = listing(loaded, kind)
    if json_ and kind in KINDS and kind != "workloads":
        _json("list", kind=kind, entries=[plain(record_of(loaded, kind, entry)) for entry in loaded.ids(kind)])
    elif json_ and kind == "prices":
        _json("list", kind=kind, entries=[plain(row) for row in loaded.all_price_rows()])
    else:
        _print(table, "list", json_)
        note(f"{len(table.rows)} {kind}")


@app.command()
def show(
    entry: str = typer.Argument(..., help="An id, kind/id, or for a model the path of a Hugging Face config.json."),
    catalog: Path | None = _FOLDER,
    json_: bool = _JSON,
) -> None:
    """Every number of an entry with unit, basis, source and date; for a node its prices too.

    Example: pdplan catalog show h100-sxm-8
    """
    from tabulate import tabulate

    from pdplan.catalog.load import load_catalog
    from pdplan.catalog.view import figures, find, plain, record_of

    loaded = load_catalog(catalog)
    try:
        found = find(loaded, entry)
    except InputError:
        if not (entry.endswith(".json") or Path(entry).exists()):
            raise
        found = [("models", entry)]
    documents = []
    for kind, name in found:
        prices = loaded.price_rows(name) if kind == "nodes" else []
        rows = figures(loaded, kind, name)
        if json_:
            document = {"kind": kind, "id": name, "record": plain(record_of(loaded, kind, name))}
            document |= {"figures": plain(rows), "prices": plain(prices)}
            documents.append(document)
            continue
        emit(f"{kind}/{name}\n")
        lines = [(r.field, r.value, r.basis, r.source, r.date, r.note) for r in rows if r.field != "note"]
        emit(tabulate(lines, headers=["", "value", "basis", "source", "dated", "note"], disable_numparse=True,
                      maxcolwidths=[None, 60, None, None, 24, 50]) + "\n")  # fmt: skip
        for row in rows:
            if row.field == "note":
                emit(f"note: {row.value}\n")
        if prices:
            columns = ["pricing model", "region", "per node hour", "purchase", "currency", "seen", "basis", "source"]
            columns.append("note")
            table = [
                (p.pricing_model, p.region, p.price_per_node_hour, p.purchase_price, p.currency,
                 p.date_observed.isoformat(), p.basis, p.source, p.note + (" (tax included)" if p.tax_included else ""))
                for p in prices
            ]  # fmt: skip
            emit(tabulate(table, headers=columns, floatfmt=".10g", maxcolwidths=[None] * 8 + [40]) + "\n")
    if json_:
        _json("show", entries=documents)


@app.command()
def search(
    word: str = typer.Argument(..., help="Part of an id, alias or name."),
    catalog: Path | None = _FOLDER,
    json_: bool = _JSON,
) -> None:
    """Entries whose id, alias or name has the word.

    Example: pdplan catalog search h200
    """
    from pdplan.catalog.load import load_catalog
    from pdplan.catalog.view import search as find_word

    table = find_word(load_catalog(catalog), word)
    _print(table, "search", json_)
    if not table.rows:
        note(f"nothing in the catalog has {word!r} in its id, alias or name; see pdplan catalog list")


@app.command()
def check(catalog: Path | None = _FOLDER, json_: bool = _JSON) -> None:
    """Check every file: schema, names, bounds, sources, references. Exit code 2 if a fault is found.

    Example: pdplan catalog check
    """
    from pdplan.catalog.check import check_catalog
    from pdplan.catalog.load import load_catalog

    report = check_catalog(load_catalog(catalog))
    looked_at = ", ".join(f"{n} {kind}" for kind, n in report.counts.items())
    if json_:
        _json("check", ok=report.ok, faults=report.faults, counts=report.counts)
    elif report.ok:
        emit(f"sound: {looked_at}")
    if not report.ok:
        for fault in report.faults:
            note(f"error: {fault}")
        note(f"{len(report.faults)} faults in {looked_at}")
        raise typer.Exit(2)


@app.command()
def diff(
    catalog: Path = typer.Option(..., "--catalog", help="Your catalog folder."),
    json_: bool = _JSON,
) -> None:
    """What your folder adds to or changes in the shipped catalog.

    Example: pdplan catalog diff --catalog my-catalog
    """
    from pdplan.catalog.load import load_catalog
    from pdplan.catalog.view import diff as differences

    table = differences(load_catalog(), load_catalog(catalog))
    _print(table, "diff", json_)
    if not table.rows:
        note(f"{catalog}: adds and changes nothing")


@app.command(name="import-prices")
def import_prices(
    file: Path = typer.Argument(..., help="SkyPilot catalog CSV (aws/vms.csv) or gpuhunt CSV (aws.csv)."),
    catalog: Path = typer.Option(..., "--catalog", help="Your catalog folder; made if missing."),
    provider: str = typer.Option("", help="Cloud; by default the folder's (SkyPilot) or file's (gpuhunt) name."),
    seen: str = typer.Option("", help="Day of the prices, 2026-11-30; by default the day the file was written."),
    json_: bool = _JSON,
) -> None:
    """Read a public price table into your folder, and say which rows found no node.

    Example: pdplan catalog import-prices aws.csv --catalog my-catalog --seen 2026-11-30
    """
    from pdplan.catalog.import_prices import import_prices as run
    from pdplan.catalog.load import load_catalog
    from pdplan.catalog.view import plain

    try:
        day = date.fromisoformat(seen) if seen else None
    except ValueError:
        raise InputError(f"--seen: {seen!r} is no day; write it as 2026-11-30") from None
    known = load_catalog(catalog) if catalog.is_dir() else load_catalog()
    report = run(file, catalog, known, provider=provider, seen=day)
    if json_:
        content = plain(report)
        _json("import-prices", **(content | {"file": str(report.file)}))
    else:
        emit(f"{report.file}: {report.placed} {report.format} rows placed on {report.nodes} nodes")
    lost = sum(count for _, count in report.unplaced)
    if lost:
        note(f"{lost} rows could not be placed:")
        for why, count in report.unplaced:
            note(f"  {why} ({count} rows)")
    if report.without_accelerator:
        note(f"{report.without_accelerator} rows have no accelerator")


@app.command(name="import-model")
def import_model(
    path: Path = typer.Argument(..., help="A Hugging Face config.json, or the folder that holds it."),
    catalog: Path = typer.Option(..., "--catalog", help="Your catalog folder; made if missing."),
    id_: str = typer.Option("", "--id", help="Id of the new model; by default from the name in the file or folder."),
    json_: bool = _JSON,
) -> None:
    """Turn a Hugging Face config.json into a model file of your folder.

    Example: pdplan catalog import-model Qwen3-8B/config.json --catalog my-catalog --id my-model
    """
    from pdplan.catalog.hf_config import import_config
    from pdplan.catalog.view import plain

    target, model = import_config(path, catalog, id_)
    if json_:
        _json("import-model", file=str(target), record=plain(model))
    else:
        emit(
            f"{target}: {model.total_parameters / 1e9:.4g} billion parameters, "
            f"{model.active_parameters / 1e9:.4g} billion active, {model.layers} layers"
        )
    for line in model.notes:
        note(f"note: {line}")
