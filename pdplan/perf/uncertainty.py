"""Intervals around predictions, from the residuals of cross-validation.

`catalogs/uncertainty.yaml` holds, per metric and situation, quantiles of measured over predicted on rows whose
configuration the fit had not seen; benchmarks/fit_constants.py writes it. An interval multiplies the prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdplan.catalog.load import shipped_folder
from pdplan.errors import InputError
from pdplan.files import read_yaml

__all__ = ["CONFIDENCE_WIDENING", "Interval", "Situation", "prediction_interval"]

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
    table = _table()[metric]
    utilisation = np.asarray(prefill_utilisation_frac, dtype=np.float64)
    if situation.other_model:
        calm = busy = table["other models"]
    elif situation.disaggregated:
        calm, busy = table["disaggregated"], table["disaggregated, busy prefill"]
    else:
        calm = busy = table["colocated"]
    quantiles = np.where(utilisation[..., None] >= BUSY_UTILISATION, busy, calm)
    widening = max(CONFIDENCE_WIDENING[situation.family_confidence], CONFIDENCE_WIDENING[situation.engine_confidence])
    spread = np.exp(np.log(quantiles) * widening)
    return Interval(low_90=spread[..., 0], low_50=spread[..., 1], high_50=spread[..., 2], high_90=spread[..., 3])
