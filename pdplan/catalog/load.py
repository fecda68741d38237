"""Catalog folders in, frozen records out: the shipped catalog with the user's folder laid over it.

Nothing is read before it is asked for; a plan touches a handful of files out of hundreds.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pdplan.catalog.models import model_of
from pdplan.catalog.reader import BASES, Reader
from pdplan.catalog.specs import (
    AcceleratorSpec,
    EngineSpec,
    FamilySpec,
    LinkSpec,
    ModelSpec,
    NodeSpec,
    PriceRow,
    Source,
)
from pdplan.errors import InputError, unknown_name
from pdplan.files import parse_yaml, read_text
from pdplan.units import parse_quantity

__all__ = ["KINDS", "PRICE_COLUMNS", "Catalog", "Reader", "load_catalog", "parse_price_rows", "shipped_folder"]

KINDS = ("accelerators", "nodes", "links", "models", "families", "engines", "workloads")
"""Folders with one YAML file per entry."""

PRICE_COLUMNS = (
    "id",
    "node",
    "provider",
    "region",
    "pricing_model",
    "currency",
    "price_per_node_hour",
    "purchase_price",
    "date_observed",
    "basis",
    "source",
    "tax_included",
    "note",
)
"""Columns of catalogs/prices/<provider>.csv."""

OPTIONAL_ENGINE_CONSTANTS = (
    "eager_layer_latency_us", "exchange_overlap_frac", "expert_imbalance_factor", "poll_interval_steps", "draft_acceptance_frac",
)  # fmt: skip
"""Engine constants that an engine's file may leave out and a profile may still set."""

T = TypeVar("T")
_ALIASES = re.compile(r"^aliases: *\[(.*)\]", re.MULTILINE)


