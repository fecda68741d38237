"""From a scenario to a signed-off plan: candidates, tables, program, evaluation, certificate, alternatives."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pdplan.catalog.load import Catalog, load_catalog
from pdplan.errors import InfeasibleError, InputError, PdplanError
from pdplan.fleet.assemble import Solved, parts_of, slo_of, specs_of, totals_of
from pdplan.fleet.assumptions import assumptions_of, sources_of
from pdplan.fleet.build import build_problem
from pdplan.fleet.candidates import Candidates, Fleet, enumerate_candidates, fleet_of
from pdplan.fleet.certify import binding_of, certify
from pdplan.fleet.evaluate import evaluate
from pdplan.fleet.periods import leanest, periods_of
from pdplan.fleet.plan import (
    Alternative,
    Assurance,
    CandidateCount,
    DistanceLine,
    NearOptimal,
    Plan,
    PlanReason,
    SloLine,
    Solver,
)
from pdplan.fleet.solve import SolveOptions, solve_fleet
from pdplan.fleet.solve import alternatives as solve_alternatives
from pdplan.scenario.load import LoadedScenario, load_scenario, parse_scenario
from pdplan.scenario.resolve import Scenario, resolve

__all__ = ["plan_file", "plan_scenario", "scenario_of", "with_overrides"]

DISTANCES_KM = (0.0, 80.0, 200.0, 500.0, 1000.0)
"""Lengths of the fibre at which the plan is solved again, beside the one given."""


def with_overrides(
    path: Path,
    *,
    objective: str | None = None,
    solver: str | None = None,
    time_limit_s: float | None = None,
    gap: float | None = None,
    profile: Path | None = None,
    confidence: float | None = None,
) -> LoadedScenario:
    """A scenario file with what the command line wins over, validated as if it stood in the file."""
    loaded = load_scenario(path)
    data = dict(loaded.given)
    if objective is not None:
        data["objective"] = objective
    if confidence is not None:
        data["confidence"] = confidence
    if profile is not None:
        data["profile"] = os.path.relpath(profile, loaded.folder)
    changes = {"name": solver, "time_limit_s": time_limit_s, "gap": gap}
    if any(value is not None for value in changes.values()):
        data["solver"] = {**dict(data.get("solver") or {}), **{k: v for k, v in changes.items() if v is not None}}
    return parse_scenario(data, name=loaded.name, folder=loaded.folder)


def plan_file(
    loaded: LoadedScenario,
    *,
    catalog_folder: Path | None = None,
    alternatives: int = 0,
    solver_log: Path | None = None,
) -> Plan:
    """Resolve and plan; an infeasible request gives a plan with status ``infeasible`` and its reasons.

    `alternatives` further fleets are looked for, each with another set of types, roles and sites in use. The solver's own
    messages about the plan go to the file `solver_log`.
    """
    scenario = resolve(loaded, load_catalog(catalog_folder))
    return plan_scenario(scenario, alternatives=alternatives, solver_log=solver_log)


def scenario_of(plan: Plan, *, catalog_folder: Path | None = None, name: str = "PLAN.json") -> Scenario:
    """The resolved scenario inside a plan file, with today's catalogs."""
    loaded = parse_scenario(dict(plan.scenario), name=f"{name}: scenario", folder=Path(name).parent)
    catalog: Catalog = load_catalog(catalog_folder)
    return resolve(loaded, catalog, inputs=plan.inputs)


def _options(scenario: Scenario, log: Path | None = None) -> SolveOptions:
    return SolveOptions(
        solver=scenario.solver_name,
        time_limit_s=scenario.time_limit_s,
        gap=scenario.gap,
        log_file=None if log is None else str(log),
    )


def _near_optimal(scenario: Scenario, solved: Solved, count: int, usd_per_hour: float) -> tuple[NearOptimal, ...]:
    """The next best fleets that differ from the plan, and from one another, in what is used where for what."""
    if count < 1:
        return ()
    cards = {(o.site, o.node_type): o.cards_per_node for o in solved.built.problem.offers}
    lines = []
    for rank, found in enumerate(solve_alternatives(solved.built.problem, count, _options(scenario))[1:], start=2):
        words = [f"{role} on {n} x {kind} at {site}" for (site, role, kind), n in sorted(found.nodes.items())]
        lines.append(
            NearOptimal(
                rank=rank,
                fleet="; ".join(words),
                nodes=sum(found.nodes.values()),
                cards=sum(n * cards[site, kind] for (site, _, kind), n in found.nodes.items()),
                usd_per_hour=found.cost_usd_per_hour,
                cost_ratio=found.cost_usd_per_hour / usd_per_hour if usd_per_hour else 1.0,
            )
        )
    return tuple(lines)


