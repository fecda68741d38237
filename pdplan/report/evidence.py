"""What the answer rests on: what binds, how sure the latencies are, assumptions with sources, and the proof."""

from __future__ import annotations

from pdplan.fleet.plan import Check, Plan
from pdplan.report.blocks import Bar, Bars, Block, Heading, Items, Paragraph, Segment, Strong, Table
from pdplan.report.view import PROOF, count, money, number, percent, power, seconds, target_name

__all__ = ["assumptions", "binding", "confidence", "proof"]

_TIGHTEST = 8
"""Checks shown in the paper; the CSV table and the JSON hold all."""


def binding(plan: Plan) -> list[Block]:
    """Constraints without slack."""
    if plan.cost is None:
        return []
    return [
        Heading(level=2, text="What holds it up"),
        Items(items=tuple((line.message,) for line in plan.binding))
        if plan.binding
        else Paragraph(spans=("No constraint is close to its limit.",)),
    ]


def confidence(plan: Plan) -> list[Block]:
    """Targets against predictions with their intervals."""
    if not plan.slo:
        return []
    bars = tuple(
        Bar(
            label=target_name(line),
            value=f"{seconds(line.predicted)} of {seconds(line.target)}",
            # The axis ends at twice the target, so that the target line always stands in the middle.
            segments=(
                Segment(kind="met" if line.met else "missed", frac=min(line.predicted / (2 * line.target), 1.0)),
            ),
            mark_frac=0.5,
            range_frac=(min(line.low_90 / (2 * line.target), 1.0), min(line.high_90 / (2 * line.target), 1.0)),
        )
        for line in plan.slo
    )
    return [
        Heading(level=2, text="How sure"),
        Bars(
            caption="Each axis runs from zero to twice the target",
            bars=bars,
            legend=(
                ("met", "predicted"),
                ("mark", "target"),
                ("range", "90 % interval, cut at twice the target"),
            ),
        ),
        Table(
            caption="Predictions against targets",
            headers=("target", "limit", "predicted", "90 % interval from", "to", "met"),
            left=frozenset({0, 5}),
            rows=[
                (
                    target_name(line),
                    seconds(line.target),
                    seconds(line.predicted),
                    seconds(line.low_90),
                    seconds(line.high_90),
                    "yes" if line.met else "no",
                )
                for line in plan.slo
            ],
        ),
        *_assurance(plan),
        Paragraph(
            spans=(
                "The interval is the error of the latency model on measurements it was not fitted to; the accuracy page of "
                "the documentation shows them. It says nothing about a workload that differs from the one given.",
            )
        ),
    ]


def _assurance(plan: Plan) -> list[Block]:
    """What the stated confidence asks for and costs."""
    found = plan.assurance
    if found is None or plan.cost is None:
        return []
    asked = " and ".join(
        f"{name} {factor:.2f} times as long"
        for name, factor in (("TTFT", found.ttft_margin), ("TPOT", found.tpot_margin))
        if factor is not None
    )
    words = f"Planned so that each target holds with {found.confidence * 100:g} % confidence: still met with {asked} as predicted."
    if found.usd_per_hour_without is not None and found.cards_without is not None and plan.totals is not None:
        more = plan.cost.usd_per_hour / found.usd_per_hour_without - 1 if found.usd_per_hour_without else 0.0
        words += (
            f" Held against the predictions themselves the targets take {count(found.cards_without)} cards for "
            f"{money(found.usd_per_hour_without)} USD per hour: the confidence costs {more:.1%}."
        )
    return [Paragraph(spans=(Strong("Confidence: "), words))]


def assumptions(plan: Plan) -> list[Block]:
    """Figures with basis and source."""
    blocks: list[Block] = [Heading(level=2, text="Assumptions and sources")]
    if plan.assumptions:
        guessed = sum(a.basis == "estimate" for a in plan.assumptions)
        if guessed:
            words = (
                f"{guessed} of {len(plan.assumptions)} figures are estimates (analysts, press or our own judgement): "
                "replace them first if they matter to you."
            )
            blocks.append(Paragraph(spans=(words,)))
        blocks.append(
            Table(
                caption="Figures the plan rests on",
                headers=("assumption", "value", "basis", "source"),
                left=frozenset({0, 1, 2, 3}),
                rows=[(a.name, a.value, a.basis, a.source) for a in plan.assumptions],
            )
        )
    if plan.sources:
        words = "; the command pdplan catalog list sources prints each with title and date."
        blocks.append(Paragraph(spans=(Strong("Sources: "), ", ".join(plan.sources) + words)))
    return blocks


def _bound(plan: Plan, value: float) -> str:
    if plan.objective == "cost":
        return f"{money(value)} USD per hour"
    return power(value) if plan.objective == "power" else f"{number(value, 6)} {plan.objective}"


def _tightness(check: Check) -> float:
    return check.slack / (abs(check.rhs) or 1.0)


def proof(plan: Plan) -> list[Block]:
    """Solver, candidates, certificate, versions."""
    blocks: list[Block] = [Heading(level=2, text="Proof")]
    if plan.solver is not None:
        s = plan.solver
        blocks.append(
            Paragraph(
                spans=(
                    Strong("Solver "),
                    f"{s.name}: {PROOF.get(s.proof, s.proof)}, gap {percent(s.gap)}; no plan can be better than "
                    f"{_bound(plan, s.bound)}. {count(s.variables)} variables, {count(s.constraints)} constraints, "
                    f"{count(s.rounds)} round{'' if s.rounds == 1 else 's'}.",
                )
            )
        )
    if plan.candidates is not None:
        c = plan.candidates
        blocks.append(
            Paragraph(
                spans=(
                    Strong("Candidates: "),
                    f"{count(c.enumerated)} layouts enumerated, {count(c.feasible)} valid and able to hold the longest request, "
                    f"{count(c.kept)} kept after dominance.",
                )
            )
        )
    if plan.certificate is not None:
        checks = plan.certificate.checks
        held = sum(check.ok for check in checks)
        shown = [check for check in checks if not check.ok]
        shown += sorted((c for c in checks if c.ok and c.rhs != 0 and "difference" not in c.name), key=_tightness)[
            :_TIGHTEST
        ]
        blocks += [
            Paragraph(
                tone="" if plan.certificate.ok else "bad",
                spans=(
                    Strong("Certificate: "),
                    f"{held} of {len(checks)} constraints, recomputed without the solver, hold"
                    + ("." if plan.certificate.ok else ": this plan is NOT valid.")
                    + (" The ones with least to spare:" if shown and held == len(checks) else ""),
                ),
            ),
            Table(
                caption="Tightest constraints",
                headers=("constraint", "left side", "right side", "slack", ""),
                left=frozenset({0, 4}),
                rows=[
                    (c.name, number(c.lhs, 4), number(c.rhs, 4), number(c.slack), "ok" if c.ok else "VIOLATED")
                    for c in shown
                ],
            ),
        ]
    blocks.append(Paragraph(spans=(f"Planned with pdplan {plan.pdplan_version}, catalog {plan.catalog_digest}.",)))
    return blocks
