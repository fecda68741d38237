"""``pdplan check``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer

from pdplan.cli.console import emit, note

__all__ = ["check"]


def check(
    plan: Path = typer.Argument(..., help="PLAN.json, as written by `pdplan plan`, or a fleet of your own (YAML)."),
    catalog: Path | None = typer.Option(None, "--catalog", help="Your catalog folder, laid over the shipped one."),
    json_: bool = typer.Option(False, "--json", help="Print the certificate as JSON on stdout."),
) -> None:
    """Recompute every constraint and the cost of a plan from its scenario and the catalogs.

    Exit code 0 if every check holds, 3 if one is violated.

    Example: pdplan check reports/plan.json
    """
    from pdplan.files import read_text
    from pdplan.fleet.certify import certify
    from pdplan.fleet.pipeline import scenario_of
    from pdplan.fleet.plan import plan_from_json

    if plan.suffix.lower() in (".yaml", ".yml"):
        from pdplan.fleet.own import own_fleet

        answer, scenario = own_fleet(plan, catalog_folder=catalog)
    else:
        answer = plan_from_json(read_text(plan), name=str(plan))
        scenario = scenario_of(answer, catalog_folder=catalog, name=str(plan))
    if scenario.catalog_digest != answer.catalog_digest:
        note(f"{plan}: the catalog differs from the one this plan was made with; today's figures are used")
    certificate = certify(scenario, answer)
    if json_:
        emit(json.dumps({"schema": "pdplan.certificate/1", **asdict(certificate)}, indent=1))
    else:
        from tabulate import tabulate

        rows = [
            (line.name, line.lhs, line.rhs, line.slack, "ok" if line.ok else "VIOLATED") for line in certificate.checks
        ]
        emit(tabulate(rows, headers=["check", "left side", "right side", "slack", ""], floatfmt=".6g"))
    if answer.cost is None and not json_:
        prices = {(o.site, o.node.id): o.usd_per_node_hour for site in scenario.sites for o in site.offers}
        emit(
            f"\nnodes: {sum(pool.nodes * prices[pool.site, pool.node_type] for pool in answer.pools):,.2f} USD per hour"
        )
    broken = [line.name for line in certificate.checks if not line.ok]
    if broken:
        note(f"error: {plan}: {len(broken)} of {len(certificate.checks)} checks are violated: {', '.join(broken)}")
        raise typer.Exit(3)
    note(f"{plan}: all {len(certificate.checks)} checks hold")
