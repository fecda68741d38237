"""Worked examples 9 to 11 of the latency model, and limits with known answers."""

import numpy as np
import pytest

from pdplan.serving.colocated import ColocatedModel, colocated_state, itl_quantile_s, tpot_quantile_s, ttft_mean_s
from pdplan.serving.decode import decode_state, life_factor, negbin_quantile, tpot_at_batch_s
from pdplan.serving.prefill import (
    PrefillService,
    erlang_c,
    prefill_wait,
    ttft_quantile_s,
)
from pdplan.serving.prefill import (
    ttft_mean_s as prefill_mean_s,
)

LINE = np.array([0.0, 1.0, 100.0, 500.0])
ONE_SECOND = PrefillService(service_s=np.array([[1.0]]), weight=np.ones(1))


def test_example_9_m_g_c():
    wait = prefill_wait(45.0, 4, 0.0705, 0.35)
    assert wait.utilisation == pytest.approx(0.79312, rel=1e-4)
    assert wait.wait_probability == pytest.approx(0.58411, rel=1e-4)
    assert wait.mean_wait_s == pytest.approx(0.033591, rel=1e-4)
    assert wait.theta_s == pytest.approx(0.057508, rel=1e-4)


def test_example_10_negative_binomial():
    state = decode_state(20.0, LINE, (0.012 + 1.2e-4 * LINE)[:, None], 211.0)
    assert state.load == pytest.approx(0.5064, rel=1e-4)
    assert state.mean_batch == pytest.approx(103.62, rel=1e-4)
    assert np.sqrt(state.batch_variance) == pytest.approx(14.489, rel=1e-4)
    assert life_factor(0.012, 0.024554) == pytest.approx(0.8552, rel=1e-4)
    level = state.mean_batch + 1.645 * np.sqrt(state.batch_variance)
    assert tpot_at_batch_s(level, state) == pytest.approx(27.199e-3, rel=1e-4)


def chunked(chunk: float = 2048.0) -> ColocatedModel:
    one = np.ones(1)
    return ColocatedModel(
        base_s=0.02 * one,
        per_sequence_s=2e-4 * one,
        prefill_work_s=np.array([[4.2e-5 * 1155]]),
        new_tokens=np.array([1155.0]),
        decode_steps=np.array([210.0]),
        weight=one,
        chunk_tokens=chunk * one,
    )


def test_example_11_chunked():
    state = colocated_state(5.0, chunked())
    assert state.iteration_s == pytest.approx(36.533e-3, rel=1e-4)
    assert state.mean_batch == pytest.approx(38.36, rel=1e-4)


def test_m_m_1_waits_with_probability_rho():
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)  # C(2, a) = a^2 / (2 + a) = 1/3 by hand


def test_recursion_and_closed_form_agree():
    load = np.array([40.0, 60.0])
    assert erlang_c(np.array([64, 64]), load) == pytest.approx(
        erlang_c(np.array([64, 64, 200]), np.append(load, 150.0))[:2]
    )


def test_m_d_1_mean_wait():
    # Pollaczek-Khinchine: rho S / (2 (1 - rho)) = 0.5 s at rho = 0.5, S = 1 s.
    mean = prefill_mean_s(0.5, 1, ONE_SECOND)
    assert mean == pytest.approx(1.5)


def test_idle_pool_quantile_is_the_service_quantile():
    value = ttft_quantile_s(
        0.9, 1e-9, 4, PrefillService(service_s=np.array([[1.0], [2.0]]), weight=np.array([0.8, 0.2]))
    )
    assert value == pytest.approx(2.0, rel=1e-6)


def test_overloaded_pool_is_infinite():
    assert np.isinf(ttft_quantile_s(0.5, 10.0, 2, ONE_SECOND)).all()
    assert np.isinf(prefill_mean_s(10.0, 2, ONE_SECOND)).all()


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
@pytest.mark.parametrize(("mean", "variance"), [(103.6, 209.9), (30.0, 62.0), (5.0, 8.0), (20.0, 20.0002)])
def test_negative_binomial_quantile_against_exact(q, mean, variance):
    from scipy.stats import nbinom

    p = 1 - mean / variance
    exact = nbinom.ppf(q, mean * (1 - p) / p, 1 - p)
    assert abs(negbin_quantile(q, mean, variance) - exact) <= 1.0


# Mean TTFT and TPOT of short iteration-level simulations with the Azure 2023 conversation lengths (section 8.4); the long ones
# of the accuracy page agree within 5 %.
SIMULATED = [
    (512, 3.48, 0.199, 29.9),
    (512, 5.91, 0.528, 43.4),
    (2048, 4.81, 0.136, 36.1),
    (2048, 8.18, 0.310, 82.6),
    (8192, 5.33, 0.130, 39.6),
    (8192, 9.06, 0.287, 121.0),
]


@pytest.mark.parametrize(("chunk", "rate", "ttft", "tpot_ms"), SIMULATED)
def test_colocated_means_against_simulation(chunk, rate, ttft, tpot_ms):
    from pdplan.catalog.load import load_catalog
    from pdplan.workload.lengths import mix_from_spec

    mix = mix_from_spec("azure-conversation-2023", catalog=load_catalog())
    one = np.ones(1)
    model = ColocatedModel(
        base_s=0.02 * one,
        per_sequence_s=2e-4 * one,
        prefill_work_s=4.2e-5 * mix.input_tokens[:, None],
        new_tokens=mix.input_tokens,
        decode_steps=np.maximum(mix.output_tokens - 1, 1),
        weight=mix.weight,
        chunk_tokens=chunk * one,
    )
    state = colocated_state(rate, model)
    assert ttft_mean_s(state, model) == pytest.approx(ttft, rel=0.13)
    assert state.iteration_s * 1e3 == pytest.approx(tpot_ms, rel=0.10)


def test_larger_chunks_stall_decode_longer():
    largest = [float(itl_quantile_s(1.0, colocated_state(3.0, m), m)[0]) for m in map(chunked, (512.0, 2048.0, 8192.0))]
    assert largest[0] < largest[1] < largest[2]
    assert largest[2] > 4.2e-5 * 8000  # nearly a whole chunk of work


def test_tpot_spread_is_above_the_mean():
    model = chunked()
    state = colocated_state(5.0, model)
    assert tpot_quantile_s(0.99, state, model) > state.iteration_s
