"""Length distributions: shipped shapes, traces, fixed lengths and quantile tables -> :class:`RequestMix`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pdplan.workload.mix import RequestMix

if TYPE_CHECKING:
    from pdplan.workload.traces.read import Trace

__all__ = ["compress", "fixed_mix", "mix_from_spec", "quantile_mix"]

Floats = NDArray[np.float64]
MAX_TOKENS = 10_000_000

INPUT_EDGES = np.array([0, 0.12, 0.3, 0.495, 0.505, 0.65, 0.8, 0.895, 0.905, 0.945, 0.955, 0.988, 0.992, 1.0])
"""Quantile bins of the input length: narrow around the percentiles that are asked for, so that a bin's mean is the percentile."""
OUTPUT_EDGES = np.array([0, 0.25, 0.495, 0.505, 0.75, 0.895, 0.905, 0.988, 0.992, 1.0])


BURST_WINDOW_S = 60.0
STATIONARY_DISPERSION = 2.0
"""Variance over mean of the counts per minute above which arrivals are not stationary (latency model, section 8.5)."""


class _Shapes(Protocol):
    def workload(self, entry: str) -> Any: ...


def compress(input_tokens: Floats, output_tokens: Floats) -> tuple[Floats, Floats, Floats]:
    """A joint sample of many requests as about a hundred weighted points.

    Requests are cut into quantile bins of input and of output length; a point is the mean of a cell, so that both means and the
    joint structure survive, and p50, p90, p95 and p99 lie in narrow bins of their own.

    Returns
    -------
    tuple of ndarray
        input, output, weight, each (K,).
    """
    count = len(input_tokens)
    cell = np.zeros(count, dtype=np.int64)
    for values, edges in ((input_tokens, INPUT_EDGES), (output_tokens, OUTPUT_EDGES)):
        rank = np.empty(count)
        rank[np.argsort(values, kind="stable")] = (np.arange(count) + 0.5) / count
        cell = cell * len(edges) + np.searchsorted(edges, rank)
    _, where, sizes = np.unique(cell, return_inverse=True, return_counts=True)
    inputs = np.bincount(where, input_tokens) / sizes
    outputs = np.bincount(where, output_tokens) / sizes
    order = np.lexsort((outputs, inputs))
    return inputs[order], outputs[order], (sizes / count)[order]


def _mix(input_tokens: Floats, output_tokens: Floats, weight: Floats, prefix_hit_frac: float) -> RequestMix:
    return RequestMix(
        input_tokens=input_tokens,
        cached_tokens=input_tokens * prefix_hit_frac,
        output_tokens=np.maximum(output_tokens, 1.0),
        weight=weight / weight.sum(),
    )


def fixed_mix(input_tokens: float, output_tokens: float, prefix_hit_frac: float = 0.0) -> RequestMix:
    """Every request alike, as benchmarks use."""
    one = np.ones(1)
    return _mix(one * input_tokens, one * output_tokens, one, prefix_hit_frac)


def _quantile_points(table: Mapping[str, float], count: int, field: str) -> Floats:
    """Mid-quantile values of a monotone quantile table, log-linear between its points."""
    pairs: list[tuple[float, float]] = []
    for key, value in table.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MAX_TOKENS:
            raise ValueError(f"{field}.{key} is {value!r}; a number of tokens greater than 0 is accepted")
        if key in ("min", "max"):
            pairs.append((0.0 if key == "min" else 1.0, float(value)))
        elif key != "mean":
            name = key[1:]
            if not key.startswith("p") or not name.replace(".", "", 1).isdigit() or not 0 < float(name) < 100:
                raise ValueError(f"{field}.{key} is not accepted; write min, p50, p90, p99, max")
            pairs.append((float(name) / 100, float(value)))
    pairs.sort()
    if not pairs or any(b[1] < a[1] for a, b in itertools.pairwise(pairs)):
        raise ValueError(f"{field}: quantiles must be given and not decrease, e.g. {{p50: 1000, p90: 3000, p99: 8000}}")
    q, level = np.array([p[0] for p in pairs]), np.log([p[1] for p in pairs])
    if q[0] > 0:
        # Below the first quantile: the mirror image (in the log) of the spread above it, at most a factor of 8.
        spread = level[1] - level[0] if len(level) > 1 else 0.0
        q, level = np.r_[0.0, q], np.r_[level[0] - min(spread, np.log(8)), level]
    if q[-1] < 1:
        # Above the last: as far again (in the log) as between the last two, at most a factor of 2.
        spread = level[-1] - level[-2] if len(level) > 1 else 0.0
        q, level = np.r_[q, 1.0], np.r_[level, level[-1] + min(spread, np.log(2))]
    points: Floats = np.exp(np.interp((np.arange(count) + 0.5) / count, q, level))
    return np.maximum(points, 1.0)


def quantile_mix(
    input_table: Mapping[str, float], output_table: Mapping[str, float], prefix_hit_frac: float = 0.0
) -> RequestMix:
    """Independent input and output lengths from quantile tables.

    Raises
    ------
    ValueError
        A table that is empty, decreasing or holds anything but quantiles.
    """
    n_in, n_out = 64, 16
    inputs = _quantile_points(input_table, n_in, "input_tokens")
    outputs = _quantile_points(output_table, n_out, "output_tokens")
    return _mix(
        np.repeat(inputs, n_out), np.tile(outputs, n_in), np.full(n_in * n_out, 1.0 / (n_in * n_out)), prefix_hit_frac
    )


