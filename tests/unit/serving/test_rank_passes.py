"""Passes shared by attention ranks: hand-computed limits, and the simulator on the same passes."""

from __future__ import annotations

import numpy as np
import pytest

from pdplan.serving.prefill import (
    PrefillService,
    mean_pass_s,
    prefill_utilisation,
    ttft_mean_s,
    ttft_quantile_s,
    ttft_tail,
)
from pdplan.serving.rank_passes import erlang_b, requests_of_full_pass
from pdplan.simulate import DecodePool, PrefillPool, SimFleet, SimRequests, simulate

FIXED_S, HOT, RANKS = 0.02, 0.8, 4


def service(work_s: np.ndarray, most: float, weight: np.ndarray | None = None) -> PrefillService:
    return PrefillService(
        service_s=(FIXED_S + work_s)[:, None],
        weight=np.ones(len(work_s)) if weight is None else weight,
        ranks=RANKS,
        full_s=(FIXED_S + work_s * (HOT + (1 - HOT) * RANKS))[:, None],
        fixed_s=FIXED_S,
        max_requests=most,
    )


def test_erlang_b_by_hand() -> None:
    """B(1, a) = a/(1 + a); B(2, 1) = (1/2)/(1 + 1 + 1/2) = 0.2; beyond 64 servers the closed form goes on."""
    assert erlang_b(1, 3.0) == pytest.approx(0.75)
    assert erlang_b(2, 1.0) == pytest.approx(0.2)
    assert erlang_b(65, 60.0) == pytest.approx(60 * erlang_b(64, 60.0) / (65 + 60 * erlang_b(64, 60.0)))


def test_capacity_with_equal_requests_is_that_of_full_passes() -> None:
    """8 requests of 0.1 s on 4 ranks: 0.02 + 2 x 0.08 + 8 x 0.02 = 0.34 s, 23.53 requests/s."""
    full = service(np.full(3, 0.1), 8.0)

    assert 1 / prefill_utilisation(1.0, 1, full)[0] == pytest.approx(8 / 0.34, rel=0.03)
    assert 1 / prefill_utilisation(1.0, 5, full)[0] == pytest.approx(5 * 8 / 0.34, rel=0.03)


def test_an_idle_pool_takes_a_request_at_once() -> None:
    queue = service(np.array([0.1, 0.3]), 8.0, np.array([0.8, 0.2]))

    assert float(ttft_quantile_s(0.5, 1e-4, 2, queue)[0]) == pytest.approx(0.12, rel=1e-3)
    assert float(ttft_quantile_s(0.9, 1e-4, 2, queue, extra_s=0.05)[0]) == pytest.approx(0.37, rel=1e-3)
    assert float(ttft_mean_s(1e-4, 2, queue)[0]) == pytest.approx(0.8 * 0.12 + 0.2 * 0.32, rel=0.02)
    assert float(mean_pass_s(1e-4, 2, queue)[0]) == pytest.approx(0.8 * 0.12 + 0.2 * 0.32, rel=0.01)


def test_an_overloaded_pool_is_late_for_ever() -> None:
    queue = service(np.array([0.1, 0.3]), 8.0)

    assert ttft_tail(1e3, 1e3, 2, queue)[0] == 1.0
    assert np.isinf(ttft_quantile_s(0.5, 1e3, 2, queue)).all()


def test_requests_of_a_full_pass() -> None:
    """Equal prompts of 1000 tokens and a budget of 8000: 8 - 1/2 per rank; a prompt above the budget is alone."""
    assert requests_of_full_pass(4, 8000.0, [1000.0], [1.0]) == pytest.approx(30.0)
    assert requests_of_full_pass(4, 8000.0, [20000.0], [1.0]) == pytest.approx(4.0)


def test_both_kinds_of_layouts_side_by_side() -> None:
    work = np.array([0.1, 0.3])
    ranked = service(work, 8.0)
    alone = PrefillService(service_s=(FIXED_S + work)[:, None], weight=np.ones(2))
    both = PrefillService(
        service_s=np.repeat(ranked.service_s, 2, axis=1),
        weight=np.ones(2),
        ranks=[1, RANKS],
        full_s=np.repeat(np.asarray(ranked.full_s), 2, axis=1),
        fixed_s=FIXED_S,
        max_requests=8.0,
    )

    together = ttft_tail(0.4, 4.0, 2, both)
    assert together[0] == pytest.approx(float(ttft_tail(0.4, 4.0, 2, alone)[0]))
    assert together[1] == pytest.approx(float(ttft_tail(0.4, 4.0, 2, ranked)[0]))


@pytest.mark.parametrize(("ranks", "replicas", "hot"), [(4, 1, 0.7), (8, 2, 0.9), (32, 3, 0.95)])
@pytest.mark.parametrize("load", [0.5, 0.8])
def test_percentiles_against_simulation(ranks: int, replicas: int, hot: float, load: float) -> None:
    """p50, p90 and p99 within 15 % (the simulation's own error is about 3 % at p99), never more than 10 % low at p90."""
    rng = np.random.default_rng(5)
    tokens = np.rint(np.clip(rng.gamma(1.2, 1000.0, 200), 50, 8000))
    work = 7e-5 * tokens
    queue = PrefillService(
        service_s=(FIXED_S + work)[:, None],
        weight=np.ones(200),
        ranks=ranks,
        full_s=(FIXED_S + work * (hot + (1 - hot) * ranks))[:, None],
        fixed_s=FIXED_S,
        max_requests=requests_of_full_pass(ranks, 8192.0, tokens, np.ones(200)),
    )
    rate = load / float(prefill_utilisation(1.0, replicas, queue)[0])
    pool = PrefillPool(
        name="p", replicas=replicas, fixed_s=FIXED_S, per_token_s=7e-5, ranks=ranks, hot_frac=hot, max_requests=10_000,
        token_budget=8192,
    )  # fmt: skip
    free = DecodePool(name="d", replicas=1, batch=[1], context=[0], step_s=[[1e-9]])
    requests = SimRequests(
        arrival_s=np.cumsum(rng.exponential(1 / rate, 30_000)),
        input_tokens=rng.choice(tokens, 30_000),
        output_tokens=2,
    )
    simulated = np.quantile(simulate(SimFleet(prefill=[pool], decode=[free]), requests).ttft_s[3000:], [0.5, 0.9, 0.99])
    predicted = np.array([float(ttft_quantile_s(q, rate, replicas, queue)[0]) for q in (0.5, 0.9, 0.99)])
    error = predicted / simulated - 1

    assert (np.abs(error) < 0.15).all(), error
    assert error[1] > -0.10
