"""Efficiency profiles: constants fitted to a user's own measurements, laid over the catalog's.

A profile (``schema: pdplan.profile/1``) replaces constants of families and engines, and constants shared by all
(``general``). `pdplan calibrate` writes it; `plan`, `estimate` and `validate` take it by ``--profile``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pdplan.catalog.load import Catalog
from pdplan.errors import InputError, unknown_name
from pdplan.files import read_yaml

__all__ = ["SCHEMA", "Profile", "profile_from_data", "read_profile"]

SCHEMA = "pdplan.profile/1"
_KEYS = ("schema", "name", "families", "engines", "general", "provenance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Constants that win over the catalog's, in the units of the catalog files."""

    name: str
    families: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: MappingProxyType({}))
    """Family id -> constant -> value."""
    engines: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: MappingProxyType({}))
    general: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    provenance: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """What it was fitted to and how well it fits; free form."""

    def data(self) -> dict[str, Any]:
        """As plain data, the content of the file."""
        out: dict[str, Any] = {"schema": SCHEMA, "name": self.name}
        for key in ("families", "engines"):
            if table := getattr(self, key):
                out[key] = {entry: dict(values) for entry, values in table.items()}
        if self.general:
            out["general"] = dict(self.general)
        return {**out, "provenance": dict(self.provenance)}

    def over(self, catalog: Catalog) -> Catalog:
        """The catalog with these constants in place of its own.

        Raises
        ------
        InputError
            A family, engine or constant that the catalog does not have.
        """
        return catalog.with_constants(self.families, self.engines)

    def overrides(self) -> dict[str, float]:
        """The shared constants, as ``general.<name>``."""
        return {f"general.{name}": value for name, value in self.general.items()}


def _numbers(where: str, table: Any, faults: list[str]) -> dict[str, float]:
    if not isinstance(table, dict):
        faults.append(f"{where}: is {table!r}; a mapping from constants to numbers is expected")
        return {}
    found = {}
    for name, value in table.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            faults.append(f"{where}.{name}: {value!r} is not accepted; a finite number of at least 0 is expected")
        elif "efficiency" in str(name) and not 0 < value <= 1:
            faults.append(f"{where}.{name}: {value!r} is not accepted; above 0 and at most 1 is expected")
        else:
            found[str(name)] = float(value)
    return found


def profile_from_data(data: Any, *, name: str) -> Profile:
    """A profile from plain data.

    Raises
    ------
    InputError
        Every fault at once, `name` being the file.
    """
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise InputError(f"{name}: schema is not {SCHEMA!r}; `pdplan calibrate` writes such a file")
    faults = [f"{name}: {unknown_name('key', str(key), _KEYS)}" for key in data if key not in _KEYS]
    tables: dict[str, dict[str, dict[str, float]]] = {"families": {}, "engines": {}}
    for key, table in tables.items():
        given = data.get(key) or {}
        if not isinstance(given, dict):
            faults.append(f"{name}: {key}: is {given!r}; a mapping from ids to constants is expected")
            continue
        for entry, values in given.items():
            table[str(entry)] = _numbers(f"{name}: {key}.{entry}", values, faults)
    general = _numbers(f"{name}: general", data.get("general") or {}, faults)
    provenance = data.get("provenance") or {}
    if not isinstance(provenance, dict):
        faults.append(f"{name}: provenance: is {provenance!r}; a mapping is expected")
    if faults:
        raise InputError(*faults)
    return Profile(
        name=str(data.get("name") or name),
        families=tables["families"],
        engines=tables["engines"],
        general=general,
        provenance=provenance,
    )


def read_profile(path: str | Path) -> Profile:
    """A profile from its file; see :func:`profile_from_data`."""
    return profile_from_data(read_yaml(path), name=str(path))
