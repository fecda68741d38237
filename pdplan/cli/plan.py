"""``pdplan plan``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pdplan.cli.console import emit, note, progress, progress_bar

if TYPE_CHECKING:
    from pdplan.fleet.plan import Plan

__all__ = ["plan"]


def plan(
    scenario: Path = typer.Argument(..., help="Scenario file (YAML); `pdplan init` writes one."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder for the reports."),
    formats: str = typer.Option("md,csv,json", "--format", help="Reports to write to --out, or the one to print."),
    objective: str | None = typer.Option(None, "--objective", help="cost, cards or power; wins over the scenario."),
    solver: str | None = typer.Option(None, "--solver", help="highs, cbc or scip; wins over the scenario."),
    time_limit_s: float | None = typer.Option(None, "--time-limit-s", help="Stop the solver after this long."),
    gap: float | None = typer.Option(None, "--gap", help="Relative gap at which the solver may stop."),
    confidence: float | None = typer.Option(
        None, "--confidence", help="Chance with which the targets shall hold although predictions err, e.g. 0.9."
    ),
    alternatives: int = typer.Option(
        0, "--alternatives", min=0, max=20, help="Also find so many next best fleets of other structure."
    ),
    solver_log: Path | None = typer.Option(None, "--solver-log", help="File for the solver's own messages."),
    profile: Path | None = typer.Option(None, "--profile", help="Efficiency profile written by `pdplan calibrate`."),
    catalog: Path | None = typer.Option(None, "--catalog", help="Your catalog folder, laid over the shipped one."),
    json_: bool = typer.Option(False, "--json", help="Print the plan as JSON on stdout."),
    verify: bool = typer.Option(
        False, "--verify", help="Check the plan by simulation and put the result into the reports."
    ),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No notes on stderr."),
) -> None:
    """Find the least-cost fleet for a scenario.

    Prints the decision paper (markdown) on stdout, or the plan as JSON with --json; with --out writes the
    reports there as well.

    Example: pdplan plan examples/quickstart.yaml --out reports
    """
    from pdplan import report
    from pdplan.errors import InputError
    from pdplan.fleet.pipeline import plan_file, with_overrides
    from pdplan.report.simulation import verdict_words

    wanted = [name.strip() for name in formats.split(",") if name.strip()]
    known = report.formats()
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise InputError(f"--format: {formats!r} is not accepted; choose from {', '.join(known)}, separated by commas")
    loaded = with_overrides(
        scenario,
        objective=objective,
        solver=solver,
        time_limit_s=time_limit_s,
        gap=gap,
        profile=profile,
        confidence=confidence,
    )
    with progress("planning", quiet=quiet or json_):
        answer = plan_file(loaded, catalog_folder=catalog, alternatives=alternatives, solver_log=solver_log)
    if verify and answer.pools:
        answer = _verified(answer, catalog, quiet=quiet or json_)
    if out is not None:
        for path in answer.write(out, wanted):
            if not quiet:
                note(f"wrote {path}")
    printable = [name for name in wanted if name in ("md", "html", "json")]
    emit(answer.to_json() if json_ else report.render(answer, "md" if out or not printable else printable[0]))
    if not quiet:
        if answer.solver is not None and answer.solver.time_s is not None:
            note(
                f"{answer.solver.name}: {answer.solver.proof}, gap {answer.solver.gap:.2%}, {answer.solver.time_s:.2f} s"
            )
        for warning in answer.warnings:
            note(f"warning: {warning}")
        if answer.simulation is not None:
            note(f"simulation: {verdict_words(answer.simulation)}")
    if answer.status == "infeasible":
        for reason in answer.reasons:
            note(f"error: {reason.message}")
        raise typer.Exit(3)


def _verified(answer: Plan, catalog: Path | None, *, quiet: bool) -> Plan:
    """The plan with what the simulator found, a missed target among its warnings."""
    from dataclasses import replace

    from pdplan.fleet.pipeline import scenario_of
    from pdplan.fleet.verify import verify_plan
    from pdplan.report.simulation import verdict_words

    with progress_bar("simulating", quiet=quiet) as advance:
        found = verify_plan(answer, scenario_of(answer, catalog_folder=catalog), progress=advance)
    warnings = answer.warnings if found.ok else (*answer.warnings, verdict_words(found))
    return replace(answer, simulation=found, warnings=warnings)
