"""``pdplan calibrate``."""

from __future__ import annotations

from pathlib import Path

import typer

from pdplan.cli.console import emit, note, progress

__all__ = ["calibrate"]


def calibrate(
    file: Path = typer.Argument(..., help="Measured rows: CSV, JSON or JSON lines of a known format."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Write the profile to this file."),
    name: str | None = typer.Option(None, "--name", help="Name of the profile (default: the name of the file)."),
    format_: str | None = typer.Option(None, "--format", help="Force a format instead of finding it by the columns."),
    given: list[str] = typer.Option(
        [],
        "--set",
        help="NAME=VALUE of the deployment where the file does not say it, e.g. --set hardware=h200 --set tp=8.",
    ),
    catalog: Path | None = typer.Option(None, "--catalog", help="Your catalog folder, laid over the shipped one."),
    json_: bool = typer.Option(False, "--json", help="Print the profile as JSON on stdout."),
) -> None:
    """Fit an efficiency profile to measurements of your own deployment.

    One TPOT already helps; what the rows do not determine stays as shipped, and is named.

    Example: pdplan calibrate measured.csv --out profile.yaml
    """
    from pdplan import __version__
    from pdplan.calibrate.fit import calibrate as fit
    from pdplan.calibrate.measured import given_of, read_rows
    from pdplan.calibrate.tables import calibration_markdown
    from pdplan.catalog.load import load_catalog
    from pdplan.files import write_atomic

    loaded = load_catalog(catalog)
    rows = read_rows(file, loaded, format_name=format_, given=given_of(given))
    with progress("fitting", quiet=json_):
        found = fit(rows, loaded, name=name or file.stem, source=file.name, version=__version__)
    if out is not None:
        import yaml

        write_atomic(out, yaml.safe_dump(found.profile.data(), sort_keys=False, allow_unicode=True))
        note(f"wrote {out}")
    if json_:
        import json

        emit(json.dumps(found.profile.data(), indent=1, ensure_ascii=False))
        return
    emit(calibration_markdown(found, file.name).rstrip("\n"))
