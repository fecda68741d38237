"""The catalog as tables: what `pdplan catalog list`, `show`, `search` and `diff` print, and the reference pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from pdplan.catalog.load import KINDS, Catalog
from pdplan.catalog.specs import (
    AcceleratorSpec,
    EngineSpec,
    FamilySpec,
    LinkSpec,
    ModelSpec,
    NodeSpec,
    PriceRow,
    Provenance,
)
from pdplan.errors import InputError, unknown_name

__all__ = ["LISTED", "Figure", "Table", "diff", "figures", "find", "listing", "plain", "record_of", "search"]

LISTED = (*KINDS, "prices", "sources")
"""Everything `list` knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Headers and rows, ready to print."""

    headers: tuple[str, ...]
    rows: list[tuple[object, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of an entry with everything needed to trace it."""

    field: str
    value: str
    basis: str = ""
    source: str = ""
    date: str = ""
    note: str = ""


_SCALES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def quantity(value: float, unit: str) -> str:
    """A number with a unit people read: bytes, rates and FLOP/s with a prefix, times in us or ms."""
    if unit == "s":
        factor, name = (1e6, "us") if value < 1e-3 else (1e3, "ms") if value < 1 else (1.0, "s")
        return f"{value * factor:.6g} {name}"
    if unit in ("B", "B/s", "FLOP/s"):
        for scale, prefix in _SCALES:
            if value >= scale and not (unit == "FLOP/s" and prefix == "P"):  # datasheets print TFLOP/s
                return f"{value / scale:.6g} {prefix}{unit}"
    return f"{value:.10g} {unit}".rstrip()


