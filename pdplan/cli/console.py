"""The terminal: results to stdout, everything for people's eyes to stderr, progress only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["emit", "note", "progress"]


def emit(text: str) -> None:
    """Write the result to stdout, whole, ending in one newline."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """One line for people, on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


@contextmanager
def progress(label: str, *, quiet: bool = False) -> Iterator[None]:
    """A spinner on stderr while something runs; nothing where stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(label):
        yield