def _fixed(data: Any, prefix_hit_frac: float) -> RequestMix:
    if not isinstance(data, dict) or set(data) != {"input_tokens", "output_tokens"}:
        raise ValueError("fixed: write {input_tokens: 4000, output_tokens: 500}")
    for key, value in data.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_TOKENS:
            raise ValueError(f"fixed.{key} is {value!r}; a number of tokens greater than 0 is accepted")
    return fixed_mix(float(data["input_tokens"]), float(data["output_tokens"]), prefix_hit_frac)


def read_lengths(path: Path) -> tuple[Floats, Floats]:
    """Input and output tokens of every usable request of a trace in any format `pdplan trace` reads.

    Raises
    ------
    InputError
        Unreadable, unknown format, or no usable line.
    """
    from pdplan.workload.traces import read_trace

    trace = read_trace(path)
    return trace.input_tokens.astype(np.float64), trace.output_tokens.astype(np.float64)


def _trace_remarks(trace: Trace, name: str) -> list[str]:
    """What a plan should say about the trace it rests on: lines without a request, and arrivals that are not stationary."""
    from pdplan.workload.arrivals import dispersion

    remarks = []
    if trace.bad_lines:
        remarks.append(
            f"{name}: {trace.bad_lines} lines hold no request and were left out: {'; '.join(trace.first_bad)}"
        )
    spread = dispersion(trace.arrival_s, (BURST_WINDOW_S,)).get(BURST_WINDOW_S, 1.0)
    if spread > STATIONARY_DISPERSION:
        remarks.append(
            f"{name}: requests per minute scatter {spread:.0f} times as much as stationary arrivals would; percentiles of a "
            f"stationary plan mislead, play the trace with `pdplan verify PLAN.json --trace {name}`"
        )
    return remarks


def _joint(table: Any, prefix_hit_frac: float) -> RequestMix:
    try:
        points = np.array(table, dtype=np.float64)
    except (TypeError, ValueError):
        points = np.empty(0)
    if points.ndim != 2 or points.shape[1] != 3 or not len(points):
        raise ValueError("joint: rows of [input tokens, output tokens, weight] are accepted")
    lengths, weight = points[:, :2], points[:, 2]
    if not (
        np.all(points >= 0)
        and np.all(lengths[:, 0] > 0)
        and np.all(lengths <= MAX_TOKENS)
        and 0 < weight.sum() < np.inf
    ):
        raise ValueError(f"joint: 1 to {MAX_TOKENS} tokens and weights of 0 or more, not all 0, are accepted")
    return _mix(lengths[:, 0], lengths[:, 1], weight, prefix_hit_frac)


def mix_from_spec(
    spec: str | Mapping[str, Any],
    *,
    catalog: _Shapes,
    folder: Path | None = None,
    prefix_hit_frac: float = 0.0,
    remarks: list[str] | None = None,
) -> RequestMix:
    """The request mix of a scenario's ``lengths``.

    Parameters
    ----------
    spec : str or mapping
        Name of a shipped shape, ``{trace: FILE}``, ``{fixed: {...}}``, ``{joint: [...]}`` or
        ``{input_tokens: {...}, output_tokens: {...}}``.
    catalog : object
        Its ``workload(name)`` gives a shipped shape's data.
    folder : Path, optional
        Where relative trace paths start.
    prefix_hit_frac : float
        Share of each input found in the prefix cache.
    remarks : list of str, optional
        Gets what is to be said about a trace: lines left out, arrivals that are not stationary.

    Raises
    ------
    InputError, ValueError
        Unknown shape, bad trace or bad table.
    """
    if isinstance(spec, str):
        data = catalog.workload(spec)
        if "joint" in data:
            return _joint(data["joint"], prefix_hit_frac)
        return quantile_mix(data["input_tokens"], data["output_tokens"], prefix_hit_frac)
    keys = set(spec)
    if keys == {"trace"}:
        from pdplan.workload.traces import read_trace

        trace = read_trace((folder or Path()) / str(spec["trace"]))
        if remarks is not None:
            remarks += _trace_remarks(trace, str(spec["trace"]))
        points = compress(trace.input_tokens.astype(np.float64), trace.output_tokens.astype(np.float64))
        return _mix(*points, prefix_hit_frac)
    if keys == {"joint"}:
        return _joint(spec["joint"], prefix_hit_frac)
    if keys == {"fixed"}:
        return _fixed(spec["fixed"], prefix_hit_frac)
    if keys == {"input_tokens", "output_tokens"} and all(isinstance(v, dict) for v in spec.values()):
        return quantile_mix(spec["input_tokens"], spec["output_tokens"], prefix_hit_frac)
    raise ValueError(
        f"a mapping with the keys {', '.join(sorted(map(str, keys))) or 'none'} is not accepted; "
        "write the name of a shipped "
        "shape, {joint: [[1000, 200, 1.0]]}, "
        "{trace: FILE}, {fixed: {input_tokens: 4000, output_tokens: 500}} or "
        "{input_tokens: {p50: 1000, p90: 3000}, output_tokens: {p50: 150, p90: 400}}"
    )