def plain(value: Any) -> Any:
    """A record as plain data for JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.isoformat() if isinstance(value, date) else value


def record_of(catalog: Catalog, kind: str, entry: str) -> Any:
    """The record of an entry, or its plain data where the catalog does not interpret it (workloads)."""
    readers: dict[str, Callable[[str], Any]] = {
        "accelerators": catalog.accelerator,
        "nodes": catalog.node,
        "links": catalog.link,
        "models": catalog.model,
        "families": catalog.family,
        "engines": catalog.engine,
        "workloads": catalog.workload,
        "sources": catalog.source,
    }
    return readers[kind](entry)


def find(catalog: Catalog, entry: str) -> list[tuple[str, str]]:
    """(kind, id) of every entry with this name; ``kind/id`` asks for one kind.

    Raises
    ------
    InputError
        Nothing has this name; near misses are shown.
    """
    kind, slash, name = entry.partition("/")
    if slash and kind in KINDS:
        return [(kind, catalog.path(kind, name).stem)]
    found = []
    for candidate in KINDS:
        try:
            found.append((candidate, catalog.path(candidate, entry).stem))
        except InputError:
            continue
    if entry in catalog.sources:
        found.append(("sources", entry))
    if not found:
        known = [name for candidate in KINDS for name in catalog.ids(candidate)]
        raise InputError(unknown_name("catalog entry", entry, known, hint="See `pdplan catalog search WORD`"))
    return found


def figures(catalog: Catalog, kind: str, entry: str) -> list[Figure]:
    """Every number of one entry with unit, basis, source and date."""
    record = record_of(catalog, kind, entry)
    if kind == "sources":
        return [Figure(field=key, value=str(value)) for key, value in plain(record).items()]
    if kind == "workloads":
        return [
            Figure(field=str(key), value=str(value) if not isinstance(value, list | dict) else _short(value))
            for key, value in record.items()
        ]
    provenance: Mapping[str, Provenance] = record.provenance
    texts, numbers = _FIELDS[kind](record)
    rows = [Figure(field=name, value=value) for name, value in texts if value]
    for name, value, key in numbers:
        origin = provenance.get(key)
        source = catalog.sources.get(origin.source) if origin else None
        rows.append(
            Figure(
                field=name,
                value=value,
                basis=origin.basis if origin else "",
                source=origin.source if origin else "",
                date=source.date if source else "",
                note=origin.note if origin else "",
            )
        )
    notes = record.notes if hasattr(record, "notes") else ""
    lines = [notes] if isinstance(notes, str) else list(notes)
    rows += [Figure(field="note", value=line) for line in lines if line]
    return rows


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else text[:97] + "..."


Texts = list[tuple[str, str]]
Numbers = list[tuple[str, str, str]]


def _accelerator(a: AcceleratorSpec) -> tuple[Texts, Numbers]:
    texts = [("name", a.name), ("vendor", a.vendor), ("efficiency family", a.family), ("architecture", a.architecture)]
    texts += [("released", a.released), ("status", a.status)]
    numbers = [
        ("memory", quantity(a.hbm_bytes, "B"), "hbm"),
        ("memory bandwidth", quantity(a.hbm_bandwidth_bytes_per_s, "B/s"), "hbm_bandwidth"),
    ]
    numbers += [(f"dense {p}", quantity(v, "FLOP/s"), f"dense.{p}") for p, v in a.dense_flop_per_s.items()]
    numbers += [
        ("power", quantity(a.power_w, "W"), "power"),
        ("scale-up, one direction", quantity(a.scale_up_bandwidth_bytes_per_s, "B/s"), "scale_up_bandwidth"),
        ("scale-up domain", f"{a.scale_up_domain_cards} cards", "scale_up_domain_cards"),
    ]
    return texts, numbers


def _node(n: NodeSpec) -> tuple[Texts, Numbers]:
    texts = [("name", n.name), ("provider", n.provider), ("kind", n.kind), ("accelerator", n.accelerator)]
    texts += [("scale-out link", n.scale_out_link)]
    return texts, [
        ("cards", f"{n.cards_per_node}", "cards_per_node"),
        ("scale-up domain", f"{n.scale_up_domain_cards} cards", "scale_up_domain_cards"),
        ("network per card", quantity(n.nic_bandwidth_bytes_per_s_per_card, "B/s"), "nic_bandwidth_per_card"),
        ("power under load", quantity(n.power_w, "W"), "power"),
    ]


def _link(k: LinkSpec) -> tuple[Texts, Numbers]:
    numbers = [
        ("bandwidth, one direction", quantity(k.bandwidth_bytes_per_s, "B/s"), "bandwidth"),
        ("achieved over nominal", f"{k.efficiency_frac:g}", "efficiency_frac"),
        ("fixed one-way latency", quantity(k.latency_s, "s"), "latency"),
    ]
    if k.latency_s_per_km:
        numbers.append(("latency per km", quantity(k.latency_s_per_km, "s"), "latency_per_km"))
    if k.reach_km is not None:
        numbers.append(("reach", f"{k.reach_km:g} km", "reach_km"))
    if k.usd_per_month is not None:
        numbers.append(("price", f"{k.usd_per_month:g} USD/month", "usd_per_month"))
    return [("kind", k.kind.replace("_", "-")), ("per", k.per)], numbers


def _model(m: ModelSpec) -> tuple[Texts, Numbers]:
    texts = [("name", m.name), ("hf id", m.hf_id), ("family", m.family), ("released", m.released)]
    texts.append(("as released", ", ".join(f"{k} {v}" for k, v in m.native_precision.items())))
    numbers = [
        ("parameters", f"{m.total_parameters / 1e9:.5g} billion", "parameters"),
        ("active per token", f"{m.active_parameters / 1e9:.5g} billion", "parameters"),
        ("of which embeddings", f"{m.embedding_parameters / 1e9:.4g} billion", "parameters"),
        ("layers", f"{m.layers}", "architecture"),
        ("hidden width", f"{m.hidden}", "architecture"),
        ("vocabulary", f"{m.vocab}" + (", tied" if m.tied_embeddings else ""), "architecture"),
        ("context", f"{m.max_context_tokens} tokens", "architecture"),
    ]
    if m.mtp_layers:
        layers = f"{m.mtp_layers} layers, {m.mtp_parameters / 1e9:.4g} billion parameters more"
        numbers.append(("multi-token prediction", layers, "parameters"))
    for number, block in enumerate(m.blocks, start=1):
        numbers.append((f"block {number}", f"{block.count} x ({_mixer(block)}; {_ffn(block)})", "architecture"))
    return texts, numbers


def _mixer(block: Any) -> str:
    x = block.mixer
    window = f", window {x.window_tokens}" if x.window_tokens else ""
    if x.type == "gqa":
        return f"attention {x.heads} heads / {x.kv_heads} kv x {x.head_dim}{window}"
    if x.type == "mla":
        return f"latent attention {x.heads} heads, kv rank {x.kv_lora_rank} + {x.qk_rope_head_dim}"
    return {"none": "no mixer", "dsv4": "compressed attention"}.get(x.type, f"{x.type} state") + window


def _ffn(block: Any) -> str:
    f = block.ffn
    if f.type == "moe":
        shared = f" + shared {f.shared_size}" if f.shared_size else ""
        return f"{f.top_k} of {f.experts} experts x {f.expert_size}{shared}"
    return "no ffn" if f.type == "none" else f"{f.type} ffn {f.dense_size}"


def _constants(record: FamilySpec | EngineSpec) -> Numbers:
    return [
        (name, f"{value:g}", name if name in record.provenance else "constants")
        for name, value in record.constants.items()
    ]


def _family(f: FamilySpec) -> tuple[Texts, Numbers]:
    return [("version", f.version), ("fitted on", f.fitted_on), ("confidence", f.confidence)], _constants(f)


def _engine(e: EngineSpec) -> tuple[Texts, Numbers]:
    texts = [("name", e.name), ("version", e.version), ("confidence", e.confidence), ("vendors", ", ".join(e.vendors))]
    texts += [
        ("prefill and decode of equal tp", "yes" if e.equal_tp else ""),
        ("allowed tp", ", ".join(map(str, e.allowed_tp))),
        ("allowed ep", ", ".join(map(str, e.allowed_ep))),
        ("prefill token budget", str(e.prefill_token_budget)),
    ]
    return texts, _constants(e)


_FIELDS: dict[str, Callable[[Any], tuple[Texts, Numbers]]] = {
    "accelerators": _accelerator,
    "nodes": _node,
    "links": _link,
    "models": _model,
    "families": _family,
    "engines": _engine,
}


def listing(catalog: Catalog, kind: str) -> Table:
    """One line per entry of a kind.

    Raises
    ------
    InputError
        Unknown kind.
    """
    if kind not in LISTED:
        raise InputError(unknown_name("kind", kind, LISTED))
    headers, row = _COLUMNS[kind]
    entries: Iterable[Any]
    if kind == "prices":
        entries = catalog.all_price_rows()
    elif kind == "sources":
        entries = catalog.sources.values()
    elif kind == "workloads":
        entries = catalog.ids(kind)
    else:
        entries = (record_of(catalog, kind, entry) for entry in catalog.ids(kind))
    return Table(headers=headers, rows=[row(catalog, entry) for entry in entries])


def _cheapest(rows: list[PriceRow]) -> str:
    hourly = [
        (row.price_per_node_hour, row)
        for row in rows
        if row.price_per_node_hour is not None and row.pricing_model == "on-demand"
    ]
    if not hourly:
        return ""
    price, row = min(hourly, key=lambda pair: pair[0])
    return f"{price:.2f} {row.currency}"


def _workload_row(catalog: Catalog, entry: str) -> tuple[object, ...]:
    data = catalog.workload(entry)
    return entry, str(data.get("title", "")) if isinstance(data, dict) else ""


_COLUMNS: dict[str, tuple[tuple[str, ...], Callable[[Catalog, Any], tuple[object, ...]]]] = {
    "accelerators": (
        ("id", "name", "family", "memory GB", "TB/s", "bf16 T", "fp8 T", "int8 T", "fp4 T", "W", "scale-up GB/s",
         "domain", "status"),
        lambda _, a: (
            a.id, a.name, a.family, round(a.hbm_bytes / 1e9, 1), round(a.hbm_bandwidth_bytes_per_s / 1e12, 3),
            *(round(a.dense_flop_per_s[p] / 1e12, 1) if p in a.dense_flop_per_s else ""
              for p in ("bf16", "fp8", "int8", "fp4")),
            round(a.power_w), round(a.scale_up_bandwidth_bytes_per_s / 1e9, 1), a.scale_up_domain_cards, a.status,
        ),
    ),
    "nodes": (
        ("id", "provider", "kind", "accelerator", "cards", "domain", "NIC GB/s per card", "kW", "price rows",
         "cheapest on demand per hour"),
        lambda c, n: (
            n.id, n.provider, n.kind, n.accelerator, n.cards_per_node, n.scale_up_domain_cards,
            round(n.nic_bandwidth_bytes_per_s_per_card / 1e9, 2), round(n.power_w / 1e3, 2),
            len(c.price_rows(n.id)), _cheapest(c.price_rows(n.id)),
        ),
    ),
    "links": (
        ("id", "kind", "GB/s", "per", "achieved", "latency us", "us per km", "reach km", "USD/month"),
        lambda _, k: (
            k.id, k.kind.replace("_", "-"), round(k.bandwidth_bytes_per_s / 1e9, 2), k.per, k.efficiency_frac,
            round(k.latency_s * 1e6, 3), round(k.latency_s_per_km * 1e6, 2) or "",
            "" if k.reach_km is None else k.reach_km, "" if k.usd_per_month is None else k.usd_per_month,
        ),
    ),
    "models": (
        ("id", "name", "total B", "active B", "layers", "hidden", "context", "as released", "attention"),
        lambda _, m: (
            m.id, m.name, round(m.total_parameters / 1e9, 2), round(m.active_parameters / 1e9, 2), m.layers, m.hidden,
            m.max_context_tokens, m.native_precision.get("weights", ""),
            " + ".join(dict.fromkeys(
                block.mixer.type + (f" window {block.mixer.window_tokens}" if block.mixer.window_tokens else "")
                for block in m.blocks if block.mixer.type != "none"
            )),
        ),
    ),
    "families": (
        ("id", "confidence", "fitted on"), lambda _, f: (f.id, f.confidence, f.fitted_on),
    ),
    "engines": (
        ("id", "name", "version", "confidence"), lambda _, e: (e.id, e.name, e.version, e.confidence),
    ),
    "workloads": (("id", "title"), _workload_row),
    "prices": (
        ("node", "provider", "region", "pricing model", "per node hour", "purchase", "currency", "tax", "seen", "basis",
         "source"),
        lambda _, p: (
            p.node, p.provider, p.region, p.pricing_model,
            "" if p.price_per_node_hour is None else p.price_per_node_hour,
            "" if p.purchase_price is None else p.purchase_price, p.currency, "included" if p.tax_included else "",
            p.date_observed.isoformat(), p.basis, p.source,
        ),
    ),
    "sources": (
        ("id", "title", "publisher", "date", "checked"), lambda _, s: (s.id, s.title, s.publisher, s.date, s.checked),
    ),
}  # fmt: skip


def search(catalog: Catalog, word: str) -> Table:
    """Entries whose id, alias or name has the word, in any case."""
    wanted = word.strip().lower()
    rows: list[tuple[object, ...]] = []
    for kind in KINDS:
        names = {entry: [entry] for entry in catalog.ids(kind)}
        for alias, entry in catalog.aliases(kind).items():
            names[entry].append(alias)
        for entry, known in names.items():
            name = _name_of(catalog, kind, entry)
            if any(wanted in text.lower() for text in (*known, name)):
                rows.append((kind, entry, name))
    return Table(headers=("kind", "id", "name"), rows=rows)


def _name_of(catalog: Catalog, kind: str, entry: str) -> str:
    if kind == "workloads":
        return str(_workload_row(catalog, entry)[1])
    record = record_of(catalog, kind, entry)
    return str(getattr(record, "name", ""))


def diff(shipped: Catalog, own: Catalog) -> Table:
    """What the user's folder adds or changes: kind, id, field, shipped value, own value."""
    rows: list[tuple[object, ...]] = []
    for kind in KINDS:
        for entry in own.ids(kind):
            path = own.path(kind, entry)
            if path.parent.parent == shipped.folders[0]:
                continue
            if entry not in shipped.ids(kind):
                rows.append((kind, entry, "(new)", "", str(_name_of(own, kind, entry))))
                continue
            old, new = plain(record_of(shipped, kind, entry)), plain(record_of(own, kind, entry))
            rows += [
                (kind, entry, key, _short(old.get(key, "")), _short(new.get(key, "")))
                for key in dict.fromkeys((*old, *new))
                if old.get(key) != new.get(key)
            ]
    known = {row.id: row for row in shipped.all_price_rows()}
    for price in own.all_price_rows():
        if price.own:
            before = known.get(price.id)
            rows.append(("prices", price.id, "price" if before else "(new)", _price(before), _price(price)))
    return Table(headers=("kind", "id", "field", "shipped", "yours"), rows=rows)


def _price(row: PriceRow | None) -> str:
    if row is None:
        return ""
    if row.price_per_node_hour is not None:
        return f"{row.price_per_node_hour:g} {row.currency}/h"
    return f"{row.purchase_price:g} {row.currency}"
