"""What `pdplan validate` writes: markdown, CSV of errors, CSV of predictions."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence

import numpy as np

from pdplan.calibrate.errors import METRIC_NAMES, ErrorLine
from pdplan.calibrate.fit import Calibration
from pdplan.calibrate.measured import METRICS, MeasuredRow
from pdplan.calibrate.predict import Predictions

__all__ = ["PREDICTION_COLUMNS", "calibration_markdown", "errors_csv", "errors_markdown", "predictions_csv"]

PREDICTION_COLUMNS = (
    "row_id", "status", "reason",
    *(name for metric in METRICS for name in (metric, f"{metric}_low_90", f"{metric}_high_90")),
    "confidence",
)  # fmt: skip
_ERROR_COLUMNS = ("by", "value", "metric", "rows", "median_percent", "mean_percent", "p90_percent", "bias_percent", "inside_90_frac")  # fmt: skip


def _text(rows: Sequence[Sequence[object]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def _number(value: float) -> str:
    return f"{value:.6g}" if np.isfinite(value) else ""


def predictions_csv(rows: Sequence[MeasuredRow], found: Predictions) -> str:
    """One line per input row, in its order; blanks where there is no number."""
    lines: list[Sequence[object]] = [PREDICTION_COLUMNS]
    for i, row in enumerate(rows):
        ok = not found.problem[i]
        numbers = [
            _number(table[metric][i]) for metric in METRICS for table in (found.value, found.low_90, found.high_90)
        ]
        reason = found.note[i] if ok else found.problem[i]
        lines.append([row.row_id, "ok" if ok else "unsupported", reason, *numbers, found.confidence[i] if ok else ""])
    return _text(lines)


def errors_csv(lines: Sequence[ErrorLine]) -> str:
    """The error table, full precision to 6 digits."""
    return _text(
        [
            _ERROR_COLUMNS,
            *(
                [
                    l.by or "all",
                    l.value,
                    l.metric,
                    l.rows,
                    *map(_number, (l.median, l.mean, l.p90, l.bias, l.inside_90_frac)),
                ]
                for l in lines  # noqa: E741
            ),
        ]
    )


def errors_markdown(name: str, rows: Sequence[MeasuredRow], found: Predictions, lines: Sequence[ErrorLine]) -> str:
    """The report: how many rows, errors by label, and what was not supported."""
    from tabulate import tabulate

    ok = found.supported()
    out = [f"# {name}: predicted against measured", ""]
    out.append(f"{len(rows)} rows, {int(ok.sum())} predicted, {int((~ok).sum())} not supported.")
    if lines:
        out += ["", "Errors in percent of the measured value; bias is the median of predicted over measured, less 1."]
    head = ["rows", "median", "mean", "P90", "bias", "in 90 % interval"]
    for by in dict.fromkeys(line.by for line in lines):
        mine = [line for line in lines if line.by == by]
        table = [
            [*([line.value] if by else []), METRIC_NAMES[line.metric], line.rows, f"{line.median:.1f}", f"{line.mean:.1f}",
             f"{line.p90:.1f}", f"{line.bias:+.1f}", f"{line.inside_90_frac:.0%}"]
            for line in mine
        ]  # fmt: skip
        columns = [*([by] if by else []), "metric", *head]
        out += ["", f"## By {by}" if by else "## All rows", ""]
        out.append(tabulate(table, headers=columns, tablefmt="github", disable_numparse=True))
    if not lines:
        out += ["", "No row has a measured value to compare with."]
    for title, texts in (
        ("Not supported", [t for t in found.problem if t]),
        ("Assumed or flagged", [t for note, p in zip(found.note, found.problem, strict=True) if note and not p for t in note.split("; ")]),
    ):  # fmt: skip
        if texts:
            counted = Counter(texts)
            out += ["", f"## {title}", ""]
            out += [
                f"- {count} rows: {text}" for text, count in sorted(counted.items(), key=lambda e: (-e[1], e[0]))[:20]
            ]
    return "\n".join(out) + "\n"


def calibration_markdown(found: Calibration, source: str) -> str:
    """What was fitted, how well it fits, and what the rows do not determine."""
    from tabulate import tabulate

    out = [f"# Profile {found.profile.name}", ""]
    out.append(f"{found.points} measured values from {int(found.used.sum())} rows of {source}.")
    fitted = [[m.label, f"{value:.3f}", f"+-{spread:.0%}", ", ".join(m.constants)] for m, value, spread in found.fitted]
    out += ["", "## Fitted", ""]
    out.append(
        tabulate(
            fitted, headers=["multiplier", "value", "1 sigma", "constants"], tablefmt="github", disable_numparse=True
        )
    )
    errors = [
        [METRIC_NAMES[m], f"{b:.1%}", f"{a:.1%}", f"{c:.1%}" if np.isfinite(c) else "too few configurations"]
        for m, (b, a, c) in found.errors.items()
    ]
    out += ["", "## Median error", ""]
    out.append(
        tabulate(
            errors, headers=["metric", "as shipped", "with this profile", "rows not seen (cross-validated)"],
            tablefmt="github", disable_numparse=True,
        )
    )  # fmt: skip
    if found.undetermined:
        out += ["", "## Not determined by these rows, left as shipped", ""]
        out += [f"- {m.label}" for m in found.undetermined]
    return "\n".join(out) + "\n"
