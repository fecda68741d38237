"""Numbers as people read them: rounding, labels and people's units live here and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pdplan.fleet.plan import Pool, SloLine

__all__ = [
    "PROOF",
    "bytes_gb",
    "count",
    "layout_text",
    "metric_name",
    "money",
    "nearest_text",
    "number",
    "percent",
    "plural",
    "power",
    "price",
    "ratio_words",
    "seconds",
    "slo_text",
    "target_name",
]

PROOF = {
    "optimal": "proven optimal within the gap",
    "feasible": "a plan, not proven optimal",
    "none": "no plan found",
}


def number(value: float | None, digits: int = 3) -> str:
    """Significant digits, thousands separated, never an exponent between 1e-6 and 1e15.

    Examples
    --------
    >>> [number(x) for x in (0, 0.01234, 6, 999.96, 12345.6)]
    ['0', '0.0123', '6', '1,000', '12,346']
    """
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if not 1e-6 <= abs(value) < 1e15:
        return f"{value:.{digits - 1}e}"
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def count(value: int | None) -> str:
    """Whole things, thousands separated."""
    return "-" if value is None else f"{value:,}"


def plural(value: int, one: str, many: str | None = None) -> str:
    """1 -> ``1 node``, 3 -> ``3 nodes``."""
    return f"{value:,} {one if value == 1 else many or one + 's'}"


def money(usd: float | None, digits: int = 2) -> str:
    """1234.5 -> ``1,234.50``."""
    return "-" if usd is None else f"{usd:,.{digits}f}"


def price(usd: float | None) -> str:
    """A unit price: cents from 1 USD on, four decimals below (a million tokens may cost 0.0831 USD)."""
    return money(usd, 2 if usd is None or usd == 0 or abs(usd) >= 1 else 4)


def seconds(value: float | None) -> str:
    """Seconds from one on, milliseconds below, three significant digits."""
    if value is None:
        return "-"
    if value == 0:
        return "0 ms"
    # Round first: 0.99996 s is 1 s, not 1,000 ms.
    return f"{number(value * 1e3)} ms" if float(f"{value:.3g}") < 1 else f"{number(value)} s"


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
    """ttft_s -> TTFT; end to end in words."""
    name = metric.removesuffix("_s").upper()
    return "End to end" if name == "E2E" else name


def target_name(line: SloLine) -> str:
    """``TTFT p90``."""
    return f"{metric_name(line.metric)} p{line.percentile:g}"


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
        f"{target_name(line)} {seconds(line.predicted)} "
        f"(target {seconds(line.target)}, {'met' if line.met else 'MISSED'})"
        for line in lines
    )


def ratio_words(ratio: float) -> str:
    """How another cost compares with ours: 1.135 -> ``13.5 % more``, 2.4 -> ``2.4 times as much``."""
    if ratio >= 2:
        return f"{number(ratio, 2)} times as much"
    if abs(ratio - 1) < 0.005:
        return "the same to within half a percent"
    return f"{percent(abs(ratio - 1))} {'more' if ratio > 1 else 'less'}"


def nearest_text(constraint: str, value: float) -> str:
    """A limit in the unit its name implies: seconds, USD per hour, kW, requests per second, or a plain count."""
    key = constraint.lower()
    if "ttft_s" in key or "tpot_s" in key:
        return seconds(value)
    if "usd" in key:
        return f"{money(value)} USD per hour"
    if "power" in key:
        return power(value)
    if "req_per_s" in key:
        return f"{number(value)} requests per second"
    return number(value)
