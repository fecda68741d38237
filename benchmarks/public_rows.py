"""Public measurements for the accuracy and the fitting script: rows of the package's readers that are fit to be used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pdplan.calibrate.measured import MeasuredRow, read_rows
from pdplan.catalog.load import Catalog
from pdplan.serving.deployments import Deployment

DEFAULT_FOLDER = Path(__file__).resolve().parent.parent.parent / "shared" / "validation"
"""The validation data folder beside the project, if present."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Deployments with what was measured; NaN where a figure was not recorded."""

    measured: tuple[MeasuredRow, ...]

    @property
    def deployments(self) -> list[Deployment]:
        """What ran, row by row."""
        return [row.deployment for row in self.measured if row.deployment is not None]

    def _metric(self, name: str) -> NDArray[np.float64]:
        return np.array([row.measured.get(name, np.nan) for row in self.measured])

    @property
    def ttft_s(self) -> NDArray[np.float64]:
        """Median, or mean where the file has means."""
        return self._metric("ttft_s")

    @property
    def tpot_s(self) -> NDArray[np.float64]:
        """The same of the time per output token."""
        return self._metric("tpot_s")

    @property
    def total_tok_per_s_per_card(self) -> NDArray[np.float64]:
        """Input and output tokens over all cards."""
        return self._metric("total_tok_per_s_per_card")

    def take(self, keep: NDArray[np.bool_]) -> Rows:
        """The rows where `keep` is true."""
        return Rows(tuple(self.measured[i] for i in np.flatnonzero(keep)))

    def labels(self, name: str) -> NDArray[np.str_]:
        """One label of every row."""
        return np.array([row.labels.get(name, "") for row in self.measured])


def _supported(rows: Iterable[MeasuredRow]) -> list[MeasuredRow]:
    return [row for row in rows if row.deployment is not None]


def inferencex(path: Path, catalog: Catalog) -> Rows:
    """Rows with stated layouts, not marked inconsistent, not known to be of old software."""
    rows = _supported(read_rows(path, catalog, format_name="inferencex"))
    unfit = ("inconsistent", "legacy_split_inferred")
    return Rows(tuple(r for r in rows if r.labels["quality"] not in unfit and not r.labels["old_software"]))


def silicon(path: Path, catalog: Catalog) -> Rows:
    """Colocated rows of other models with mean TTFT and TPOT, nothing about which had to be assumed."""
    rows = _supported(read_rows(path, catalog, format_name="silicon"))
    stated = [row for row in rows if not row.doubts]
    return Rows(tuple(r for r in stated if r.labels["mode"] == "colocated" and "tpot_s" in r.measured))


def error_line(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Median, mean and P90 of the absolute percentage error, and the median bias in percent."""
    known = np.isfinite(measured) & np.isfinite(predicted)
    if not known.any():
        return (float("nan"),) * 4
    ape = np.abs(predicted[known] / measured[known] - 1) * 100
    bias = (np.exp(np.median(np.log(predicted[known] / measured[known]))) - 1) * 100
    return float(np.median(ape)), float(ape.mean()), float(np.percentile(ape, 90)), float(bias)