def _solve_mode(scenario: Scenario, fleet: Fleet, candidates: Candidates, mode: str, log: Path | None = None) -> Solved:
    built = build_problem(scenario, fleet, candidates, mode)
    options = _options(scenario, log)
    solution = solve_fleet(built.problem, options)
    if len(scenario.periods) > 1:
        solution = leanest(built.problem, solution, options)
    specs, ids = specs_of(built, solution.peak)
    return Solved(built=built, solution=solution, specs=specs, ids=ids, evaluation=evaluate(scenario, fleet, specs))


def _alternative(
    scenario: Scenario, fleet: Fleet, candidates: Candidates, mode: str, plan_cost: float | None
) -> Alternative:
    try:
        solved = _solve_mode(scenario, fleet, candidates, mode)
    except InfeasibleError as fault:
        return Alternative(mode=mode, status="infeasible", reason=str(fault))
    _, pools, _, cost = parts_of(scenario, solved)
    totals = totals_of(pools, ())
    return Alternative(
        mode=mode,
        status=solved.solution.proof,
        reason="",
        usd_per_hour=cost.usd_per_hour,
        usd_per_month=cost.usd_per_month,
        usd_per_million_input_tokens=cost.usd_per_million_input_tokens,
        usd_per_million_output_tokens=cost.usd_per_million_output_tokens,
        cards=totals.cards,
        nodes=totals.nodes,
        power_w=totals.power_w,
        cost_ratio=cost.usd_per_hour / plan_cost if plan_cost else None,
        pools=pools,
        slo=slo_of(scenario, solved),
        latency=solved.evaluation.latency,
    )


def _assurance(
    scenario: Scenario, fleet: Fleet, candidates: Candidates, mode: str, lines: tuple[SloLine, ...]
) -> Assurance | None:
    """What the scenario's confidence asks for, and the plan without it."""
    if scenario.confidence is None:
        return None

    def largest(metric: str) -> float | None:
        ratios = [line.assured / line.predicted for line in lines if line.metric == metric and line.assured]
        return max(ratios, default=None)

    without = _alternative(replace(scenario, confidence=None), fleet, candidates, mode, None)
    return Assurance(
        confidence=scenario.confidence,
        ttft_margin=largest("ttft_s"),
        tpot_margin=largest("tpot_s"),
        status_without=without.status,
        usd_per_hour_without=without.usd_per_hour,
        nodes_without=without.nodes,
        cards_without=without.cards,
    )


def _distances(scenario: Scenario, fleet: Fleet, candidates: Candidates) -> tuple[DistanceLine, ...]:
    lines = []
    given = {link.distance_km for link in scenario.links}
    from pdplan.scenario.resolve import FIBRE_S_PER_KM

    for km in sorted({*DISTANCES_KM, *given}):
        moved = replace(
            scenario,
            links=tuple(replace(link, distance_km=km, one_way_s=km * FIBRE_S_PER_KM) for link in scenario.links),
        )
        try:
            solved = _solve_mode(moved, fleet, candidates, "disaggregated")
        except InfeasibleError:
            lines.append(
                DistanceLine(
                    distance_km=km,
                    status="infeasible",
                    usd_per_hour=None,
                    link_usd_per_hour=None,
                    one_way_s=km * FIBRE_S_PER_KM,
                )
            )
            continue
        _, pools, links, cost = parts_of(moved, solved)
        lines.append(
            DistanceLine(
                distance_km=km,
                status=solved.solution.proof,
                usd_per_hour=cost.usd_per_hour,
                link_usd_per_hour=sum(link.usd_per_hour for link in links),
                one_way_s=km * FIBRE_S_PER_KM,
                slo=slo_of(moved, solved),
                nodes=totals_of(pools, ()).nodes,
            )
        )
    return tuple(lines)


