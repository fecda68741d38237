"""Numbers as people read them: rounding, labels and people's units live here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

from pdplan.fleet.plan import Pool, SloLine

__all__ = ["bytes_gb", "layout_text", "metric_name", "money", "percent", "power", "seconds", "slo_text", "table"]


def money(usd: float | None, digits: int = 2) -> str:
    """1234.5 -> ``1,234.50``."""
    return "-" if usd is None else f"{usd:,.{digits}f}"


def seconds(value: float | None) -> str:
    """Seconds above one, milliseconds below."""
    if value is None:
        return "-"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def percent(frac: float | None) -> str:
    """0.123 -> ``12.3 %``."""
    return "-" if frac is None else f"{frac * 100:.1f} %"


def power(watts: float | None) -> str:
    """Kilowatts."""
    return "-" if watts is None else f"{watts / 1e3:,.1f} kW"


def bytes_gb(value: float) -> str:
    """Decimal gigabytes."""
    return f"{value / 1e9:.1f}"


def metric_name(metric: str) -> str:
    """ttft_s -> TTFT."""
    return metric.removesuffix("_s").upper()


def layout_text(pool: Pool) -> str:
    """Parallelism of one replica in short."""
    layout = pool.layout
    parts = [f"TP{layout.tp}"] + [
        f"{name}{value}"
        for name, value in (("PP", layout.pp), ("EP", layout.ep), ("DP", layout.attention_dp))
        if value > 1
    ]
    return " ".join(parts)


def slo_text(lines: Sequence[SloLine]) -> str:
    """All targets in one line."""
    return "; ".join(
        f"{metric_name(line.metric)} p{line.percentile:g} {seconds(line.predicted)} "
        f"(target {seconds(line.target)}, {'met' if line.met else 'MISSED'})"
        for line in lines
    )


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A markdown table; numbers right-aligned."""
    from tabulate import tabulate

    return str(
        tabulate(
            [[str(cell).replace("|", "/") for cell in row] for row in rows],
            headers=headers,
            tablefmt="github",
            disable_numparse=True,
        )
    )
