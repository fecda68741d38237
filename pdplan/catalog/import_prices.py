"""Public price tables (SkyPilot catalog CSV, gpuhunt CSV) into the user's prices folder."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pdplan.catalog.load import PRICE_COLUMNS, Catalog
from pdplan.errors import InputError
from pdplan.files import read_text, write_atomic

__all__ = ["ImportReport", "import_prices"]

SOURCE = "imported_prices"
"""Source id of imported rows in sources.yaml."""

_SKYPILOT = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region")
_GPUHUNT = ("instance_name", "location", "price", "gpu_count", "gpu_name", "spot")

_CARDS = {
    "a100-80gb": "a100-sxm-80", "a100-80gb-sxm": "a100-sxm-80", "a100": "a100-sxm-40", "h100": "h100-sxm",
    "h100-sxm": "h100-sxm", "h100-mega": "h100-sxm", "h100nvl": "h100-nvl", "h100-nvl": "h100-nvl", "h200": "h200-sxm",
    "h200-sxm": "h200-sxm", "gh200": "gh200-96", "gb200": "gb200-nvl72", "gb300": "gb300-nvl72",
    "rtxpro6000": "rtx-pro-6000", "rtxpro-6000": "rtx-pro-6000", "gaudi-hl-205": "gaudi1", "gaudi2": "gaudi2",
    "trainium": "trainium1", "trainium2": "trainium2", "inferentia2": "inferentia2",
}  # fmt: skip
"""Names of accelerators in public price tables where they differ from the id here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What became of each row: `placed` were written, `unplaced` says why the others were not."""

    file: Path
    format: str
    placed: int
    nodes: int
    without_accelerator: int
    unplaced: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    instance: str
    card: str
    cards: float
    region: str
    on_demand: str
    spot: str


def import_prices(
    path: Path, overlay: Path, catalog: Catalog, *, provider: str = "", seen: date | None = None, currency: str = "USD"
) -> ImportReport:
    """Read a price table and write ``<overlay>/prices/<provider>-imported.csv``.

    Parameters
    ----------
    path : Path
        SkyPilot catalog (``aws/vms.csv``) or gpuhunt (``aws.csv``) file; told apart by their headers.
    overlay : Path
        The user's catalog folder; made where it is missing.
    catalog : Catalog
        Its nodes say which rows can be placed: by instance name, or by provider, card and number of cards.
    provider : str, optional
        By default the folder's name (SkyPilot) or the file's (gpuhunt).
    seen : date, optional
        Day of the observation; by default the day the file was written.
    currency : str, optional
        Three letters; both formats are in USD.

    Raises
    ------
    InputError
        Neither format, an unreadable file, or no row that could be placed.
    """
    table = csv.DictReader(io.StringIO(read_text(path)))
    headers = [name.strip() for name in table.fieldnames or []]
    if all(name in headers for name in _SKYPILOT):
        form, vendor = "SkyPilot catalog", provider or path.resolve().parent.name
    elif all(name in headers for name in _GPUHUNT):
        form, vendor = "gpuhunt", provider or path.stem
    else:
        raise InputError(
            f"{path}: columns {', '.join(headers[:6]) or 'none'} are no price table known here; accepted "
            f"are the SkyPilot catalog ({', '.join(_SKYPILOT)}, ...) and gpuhunt ({', '.join(_GPUHUNT)}, ...)"
        )
    vendor = re.sub(r"[^a-z0-9]+", "-", vendor.lower()).strip("-")
    try:
        day = seen or date.fromtimestamp(path.stat().st_mtime)
    except OSError as fault:
        raise InputError(f"{path}: cannot be read ({fault.strerror})") from None
    index = _index(catalog, vendor)
    best: dict[str, dict[str, object]] = {}
    unplaced: Counter[str] = Counter()
    plain_rows = placed = 0
    for raw in table:
        row = _skypilot(raw) if form.startswith("Sky") else _gpuhunt(raw)
        if row is None:
            plain_rows += 1
            continue
        node, why = _place(row, index)
        if node is None:
            unplaced[why] += 1
            continue
        prices = [("on-demand", row.on_demand), ("spot", row.spot)]
        written = 0
        for model, text in prices:
            value = _number(text)
            if not value:
                continue
            written = 1
            key = f"{vendor}/{row.region or 'any'}/{node}/{model}/{day.isoformat()}/imported"
            if key not in best or value < float(str(best[key]["price_per_node_hour"])):
                best[key] = {
                    "id": key, "node": node, "provider": vendor, "region": row.region, "pricing_model": model,
                    "currency": currency, "price_per_node_hour": value, "purchase_price": "",
                    "date_observed": day.isoformat(), "basis": "vendor", "source": SOURCE, "tax_included": "no",
                    "note": f"{form}: {row.instance}; cheapest zone of the region",
                }  # fmt: skip
        placed += written
        if not written:
            unplaced[f"{row.instance or row.card}: no price in the row"] += 1
    target = overlay / "prices" / f"{vendor}-imported.csv"
    if not best:
        reasons = "; ".join(f"{why} ({n} rows)" for why, n in unplaced.most_common(3))
        raise InputError(f"{path}: no row could be placed for provider {vendor!r}: {reasons or 'no accelerator rows'}")
    content = io.StringIO()
    writer = csv.DictWriter(content, PRICE_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(best[key] for key in sorted(best))
    write_atomic(target, content.getvalue())
    return ImportReport(
        file=target,
        format=form,
        placed=placed,
        nodes=len({row["node"] for row in best.values()}),
        without_accelerator=plain_rows,
        unplaced=tuple(sorted(unplaced.items(), key=lambda pair: (-pair[1], pair[0]))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    vendor: str
    by_instance: Mapping[str, str]
    by_cards: Mapping[tuple[str, int], str]
    cards: Mapping[str, str]
    node_card: Mapping[str, tuple[str, int]]


def _index(catalog: Catalog, vendor: str) -> _Index:
    by_instance: dict[str, str] = {}
    by_cards: dict[tuple[str, int], str] = {}
    node_card: dict[str, tuple[str, int]] = {}
    for entry in catalog.ids("nodes"):
        node = catalog.node(entry)
        node_card[node.id] = (node.accelerator, node.cards_per_node)
        if _slug(node.provider) == vendor:
            by_instance.update({_slug(node.name): node.id, _slug(node.id.removeprefix(f"{vendor}-")): node.id})
            by_cards.setdefault((node.accelerator, node.cards_per_node), node.id)
    cards = {_slug(name): name for name in catalog.ids("accelerators")} | _CARDS
    for alias, name in catalog.aliases("accelerators").items():
        cards[_slug(alias)] = name
    return _Index(vendor=vendor, by_instance=by_instance, by_cards=by_cards, cards=cards, node_card=node_card)


def _place(row: _Row, index: _Index) -> tuple[str | None, str]:
    if not row.instance:
        return None, f"{row.card}: priced without its machine"
    node = index.by_instance.get(_slug(row.instance))
    if node is not None:
        have = index.node_card[node][1]
        if row.cards and round(row.cards) != have:
            return None, f"{row.instance}: {row.cards:g} cards in the file, {have} in node {node}"
        return node, ""
    card = index.cards.get(_slug(row.card))
    if card is None:
        return None, f"{row.card}: accelerator is not in the catalog"
    node = index.by_cards.get((card, round(row.cards)))
    if node is None:
        return None, f"{row.instance}: {index.vendor} has no node with {row.cards:g} x {card}; add one under nodes/"
    return node, ""


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _number(text: str | None) -> float:
    try:
        value = float(text or 0)
    except ValueError:
        return 0.0
    return value if 0 < value < float("inf") else 0.0


def _skypilot(raw: Mapping[str, str]) -> _Row | None:
    if not raw.get("AcceleratorName"):
        return None
    return _Row(
        instance=raw.get("InstanceType") or "",
        card=raw["AcceleratorName"],
        cards=_number(raw.get("AcceleratorCount")),
        region=raw.get("Region") or "",
        on_demand=raw.get("Price") or "",
        spot=raw.get("SpotPrice") or "",
    )


def _gpuhunt(raw: Mapping[str, str]) -> _Row | None:
    if not raw.get("gpu_name") or not _number(raw.get("gpu_count")):
        return None
    is_spot = (raw.get("spot") or "").strip().lower() == "true"
    card = raw["gpu_name"]
    memory = _number(raw.get("gpu_memory"))
    if _slug(card) == "a100" and memory >= 79:  # gpuhunt tells the two apart by memory only
        card = "A100-80GB"
    return _Row(
        instance=raw.get("instance_name") or "",
        card=card,
        cards=_number(raw.get("gpu_count")),
        region=raw.get("location") or "",
        on_demand="" if is_spot else raw.get("price") or "",
        spot=raw.get("price") or "" if is_spot else "",
    )
