"""Predictions for measured rows, each with its intervals, or why a row is not supported. No row stops the others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdplan.calibrate.measured import METRICS, MeasuredRow
from pdplan.catalog.load import Catalog
from pdplan.errors import PdplanError
from pdplan.perf.uncertainty import Confidence, Situation, prediction_interval
from pdplan.serving.deployments import Deployment, Group, groups_of

__all__ = ["Predictions", "predict_rows"]

Floats = NDArray[np.float64]
_LOWER: dict[str, Confidence] = {
    "fitted": "transferred", "transferred": "guess", "op-tables": "guess", "guess": "guess",
}  # fmt: skip
_TRUST: tuple[Confidence, ...] = ("fitted", "op-tables", "transferred", "guess")
LATENT_KIND = "deepseek"
"""Models whose family name holds this are of the kind the constants were mainly fitted on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """One entry per row; NaN where a row is not supported. Bounds are multiples already applied."""

    value: dict[str, Floats]
    """Metric -> (n,)."""
    low_90: dict[str, Floats]
    high_90: dict[str, Floats]
    low_50: dict[str, Floats]
    high_50: dict[str, Floats]
    problem: list[str]
    """Why a row is not supported; empty where it is."""
    note: list[str]
    """What was assumed, or that a queue grows; empty where nothing was."""
    confidence: list[str]
    saturated: NDArray[np.bool_]

    def supported(self) -> NDArray[np.bool_]:
        """Rows with a prediction."""
        return np.array([not text for text in self.problem], dtype=bool)


def _closed_loop(group: Group) -> dict[str, Floats]:
    result = group.predict()
    return {name: getattr(result, name) for name in (*METRICS, "prefill_utilisation_frac", "saturated")}


def _tokens_per_card(group: Group, total: Floats) -> Floats:
    cards = group.replicas("decode") * group.decode.cards_per_replica
    result: Floats = total / cards
    return result


def _decode_batch(group: Group) -> dict[str, Floats]:
    """So many sequences in decode and nothing else: the step, and the tokens it makes."""
    sequences, context = group.column("concurrency"), group.column("input_tokens") + group.column("output_tokens") / 2
    step = group.latency.decode_step_s(group.decode, sequences / group.replicas("decode"), context)
    tpot = step / group.latency.tokens_per_step(group.decode)
    return {
        "tpot_s": tpot,
        "output_tok_per_s": sequences / tpot,
        "total_tok_per_s_per_card": _tokens_per_card(group, sequences / tpot),
    }


def _prefill_pass(group: Group) -> dict[str, Floats]:
    """So many prompts in one pass of every replica."""
    prompts, tokens = group.column("concurrency"), group.column("input_tokens")
    seconds = group.latency.prefill_pass_s(
        group.decode, tokens, group.column("cached_tokens"), prompts / group.replicas("decode")
    )
    return {
        "ttft_s": seconds + group.latency.engine_constants["request_overhead_ms"],
        "total_tok_per_s_per_card": _tokens_per_card(group, prompts * tokens / seconds),
    }


def _static_batch(group: Group) -> dict[str, Floats]:
    """A batch prefilled in one pass, then decoded together: times of the engine, no client in between."""
    batch = _decode_batch(group)
    prompts, tokens = group.column("concurrency"), group.column("input_tokens")
    prefill = group.latency.prefill_pass_s(group.decode, tokens, 0.0, prompts / group.replicas("decode"))
    return {"ttft_s": prefill, "tpot_s": batch["tpot_s"], "output_tok_per_s": batch["output_tok_per_s"]}


_LOADS: dict[str, Callable[[Group], dict[str, Floats]]] = {
    "closed loop": _closed_loop,
    "decode batch": _decode_batch,
    "prefill pass": _prefill_pass,
    "static batch": _static_batch,
}


def _lowest(first: Confidence, second: Confidence) -> Confidence:
    return max(first, second, key=_TRUST.index)


def _bucket(row: MeasuredRow) -> tuple[Any, ...]:
    d = row.deployment
    assert d is not None
    return (
        row.load, d.model, d.node, d.engine, d.precision, d.draft_tokens, d.acceptance_frac, d.poll_steps, d.prefill is None,
        d.ramp_frac,
    )  # fmt: skip


_NO_RESERVE = {"memory_usable_frac": 1.0, "memory_reserve_bytes": 0.0}
PROMPT_TO_ANSWER = 16.0
"""Input over output tokens beyond which no row of the fit lies."""


def _doubts(row: MeasuredRow) -> tuple[str, ...]:
    """What was assumed when the row was read, and whether its load is like those of the fit."""
    d = row.deployment
    if d is None or row.load != "closed loop" or d.input_tokens <= PROMPT_TO_ANSWER * d.output_tokens:
        return row.doubts
    text = f"prompts more than {PROMPT_TO_ANSWER:g} times the answer: outside the fitted loads, prefill sets the pace"
    return (*row.doubts, text)


