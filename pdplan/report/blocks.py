"""The decision paper between plan and format: headings, sentences, tables and bars; words only, no markup.

`paper.py` builds a document once; markdown and HTML each turn the same blocks into text, so that they cannot
tell different stories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Bar", "Bars", "Block", "Heading", "Items", "Paragraph", "Segment", "Span", "Strong", "Table"]


@dataclass(frozen=True, slots=True)
class Strong:
    """Emphasised words."""

    text: str


Span = str | Strong


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """Level 1 is the title."""

    level: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """Sentences; `tone` is good, bad or warning where the message is a verdict."""

    spans: tuple[Span, ...]
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A list, numbered or not."""

    items: tuple[tuple[Span, ...], ...]
    numbered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`left` are the text columns; the others are numbers and stand to the right."""

    caption: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: frozenset[int] = frozenset({0})


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of a bar: `kind` picks the colour, `frac` is its share of the axis."""

    kind: str
    frac: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar with the same value in words; `mark_frac` is a target line, `range_frac` an interval."""

    label: str
    value: str
    segments: tuple[Segment, ...]
    mark_frac: float | None = None
    range_frac: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """A chart. Formats without drawings leave it out: a table beside it carries every number."""

    caption: str
    bars: tuple[Bar, ...]
    legend: tuple[tuple[str, str], ...] = ()
    """(kind, words)."""


Block = Heading | Paragraph | Items | Table | Bars
