"""Error tables of every public file of measured rows, by `pdplan validate`, with the share inside the 90 % interval.

Usage: python benchmarks/public_validation.py [FOLDER] [--out DIR]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pdplan.calibrate.errors import error_lines, scatter_svg
from pdplan.calibrate.measured import read_rows
from pdplan.calibrate.predict import predict_rows
from pdplan.calibrate.tables import errors_csv, errors_markdown, predictions_csv
from pdplan.catalog.load import load_catalog
from pdplan.errors import InputError
from pdplan.files import write_atomic

DEFAULT_FOLDER = Path(__file__).resolve().parent.parent.parent / "shared" / "validation"
"""The validation data folder beside the project, if present."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", nargs="?", type=Path, default=DEFAULT_FOLDER)
    options.add_argument("--out", type=Path, help="also write predictions, errors and scatter plots here")
    asked = options.parse_args()
    files = sorted(asked.folder.glob("*.csv"))
    if not files:
        raise SystemExit(f"{asked.folder}: no CSV files; give the folder that holds the measured rows")
    catalog = load_catalog()
    for path in files:
        try:
            rows = read_rows(path, catalog)
        except InputError as fault:
            print(f"# {path.name}: left out\n\n{fault}\n")
            continue
        found = predict_rows(rows, catalog)
        lines = error_lines(rows, found)
        print(errors_markdown(path.name, rows, found, lines))
        if asked.out is not None:
            write_atomic(asked.out / f"{path.stem}_predictions.csv", predictions_csv(rows, found))
            write_atomic(asked.out / f"{path.stem}_errors.csv", errors_csv(lines))
            write_atomic(asked.out / f"{path.stem}_scatter.svg", scatter_svg(rows, found))


if __name__ == "__main__":
    main()
