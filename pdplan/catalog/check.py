"""Is a catalog sound? Every file read, every reference followed, every number held against physics."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pdplan.catalog.load import KINDS, Catalog
from pdplan.catalog.published import compare_with_published
from pdplan.catalog.specs import AcceleratorSpec, LinkSpec, ModelSpec, NodeSpec, Provenance
from pdplan.catalog.view import record_of
from pdplan.errors import InputError

__all__ = ["BOUNDS", "CheckReport", "check_catalog"]

BOUNDS = {
    "hbm_bytes": (4e9, 2e12),
    "hbm_bandwidth_bytes_per_s": (5e10, 1e14),
    "dense_flop_per_s": (1e12, 1e17),
    "power_w": (20.0, 1e4),
    "scale_up_bandwidth_bytes_per_s": (1e9, 1e13),
    "cards_per_node": (1, 20_000),
    "node power per card": (50.0, 1e4),
    "nic_bandwidth_bytes_per_s_per_card": (0.0, 1e12),
    "bandwidth_bytes_per_s": (1e8, 1e14),
    "efficiency_frac": (0.01, 1.0),
    "latency_s": (0.0, 0.5),
    "latency_s_per_km": (0.0, 1e-5),
    "price_per_card_hour": (0.01, 100.0),
    "purchase_price_per_card": (500.0, 1e6),
    "flop_per_byte": (20.0, 5000.0),
}
"""Accepted range of each number: wide enough for anything announced, narrow enough to catch a wrong unit."""

_ID = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")
_NODE_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_YEAR = re.compile(r"\b20[0-9][0-9]\b")
_PRICING = re.compile(r"on-demand|spot|reserved-(\d+[ym])|capacity-block|rental-market|ownership(-[a-z]+)?|purchase")
_CURRENCY = re.compile(r"[A-Z]{3}")


@dataclass(slots=True)
class CheckReport:
    """Faults, one sentence each, and how much was looked at."""

    faults: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """No fault was found."""
        return not self.faults


def check_catalog(catalog: Catalog) -> CheckReport:
    """Read everything and collect every fault.

    Checked: the schema of each file, id equals file name, physical bounds, every figure has a source
    that exists and is dated, prices belong to nodes, nodes to accelerators, accelerators to families,
    no accelerator that no node has, no name or price row twice.
    """
    report = CheckReport()
    records: dict[str, dict[str, object]] = {}
    for kind in KINDS:
        records[kind] = {}
        for entry in catalog.ids(kind):
            try:
                records[kind][entry] = record_of(catalog, kind, entry)
            except InputError as fault:
                report.faults += fault.faults
        report.counts[kind] = len(catalog.ids(kind))
        report.faults += _names(catalog, kind)
    for kind, checker in _CHECKERS.items():
        for entry, record in records[kind].items():
            path = catalog.path(kind, entry)
            report.faults += [f"{path}: {sentence}" for sentence in checker(record, catalog)]
    for kind in KINDS:
        for entry, record in records[kind].items():
            provenance: dict[str, Provenance] = getattr(record, "provenance", {})
            for name, origin in provenance.items():
                if origin.source not in catalog.sources:
                    path = catalog.path(kind, entry)
                    report.faults.append(f"{path}: provenance.{name}: source {origin.source!r} is not in sources.yaml")
    report.faults += _prices(catalog, records["nodes"], report)
    report.faults += _orphans(catalog, records)
    if len(records["models"]) == len(catalog.ids("models")):
        report.faults += _counts(catalog)
    report.counts["sources"] = len(catalog.sources)
    return report


def _names(catalog: Catalog, kind: str) -> Iterator[str]:
    pattern = _NODE_ID if kind == "nodes" else _ID
    for entry in catalog.ids(kind):
        stem = catalog.path(kind, entry).stem
        if not pattern.fullmatch(stem):
            yield f"{catalog.path(kind, entry)}: the name {stem!r} is not lower-case words joined by '-'"
    for alias, entry in catalog.aliases(kind).items():
        if alias in catalog.ids(kind):
            yield f"{catalog.path(kind, entry)}: alias {alias!r} is the id of another entry"


def _bound(name: str, value: float, label: str = "") -> Iterator[str]:
    low, high = BOUNDS[name]
    if not low <= value <= high:
        yield f"{label or name}: {value:g} is outside {low:g} to {high:g}; is the unit right?"


def _figures(provenance: object, names: list[str]) -> Iterator[str]:
    assert hasattr(provenance, "__contains__")
    for name in names:
        if name not in provenance:
            yield f"provenance.{name} is missing; every figure needs basis and source"


def _accelerator(a: AcceleratorSpec, catalog: Catalog) -> Iterator[str]:
    if a.family.lower() not in catalog.ids("families"):
        yield f"family: {a.family!r} is not one of {', '.join(catalog.ids('families'))}"
    if "bf16" not in a.dense_flop_per_s:
        yield "dense: bf16 is missing; every accelerator needs its bf16 (or fp16) peak"
    for precision, value in a.dense_flop_per_s.items():
        if precision not in ("bf16", "fp8", "int8", "fp4"):
            yield f"dense: {precision!r} is not one of bf16, fp8, int8, fp4"
        yield from _bound("dense_flop_per_s", value, f"dense.{precision}")
    yield from _bound("hbm_bytes", a.hbm_bytes, "hbm")
    yield from _bound("hbm_bandwidth_bytes_per_s", a.hbm_bandwidth_bytes_per_s, "hbm_bandwidth")
    yield from _bound("power_w", a.power_w, "power")
    yield from _bound("scale_up_bandwidth_bytes_per_s", a.scale_up_bandwidth_bytes_per_s, "scale_up_bandwidth")
    ratio = a.dense_flop_per_s.get("bf16", 0.0) / max(a.hbm_bandwidth_bytes_per_s, 1.0)
    yield from _bound("flop_per_byte", ratio, "dense.bf16 over hbm_bandwidth")
    peaks = [f"dense.{precision}" for precision in a.dense_flop_per_s]
    names = ["hbm", "hbm_bandwidth", "power", "scale_up_bandwidth", "scale_up_domain_cards"]
    yield from _figures(a.provenance, peaks + names)
    if a.scale_up_domain_cards < 1:
        yield "scale_up_domain_cards: 0 is outside 1 and above"


def _node(n: NodeSpec, catalog: Catalog) -> Iterator[str]:
    try:
        card = catalog.accelerator(n.accelerator)
    except InputError as fault:
        yield f"accelerator: {fault}"
        return
    if n.accelerator != card.id:
        yield f"accelerator: write the id {card.id!r} rather than {n.accelerator!r}"
    yield from _bound("cards_per_node", n.cards_per_node)
    yield from _bound("node power per card", n.power_w / max(n.cards_per_node, 1), "power over cards_per_node")
    if n.power_w < 0.9 * n.cards_per_node * card.power_w and n.provenance.get("power") is None:
        yield f"power: {n.power_w:g} W is less than its {n.cards_per_node} cards draw; say why in provenance.power"
    yield from _bound("nic_bandwidth_bytes_per_s_per_card", n.nic_bandwidth_bytes_per_s_per_card, "nic_bandwidth")
    if n.scale_up_domain_cards < 1:
        yield "scale_up_domain_cards: 0 is outside 1 and above"
    yield from _figures(n.provenance, ["cards_per_node", "scale_up_domain_cards", "nic_bandwidth_per_card", "power"])


def _link(k: LinkSpec, catalog: Catalog) -> Iterator[str]:
    yield from _bound("bandwidth_bytes_per_s", k.bandwidth_bytes_per_s, "bandwidth")
    yield from _bound("efficiency_frac", k.efficiency_frac)
    yield from _bound("latency_s", k.latency_s, "latency")
    yield from _bound("latency_s_per_km", k.latency_s_per_km, "latency_per_km")
    names = ["bandwidth", "efficiency_frac", "latency"]
    names += [name for name, value in (("reach_km", k.reach_km), ("usd_per_month", k.usd_per_month)) if value]
    if k.kind == "wide_area":
        names.append("latency_per_km")
        if k.latency_s_per_km < 3.3e-6:
            yield "latency_per_km: faster than light in glass (no less than 3.34 us per km even in vacuum)"
    yield from _figures(k.provenance, names)


def _model(m: ModelSpec, catalog: Catalog) -> Iterator[str]:
    if not m.blocks:
        yield "blocks: is empty"
    if not m.active_parameters <= m.total_parameters:
        yield "more active than total parameters"
    if m.max_context_tokens < 1:
        yield "max_context_tokens: 0 is outside 1 and above"
    for block in m.blocks:
        if block.mixer.kv_heads and block.mixer.heads % block.mixer.kv_heads:
            yield f"mixers: {block.mixer.heads} heads do not divide over {block.mixer.kv_heads} kv heads"
        if block.ffn.experts and not 0 < block.ffn.top_k <= block.ffn.experts:
            yield f"ffns: top_k {block.ffn.top_k} is outside 1 to {block.ffn.experts}"
    yield from _figures(m.provenance, ["architecture", "parameters"])


def _workload(data: object, catalog: Catalog) -> Iterator[str]:
    """Length distributions name their source in words; pdplan.workload checks the numbers."""
    if not isinstance(data, dict):
        yield "a mapping is expected"
        return
    for name in ("id", "title", "source", "date"):
        if not data.get(name):
            yield f"{name} is missing; text is expected"
    if str(data.get("id")).lower() not in catalog.ids("workloads"):
        yield f"id is {data.get('id')!r}; it must equal the file name"
    if not _YEAR.search(str(data.get("date", ""))):
        yield f"date: {data.get('date')!r} names no year"


_CHECKERS: dict[str, Callable[..., Iterator[str]]] = {
    "accelerators": _accelerator,
    "nodes": _node,
    "links": _link,
    "models": _model,
    "workloads": _workload,
}


def _counts(catalog: Catalog) -> Iterator[str]:
    for row in compare_with_published(catalog):
        for name, error, allowed in (("total", row.total_error, 0.01), ("active", row.active_error, 0.02)):
            if error is not None and abs(error) > allowed and not row.accepted:
                yield (
                    f"{catalog.path('models', row.id)}: published: {name} parameters differ by {error:+.1%} from the "
                    f"count; correct the dimensions, or say why in accepted_difference"
                )


def _prices(catalog: Catalog, nodes: dict[str, object], report: CheckReport) -> Iterator[str]:
    try:
        rows = catalog.all_price_rows()
    except InputError as fault:
        yield from fault.faults
        return
    report.counts["prices"] = len(rows)
    for folder in catalog.folders:
        ids = Counter(_price_ids(folder))
        yield from (f"{folder / 'prices'}: the row {name} is given {n} times" for name, n in ids.items() if n > 1)
    for row in rows:
        where = f"prices: {row.id}"
        if row.source not in catalog.sources:
            yield f"{where}: source {row.source!r} is not in sources.yaml"
        if not _PRICING.fullmatch(row.pricing_model):
            yield f"{where}: pricing_model {row.pricing_model!r} is not on-demand, spot, reserved-1y, purchase ..."
        if not _CURRENCY.fullmatch(row.currency):
            yield f"{where}: currency {row.currency!r} is not a three-letter code such as USD"
        node = nodes.get(row.node)
        if not isinstance(node, NodeSpec):
            yield f"{where}: node {row.node!r} is not in the catalog"
            continue
        if row.currency == "USD":
            if row.price_per_node_hour is not None:
                yield from _named(where, _bound("price_per_card_hour", row.price_per_node_hour / node.cards_per_node))
            if row.purchase_price is not None:
                yield from _named(where, _bound("purchase_price_per_card", row.purchase_price / node.cards_per_node))


def _price_ids(folder: object) -> Iterator[str]:
    import csv
    from pathlib import Path

    for path in sorted((Path(str(folder)) / "prices").glob("*.csv")):
        with path.open(encoding="utf-8-sig", newline="") as stream:
            yield from (row["id"] for row in csv.DictReader(stream) if row.get("id"))


def _named(where: str, faults: Iterator[str]) -> Iterator[str]:
    for fault in faults:
        yield f"{where}: {fault}"


def _orphans(catalog: Catalog, records: dict[str, dict[str, object]]) -> Iterator[str]:
    carried = {node.accelerator for node in records["nodes"].values() if isinstance(node, NodeSpec)}
    for entry in catalog.ids("accelerators"):
        path = catalog.path("accelerators", entry)
        # a card of the user's own without a node is work in progress, not a fault
        if path.stem not in carried and path.parent.parent == catalog.folders[0]:
            yield f"{path}: no node has this accelerator"
    for key, source in catalog.sources.items():
        if not _YEAR.search(source.date):
            yield f"sources.yaml: {key}: date {source.date!r} names no year"
        if source.checked.split()[0].strip(",;") not in ("read", "listing", "recollection"):
            yield f"sources.yaml: {key}: checked {source.checked!r} is not read, listing or recollection"