def plan_scenario(scenario: Scenario, *, alternatives: int = 0, solver_log: Path | None = None) -> Plan:
    """Plan a resolved scenario; see :func:`plan_file`.

    Raises
    ------
    PdplanError
        The plan failed its own certificate: a fault of pdplan, never printed as a plan.
    SolverError
        The solver stopped without a plan.
    """
    began = time.perf_counter()
    fleet = fleet_of(scenario)
    candidates, enumerated = enumerate_candidates(scenario, fleet)
    count = CandidateCount(enumerated=enumerated, feasible=len(candidates), kept=0)
    modes = list(scenario.fleet.modes)
    mode = modes[0]
    base: dict[str, Any] = {
        "scenario": scenario.given,
        "inputs": scenario.inputs,
        "catalog_digest": scenario.catalog_digest,
        "objective": scenario.objective,
        "assumptions": assumptions_of(scenario),
        "sources": sources_of(scenario),
    }
    others = [m for m in modes if m != mode]
    try:
        solved = _solve_mode(scenario, fleet, candidates, mode, solver_log)
    except InfeasibleError as fault:
        other = _alternative(scenario, fleet, candidates, others[0], None) if others else None
        return Plan(
            **base,
            status="infeasible",
            mode=mode,
            candidates=count,
            colocated=other,
            reasons=tuple(
                PlanReason(constraint=r.constraint, required=r.required, nearest=r.nearest, message=r.message)
                for r in fault.reasons
            ),
            assurance=_assurance(scenario, fleet, candidates, mode, ()),
            warnings=scenario.warnings,
        )
    purchases, pools, links, cost = parts_of(scenario, solved)
    if scenario.objective == "cost" and abs(cost.usd_per_hour - solved.solution.objective) > 1e-6 * max(
        cost.usd_per_hour, 1.0
    ):
        raise PdplanError(
            f"the bill of {cost.usd_per_hour:.6g} USD/h is not the {solved.solution.objective:.6g} USD/h the solver "
            f"minimised; please report this scenario"
        )
    warnings = list(scenario.warnings)
    solution = solved.solution
    if solution.proof != "optimal":
        warnings.append(f"the solver stopped at a gap of {solution.gap:.2%}; a cheaper plan may exist")
    slo = slo_of(scenario, solved)
    plan = Plan(
        **base,
        status="optimal" if solution.proof == "optimal" else "feasible",
        mode=mode,
        cost=cost,
        totals=totals_of(pools, purchases),
        pools=pools,
        purchases=purchases,
        links=links,
        slo=slo,
        periods=periods_of(scenario, fleet, solved),
        near_optimal=_near_optimal(scenario, solved, alternatives, cost.usd_per_hour),
        assurance=_assurance(scenario, fleet, candidates, mode, slo),
        latency=solved.evaluation.latency,
        colocated=_alternative(scenario, fleet, candidates, others[0], cost.usd_per_hour) if others else None,
        distances=_distances(scenario, fleet, candidates)
        if any(line.from_site != line.to_site for line in links)
        else (),
        candidates=replace(count, kept=solved.built.kept),
        solver=Solver(
            name=solution.solver,
            proof="optimal" if solution.proof == "optimal" else "feasible",
            gap=solution.gap,
            bound=solution.bound,
            time_s=time.perf_counter() - began,
            variables=solution.variables,
            constraints=solution.constraints,
        ),
        warnings=tuple(warnings),
    )
    certificate = certify(scenario, plan)
    if not certificate.ok:
        broken = "; ".join(f"{c.name}: {c.lhs:.6g} > {c.rhs:.6g}" for c in certificate.checks if not c.ok)
        raise PdplanError(f"the plan fails its own certificate ({broken}); please report this scenario")
    return replace(plan, certificate=certificate, binding=binding_of(certificate, plan))


def plan_from_anything(scenario: LoadedScenario | str | Path, *, catalog: str | Path | None = None) -> Plan:
    """Plan a scenario given as a path or as loaded; the function behind ``pdplan.plan``."""
    loaded = scenario if isinstance(scenario, LoadedScenario) else load_scenario(scenario)
    if not isinstance(loaded, LoadedScenario):
        raise InputError("a scenario path or the result of load_scenario is expected")
    return plan_file(loaded, catalog_folder=Path(catalog) if catalog is not None else None)
