"""``pdplan verify``."""

from __future__ import annotations

from pathlib import Path

import typer

from pdplan.cli.console import emit, note, progress_bar

__all__ = ["verify"]


def verify(
    plan: Path = typer.Argument(..., help="PLAN.json, as written by `pdplan plan SCENARIO --out reports`."),
    trace: Path | None = typer.Option(None, "--trace", help="Replay this request trace instead of drawn requests."),
    at_plan_rate: bool = typer.Option(
        False, "--at-plan-rate", help="Stretch the trace's time to the plan's mean rate."
    ),
    seed: int = typer.Option(1, "--seed", help="First seed; the same seed gives the same numbers."),
    seeds: int | None = typer.Option(
        None, "--seeds", help="Runs with different seeds (default: 3; 1 with --trace or for very long runs)."
    ),
    requests: int | None = typer.Option(
        None, "--requests", help="Requests per run (default: enough for the interval of the highest percentile)."
    ),
    router: str = typer.Option(
        "least-loaded",
        "--router",
        help="least-loaded, round-robin, random, prefix-aware, or central (one prefill queue per pool).",
    ),
    fail: list[str] = typer.Option(
        [],
        "--fail",
        help="POOL@SECONDS loses a node, SITE@SECONDS a site, 2*POOL@SECONDS two nodes; :SECONDS after it returns them. "
        "May be repeated.",
    ),
    colocated: bool = typer.Option(
        False, "--colocated", help="Simulate the plan's colocated alternative, too, and compare."
    ),
    json_: bool = typer.Option(False, "--json", help="Print the result as JSON on stdout."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder for verification.md and verification.json."),
    catalog: Path | None = typer.Option(None, "--catalog", help="Your catalog folder, laid over the shipped one."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No notes and no progress bar on stderr."),
) -> None:
    """Play a plan request by request in the simulator and compare every target with what the plan promises.

    Exit code 0 if no target is missed by more than the simulation's 95 % interval, 1 if one is.

    Example: pdplan verify reports/plan.json --fail decode-1@300
    """
    from pdplan.files import read_text
    from pdplan.fleet.pipeline import scenario_of
    from pdplan.fleet.plan import plan_from_json
    from pdplan.fleet.verify import verify_plan
    from pdplan.fleet.verify_options import options_of
    from pdplan.report.simulation import verdict_words
    from pdplan.report.verification import json_of, markdown_of, write_verification

    answer = plan_from_json(read_text(plan), name=str(plan))
    options = options_of(
        seed=seed, seeds=seeds, requests=requests, router=router, failures=fail, trace=trace, at_plan_rate=at_plan_rate,
        colocated=colocated,
    )  # fmt: skip
    scenario = scenario_of(answer, catalog_folder=catalog, name=str(plan))
    if scenario.catalog_digest != answer.catalog_digest and not quiet:
        note(f"{plan}: the catalog differs from the one this plan was made with; today's figures are used")
    with progress_bar("simulating", quiet=quiet or json_) as advance:
        found = verify_plan(answer, scenario, options, progress=advance)
    if out is not None:
        for path in write_verification(found, out):
            if not quiet:
                note(f"wrote {path}")
    emit(json_of(found) if json_ else markdown_of(found))
    if not quiet:
        for warning in found.warnings:
            note(f"warning: {warning}")
        note(verdict_words(found))
    if not found.ok:
        raise typer.Exit(1)
