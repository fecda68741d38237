"""Plan -> text: the decision paper, tables for spreadsheets, JSON. Formats are found in `pdplan.report.formats`."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pdplan.errors import InputError
from pdplan.report.format import Format

if TYPE_CHECKING:
    from pdplan.fleet.plan import Plan

__all__ = ["formats", "render", "write"]

# Loading a subpackage binds its name here: load it before the function of the same name is defined, so that the
# function stays.
_PACKAGE = importlib.import_module("pdplan.report.formats")


@cache
def _formats() -> dict[str, Format]:
    found = {}
    for module in pkgutil.iter_modules(_PACKAGE.__path__):
        format_: Format = importlib.import_module(f"{_PACKAGE.__name__}.{module.name}").FORMAT
        found[format_.suffix] = format_
    return dict(sorted(found.items()))


def formats() -> list[str]:
    """Suffixes of the formats that exist."""
    return list(_formats())


def _format(suffix: str) -> Format:
    if suffix not in _formats():
        raise InputError(f"format {suffix!r} is not known; choose from {', '.join(formats())}")
    return _formats()[suffix]


def render(plan: Plan, suffix: str) -> str:
    """A plan as text; the tables of a format of several files follow one another, each under a line with its name."""
    texts = _format(suffix).render(plan)
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "\n".join(f"# {name}\n" + text.removeprefix("\ufeff").replace("\r\n", "\n") for name, text in texts.items())


def write(plan: Plan, folder: Path, suffixes: list[str] | tuple[str, ...]) -> list[Path]:
    """Write a plan into a folder, every file whole or not at all; returns the paths.

    Raises
    ------
    InputError
        Unknown format, or a folder that cannot be written; nothing is written then.
    """
    from pdplan.report.folder import write_texts

    chosen = [_format(suffix) for suffix in dict.fromkeys(suffixes)]
    texts: dict[str, str] = {}
    for format_ in chosen:
        texts |= format_.render(plan)
    return write_texts(folder, texts)
