"""Sums and mixtures of latencies: values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pdplan.fleet.evaluate import _end_to_end, _quantile, _tail_of
from pdplan.workload.mix import RequestMix


def step(at: float):
    """The tail of a constant."""
    return lambda limits: (limits < at).astype(np.float64)


def mix(answers: list[float], weight: list[float]) -> RequestMix:
    size = np.full(len(answers), 100.0)
    return RequestMix(
        input_tokens=size, cached_tokens=0 * size, output_tokens=np.array(answers), weight=np.array(weight)
    )


def test_end_to_end_of_constants_is_the_sum() -> None:
    """TTFT 0.5 s, 10 or 101 tokens at 20 ms: 0.5 + 9 x 0.02 = 0.68 s for six of ten, 0.5 + 2 = 2.5 s for the rest."""
    tail = _end_to_end(mix([10.0, 101.0], [0.6, 0.4]), [(1.0, step(0.5))], [(1.0, step(0.02))])

    assert _quantile([(1.0, tail)], 50) == pytest.approx(0.68, rel=0.05)
    assert _quantile([(1.0, tail)], 90) == pytest.approx(2.5, rel=0.02)


def test_end_to_end_mixes_pools_by_their_shares() -> None:
    """One token: three quarters take 1 s, the others 3 s."""
    tail = _end_to_end(mix([1.0], [1.0]), [(0.75, step(1.0)), (0.25, step(3.0))], [(1.0, step(0.02))])

    assert tail(np.array([0.5, 2.0, 4.0])) == pytest.approx([1.0, 0.25, 0.0])


def test_a_tail_of_quantiles_inverts_them() -> None:
    levels = np.concatenate([np.linspace(0.002, 0.96, 240), np.linspace(0.961, 0.9995, 78)])
    tail = _tail_of(0.01 + 0.02 * levels, stable=True)

    assert tail(np.array([0.0, 0.02, 0.028, 1.0])) == pytest.approx([1.0, 0.5, 0.1, 0.0], abs=1e-3)
    assert _tail_of(levels, stable=False)(np.array([5.0])).tolist() == [1.0]
