"""``pdplan validate``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import typer

from pdplan.cli.console import emit, note

__all__ = ["validate"]


def validate(
    file: Path = typer.Argument(..., help="Measured rows: CSV, JSON or JSON lines of a known format."),
    format_: str | None = typer.Option(None, "--format", help="Force a format instead of finding it by the columns."),
    given: list[str] = typer.Option(
        [],
        "--set",
        help="NAME=VALUE of the deployment where the file does not say it, e.g. --set hardware=h200 --set tp=8.",
    ),
    profile: Path | None = typer.Option(None, "--profile", help="Efficiency profile written by `pdplan calibrate`."),
    out: Path | None = typer.Option(None, "--out", help="Folder for errors.md, errors.csv and scatter.svg."),
    predictions: Path | None = typer.Option(None, "--predictions", help="CSV with one line per input row."),
    catalog: Path | None = typer.Option(None, "--catalog", help="Your catalog folder, laid over the shipped one."),
    json_: bool = typer.Option(False, "--json", help="Print the error table as JSON on stdout."),
) -> None:
    """Compare measured rows with predictions: a table of errors, and the predictions themselves.

    Example: pdplan validate measured.csv --predictions predicted.csv
    """
    from pdplan.calibrate.errors import error_lines, scatter_svg
    from pdplan.calibrate.measured import given_of, read_rows
    from pdplan.calibrate.predict import predict_rows
    from pdplan.calibrate.tables import errors_csv, errors_markdown, predictions_csv
    from pdplan.catalog.load import load_catalog
    from pdplan.files import write_atomic

    loaded = load_catalog(catalog)
    rows = read_rows(file, loaded, format_name=format_, given=given_of(given))
    replaced: dict[str, Mapping[str, float]] = {}
    if profile is not None:
        from pdplan.catalog.profile import read_profile

        measured = read_profile(profile)
        loaded, replaced = measured.over(loaded), {"general": measured.general}
    found = predict_rows(rows, loaded, **replaced)
    lines = error_lines(rows, found)
    text = errors_markdown(file.name, rows, found, lines)
    if predictions is not None:
        write_atomic(predictions, predictions_csv(rows, found))
        note(f"wrote {predictions}")
    if out is not None:
        for name, content in (
            ("errors.md", text),
            ("errors.csv", errors_csv(lines)),
            ("scatter.svg", scatter_svg(rows, found)),
        ):
            write_atomic(out / name, content)
        note(f"wrote errors.md, errors.csv and scatter.svg to {out}")
    if json_:
        import json
        from dataclasses import asdict

        ok = int(found.supported().sum())
        emit(
            json.dumps(
                {
                    "schema": "pdplan.validate/1",
                    "rows": len(rows),
                    "predicted": ok,
                    "errors": [asdict(line) for line in lines],
                },
                indent=1,
            )
        )
        return
    emit(text.rstrip("\n"))