def shipped_folder() -> Path:
    """The catalog that comes with pdplan: inside the wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "_catalogs"
    return inside if inside.is_dir() else package.parent / "catalogs"


def _accelerator(r: Reader) -> AcceleratorSpec:
    return AcceleratorSpec(
        id=r.text("id"),
        name=r.text("name"),
        vendor=r.text("vendor"),
        family=r.text("family"),
        released=r.text("released"),
        status=r.text("status"),
        hbm_bytes=r.quantity("hbm", "byte"),
        hbm_bandwidth_bytes_per_s=r.quantity("hbm_bandwidth", "byte/s"),
        dense_flop_per_s=r.mapping("dense", lambda v: parse_quantity(v, "FLOP/s")),
        power_w=r.quantity("power", "W"),
        scale_up_bandwidth_bytes_per_s=r.quantity("scale_up_bandwidth", "byte/s"),
        scale_up_domain_cards=r.integer("scale_up_domain_cards"),
        architecture=r.text("architecture", ""),
        notes=str(r.data.get("notes", "")),
        provenance=r.provenance(),
    )


def _node(r: Reader) -> NodeSpec:
    return NodeSpec(
        id=r.text("id"),
        name=r.text("name"),
        provider=r.text("provider"),
        kind=r.choice("kind", ("server", "instance", "supernode")),
        accelerator=r.text("accelerator"),
        cards_per_node=r.integer("cards_per_node"),
        scale_up_domain_cards=r.integer("scale_up_domain_cards"),
        nic_bandwidth_bytes_per_s_per_card=r.quantity("nic_bandwidth_per_card", "byte/s"),
        power_w=r.quantity("power", "W"),
        scale_out_link=r.text("scale_out_link", ""),
        notes=str(r.data.get("notes", "")),
        provenance=r.provenance(),
    )


def _link(r: Reader) -> LinkSpec:
    return LinkSpec(
        id=r.text("id"),
        kind=r.choice("kind", ("scale_up", "scale_out", "front_end", "wide_area")),
        bandwidth_bytes_per_s=r.quantity("bandwidth", "byte/s"),
        per=r.text("per"),
        efficiency_frac=r.number("efficiency_frac"),
        latency_s=r.quantity("latency", "s"),
        latency_s_per_km=r.quantity("latency_per_km", "s", "0 s"),
        usd_per_month=r.number("usd_per_month") if "usd_per_month" in r.data else None,
        reach_km=r.number("reach_km") if "reach_km" in r.data else None,
        notes=str(r.data.get("notes", "")),
        provenance=r.provenance(),
    )


_CONFIDENCE = ("fitted", "transferred", "op-tables", "guess")


def _family(r: Reader) -> FamilySpec:
    return FamilySpec(
        id=r.text("id"),
        version=r.text("version"),
        fitted_on=r.text("fitted_on"),
        confidence=r.choice("confidence", _CONFIDENCE),
        constants=r.mapping("constants", float),
        provenance=r.provenance(),
    )


def _engine(r: Reader) -> EngineSpec:
    return EngineSpec(
        id=r.text("id"),
        name=r.text("name"),
        version=r.text("version"),
        confidence=r.choice("confidence", _CONFIDENCE),
        constants=r.mapping("constants", float),
        equal_tp=r.flag("equal_tp"),
        prefill_tp_at_most_decode_tp=r.flag("prefill_tp_at_most_decode_tp"),
        allowed_tp=r.integers("allowed_tp"),
        allowed_ep=r.integers("allowed_ep"),
        expert_parallel_across_domain=r.flag("expert_parallel_across_domain", True),
        max_batch_per_rank=r.integer("max_batch_per_rank", 0),
        prefill_token_budget=r.integer("prefill_token_budget", 8192),
        vendors=r.texts("vendors"),
        provenance=r.provenance(),
    )


class Catalog:
    """The shipped catalog with an optional folder of the user's laid over it, entry by entry.

    Parameters
    ----------
    folders : sequence of Path
        Later folders win.
    """

    def __init__(self, *folders: Path) -> None:
        self.folders = folders
        self._cache: dict[tuple[str, str], Any] = {}
        self._used: dict[str, str] = {}

    def _paths(self, kind: str) -> dict[str, Path]:
        key = ("paths", kind)
        if key not in self._cache:
            found: dict[str, Path] = {}
            for folder in self.folders:
                if (folder / kind).is_dir():
                    found.update({path.stem.lower(): path for path in sorted((folder / kind).glob("*.yaml"))})
            self._cache[key] = found
        paths: dict[str, Path] = self._cache[key]
        return paths

    def ids(self, kind: str) -> list[str]:
        """Ids of one kind, sorted."""
        return sorted(self._paths(kind))

    def path(self, kind: str, entry: str) -> Path:
        """The file of an entry, by id or alias in any case; raises InputError with near misses."""
        paths = self._paths(kind)
        wanted = entry.strip().lower()
        # clouds write p5.48xlarge, ids write p5-48xlarge
        for name in (wanted, wanted.replace("_", "-"), wanted.replace("_", "-").replace(".", "-")):
            if name in paths:
                return paths[name]
        if wanted in (aliases := self.aliases(kind)):
            return paths[aliases[wanted]]
        singular = {"families": "family"}.get(kind, kind[:-1])
        raise InputError(unknown_name(singular, entry, [*paths, *aliases], hint=f"See `pdplan catalog list {kind}`"))

    def aliases(self, kind: str) -> Mapping[str, str]:
        """Other names of entries (``aliases: [a, b]`` on one line of the file) -> id."""
        key = ("aliases", kind)
        if key not in self._cache:
            found: dict[str, str] = {}
            for name, path in self._paths(kind).items():
                # a text search, because parsing hundreds of files for a rare field costs too much
                if match := _ALIASES.search(read_text(path)):
                    found.update({alias.strip(" '\"").lower(): name for alias in match.group(1).split(",")})
            self._cache[key] = found
        result: dict[str, str] = self._cache[key]
        return result

    def raw(self, kind: str, entry: str) -> Any:
        """Plain data of one entry's file."""
        path = self.path(kind, entry)
        text = read_text(path)
        self._used[f"{kind}/{path.name}"] = text
        return parse_yaml(text, name=str(path))

    def _get(self, kind: str, entry: str, build: Callable[[Reader], T]) -> T:
        path = self.path(kind, entry)
        key = (kind, path.stem)
        if key not in self._cache:
            reader = Reader(path, self.raw(kind, entry))
            record = build(reader)
            reader.done()
            if getattr(record, "id", path.stem) != path.stem:
                raise InputError(f"{path}: id is {record.id!r}; it must equal the file name {path.stem!r}")  # type: ignore[attr-defined]
            self._cache[key] = record
        result: T = self._cache[key]
        return result

    def accelerator(self, entry: str) -> AcceleratorSpec:
        """An accelerator by id."""
        return self._get("accelerators", entry, _accelerator)

    def node(self, entry: str) -> NodeSpec:
        """A node by id."""
        return self._get("nodes", entry, _node)

    def link(self, entry: str) -> LinkSpec:
        """A link by id."""
        return self._get("links", entry, _link)

    def family(self, entry: str) -> FamilySpec:
        """An efficiency family by id."""
        return self._get("families", entry, _family)

    def engine(self, entry: str) -> EngineSpec:
        """A serving engine by id."""
        return self._get("engines", entry, _engine)

    def workload(self, entry: str) -> Any:
        """Plain data of a shipped length distribution; its reader is pdplan.workload.lengths."""
        return self.raw("workloads", entry)

    def model(self, entry: str) -> ModelSpec:
        """A model by id, or from a path to a Hugging Face config.json (or the folder that holds it)."""
        if entry.lower() not in self._paths("models") and (
            "/" in entry or entry.endswith(".json") or Path(entry).exists()
        ):
            from pdplan.catalog.hf_config import model_from_config

            path = Path(entry)
            model = model_from_config(path)
            file = path / "config.json" if path.is_dir() else path
            self._used[f"config/{file.name}"] = read_text(file)
            return model
        return self._get("models", entry, model_of)

    @cached_property
    def _prices(self) -> tuple[dict[str, list[PriceRow]], date]:
        rows: dict[str, PriceRow] = {}
        for number, folder in enumerate(self.folders):
            for path in sorted((folder / "prices").glob("*.csv")):
                text = read_text(path)
                self._used[f"{number}/prices/{path.name}"] = text
                for row in parse_price_rows(path, text, own=number > 0):
                    rows[row.id] = row  # a row of the user's with the same id replaces the shipped one
        by_node: dict[str, list[PriceRow]] = {}
        for row in rows.values():
            by_node.setdefault(row.node, []).append(row)
        return by_node, max((row.date_observed for row in rows.values()), default=date(1970, 1, 1))

    def price_rows(self, node: str) -> list[PriceRow]:
        """All price rows of a node, possibly none."""
        if node not in self._prices[0]:
            try:
                node = self.path("nodes", node).stem.lower()
            except InputError:
                return []
        return list(self._prices[0].get(node, []))

    def all_price_rows(self) -> list[PriceRow]:
        """Every price row, in the order of the files."""
        return [row for rows in self._prices[0].values() for row in rows]

    def newest_price_date(self) -> date:
        """Day of the newest price observation."""
        return self._prices[1]

    @cached_property
    def sources(self) -> Mapping[str, Source]:
        """Every source by id."""
        found: dict[str, Source] = {}
        for folder in self.folders:
            path = folder / "sources.yaml"
            if not path.is_file():
                continue
            data = parse_yaml(read_text(path), name=str(path))
            for key, entry in (data or {}).items():
                if not isinstance(entry, dict) or not entry.get("title") or not entry.get("date"):
                    raise InputError(f"{path}: {key}: title and date are expected")
                found[key] = Source(
                    id=key,
                    title=str(entry["title"]),
                    publisher=str(entry.get("publisher", "")),
                    date=str(entry["date"]),
                    checked=str(entry.get("checked", "read")),
                    url=str(entry.get("url", "")),
                )
        return MappingProxyType(found)

    def source(self, entry: str) -> Source:
        """A source by id."""
        if entry not in self.sources:
            raise InputError(unknown_name("source", entry, self.sources, hint="Sources are listed in sources.yaml"))
        return self.sources[entry]

    def with_constants(
        self, families: Mapping[str, Mapping[str, float]], engines: Mapping[str, Mapping[str, float]]
    ) -> Catalog:
        """The same catalog with some constants of families and engines replaced (a calibration profile).

        Raises
        ------
        InputError
            A family, engine or constant that is not there.
        """
        changed = Catalog(*self.folders)
        changed._cache, changed._used = dict(self._cache), dict(self._used)
        faults: list[str] = []
        for kind, table, get, optional in (
            ("families", families, changed.family, ()),
            ("engines", engines, changed.engine, OPTIONAL_ENGINE_CONSTANTS),
        ):
            for entry, values in table.items():
                try:
                    record: Any = get(entry)
                except InputError as fault:
                    faults += [f"{kind}: {text}" for text in fault.faults]
                    continue
                known = {*record.constants, *optional}
                faults += [
                    f"{kind}.{entry}: {unknown_name('constant', name, known)}" for name in values if name not in known
                ]
                constants = {**record.constants, **values}
                changed._cache[kind, record.id] = replace(record, constants=constants)
        if faults:
            raise InputError(*faults)
        return changed

    def digest(self) -> str:
        """Digest over the content of every file used so far; equal inputs give an equal digest."""
        total = hashlib.sha256()
        for name in sorted(self._used):
            total.update(name.encode() + b"\0" + hashlib.sha256(self._used[name].encode()).digest())
        return f"sha256:{total.hexdigest()}"


