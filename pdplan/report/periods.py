"""What runs through the day and after a loss, as a table of the paper."""

from __future__ import annotations

from pdplan.fleet.plan import PeriodNodes, PeriodPlan, Plan
from pdplan.report.blocks import Block, Heading, Paragraph, Table
from pdplan.report.view import number, seconds, target_name

__all__ = ["periods"]


def _nodes(lines: tuple[PeriodNodes, ...], role: str) -> str:
    found = [f"{line.nodes} x {line.node_type} at {line.site}" for line in lines if line.role == role]
    return ", ".join(found) or "-"


def _replicas(period: PeriodPlan, role: str) -> str:
    return str(sum(pool.replicas for pool in period.pools if pool.role == role))


def periods(plan: Plan) -> list[Block]:
    """One row per operating state: load, nodes by role, what is rented, latency."""
    lines = plan.periods
    if not lines:
        return []
    roles = [r for r in ("prefill", "decode", "colocated") if any(p.role == r for line in lines for p in line.pools)]
    rents = any(line.rented for line in lines)
    targets = [target_name(line) for line in lines[0].slo]
    heads = [f"{role} {what}" for role in roles for what in ("nodes", "replicas")]
    rows = [
        (
            line.id,
            number(line.hours_per_year / 365, 3) if line.hours_per_year else "a loss",
            number(line.rate_req_per_s, 4),
            *(cell for role in roles for cell in (_nodes(line.nodes, role), _replicas(line, role))),
            *([_nodes(line.rented, "")] if rents else []),
            *(seconds(s.predicted) + ("" if s.met else " (missed)") for s in line.slo),
        )
        for line in lines
    ]
    text = "What is bought serves all of these states. Each is shown with the fewest nodes switched on; nodes may change their role between them."
    if rents:
        text += " Rented nodes are paid in their hours only."
    return [
        Heading(level=2, text="Through the day"),
        Paragraph(spans=(text,)),
        Table(
            caption="Operating states",
            headers=("state", "hours a day", "req/s", *heads, *(["of these rented"] if rents else []), *targets),
            left=frozenset({0, *range(3, 3 + 2 * len(roles), 2), *([3 + 2 * len(roles)] if rents else [])}),
            rows=rows,
        ),
    ]
