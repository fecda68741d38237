"""One CSV file per table, with the columns of docs/reference/csv-tables.md. Units stand in the column names.

Every table is always written, with its header, so that a spreadsheet linked to the files never breaks. Files follow
RFC 4180 (quotes where needed, CRLF); a file with characters beyond ASCII starts with a byte-order mark, without which
spreadsheets take UTF-8 for the local code page.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from pdplan.fleet import plan as records
from pdplan.fleet import verification
from pdplan.fleet.plan import Plan, Pool
from pdplan.report.format import Format

__all__ = ["FORMAT", "TABLES", "CsvTable", "columns_of"]

Row = Mapping[str, Any]

_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
"""First characters that make a spreadsheet run a cell (full-width forms too)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvTable:
    """One file: what a row is, its columns, and the rows of a plan."""

    about: str
    record: type
    """Record of plan.py whose fields the columns are, for the documentation."""
    columns: tuple[str, ...]
    rows: Callable[[Plan], Iterable[Row]]


def _names(record: type, *, leave_out: Sequence[str] = ()) -> tuple[str, ...]:
    return tuple(field.name for field in fields(record) if field.name not in leave_out)


_POOL = (
    "pool",
    *_names(Pool, leave_out=("layout", "memory_bytes_per_card")),
    *(f"layout_{name}" for name in _names(records.PoolLayout)),
)
_MEMORY = ("pool", "role", "site", "node_type", *(f"{name}_bytes" for name in _names(records.MemoryBudget)))
_SLO = _names(records.SloLine)
_STATS = _names(records.Stats)


_PERIOD_POOL = (
    *_names(records.PeriodPool, leave_out=("layout",)),
    *(f"layout_{name}" for name in _names(records.PoolLayout)),
)


def _period(period: records.PeriodPlan) -> list[Row]:
    about = {
        "period": period.id,
        "hours_per_year": period.hours_per_year,
        "period_rate_req_per_s": period.rate_req_per_s,
    }
    return [
        {**about, **asdict(pool), **{f"layout_{name}": value for name, value in asdict(pool.layout).items()}}
        for pool in period.pools
    ]


def _pools(pools: Sequence[Pool]) -> list[Row]:
    return [
        {"pool": i, **asdict(pool), **{f"layout_{name}": value for name, value in asdict(pool.layout).items()}}
        for i, pool in enumerate(pools, 1)
    ]


def _memory(pools: Sequence[Pool]) -> list[Row]:
    return [
        {
            "pool": i,
            **asdict(pool),
            **{f"{name}_bytes": value for name, value in asdict(pool.memory_bytes_per_card).items()},
        }
        for i, pool in enumerate(pools, 1)
    ]


def _plain(name: str) -> Callable[[Plan], list[Row]]:
    return lambda plan: [asdict(item) for item in getattr(plan, name)]


def _latency(plan: Plan) -> list[Row]:
    both: list[tuple[str, str, Mapping[str, records.Stats]]] = [("plan", plan.mode, plan.latency)]
    if plan.colocated is not None:
        both.append(("alternative", plan.colocated.mode, plan.colocated.latency))
    return [
        {"of": of, "mode": mode, "metric": metric, **{f"{name}_s": value for name, value in asdict(stats).items()}}
        for of, mode, table in both
        for metric, stats in table.items()
    ]


def _distance_slo(plan: Plan) -> list[Row]:
    return [{"distance_km": d.distance_km, **asdict(line)} for d in plan.distances for line in d.slo]


def _summary(plan: Plan) -> list[Row]:
    rows: list[tuple[str, Any]] = [
        (name, getattr(plan, name))
        for name in ("schema", "pdplan_version", "catalog_digest", "status", "mode", "objective")
    ]
    for prefix, part in (
        ("", plan.cost),
        ("", plan.totals),
        ("solver_", plan.solver),
        ("candidates_", plan.candidates),
    ):
        if part is not None:
            rows += [(prefix + k, v) for k, v in asdict(part).items() if k not in ("breakdown", "time_s")]
    if plan.simulation is not None:
        rows += [
            (f"simulation_{k}", "; ".join(v) if k == "failures" else v)
            for k, v in asdict(plan.simulation).items()
            if k not in ("targets", "latency", "pools", "phases", "warnings")
        ]
    if plan.certificate is not None:
        rows.append(("certificate_ok", plan.certificate.ok))
    return [{"field": name, "value": value} for name, value in rows]


