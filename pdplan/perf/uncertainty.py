"""Intervals around predictions, from the residuals of cross-validation.

`catalogs/uncertainty.yaml` holds, per metric and situation, quantiles of measured over predicted on rows whose
configuration the fit had not seen; benchmarks/fit_constants.py writes it. An interval multiplies the prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdplan.catalog.load import shipped_folder
from pdplan.errors import InputError
from pdplan.files import read_yaml

__all__ = ["CONFIDENCE_WIDENING", "Interval", "Situation", "margin", "prediction_interval"]

Metric = Literal["ttft_s", "tpot_s", "throughput"]
Confidence = Literal["fitted", "transferred", "op-tables", "guess"]

CONFIDENCE_WIDENING: Mapping[str, float] = {"fitted": 1.0, "transferred": 1.5, "op-tables": 1.5, "guess": 2.0}
"""Factor on the log width where family or engine constants were not fitted: leaving a whole family out of the fit
takes the TPOT error from about 9 to 15 % (pdplan latency model, section 7.3); the value for guesses is a judgement."""

BUSY_UTILISATION = 0.7
"""Prefill utilisation from which the wider intervals of busy pools apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the width of an interval depends on."""

    disaggregated: bool
    other_model: bool = False
    """Not of the kind the constants were mainly fitted on (latent attention with experts)."""
    family_confidence: Confidence = "fitted"
    engine_confidence: Confidence = "fitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Multiplicative bounds: the true value lies between prediction x low and prediction x high."""

    low_50: NDArray[np.float64]
    high_50: NDArray[np.float64]
    low_90: NDArray[np.float64]
    high_90: NDArray[np.float64]


@cache
def _table() -> Mapping[str, Mapping[str, tuple[float, float, float, float]]]:
    path = shipped_folder() / "uncertainty.yaml"
    data = read_yaml(path)
    try:
        return {m: {k: tuple(map(float, q)) for k, q in rows.items()} for m, rows in data["quantiles"].items()}  # type: ignore[misc]
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise InputError(f"{path}: quantiles: {fault!r}; four numbers per metric and situation are expected") from None


def _rows(metric: Metric, situation: Situation) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Quantiles of calm and of busy prefill."""
    table = _table()[metric]
    if situation.other_model:
        return table["other models"], table["other models"]
    if situation.disaggregated:
        return table["disaggregated"], table["disaggregated, busy prefill"]
    return table["colocated"], table["colocated"]


def _widening(situation: Situation) -> float:
    return max(CONFIDENCE_WIDENING[situation.family_confidence], CONFIDENCE_WIDENING[situation.engine_confidence])


def prediction_interval(metric: Metric, situation: Situation, prefill_utilisation_frac: ArrayLike = 0.0) -> Interval:
    """Bounds to multiply a prediction with, by situation and prefill utilisation.

    Parameters
    ----------
    metric : {"ttft_s", "tpot_s", "throughput"}
        Throughput covers request and token rates.
    situation : Situation
        Mode and how far the constants are trusted; the weaker of family and engine counts.
    prefill_utilisation_frac : array_like
        Busy disaggregated pools (from 0.7) have their own, wider quantiles.

    Returns
    -------
    Interval
        Arrays of the shape of `prefill_utilisation_frac`.
    """
    utilisation = np.asarray(prefill_utilisation_frac, dtype=np.float64)
    calm, busy = _rows(metric, situation)
    quantiles = np.where(utilisation[..., None] >= BUSY_UTILISATION, busy, calm)
    spread = np.exp(np.log(quantiles) * _widening(situation))
    return Interval(low_90=spread[..., 0], low_50=spread[..., 1], high_50=spread[..., 2], high_90=spread[..., 3])


_LEVELS = (0.05, 0.25, 0.75, 0.95)
"""Probabilities of the stored quantiles."""


def margin(metric: Metric, situation: Situation, confidence: float) -> float:
    """Factor on a predicted latency that the measured one stays below with the given one-sided confidence.

    Logarithms of the stored quantiles are interpolated over the quantiles of the normal distribution, that is as a
    log-normal between two of them, and continued with the slope of the last pair beyond 95 %. Busy and calm prefill give
    the larger of their factors, because utilisation is an outcome of the plan. Never below 1: a prediction known to be
    too high is no reason to buy less.

    Parameters
    ----------
    metric : {"ttft_s", "tpot_s"}
    situation : Situation
        As for :func:`prediction_interval`.
    confidence : float
        From 0.5 up to, not including, 1.

    Raises
    ------
    ValueError
        Confidence out of range.
    """
    if not 0.5 <= confidence < 1:
        raise ValueError(f"confidence {confidence!r} is not accepted; 0.5 up to, not including, 1 is")
    normal = NormalDist()
    at, levels = normal.inv_cdf(confidence), [normal.inv_cdf(level) for level in _LEVELS]
    pair = 1 if confidence <= _LEVELS[2] else 2
    share = (at - levels[pair]) / (levels[pair + 1] - levels[pair])
    logs = [np.log(quantiles) for quantiles in _rows(metric, situation)]
    return float(max(1.0, *(np.exp(_widening(situation) * (q[pair] + share * (q[pair + 1] - q[pair]))) for q in logs)))
