"""Normal, gamma and beta distributions without a special-function library (its import costs a third of a plan)."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["beta_tail", "gamma_quantile", "normal_quantile", "normal_tail"]

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


def normal_quantile(q: ArrayLike) -> Floats:
    """z with P(Z <= z) = q, by interpolation in the same table; q within (1e-12, 1 - 1e-12).

    Examples
    --------
    >>> round(float(normal_quantile(0.95)), 4)
    1.6449
    """
    grid, tail = _table()
    return np.asarray(np.interp(1 - np.asarray(q, dtype=np.float64), tail[::-1], grid[::-1]), dtype=np.float64)


def gamma_quantile(q: ArrayLike, mean: ArrayLike, variance: ArrayLike) -> Floats:
    r"""q-quantile of a gamma variable.

    .. math:: x_q \approx \mu \left(1 - \frac{1}{9a} + \frac{z_q}{3\sqrt{a}}\right)^3,\quad a = \mu^2 / \sigma^2

    The cube root of a gamma variable is nearly normal: at shape 1 within 3 % of the mean, at 3 within 0.6 %
    between the 10th and the 99th percentile (tested against the exact function).

    References
    ----------
    .. [1] E. B. Wilson and M. M. Hilferty, "The distribution of chi-square", PNAS 17(12), 1931. doi:10.1073/pnas.17.12.684
    """
    mu = np.asarray(mean, dtype=np.float64)
    ninth = np.asarray(variance, dtype=np.float64) / (9 * np.maximum(mu**2, 1e-300))
    out: Floats = mu * np.maximum(1 - ninth + normal_quantile(q) * np.sqrt(ninth), 0.0) ** 3
    return out


def beta_tail(x: ArrayLike, mean: ArrayLike, scatter: ArrayLike) -> Floats:
    r"""P(X > x) of a beta variable on (0, 1) with the given mean and variance = scatter x mean (1 - mean).

    With :math:`a, b` its parameters, :math:`F = (x/a)/((1-x)/b)` has an F distribution, whose cube root is a ratio of
    nearly normal variables:

    .. math:: P(X > x) \approx 1 - \Phi\left(\frac{(1 - 1/9b) F^{1/3} - (1 - 1/9a)}{\sqrt{F^{2/3}/9b + 1/9a}}\right)

    Absolute error below 0.012 where both parameters are at least 1, 0.05 at 0.5; the two-humped shapes below that are
    caught roughly (0.11 at 0.3), with the right ends.

    References
    ----------
    .. [1] E. Paulson, "An approximate normalization of the analysis of variance distribution", Annals of Mathematical
       Statistics 13(2), 1942. doi:10.1214/aoms/1177731608
    """
    m = np.asarray(mean, dtype=np.float64)
    size = 1 / np.asarray(scatter, dtype=np.float64) - 1
    over_a, over_b = 1 / (9 * m * size), 1 / (9 * (1 - m) * size)
    at = np.asarray(x, dtype=np.float64)
    inside = np.clip(at, 1e-12, 1 - 1e-12)
    root = np.cbrt(inside * over_a / ((1 - inside) * over_b))
    z = ((1 - over_b) * root - (1 - over_a)) / np.sqrt(root**2 * over_b + over_a)
    return np.asarray(np.where(at >= 1, 0.0, np.where(at <= 0, 1.0, normal_tail(z))), dtype=np.float64)
