"""Closed forms of queueing theory as the outside oracle. Seeds are fixed: the tolerances are about three standard errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pdplan.simulate import DecodePool, PrefillPool, SimFleet, SimOptions, SimRequests, SimResult, simulate

PYTHON = SimOptions(engine="python")
SCALE = 10_000
"""Tokens of a mean prompt: so many that whole tokens do not show."""


def prefill_only(rho: float, servers: int, tokens: np.ndarray, seed: int, router: str = "central") -> SimResult:
    """Mean service 1 s, Poisson arrivals at rho x servers per second, nothing to decode."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / (rho * servers), len(tokens)))
    fleet = SimFleet(
        prefill=[PrefillPool(name="p", replicas=servers, per_token_s=1 / SCALE, router=router)],  # type: ignore[arg-type]
        decode=[DecodePool(name="d", replicas=1, batch=[1], context=[0], step_s=[[1e-3]])],
    )
    return simulate(fleet, SimRequests(arrival_s=arrival, input_tokens=tokens, output_tokens=1), PYTHON)


def exponential(n: int, seed: int) -> np.ndarray:
    return np.maximum(np.rint(np.random.default_rng(seed).exponential(SCALE, n)), 1)


def erlang_c(c: int, a: float) -> float:
    top = a**c / math.factorial(c) / (1 - a / c)
    return top / (sum(a**j / math.factorial(j) for j in range(c)) + top)


def test_mm1() -> None:
    """Sojourn is exponential with mean 1/(1 - rho): at rho = 0.5 mean 2 s, p90 4.605 s, p99 9.21 s."""
    result = prefill_only(0.5, 1, exponential(60_000, 1), 2)
    steady = result.ttft_s[6000:]

    assert steady.mean() == pytest.approx(2.0, rel=0.03)
    assert np.quantile(steady, 0.9) == pytest.approx(2 * math.log(10), rel=0.04)
    assert np.quantile(steady, 0.99) == pytest.approx(2 * math.log(100), rel=0.06)
    assert result.pools[0].busy_frac == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("servers", [2, 5])
def test_mmc(servers: int) -> None:
    """Mean wait C/(c (1 - rho)); share that waits C (Erlang)."""
    result = prefill_only(0.7, servers, exponential(60_000, 3), 4)
    wait = (result.prefill_start_s - result.arrival_s)[6000:]
    c = erlang_c(servers, 0.7 * servers)

    assert wait.mean() == pytest.approx(c / (servers * 0.3), rel=0.06)
    assert (wait > 1e-9).mean() == pytest.approx(c, rel=0.03)


def test_md1() -> None:
    """Deterministic service halves the wait: rho / (2 (1 - rho)) = 0.75 s at rho = 0.6."""
    result = prefill_only(0.6, 1, np.full(60_000, SCALE), 5)
    wait = (result.prefill_start_s - result.arrival_s)[6000:]

    assert wait.mean() == pytest.approx(0.75, rel=0.04)


def test_mg1() -> None:
    """Pollaczek and Khinchine: rho (1 + cs2) / (2 (1 - rho)) with the sample's own cs2."""
    rng = np.random.default_rng(6)
    tokens = np.maximum(np.rint(rng.gamma(0.5, SCALE / 0.5, 80_000)), 1)
    result = prefill_only(0.5, 1, tokens, 7)
    wait = (result.prefill_start_s - result.arrival_s)[8000:]
    mean, second = tokens.mean() / SCALE, (tokens**2).mean() / SCALE**2

    assert wait.mean() == pytest.approx(0.5 * second / (2 * (1 - 0.5 * mean)), rel=0.06)


@pytest.mark.parametrize("shape", [0.6, 4.0])
def test_decode_is_processor_sharing(shape: float) -> None:
    """Step al + be N, Poisson arrivals: N is negative binomial whatever the answer lengths' spread.

    p = rate O be = 0.5, r = al/be + 1 = 31: E[N] = r p/(1 - p) = 31 (an arrival sees N others, its own
    first step included in the batch).
    """
    al, be, mean_answer, n = 0.012, 4e-4, 100, 40_000
    rng = np.random.default_rng(8)
    rate = 0.5 / (mean_answer * be)
    answer = np.maximum(np.rint(rng.gamma(shape, mean_answer / shape, n)), 1) + 1
    rate *= mean_answer / (answer - 1).mean()
    arrival = np.cumsum(rng.exponential(1 / rate, n))
    fleet = SimFleet(
        prefill=[PrefillPool(name="p", replicas=1)],
        decode=[DecodePool(name="d", replicas=1, batch=[1, 2], context=[0], step_s=[[al + be], [al + 2 * be]])],
    )

    result = simulate(fleet, SimRequests(arrival_s=arrival, input_tokens=10, output_tokens=answer), PYTHON)

    assert result.pools[1].mean_batch == pytest.approx(31, rel=0.04)


def test_littles_law() -> None:
    """Time averages of the loop's own integrals equal rate times time, in both pools, to 1 %."""
    n = 40_000
    rng = np.random.default_rng(9)
    arrival = np.cumsum(rng.exponential(1 / 20, n))
    fleet = SimFleet(
        prefill=[PrefillPool(name="p", replicas=4, fixed_s=0.05, per_token_s=1e-4)],
        decode=[DecodePool(name="d", replicas=3, batch=[1, 64], context=[0], step_s=[[0.01], [0.03]])],
    )
    requests = SimRequests(
        arrival_s=arrival, input_tokens=rng.integers(1, 2000, n), output_tokens=rng.integers(2, 300, n)
    )
    result = simulate(fleet, requests, PYTHON)

    begin, end = result.window_s

    def in_window(start: np.ndarray, stop: np.ndarray) -> float:
        """Requests present on average, from their own stamps."""
        return float(np.maximum(np.minimum(stop, end) - np.maximum(start, begin), 0).sum() / (end - begin))

    prefill, decode = result.pools
    assert prefill.mean_batch * 4 == pytest.approx(in_window(result.prefill_start_s, result.prefill_end_s), rel=1e-6)
    assert decode.mean_batch * 3 == pytest.approx(in_window(result.admitted_s, result.end_s), rel=1e-6)
    inside = (result.arrival_s >= begin) & (result.arrival_s <= end)
    rate = inside.sum() / (end - begin)
    life = (result.end_s - result.admitted_s)[inside].mean()
    assert decode.mean_batch * 3 == pytest.approx(rate * life, rel=0.01)
