"""Tables of errors: predicted against measured, over all rows and by label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from pdplan.calibrate.measured import METRICS, MeasuredRow
from pdplan.calibrate.predict import Predictions

__all__ = ["LABELS", "METRIC_NAMES", "ErrorLine", "error_lines", "measured_of", "scatter_svg"]

Floats = NDArray[np.float64]
LABELS = ("model", "chip", "precision", "mode", "engine")
METRIC_NAMES = {
    "ttft_s": "TTFT", "tpot_s": "TPOT", "output_tok_per_s": "output tokens/s",
    "total_tok_per_s_per_card": "tokens/s per card",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorLine:
    """Errors of one metric over a set of rows, in percent of the measured value."""

    by: str
    """Label that selects the rows; empty for all."""
    value: str
    metric: str
    rows: int
    median: float
    mean: float
    p90: float
    bias: float
    """Median of predicted over measured, less 1."""
    inside_90_frac: float
    """Share of rows whose measured value lies in the 90 % interval."""


def measured_of(rows: Sequence[MeasuredRow], metric: str) -> Floats:
    """Measured values, NaN where not recorded, (n,)."""
    return np.array([row.measured.get(metric, np.nan) for row in rows])


def _line(by: str, value: str, metric: str, found: Predictions, measured: Floats, keep: NDArray[np.bool_]) -> ErrorLine:
    ratio = found.value[metric][keep] / measured[keep]
    error = np.abs(ratio - 1) * 100
    inside = (measured[keep] >= found.low_90[metric][keep]) & (measured[keep] <= found.high_90[metric][keep])
    return ErrorLine(
        by=by,
        value=value,
        metric=metric,
        rows=int(keep.sum()),
        median=float(np.median(error)),
        mean=float(error.mean()),
        p90=float(np.percentile(error, 90)),
        bias=float(np.median(ratio) - 1) * 100,
        inside_90_frac=float(inside.mean()),
    )


def error_lines(rows: Sequence[MeasuredRow], found: Predictions, by: Sequence[str] = LABELS) -> list[ErrorLine]:
    """Lines over all rows, then by each label; only metrics that some row has measured."""
    lines = []
    for label in ("", *by):
        values = np.array([row.labels.get(label, "") if label else "" for row in rows])
        for value in sorted(set(values.tolist()) - ({""} if label else set())):
            for metric in METRICS:
                measured = measured_of(rows, metric)
                keep = (values == value) & np.isfinite(measured) & np.isfinite(found.value[metric])
                if keep.any():
                    lines.append(_line(label, value, metric, found, measured, keep))
    return lines


_COLOURS = ("#0b6e99", "#b35900", "#5b8c2a", "#8a3ffc", "#c2185b", "#666666")


def scatter_svg(rows: Sequence[MeasuredRow], found: Predictions) -> str:
    """Predicted over measured on two logarithmic axes, one panel per metric, one colour per mode; self-contained."""
    panels = [m for m in METRICS if (np.isfinite(measured_of(rows, m)) & np.isfinite(found.value[m])).any()]
    size, gap, left = 320, 70, 60
    width = left + len(panels) * (size + gap)
    modes = sorted({row.labels.get("mode", "") for row in rows if row.deployment is not None})
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {max(width, 200)} {size + 110}" font-family="sans-serif" '
        f'font-size="12" role="img"><title>Predicted against measured</title>'
        f'<rect width="100%" height="100%" fill="white"/>'
    ]
    for k, metric in enumerate(panels):
        measured, predicted = measured_of(rows, metric), found.value[metric]
        keep = np.flatnonzero(np.isfinite(measured) & np.isfinite(predicted))
        both = np.log10(np.concatenate([measured[keep], predicted[keep]]))
        low, high = np.floor(both.min() * 2) / 2, np.ceil(both.max() * 2) / 2
        high = max(high, low + 0.5)
        x0, y0 = left + k * (size + gap), 40

        def at(v: float, low: float = low, high: float = high) -> float:
            return float((np.log10(v) - low) / (high - low) * size)

        out.append(f'<text x="{x0}" y="{y0 - 14}" font-weight="bold">{METRIC_NAMES[metric]}</text>')
        out.append(f'<rect x="{x0}" y="{y0}" width="{size}" height="{size}" fill="none" stroke="#999"/>')
        for power in range(int(np.ceil(low)), int(np.floor(high)) + 1):
            p = at(10.0**power)
            out.append(
                f'<path d="M{x0 + p:.1f} {y0}v{size}M{x0} {y0 + size - p:.1f}h{size}" stroke="#eee"/>'
                f'<text x="{x0 + p:.1f}" y="{y0 + size + 16}" text-anchor="middle">{10.0**power:g}</text>'
                f'<text x="{x0 - 5}" y="{y0 + size - p + 4:.1f}" text-anchor="end">{10.0**power:g}</text>'
            )
        out.append(f'<path d="M{x0} {y0 + size}L{x0 + size} {y0}" stroke="#444" stroke-dasharray="4 3"/>')
        for i in keep.tolist():
            colour = _COLOURS[modes.index(rows[i].labels.get("mode", "")) % len(_COLOURS)]
            out.append(
                f'<circle cx="{x0 + at(measured[i]):.1f}" cy="{y0 + size - at(predicted[i]):.1f}" r="2.2" fill="{colour}" '
                f'fill-opacity=".55"><title>{escape(rows[i].row_id)}</title></circle>'
            )
        out.append(f'<text x="{x0 + size / 2}" y="{y0 + size + 34}" text-anchor="middle">measured</text>')
        if not k:
            y = y0 + size / 2
            out.append(f'<text x="14" y="{y}" text-anchor="middle" transform="rotate(-90 14 {y})">predicted</text>')
    for j, mode in enumerate(modes):
        x = left + j * 160
        out.append(
            f'<circle cx="{x}" cy="{size + 96}" r="4" fill="{_COLOURS[j % len(_COLOURS)]}"/>'
            f'<text x="{x + 8}" y="{size + 100}">{escape(mode)}</text>'
        )
    return "\n".join([*out, "</svg>", ""])
