"""Arrival processes and how bursty a trace is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["dispersion", "gap_cv2", "renewal_arrivals_s", "windowed_rate_req_per_s"]

Floats = NDArray[np.float64]


def gap_cv2(arrival_s: Floats) -> float:
    """Squared coefficient of variation of the gaps between arrivals (1 for Poisson); NaN below three arrivals."""
    gaps = np.diff(arrival_s)
    if len(gaps) < 2 or gaps.mean() <= 0:
        return float("nan")
    return float(gaps.var() / gaps.mean() ** 2)


def windowed_rate_req_per_s(arrival_s: Floats, window_s: float) -> Floats:
    """Arrivals per second in whole windows (the last, partial one is left out unless it is the only one)."""
    windows = max(int(arrival_s[-1] // window_s), 1)
    index = (arrival_s // window_s).astype(np.int64)
    return np.bincount(index[index < windows], minlength=windows) / window_s


def dispersion(arrival_s: Floats, windows_s: Sequence[float]) -> dict[float, float]:
    """Index of dispersion (variance over mean of counts) per window; 1 for Poisson.

    Windows that fit fewer than five times are left out.
    """
    out: dict[float, float] = {}
    for window in windows_s:
        counts = windowed_rate_req_per_s(arrival_s, window) * window
        if len(counts) >= 5 and counts.mean() > 0:
            out[window] = float(counts.var() / counts.mean())
    return out


def renewal_arrivals_s(rng: np.random.Generator, count: int, rate_req_per_s: float, cv: float = 1.0) -> Floats:
    """Arrival times with gamma-distributed gaps: cv 1 is Poisson, 0 is evenly spaced."""
    if not (rate_req_per_s > 0 and cv >= 0):
        raise ValueError(f"rate {rate_req_per_s!r} and cv {cv!r}: a positive rate and cv >= 0 are accepted")
    if cv == 0:
        return np.arange(1, count + 1) / rate_req_per_s
    shape = 1 / cv**2
    out: Floats = np.cumsum(rng.gamma(shape, 1 / (rate_req_per_s * shape), count))
    return out
