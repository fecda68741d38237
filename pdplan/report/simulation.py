"""What a simulation of the plan found, as blocks: the section of the paper, and the answer of ``pdplan verify``."""

from __future__ import annotations

from pdplan.fleet.verification import SimulatedTarget, Verification
from pdplan.report.blocks import Block, Heading, Items, Paragraph, Strong, Table
from pdplan.report.view import count, metric_name, number, percent, plural, seconds

__all__ = ["simulation", "verdict_words"]


def _name(metric: str, percentile: float | None) -> str:
    titles = {"itl_s": "Gap between tokens", "itl_max_s": "Largest gap of a request"}
    words = "mean" if percentile is None else "maximum" if percentile == 100.0 else f"p{percentile:g}"
    return f"{titles.get(metric) or metric_name(metric)} {words}"


def _simulated(value: float | None) -> str:
    return "no answer" if value is None else seconds(value)


def _half(value: float | None) -> str:
    return "unknown" if value is None else f"± {seconds(value)}"


def _off(planned: float | None, simulated: float | None) -> str:
    """How far the plan is from the simulation."""
    if planned is None or simulated is None or simulated == 0:
        return "-"
    return f"{100 * (planned / simulated - 1):+.1f} %"


def verdict_words(found: Verification) -> str:
    """The answer in one sentence."""
    kinds = [line.verdict for line in found.targets]
    if all(kind == "met" for kind in kinds):
        return "All targets hold in simulation."
    if found.ok:
        return "All targets hold in simulation within its own interval; at least one is at its limit."
    missed = ", ".join(_name(t.metric, t.percentile) for t in found.targets if t.verdict == "missed")
    return f"Missed in simulation: {missed}."


def _target_row(line: SimulatedTarget) -> tuple[str, ...]:
    return (
        _name(line.metric, line.percentile),
        seconds(line.target),
        seconds(line.planned),
        _simulated(line.simulated),
        _half(line.half_width_95),
        line.verdict if line.verdict != "missed" else "MISSED",
    )


def _what_was_played(found: Verification) -> str:
    runs = plural(found.runs, "run")
    words = (
        f"{count(found.simulated_requests)} requests in {runs} of {number(found.duration_s)} s each "
        f"({number(found.rate_req_per_s)} per second, {found.traffic}; seed {found.seed}), on the {found.mode} fleet, "
        f"routing {found.routers.replace('_', ' ')}"
    )
    if found.failures:
        words += f", with failures {', '.join(found.failures)}"
    return (
        f"{words}. The first {percent(found.warmup_frac)} and the last {percent(found.cooldown_frac)} of each run are left out. "
        f"Of {count(found.requests)} measured requests {count(found.finished)} were answered, {count(found.rejected)} turned away "
        f"or lost, {count(found.unfinished)} left unanswered; {count(found.preempted)} had to be computed again for lack of memory. "
        f"{percent(found.attainment_frac)} of all met every target's limit."
    )


def simulation(found: Verification, *, level: int = 2, every: bool = False) -> list[Block]:
    """Verdict, what was played, and the tables planned against simulated; `every` adds each percentile's own table."""
    blocks: list[Block] = [
        Heading(level=level, text="Checked by simulation"),
        Paragraph(spans=(Strong(verdict_words(found)),), tone="good" if found.ok else "bad"),
        Table(
            caption="Targets, planned and simulated",
            headers=("target", "limit", "planned", "simulated", "95 % interval", "verdict"),
            left=frozenset({0, 5}),
            rows=[_target_row(line) for line in found.targets],
        ),
        Paragraph(spans=(_what_was_played(found),)),
    ]
    if found.warnings:
        blocks.append(Items(items=tuple((Strong("Warning: "), warning) for warning in found.warnings)))
    if found.phases:
        blocks.append(
            Table(
                caption="What users saw before and after each failure",
                headers=("", "from", "to", "requests", "met all limits", "TTFT p90", "TTFT p99", "TPOT p90"),
                rows=[
                    (
                        phase.name,
                        f"{number(phase.from_s)} s",
                        f"{number(phase.to_s)} s",
                        count(phase.requests),
                        percent(phase.attainment_frac),
                        _simulated(phase.ttft_p90_s),
                        _simulated(phase.ttft_p99_s),
                        _simulated(phase.tpot_p90_s),
                    )
                    for phase in found.phases
                ],
            )
        )
    if every:
        blocks.append(
            Table(
                caption="Latency, planned and simulated",
                headers=("", "planned", "simulated", "95 % interval", "plan is off by"),
                rows=[
                    (
                        _name(line.metric, line.percentile),
                        seconds(line.planned),
                        _simulated(line.simulated),
                        _half(line.half_width_95),
                        _off(line.planned, line.simulated),
                    )
                    for line in found.latency
                ],
            )
        )
    blocks.append(
        Table(
            caption="Pools, planned and simulated",
            headers=(
                "pool", "site", "node type", "replicas", "utilisation planned", "simulated", "batch planned", "simulated",
                "cache in use", "wait mean", "wait p99",
            ),
            left=frozenset({0, 1, 2}),
            rows=[
                (
                    pool.name,
                    pool.site,
                    pool.node_type,
                    count(pool.replicas),
                    percent(pool.utilization_planned_frac),
                    percent(pool.utilization_simulated_frac),
                    number(pool.batch_planned),
                    number(pool.batch_simulated),
                    percent(pool.kv_simulated_frac),
                    seconds(pool.wait_mean_s),
                    seconds(pool.wait_p99_s),
                )
                for pool in found.pools
            ],
        )
    )  # fmt: skip
    if found.alternative is not None:
        blocks += _side_by_side(found, found.alternative, level)
    return blocks


_COMPARED = (
    ("ttft_s", 50.0), ("ttft_s", 99.0), ("tpot_s", 50.0), ("tpot_s", 99.0), ("itl_s", 50.0), ("itl_s", 99.0),
    ("itl_max_s", 50.0), ("itl_max_s", 99.0), ("itl_max_s", 100.0),
)  # fmt: skip


def _side_by_side(found: Verification, other: Verification, level: int) -> list[Block]:
    """What prompts in the same batch do to the tokens of others."""
    values = [{(line.metric, line.percentile): line for line in each.latency} for each in (found, other)]
    rows = []
    for key in _COMPARED:
        if key in values[0] and key in values[1]:
            mine, theirs = (value[key].simulated for value in values)
            ratio = "-" if not mine or theirs is None else f"{number(theirs / mine)} times"
            rows.append((_name(*key), _simulated(mine), _simulated(theirs), ratio))
    return [
        Heading(level=level + 1, text=f"The {other.mode} alternative under the same requests"),
        Paragraph(spans=(Strong(verdict_words(other)),), tone="good" if other.ok else "bad"),
        Table(
            caption="Both fleets, simulated",
            headers=("", found.mode, other.mode, "ratio"),
            rows=rows,
        ),
        Table(
            caption="Targets, planned and simulated",
            headers=("target", "limit", "planned", "simulated", "95 % interval", "verdict"),
            left=frozenset({0, 5}),
            rows=[_target_row(line) for line in other.targets],
        ),
    ]
