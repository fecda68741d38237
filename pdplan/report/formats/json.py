"""PLAN.json."""

from __future__ import annotations

from pdplan.fleet.plan import Plan
from pdplan.report.format import Format

__all__ = ["FORMAT"]


def _render(plan: Plan) -> dict[str, str]:
    return {"plan.json": plan.to_json()}


FORMAT = Format(suffix="json", render=_render)