def _flat(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        inner = [pair for key, item in value.items() for pair in _flat(item, f"{path}.{key}" if path else str(key))]
    elif isinstance(value, list | tuple):
        inner = [pair for i, item in enumerate(value) for pair in _flat(item, f"{path}[{i}]")]
    else:
        return [(path, value)]
    return inner or [(path, "")]


TABLES: Mapping[str, CsvTable] = {
    "summary": CsvTable(
        about="One figure of the plan as a whole per row: status, cost, totals, solver, candidates.",
        record=Plan,
        columns=("field", "value"),
        rows=_summary,
    ),
    "scenario": CsvTable(
        about="One value of the scenario per row, as given; `field` is its path.",
        record=Plan,
        columns=("field", "value"),
        rows=lambda plan: [{"field": k, "value": v} for k, v in _flat(plan.scenario) if k],
    ),
    "pools": CsvTable(
        about="One pool per row, numbered as in the report and the certificate.",
        record=Pool,
        columns=_POOL,
        rows=lambda plan: _pools(plan.pools),
    ),
    "memory": CsvTable(
        about="Memory of one card of each pool.",
        record=records.MemoryBudget,
        columns=_MEMORY,
        rows=lambda plan: _memory(plan.pools),
    ),
    "purchases": CsvTable(
        about="One node type at one site per row: what to have there.",
        record=records.Purchase,
        columns=_names(records.Purchase),
        rows=_plain("purchases"),
    ),
    "links": CsvTable(
        about="KV traffic from one site to another per row, or inside one (`from_site` equals `to_site`, no units).",
        record=records.LinkLoad,
        columns=_names(records.LinkLoad),
        rows=_plain("links"),
    ),
    "slo": CsvTable(
        about="One target per row, against its prediction and the 90 % interval of the latency model; seconds.",
        record=records.SloLine,
        columns=_SLO,
        rows=_plain("slo"),
    ),
    "latency": CsvTable(
        about="Mean and percentiles per metric, of the plan and of the alternative.",
        record=records.Stats,
        columns=("of", "mode", "metric", *(f"{name}_s" for name in _STATS)),
        rows=_latency,
    ),
    "cost": CsvTable(
        about="One line of the bill per row; `usd_per_hour` adds up to the cost of the fleet.",
        record=records.CostLine,
        columns=_names(records.CostLine),
        rows=lambda plan: [asdict(line) for line in plan.cost.breakdown] if plan.cost else [],
    ),
    "alternatives": CsvTable(
        about="The other way of serving; no row where it was not asked for.",
        record=records.Alternative,
        columns=_names(records.Alternative, leave_out=("pools", "slo", "latency")),
        rows=lambda plan: [asdict(plan.colocated)] if plan.colocated else [],
    ),
    "alternative_pools": CsvTable(
        about="Pools of the alternative.",
        record=Pool,
        columns=_POOL,
        rows=lambda plan: _pools(plan.colocated.pools) if plan.colocated else [],
    ),
    "alternative_memory": CsvTable(
        about="Memory of one card of each pool of the alternative.",
        record=records.MemoryBudget,
        columns=_MEMORY,
        rows=lambda plan: _memory(plan.colocated.pools) if plan.colocated else [],
    ),
    "alternative_slo": CsvTable(
        about="Targets against predictions of the alternative.",
        record=records.SloLine,
        columns=_SLO,
        rows=lambda plan: [asdict(line) for line in plan.colocated.slo] if plan.colocated else [],
    ),
    "distances": CsvTable(
        about="The plan solved again per length of the fibre; no rows without a link in use.",
        record=records.DistanceLine,
        columns=_names(records.DistanceLine, leave_out=("slo",)),
        rows=_plain("distances"),
    ),
    "distance_slo": CsvTable(
        about="Targets against predictions at each length of the fibre.",
        record=records.SloLine,
        columns=("distance_km", *_SLO),
        rows=_distance_slo,
    ),
    "binding": CsvTable(
        about="One constraint without slack per row.",
        record=records.Binding,
        columns=_names(records.Binding),
        rows=_plain("binding"),
    ),
    "reasons": CsvTable(
        about="Why a request cannot be met; no rows for a plan.",
        record=records.PlanReason,
        columns=_names(records.PlanReason),
        rows=_plain("reasons"),
    ),
    "near_optimal": CsvTable(
        about="One further fleet per row, cheapest first; no rows without `--alternatives`.",
        record=records.NearOptimal,
        columns=_names(records.NearOptimal),
        rows=_plain("near_optimal"),
    ),
    "periods": CsvTable(
        about="One pool in one operating state per row; no rows where there is one state only.",
        record=records.PeriodPool,
        columns=("period", "hours_per_year", "period_rate_req_per_s", *_PERIOD_POOL),
        rows=lambda plan: [row for period in plan.periods for row in _period(period)],
    ),
    "period_nodes": CsvTable(
        about="Nodes of one type in one operating state per row; the role is empty for rented ones, which are among the others.",
        record=records.PeriodNodes,
        columns=("period", *_names(records.PeriodNodes)),
        rows=lambda plan: [
            {"period": period.id, **asdict(line)} for period in plan.periods for line in (*period.nodes, *period.rented)
        ],
    ),
    "certificate": CsvTable(
        about="One recomputed constraint per row: left side <= right side unless its name says otherwise.",
        record=records.Check,
        columns=_names(records.Check),
        rows=lambda plan: [asdict(check) for check in plan.certificate.checks] if plan.certificate else [],
    ),
    "assumptions": CsvTable(
        about="One figure the plan rests on per row.",
        record=records.Assumption,
        columns=_names(records.Assumption),
        rows=_plain("assumptions"),
    ),
    "simulation": CsvTable(
        about="One target per row, planned and simulated; no rows without `--verify`. Seconds.",
        record=verification.SimulatedTarget,
        columns=_names(verification.SimulatedTarget),
        rows=lambda plan: [asdict(line) for line in plan.simulation.targets] if plan.simulation else [],
    ),
    "simulation_latency": CsvTable(
        about="One mean or percentile of a latency per row, planned and simulated; no rows without `--verify`.",
        record=verification.SimulatedLatency,
        columns=_names(verification.SimulatedLatency),
        rows=lambda plan: [asdict(line) for line in plan.simulation.latency] if plan.simulation else [],
    ),
    "simulation_pools": CsvTable(
        about="One pool per row, its load planned and simulated; no rows without `--verify`.",
        record=verification.SimulatedPool,
        columns=_names(verification.SimulatedPool),
        rows=lambda plan: [asdict(line) for line in plan.simulation.pools] if plan.simulation else [],
    ),
    "simulation_phases": CsvTable(
        about="What users saw before, between and after failures; no rows without failures.",
        record=verification.SimulatedPhase,
        columns=_names(verification.SimulatedPhase),
        rows=lambda plan: [asdict(line) for line in plan.simulation.phases] if plan.simulation else [],
    ),
    "notes": CsvTable(
        about="Warnings of the plan and of its simulation, and ids of the sources used.",
        record=Plan,
        columns=("kind", "text"),
        rows=lambda plan: [
            {"kind": kind, "text": text}
            for kind, texts in (
                ("warning", plan.warnings),
                ("simulation warning", plan.simulation.warnings if plan.simulation else ()),
                ("source", plan.sources),
            )
            for text in texts
        ],
    ),
}
"""Table -> its columns and rows. Names and order of columns are stable: new ones go to the end."""


def columns_of(table: str) -> tuple[str, ...]:
    """The header of a table."""
    return TABLES[table].columns


def _cell(value: Any) -> Any:
    """Empty for nothing, yes and no for claims; text that a spreadsheet would run gets an apostrophe in front."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and (value.lstrip().startswith(_FORMULA) or value[:1] in ("\t", "\r", "\n")):
        return "'" + value
    return value


def _text(columns: Sequence[str], rows: Iterable[Row]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([[_cell(row.get(name)) for name in columns] for row in rows])
    text = stream.getvalue()
    return text if text.isascii() else "\ufeff" + text


def _render(plan: Plan) -> dict[str, str]:
    return {f"plan_{name}.csv": _text(table.columns, table.rows(plan)) for name, table in TABLES.items()}


FORMAT = Format(suffix="csv", render=_render)
