"""Field by field out of one YAML mapping, with every fault of the file collected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pdplan.catalog.specs import Provenance
from pdplan.errors import InputError, unknown_name
from pdplan.units import parse_quantity

__all__ = ["BASES", "Reader"]

BASES = ("vendor", "derived", "measured", "estimate")
"""Where a figure comes from; see :data:`pdplan.catalog.specs.Basis`."""

T = TypeVar("T")
_NEUTRAL: Any = object()
"""Asks a converter for a harmless value once the fault is noted."""


class Reader:
    """Field by field out of one YAML mapping, collecting faults instead of stopping at the first."""

    def __init__(self, path: Path, data: Any) -> None:
        self.path = path
        self.data: dict[str, Any] = data if isinstance(data, dict) else {}
        self.faults: list[str] = []
        self.seen: set[str] = {"provenance", "notes", "aliases"}
        if not isinstance(data, dict):
            self.faults.append(f"{path}: a mapping of fields is expected")

    def _take(self, key: str, default: Any, convert: Callable[[Any], T], accepted: str) -> T:
        self.seen.add(key)
        value = self.data.get(key, default)
        if value is None:
            self.faults.append(f"{self.path}: {key} is missing; {accepted} is expected")
            return convert(_NEUTRAL)
        try:
            return convert(value)
        except (TypeError, ValueError) as fault:
            text = (
                str(fault)
                if "is not a quantity" in str(fault)
                else f"{value!r} is not accepted; {accepted} is expected"
            )
            self.faults.append(f"{self.path}: {key}: {text}")
            return convert(_NEUTRAL)

    def quantity(self, key: str, dimension: str, default: Any = None) -> float:
        """A positive quantity with its unit."""

        def convert(value: Any) -> float:
            if value is _NEUTRAL:
                return 1.0
            number = parse_quantity(value, dimension)
            if number < 0:
                raise ValueError
            return number

        return self._take(key, default, convert, f"a quantity in {dimension}")

    def text(self, key: str, default: str | None = None) -> str:
        """A string (dates and numbers are taken as written)."""

        def convert(value: Any) -> str:
            if value is _NEUTRAL:
                return ""
            if isinstance(value, dict | list):
                raise TypeError
            return str(value)

        return self._take(key, default, convert, "text")

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 0."""

        def convert(value: Any) -> int:
            if value is _NEUTRAL:
                return 1
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError
            return value

        return self._take(key, default, convert, "a whole number of at least 0")

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number of at least 0."""

        def convert(value: Any) -> float:
            if value is _NEUTRAL:
                return 1.0
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise ValueError
            return float(value)

        return self._take(key, default, convert, "a number of at least 0")

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""

        def convert(value: Any) -> bool:
            if value is _NEUTRAL:
                return default
            if not isinstance(value, bool):
                raise TypeError
            return value

        return self._take(key, default, convert, "true or false")

    def mapping(self, key: str, convert_value: Callable[[Any], T], default: Any = None) -> Mapping[str, T]:
        """A mapping of names to values."""

        def convert(value: Any) -> Mapping[str, T]:
            if value is _NEUTRAL:
                return MappingProxyType({})
            if not isinstance(value, dict):
                raise TypeError
            return MappingProxyType({str(name): convert_value(item) for name, item in value.items()})

        return self._take(key, default, convert, "a mapping")

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers; empty by default."""
        return self._take(
            key, [], lambda v: () if v is _NEUTRAL else tuple(int(x) for x in v), "a list of whole numbers"
        )

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of names; empty by default."""
        return self._take(key, [], lambda v: () if v is _NEUTRAL else tuple(str(x) for x in v), "a list of names")

    def choice(self, key: str, accepted: tuple[str, ...], default: str | None = None) -> Any:
        """One of a few words."""

        def convert(value: Any) -> str:
            if value is _NEUTRAL:
                return accepted[0]
            if value not in accepted:
                raise ValueError
            return str(value)

        return self._take(key, default, convert, f"one of {', '.join(accepted)}")

    def provenance(self) -> Mapping[str, Provenance]:
        """Basis and source per field."""
        result: dict[str, Provenance] = {}
        given = self.data.get("provenance") or {}
        for name, entry in given.items() if isinstance(given, dict) else ():
            if not isinstance(entry, dict) or entry.get("basis") not in BASES or not entry.get("source"):
                self.faults.append(
                    f"{self.path}: provenance.{name}: basis ({', '.join(BASES)}) and source are expected"
                )
                continue
            result[str(name)] = Provenance(
                basis=entry["basis"], source=str(entry["source"]), note=str(entry.get("note", ""))
            )
        return MappingProxyType(result)

    def done(self) -> None:
        """Raise everything that was wrong, unknown keys included."""
        for key in self.data:
            if key not in self.seen:
                self.faults.append(f"{self.path}: {unknown_name('key', str(key), self.seen)}")
        if self.faults:
            raise InputError(*self.faults)
