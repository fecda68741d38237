"""Tails of the normal and gamma distributions without a special-function library (its import costs a third of a plan)."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["gamma_tail", "normal_tail"]

Floats = NDArray[np.float64]
_REACH, _STEP = 8.0, 0.002


@cache
def _table() -> tuple[Floats, Floats]:
    z = np.arange(-_REACH, _REACH + _STEP / 2, _STEP)
    return z, np.array([0.5 * math.erfc(value / math.sqrt(2)) for value in z])


def normal_tail(z: ArrayLike) -> Floats:
    """P(Z > z) of the standard normal, by interpolation in a table; absolute error below 3e-7.

    Examples
    --------
    >>> round(float(normal_tail(1.6448536)), 6)
    0.05
    """
    grid, tail = _table()
    return np.asarray(np.interp(np.asarray(z, dtype=np.float64), grid, tail), dtype=np.float64)


def gamma_tail(x_over_mean: ArrayLike, shape: ArrayLike) -> Floats:
    r"""P(X > x) of a gamma variable with the given shape, x in units of its mean.

    .. math:: P(X > x) \approx 1 - \Phi\left(3\sqrt{a}\left[(x/\mu)^{1/3} - 1 + \frac{1}{9a}\right]\right)

    The cube root of a gamma variable is nearly normal; absolute error below 0.013 at shape 1 (0.003 in
    the upper tail, where percentiles are asked), 0.0022 at 3 and 0.0003 at 20 (tested against the exact function).

    References
    ----------
    .. [1] E. B. Wilson and M. M. Hilferty, "The distribution of chi-square", PNAS 17(12), 1931. doi:10.1073/pnas.17.12.684
    """
    a = np.maximum(np.asarray(shape, dtype=np.float64), 1e-6)
    root = np.cbrt(np.maximum(np.asarray(x_over_mean, dtype=np.float64), 0.0))
    return normal_tail(3 * np.sqrt(a) * (root - 1 + 1 / (9 * a)))
