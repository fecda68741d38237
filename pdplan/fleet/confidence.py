"""How far predictions are trusted: the situation a width depends on, and the margins that a stated confidence asks for.

With ``confidence: 0.9`` a target holds where the prediction times the margin of its machine is within it. Tables, evaluation
and certificate take the margins from here, so that they mean the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pdplan.fleet.candidates import Fleet
from pdplan.perf.uncertainty import Confidence, Metric, Situation, margin
from pdplan.scenario.resolve import Scenario, Target

__all__ = ["margin_groups", "margin_of", "margins", "situation_of", "tightened"]


def situation_of(scenario: Scenario, family: Confidence, *, disaggregated: bool) -> Situation:
    """What the width of an interval depends on, for machines whose family constants are trusted as `family` says."""
    return Situation(
        disaggregated=disaggregated,
        other_model="deepseek" not in scenario.model.family.lower(),
        family_confidence=family,
        engine_confidence=scenario.engine.confidence,
    )


def margin_of(scenario: Scenario, metric: str, family: Confidence, *, disaggregated: bool) -> float:
    """Factor by which the scenario's confidence asks a prediction to stay below its target; 1 without one."""
    if scenario.confidence is None:
        return 1.0
    kind: Metric = "ttft_s" if metric == "ttft_s" else "tpot_s"
    return margin(kind, situation_of(scenario, family, disaggregated=disaggregated), scenario.confidence)


def margins(scenario: Scenario, fleet: Fleet, metric: str, *, disaggregated: bool) -> NDArray[np.float64]:
    """Margin of every machine of the fleet, (number of machines,)."""
    return np.array(
        [
            margin_of(scenario, metric, machine.family.confidence, disaggregated=disaggregated)
            for machine in fleet.machines
        ]
    )


def margin_groups(
    scenario: Scenario, fleet: Fleet, machine: NDArray[np.int64], *, disaggregated: bool
) -> list[tuple[NDArray[np.int64], float, float]]:
    """Candidates by equal margins: positions, TTFT margin, TPOT margin.

    Parameters
    ----------
    machine : (C,) int
        Machine of each candidate.
    """
    both = np.column_stack(
        [margins(scenario, fleet, metric, disaggregated=disaggregated) for metric in ("ttft_s", "tpot_s")]
    )[machine]
    values, inverse = np.unique(both, axis=0, return_inverse=True)
    inverse = np.ravel(inverse)
    return [(np.flatnonzero(inverse == i), float(ttft), float(tpot)) for i, (ttft, tpot) in enumerate(values)]


def tightened(targets: tuple[Target, ...], factor: float) -> list[tuple[float, float]]:
    """Targets as (quantile between 0 and 1, limit in s over the margin)."""
    return [(target.percentile / 100, target.limit_s / factor) for target in targets]
