"""The terminal: results to stdout, everything for people's eyes to stderr, progress only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["emit", "note", "progress", "progress_bar"]


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


@contextmanager
def progress_bar(label: str, *, quiet: bool = False) -> Iterator[Callable[[float], None]]:
    """A bar on stderr, moved by calls with the share done; nothing where stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda share: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=1.0)
        yield lambda share: bar.update(task, completed=share)
