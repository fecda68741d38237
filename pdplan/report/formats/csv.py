"""One CSV file per table, with the columns of docs/reference/csv-tables.md. Units stand in the column names."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from pdplan.fleet import plan as records
from pdplan.fleet.plan import Plan
from pdplan.report.format import Format

__all__ = ["FORMAT", "TABLES"]

TABLES: Mapping[str, type] = {
    "pools": records.Pool,
    "purchases": records.Purchase,
    "links": records.LinkLoad,
    "slo": records.SloLine,
    "cost": records.CostLine,
    "certificate": records.Check,
    "binding": records.Binding,
    "assumptions": records.Assumption,
    "distances": records.DistanceLine,
    "reasons": records.PlanReason,
}
"""Table -> the record of its rows; columns follow the record's fields, nested records as parent_child."""

_NESTED = {"layout": records.PoolLayout, "memory_bytes_per_card": records.MemoryBudget}


def _columns(record: type) -> list[str]:
    names: list[str] = []
    for field in fields(record):
        nested = _NESTED.get(field.name)
        if nested is not None:
            names += [f"{field.name}_{inner.name}" for inner in fields(nested)]
        elif field.name != "slo":
            names.append(field.name)
    return names


def _row(item: Any) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in asdict(item).items():
        if isinstance(value, dict) and name in _NESTED:
            row |= {f"{name}_{key}": inner for key, inner in value.items()}
        elif name != "slo":
            row[name] = value
    return row


def _cell(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula is prefixed with an apostrophe."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value


def _text(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([[_cell(row.get(name)) for name in columns] for row in rows])
    return stream.getvalue()


def _summary(plan: Plan) -> str:
    rows = [
        ("status", plan.status),
        ("mode", plan.mode),
        ("objective", plan.objective),
        ("pdplan_version", plan.pdplan_version),
        ("catalog_digest", plan.catalog_digest),
    ]
    for part in (plan.cost, plan.totals, plan.solver, plan.candidates):
        if is_dataclass(part):
            prefix = {"Cost": "", "Totals": "", "Solver": "solver_", "CandidateCount": "candidates_"}[
                type(part).__name__
            ]
            rows += [
                (prefix + name, value) for name, value in asdict(part).items() if name not in ("breakdown", "time_s")
            ]
    return _text(["field", "value"], [{"field": name, "value": value} for name, value in rows])


def _render(plan: Plan) -> dict[str, str]:
    rows: dict[str, Sequence[Any]] = {
        name: getattr(plan, name)
        for name in ("pools", "purchases", "links", "slo", "binding", "assumptions", "distances", "reasons")
    }
    rows["cost"] = plan.cost.breakdown if plan.cost else ()
    rows["certificate"] = plan.certificate.checks if plan.certificate else ()
    texts = {
        f"plan_{name}.csv": _text(_columns(record), [_row(item) for item in rows[name]])
        for name, record in TABLES.items()
    }
    latency = [
        {"mode": mode, "metric": metric, **asdict(stats)}
        for mode, table in (
            (plan.mode, plan.latency),
            (plan.colocated.mode, plan.colocated.latency) if plan.colocated else ("", {}),
        )
        for metric, stats in table.items()
    ]
    texts["plan_latency.csv"] = _text(["mode", "metric", "mean", "p50", "p90", "p99"], latency)
    alternative = plan.colocated
    columns = [
        "mode",
        "status",
        "reason",
        "usd_per_hour",
        "usd_per_month",
        "usd_per_million_input_tokens",
        "usd_per_million_output_tokens",
        "cards",
        "nodes",
        "power_w",
        "cost_ratio",
    ]
    texts["plan_alternatives.csv"] = _text(columns, [asdict(alternative)] if alternative else [])
    texts["plan_summary.csv"] = _summary(plan)
    return texts


FORMAT = Format(suffix="csv", render=_render)
