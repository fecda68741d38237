"""Reading capacity tables between their points, never above the queueing formula."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right

import numpy as np
from numpy.typing import NDArray

from pdplan.fleet.problem import CapacityTable

__all__ = ["Reading", "is_linear", "replicas_for", "segments", "table_rate"]


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


class Reading:
    """A table with its pieces worked out once, for many readings."""

    def __init__(self, table: CapacityTable) -> None:
        self.pieces = segments(table)
        self._at = [rate for _, _, rate, _ in self.pieces]
        # Inside a piece rate / n is monotone, so its ends are enough; the last, open piece is read where it is needed.
        best, self._best = 0.0, []
        for first, last, rate, slope in self.pieces:
            best = max(best, rate / first)
            self._best.append(best)
            if last is not None:
                best = max(best, (rate + slope * (last - first)) / last)

    def replicas_for(self, rate: float) -> int | None:
        """Fewest replicas that carry `rate`; None where no number does."""
        for k in range(max(bisect_left(self._at, rate * (1 - 1e-12)) - 1, 0), len(self.pieces)):
            first, last, at_first, slope = self.pieces[k]
            if at_first >= rate * (1 - 1e-12):
                return first
            if slope > 0:
                n = first + math.ceil((rate - at_first) / slope - 1e-9)
                if last is None or n <= last:
                    return n
        return None

    def steepest(self, most: int, rate_max: float | None) -> float:
        """Largest min(table(n), rate_max) / n over 1 <= n <= most: the steepest line from the origin to the table.

        `rate_max` None is for replicas that may be fractions.
        """
        enough = None if rate_max is None else self.replicas_for(rate_max)
        end = most if enough is None else min(most, enough)
        k = bisect_right(self.pieces, end, key=lambda piece: piece[0]) - 1
        if k < 0:
            return 0.0
        best = self._best[k]
        for n in (end, end - 1):
            if n >= 1:
                at = k if n >= self.pieces[k][0] else k - 1
                first, _, rate, slope = self.pieces[at] if at >= 0 else (1, None, 0.0, 0.0)
                carried = rate + slope * (n - first)
                best = max(best, (carried if rate_max is None else min(carried, rate_max)) / n)
        # At the first n of piece k the table may carry more than rate_max, and the ratio is then lower than stored.
        return best