def parse_price_rows(path: Path, text: str, *, own: bool = False) -> list[PriceRow]:
    """Price rows of a CSV text with the columns of :data:`PRICE_COLUMNS`; `own` marks the user's.

    Raises
    ------
    InputError
        Every faulty line at once.
    """
    faults: list[str] = []
    rows: list[PriceRow] = []
    table = csv.DictReader(io.StringIO(text))
    missing = [name for name in PRICE_COLUMNS[:11] if name not in (table.fieldnames or [])]
    if missing:
        raise InputError(f"{path}: column {missing[0]} is missing; the columns are {', '.join(PRICE_COLUMNS)}")
    for line, row in enumerate(table, start=2):
        try:
            rows.append(_price_row(row, own))
        except (ValueError, TypeError) as fault:
            faults.append(f"{path}: line {line}: {fault}")
    if faults:
        raise InputError(*faults)
    return rows


def _price_row(row: Mapping[str, str], own: bool) -> PriceRow:
    hourly, purchase = (_price(row, key) for key in ("price_per_node_hour", "purchase_price"))
    if hourly is None and purchase is None:
        raise ValueError("price_per_node_hour or purchase_price is expected")
    for key in ("id", "node", "provider", "pricing_model", "currency", "source"):
        if not row[key]:
            raise ValueError(f"{key} is empty")
    if row["basis"] not in BASES:
        raise ValueError(f"basis {row['basis']!r} is not one of {', '.join(BASES)}")
    if (tax := row.get("tax_included") or "no") not in ("yes", "no"):
        raise ValueError(f"tax_included {tax!r} is not accepted; yes or no is expected")
    try:
        seen = date.fromisoformat(row["date_observed"])
    except ValueError:
        raise ValueError(f"date_observed {row['date_observed']!r} is no day; write it as 2026-11-30") from None
    return PriceRow(
        id=row["id"],
        node=row["node"].lower(),
        provider=row["provider"],
        region=row["region"],
        pricing_model=row["pricing_model"],
        currency=row["currency"],
        price_per_node_hour=hourly,
        purchase_price=purchase,
        date_observed=seen,
        basis=row["basis"],  # type: ignore[arg-type]
        source=row["source"],
        tax_included=tax == "yes",
        note=row.get("note") or "",
        own=own,
    )


def _price(row: Mapping[str, str], key: str) -> float | None:
    if not row[key]:
        return None
    try:
        value = float(row[key])
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{key} {row[key]!r} is not accepted; a number greater than 0 is expected")
    return value


def load_catalog(overlay: str | Path | None = None) -> Catalog:
    """The shipped catalog, with the user's folder over it where one is given.

    Raises
    ------
    InputError
        The overlay is not a folder.
    """
    if overlay is None:
        return Catalog(shipped_folder())
    folder = Path(overlay)
    if not folder.is_dir():
        raise InputError(
            f"{folder}: is not a folder; a catalog folder holds nodes/, prices/, models/ ... as the shipped one"
        )
    return Catalog(shipped_folder(), folder)
