"""Refinements of TPOT percentiles: limits and hand-computed values."""

from __future__ import annotations

import numpy as np
import pytest

from pdplan.serving.colocated import ColocatedModel, colocated_state, tpot_quantile_s
from pdplan.serving.corrections import bounded_tpot_quantile_s, pooled_tpot_quantile_s
from pdplan.serving.decode import decode_state
from pdplan.serving.decode import tpot_quantile_s as decode_tpot_quantile_s

BATCH = np.array([1.0, 1000.0])
STATE = decode_state(10.0, BATCH, (0.012 + 4e-4 * BATCH)[:, None], 125.0)
"""p = 10 x 125 x 4e-4 = 0.5, r = 31, mean 31, variance 62."""


@pytest.mark.parametrize("q", [0.1, 0.5, 0.99])
def test_a_pool_of_one_is_a_replica_alone(q: float) -> None:
    assert pooled_tpot_quantile_s(q, STATE, 1) == pytest.approx(decode_tpot_quantile_s(q, STATE))


def test_the_spread_of_a_pool_shrinks_with_the_root_of_its_replicas() -> None:
    """About half the distance between p99 and median at four replicas: 3.64 of 7.77 ms, the rest is skewness."""
    alone, four = (
        float(pooled_tpot_quantile_s(0.99, STATE, n)[0] - pooled_tpot_quantile_s(0.5, STATE, n)[0]) for n in (1, 4)
    )

    assert four / alone == pytest.approx(0.5, rel=0.08)


@pytest.mark.parametrize("q", [0.5, 0.99])
def test_a_large_pool_has_the_mean_for_everyone(q: float) -> None:
    """al + be (1 + 31) = 24.8 ms."""
    assert float(pooled_tpot_quantile_s(q, STATE, 1e9)[0]) == pytest.approx(0.0248, rel=1e-3)


def _model(chunk: float) -> ColocatedModel:
    return ColocatedModel(
        base_s=np.array([0.02]),
        per_sequence_s=np.array([2e-4]),
        prefill_work_s=np.array([[0.042]]),
        new_tokens=np.array([1000.0]),
        decode_steps=np.array([200.0]),
        weight=np.ones(1),
        chunk_tokens=np.array([chunk]),
    )


def test_no_quantile_exceeds_a_full_iteration() -> None:
    """Chunk 256 at 5.2/s: a full iteration is 20 ms + 0.2 ms B + 42 us (256 - B)."""
    model = _model(256.0)
    state = colocated_state(np.array([5.2]), model)
    bounded = float(bounded_tpot_quantile_s(0.99, np.array([5.2]), state, model)[0])
    least = 0.02 + 2e-4 * 36 + 42e-6 * (256 - 36)  # beside the mean batch; the p99 is below twice that
    most = 0.02 + 2e-4 * 72 + 42e-6 * (256 - 72)

    assert 36 < state.mean_batch[0] < 37
    assert bounded < float(tpot_quantile_s(0.99, np.array([5.2]), state, model)[0])
    assert least < bounded < most


def test_the_bound_does_not_bind_where_chunks_are_large() -> None:
    model = _model(8192.0)
    state = colocated_state(np.array([4.0]), model)

    assert bounded_tpot_quantile_s(0.99, np.array([4.0]), state, model) == tpot_quantile_s(
        0.99, np.array([4.0]), state, model
    )
