"""A simulation as a report of its own: markdown and JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from pdplan.fleet.verification import VERIFICATION_SCHEMA, Verification
from pdplan.report.folder import write_texts
from pdplan.report.formats.markdown import markdown
from pdplan.report.simulation import simulation

__all__ = ["json_of", "markdown_of", "write_verification"]


def json_of(found: Verification) -> str:
    """One object, the same bytes for the same input."""
    return (
        json.dumps({"schema": VERIFICATION_SCHEMA, **asdict(found)}, indent=1, ensure_ascii=False, allow_nan=False)
        + "\n"
    )


def markdown_of(found: Verification) -> str:
    """Every table."""
    return markdown(simulation(found, level=1, every=True))


def write_verification(found: Verification, folder: Path) -> list[Path]:
    """Write both into a folder, each file whole or not at all; returns the paths."""
    return write_texts(folder, {"verification.md": markdown_of(found), "verification.json": json_of(found)})