def predict_rows(rows: Sequence[MeasuredRow], catalog: Catalog, **replaced: Any) -> Predictions:
    """Predict every row that describes a deployment.

    Parameters
    ----------
    rows : sequence of MeasuredRow
        As read; those with a `problem` stay unsupported.
    catalog : Catalog
        Models, nodes, constants.
    **replaced
        ``families``, ``engines`` and ``general`` that replace shipped constants (a profile), as in
        :func:`~pdplan.serving.deployments.groups_of`.
    """
    n = len(rows)
    value = {metric: np.full(n, np.nan) for metric in METRICS}
    busy, saturated = np.zeros(n), np.zeros(n, dtype=bool)
    problem = [row.problem for row in rows]
    doubts = [_doubts(row) for row in rows]
    note = ["; ".join(texts) for texts in doubts]
    confidence: list[Confidence] = ["guess"] * n
    buckets: dict[tuple[Any, ...], list[int]] = {}
    for i, row in enumerate(rows):
        if row.deployment is not None:
            buckets.setdefault(_bucket(row), []).append(i)

    def run(load: str, indices: list[int], changed: dict[str, Any]) -> list[int]:
        """Predict some rows; returns those whose weights fit, but nothing beside the reserve."""
        tight: list[int] = []
        deployments = [d for i in indices if (d := rows[i].deployment) is not None]
        for part, where in _parts(deployments, indices, catalog, changed, problem):
            try:
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore", RuntimeWarning)
                    found = _LOADS[load](part)
            except (PdplanError, ValueError, ArithmeticError, IndexError) as fault:
                for i in where:
                    problem[i] = f"cannot be predicted: {' '.join(str(fault).split())}"
                continue
            tight += _store(part, where, found, value, busy, saturated, problem, note)
            trust = _trust(part, catalog)
            for i in where:
                confidence[i] = _LOWER[trust] if doubts[i] else trust
        return tight

    for key, indices in buckets.items():
        # A measured row ran, so it fitted: on the last of the memory, without the reserve that a plan keeps.
        if tight := run(key[0], indices, replaced):
            for i in tight:
                problem[i], doubts[i] = "", (*doubts[i], "the weights leave next to no room: predicted without reserve")
                note[i] = "; ".join(doubts[i])
            run(key[0], tight, {**replaced, "general": {**dict(replaced.get("general") or {}), **_NO_RESERVE}})
    bounds = _bounds(rows, catalog, value, busy, confidence)
    return Predictions(
        value=value, problem=problem, note=note, confidence=list(confidence), saturated=saturated, **bounds
    )  # fmt: skip


def _parts(
    deployments: list[Deployment], indices: list[int], catalog: Catalog, replaced: dict[str, Any], problem: list[str]
) -> list[tuple[Group, list[int]]]:
    """Groups that one call predicts; a bucket that cannot even be set up is marked."""
    try:
        groups = groups_of(deployments, catalog, **replaced)
    except (PdplanError, ValueError, KeyError, ZeroDivisionError) as fault:
        for i in indices:
            problem[i] = f"cannot be predicted: {' '.join(str(fault).split())}"
        return []
    return [(group, [indices[j] for j in group.index]) for group in groups]


def _store(
    group: Group,
    where: list[int],
    found: dict[str, Floats],
    value: dict[str, Floats],
    busy: Floats,
    saturated: NDArray[np.bool_],
    problem: list[str],
    note: list[str],
) -> list[int]:
    """Write results and remarks; returns the rows without a result whose weights alone would fit."""
    tight = []
    for metric in METRICS:
        if metric in found:
            value[metric][where] = found[metric]
    if "prefill_utilisation_frac" in found:
        busy[where], saturated[where] = np.nan_to_num(found["prefill_utilisation_frac"]), found["saturated"]
    _, broken = group.latency.valid(group.decode)
    budget = group.latency.memory(group.decode)
    for j, i in enumerate(where):
        known = [m for m in METRICS if m in found]
        if not all(np.isfinite(value[m][i]) and value[m][i] > 0 for m in known):
            for m in METRICS:
                value[m][i] = np.nan
            need, have = np.ravel(budget.weights_bytes_per_card)[j] / 1e9, np.ravel(budget.hbm_bytes)[j] / 1e9
            if need < have:
                tight.append(i)
            problem[i] = (
                f"not one sequence fits: the weights take {need:.0f} GB of the {have:.0f} GB of a card with this layout"
            )
            continue
        remarks = [note[i]] if note[i] else []
        if broken:
            ok, rules = group.latency.valid(group.decode.take(np.array([j])))
            remarks += [f"unusual layout: {rule}" for rule in rules if not ok.all()]
        if saturated[i]:
            remarks.append("saturated: a queue grows in front of prefill, TTFT is an order of magnitude")
        note[i] = "; ".join(remarks)
    return tight


def _trust(group: Group, catalog: Catalog) -> Confidence:
    families = [machine.family.confidence for machine in group.latency.machines]
    weakest = max((family for family in families), key=_TRUST.index)
    return _lowest(weakest, group.latency.engine.confidence)


def _bounds(
    rows: Sequence[MeasuredRow], catalog: Catalog, value: dict[str, Floats], busy: Floats, confidence: list[Confidence]
) -> dict[str, dict[str, Floats]]:
    out = {
        name: {m: np.full(len(rows), np.nan) for m in METRICS} for name in ("low_90", "low_50", "high_50", "high_90")
    }
    situations: dict[Situation, list[int]] = {}
    for i, row in enumerate(rows):
        d = row.deployment
        if d is None:
            continue
        situation = Situation(
            disaggregated=d.prefill is not None,
            other_model=LATENT_KIND not in catalog.model(d.model).family.lower(),
            family_confidence=confidence[i],
            engine_confidence=confidence[i],
        )
        situations.setdefault(situation, []).append(i)
    for situation, indices in situations.items():
        for metric in METRICS:
            kind = metric if metric in ("ttft_s", "tpot_s") else "throughput"
            spread = prediction_interval(kind, situation, busy[indices])  # type: ignore[arg-type]
            for name, by_metric in out.items():
                by_metric[metric][indices] = value[metric][indices] * getattr(spread, name)
    return out
