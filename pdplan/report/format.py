"""What a report format is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdplan.fleet.plan import Plan

__all__ = ["Format"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A suffix, and a function from a plan to file names and their text."""

    suffix: str
    render: Callable[[Plan], Mapping[str, str]]
