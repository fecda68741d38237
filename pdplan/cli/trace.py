"""``pdplan trace``: what a request trace holds, and the shape a scenario uses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pdplan.cli.console import emit, note

__all__ = ["app", "convert", "describe"]

app = typer.Typer(help="Describe request traces and turn them into the shape a scenario uses.", no_args_is_help=True)
_BARS = " ▁▂▃▄▅▆▇█"
_WINDOWS_S = (1.0, 5.0, 15.0, 60.0, 300.0)
_CACHE_BLOCKS = (1000, 10000, 30000, 100000)


def _summary(path: Path) -> dict[str, Any]:
    import numpy as np

    from pdplan.workload.arrivals import dispersion, gap_cv2, windowed_rate_req_per_s
    from pdplan.workload.prefix import lru_hit_frac
    from pdplan.workload.traces import read_trace

    trace = read_trace(path)
    span = float(trace.arrival_s[-1])
    out: dict[str, Any] = {
        "file": str(path),
        "format": trace.format,
        "requests": len(trace.arrival_s),
        "bad_lines": trace.bad_lines,
        "first_bad": list(trace.first_bad),
        "duration_s": span,
    }
    for field, values in (("input_tokens", trace.input_tokens), ("output_tokens", trace.output_tokens)):
        p50, p90, p99 = np.percentile(values, (50, 90, 99))
        out[field] = {
            "mean": float(values.mean()),
            "p50": float(p50),
            "p90": float(p90),
            "p99": float(p99),
            "max": int(values.max()),
        }
    if span > 0:
        rates = windowed_rate_req_per_s(trace.arrival_s, span / 60)
        cv2 = gap_cv2(trace.arrival_s)
        out |= {
            "rate_req_per_s": len(trace.arrival_s) / span,
            "rate_over_time_req_per_s": [float(r) for r in rates],
            "gap_cv2": None if cv2 != cv2 else cv2,
            "dispersion": {f"{w:g}": d for w, d in dispersion(trace.arrival_s, _WINDOWS_S).items()},
        }
    if trace.block_ids is not None:
        out["prefix_hit_frac"] = {f"{c}": lru_hit_frac(trace, c) for c in _CACHE_BLOCKS}
        out["prefix_hit_frac"]["unlimited"] = lru_hit_frac(trace)
    return out


def _bars(values: list[float]) -> str:
    top = max(values, default=0.0) or 1.0
    return "".join(_BARS[round(v / top * (len(_BARS) - 1))] for v in values)


def _report_bad(summary: dict[str, Any]) -> None:
    if summary["bad_lines"]:
        note(f"{summary['file']}: {summary['bad_lines']} lines hold no request; {'; '.join(summary['first_bad'])}")


@app.command()
def describe(
    file: Annotated[Path, typer.Argument(help="Trace; formats are found by themselves, .gz and .zst too.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Rate over time, length quantiles, burstiness, prefix reuse."""
    summary = _summary(file)
    _report_bad(summary)
    if as_json:
        emit(json.dumps(summary, indent=2, allow_nan=False))
        return
    lines = [f"{file}: {summary['format']}, {summary['requests']} requests in {summary['duration_s']:.0f} s"]
    lines += [
        f"{field:14s} " + "  ".join(f"{k} {v:.0f}" for k, v in summary[field].items())
        for field in ("input_tokens", "output_tokens")
    ]
    if "rate_req_per_s" in summary:
        rates = summary["rate_over_time_req_per_s"]
        lines.append(
            f"rate           mean {summary['rate_req_per_s']:.3g} req/s, peak {max(rates):.3g}  {_bars(rates)}"
        )
        spread = "  ".join(f"{w} s: {d:.3g}" for w, d in summary["dispersion"].items())
        lines.append(f"burstiness     dispersion of counts (1 = Poisson)  {spread}")
        if any(value > 2 for value in summary["dispersion"].values()):
            lines.append("               not Poisson at these windows: percentiles of a stationary plan would mislead")
    if "prefix_hit_frac" in summary:
        reuse = "  ".join(f"{c}: {h:.3f}" for c, h in summary["prefix_hit_frac"].items())
        lines.append(f"prefix reuse   hit ratio by cache size in blocks  {reuse}")
    emit("\n".join(lines))


@app.command()
def convert(
    file: Annotated[Path, typer.Argument(help="Trace to read.")],
    out: Annotated[Path | None, typer.Option("--out", help="YAML file to write; stdout when absent.")] = None,
) -> None:
    """Write the trace's joint length table and rate as the YAML shape a scenario uses."""
    import numpy as np

    from pdplan.files import write_atomic
    from pdplan.workload.lengths import compress
    from pdplan.workload.traces import read_trace

    trace = read_trace(file)
    _report_bad({"file": file, "bad_lines": trace.bad_lines, "first_bad": trace.first_bad})
    points = compress(trace.input_tokens.astype(np.float64), trace.output_tokens.astype(np.float64))
    name = file.name.split(".")[0]
    lines = [f"id: {json.dumps(name)}", f"source: {json.dumps(file.name)}", f"requests: {len(trace.arrival_s)}"]
    lines += ["joint:  # input tokens, output tokens, weight"]
    lines += [f"- [{a:.1f}, {b:.1f}, {w:.8f}]" for a, b, w in zip(*points, strict=True)]
    text = "\n".join(lines) + "\n"
    if out is None:
        emit(text)
    else:
        write_atomic(out, text)
        note(f"wrote {out}")
