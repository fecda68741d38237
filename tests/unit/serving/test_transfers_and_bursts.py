"""Waits for the network cards, steps that bend, contexts that differ, bursts: values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pdplan.serving.decode import decode_state, tpot_quantile_s
from pdplan.serving.prefill import PrefillService, prefill_utilisation, ttft_mean_s, ttft_tail


def sending(hidden_s: float = 0.0) -> PrefillService:
    """Passes of 10 ms whose caches take the cards 0.5 s."""
    return PrefillService(
        service_s=np.array([[0.01]]),
        weight=np.ones(1),
        send_s=np.array([[0.5]]),
        hidden_s=np.array([[hidden_s]]),
    )


def test_the_cards_limit_the_rate() -> None:
    """0.5 s each: 2 requests/s per replica."""
    assert float(prefill_utilisation(1.0, 1, sending())[0]) == pytest.approx(0.5)
    assert np.isinf(ttft_mean_s(2.0, 1, sending())).all()
    assert ttft_tail(1e3, 4.1, 2, sending())[0] == 1.0


def test_mean_wait_for_the_cards_is_that_of_m_d_1() -> None:
    """At 1/s half the requests wait 0.25 / (1 - 0.5) = 0.5 s: 0.25 s on average; what the pass hides is not felt."""
    alone = PrefillService(service_s=np.array([[0.01]]), weight=np.ones(1))
    queue = float(ttft_mean_s(1.0, 1, alone)[0])

    assert float(ttft_mean_s(1.0, 1, sending())[0]) - queue == pytest.approx(0.25)
    assert float(ttft_mean_s(1.0, 1, sending(0.5))[0]) - queue == pytest.approx(0.25 * np.exp(-1.0))


BATCH = np.array([1.0, 2.0, 3.0, 100.0])


def test_a_step_that_bends_upwards_counts_at_the_quantile() -> None:
    """Flat to two sequences, then 1 ms each: beside few, p99 is more than the flat step."""
    step = np.array([0.01, 0.01, 0.011, 0.108])[:, None]
    state = decode_state(0.8, BATCH, step, 100.0)

    assert float(tpot_quantile_s(0.99, state)[0]) > 0.0105


def test_contexts_add_their_scatter() -> None:
    """A constant step of 10 ms: one deviation of 1 ms a sequence gives 10 ms + 2.326 x 1 ms x sqrt(1 + N)."""
    step = np.full((4, 1), 0.01)
    state = decode_state(1.0, BATCH, step, 100.0, context_spread_s=0.001)

    expected = 0.01 + 2.3263 * 0.001 * np.sqrt(1 + float(state.mean_batch[0]))
    assert float(tpot_quantile_s(0.99, state)[0]) == pytest.approx(expected, rel=1e-3)


def test_bursts_scatter_the_batch() -> None:
    """Variance (1 + 4) / 2 of the Poisson one."""
    step = (0.012 + 4e-4 * BATCH)[:, None]
    calm, bursty = (decode_state(10.0, BATCH, step, 125.0, arrival_cv2=c) for c in (1.0, 4.0))

    assert float(bursty.batch_variance[0] / calm.batch_variance[0]) == pytest.approx(2.5)
    assert float(bursty.mean_batch[0]) == pytest.approx(float(calm.mean_batch[0]))
