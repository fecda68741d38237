"""Reading capacity tables between their points, never above the queueing formula."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pdplan.fleet.problem import CapacityTable

__all__ = ["best_rate_per_replica", "is_linear", "replicas_for", "segments", "table_rate"]


def segments(table: CapacityTable) -> list[tuple[int, int | None, float, float]]:
    """Pieces (first n, last n or None, rate at the first, slope) of a table.

    Pools gain from size, so the table is convex and a chord would promise too much: inside a piece the rate grows with
    the smaller of the slopes to its left and right neighbour. The last piece is open and grows with its left slope.
    """
    n, rate = table.replicas, table.rate_req_per_s
    pieces: list[tuple[int, int | None, float, float]] = []
    for k in range(len(n)):
        before = (int(n[k - 1]), float(rate[k - 1])) if k else (0, 0.0)
        slope = (float(rate[k]) - before[1]) / (int(n[k]) - before[0])
        last = None
        if k + 1 < len(n):
            slope = min(slope, (float(rate[k + 1]) - float(rate[k])) / (int(n[k + 1]) - int(n[k])))
            last = int(n[k + 1]) - 1
        pieces.append((int(n[k]), last, float(rate[k]), max(slope, 0.0)))
    return pieces


def table_rate(table: CapacityTable, replicas: int) -> float:
    """Rate [req/s] a pool of `replicas` may carry."""
    if replicas < int(table.replicas[0]):
        return 0.0
    k = int(np.searchsorted(table.replicas, replicas, side="right")) - 1
    first, _, rate, slope = segments(table)[k]
    return rate + slope * (replicas - first)


def replicas_for(table: CapacityTable, rate: float) -> int | None:
    """Fewest replicas that carry `rate`; None where no number does."""
    for first, last, at_first, slope in segments(table):
        if at_first >= rate * (1 - 1e-12):
            return first
        if slope > 0:
            n = first + math.ceil((rate - at_first) / slope - 1e-9)
            if last is None or n <= last:
                return n
    return None


def is_linear(table: CapacityTable) -> bool:
    """Whether every replica adds the same rate (a random split needs no table then)."""
    per: NDArray[np.float64] = table.rate_req_per_s / table.replicas
    return bool(np.all(np.abs(per - per[0]) <= 1e-9 * np.maximum(np.abs(per[0]), 1e-30)))


def best_rate_per_replica(table: CapacityTable, most: int, rate_max: float | None) -> float:
    """Largest of min(table(n), rate_max) / n over 1 <= n <= most: the steepest line from the origin to the table.

    Inside a piece the ratio is monotone, so ends of pieces, and the count at which `rate_max` is reached, are enough.
    `rate_max` None is for replicas that may be fractions.
    """
    best = 0.0
    for first, last, at_first, slope in segments(table):
        if first > most:
            break
        end = most if last is None else min(last, most)
        for n in (first, end):
            rate = at_first + slope * (n - first)
            best = max(best, (rate if rate_max is None else min(rate, rate_max)) / n)
    if rate_max is not None:
        # The count just below the one that carries rate_max may have the steepest line of all.
        enough = replicas_for(table, rate_max)
        for near in (enough, enough - 1) if enough is not None else ():
            if 1 <= near <= most:
                best = max(best, min(table_rate(table, near), rate_max) / near)
    return best
