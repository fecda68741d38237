"""Summaries: percentiles, attainment and intervals by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pdplan.simulate import DecodePool, PrefillPool, SimFleet, SimOptions, SimRequests, SimResult, simulate, summarise


def served(n: int = 1000, seed: int = 0, horizon_s: float = math.inf) -> SimResult:
    rng = np.random.default_rng(seed)
    fleet = SimFleet(
        prefill=[PrefillPool(name="p", replicas=1, fixed_s=0.1)],
        decode=[DecodePool(name="d", replicas=1, batch=[1, 2], context=[0], step_s=[[0.01], [0.011]])],
    )
    requests = SimRequests(
        arrival_s=np.cumsum(rng.exponential(0.2, n)),
        input_tokens=10,
        output_tokens=rng.integers(1, 30, n),
        class_id=np.arange(n) % 2,
    )
    return simulate(fleet, requests, SimOptions(engine="python", horizon_s=horizon_s))


def test_quantiles_are_those_of_the_requests_after_the_warm_up() -> None:
    """p90 is the smallest value that 90 % do not exceed; answers of one token have no TPOT."""
    result = served()
    summary = summarise(result)
    kept = np.sort(result.ttft_s[100:])
    tpot = result.tpot_s[100:]

    assert summary.requests == 900
    assert summary.quantiles["ttft_s"][0.9].value == kept[809]
    assert summary.mean["tpot_s"].value == pytest.approx(np.nanmean(tpot))
    assert summary.throughput_req_per_s == pytest.approx(5, rel=0.1)


def test_attainment_counts_both_limits_and_requests_that_never_ended() -> None:
    """Half the run is cut off: what is unfinished meets nothing, and percentiles beyond it are infinite."""
    whole = served()
    half = served(horizon_s=float(whole.arrival_s[500]))
    good = (whole.ttft_s[100:] <= 0.15) & ((whole.tpot_s[100:] <= 0.012) | (whole.output_tokens[100:] == 1))

    assert summarise(whole, ttft_limit_s=0.15, tpot_limit_s=0.012).attainment.value == pytest.approx(good.mean())
    cut = summarise(half)
    assert cut.unfinished >= 499
    assert cut.attainment.value == pytest.approx(cut.finished / 900)
    assert cut.quantiles["ttft_s"][0.9].value == math.inf
    assert np.isfinite(cut.mean["ttft_s"].value)


def test_the_interval_is_students_over_batches() -> None:
    """Four pieces of one run: half-width t(3) s / 2, t(3) = 3.182."""
    result = served()
    summary = summarise(result, batches=4, quantiles=[0.5])
    pieces = [result.ttft_s[a : a + 225].mean() for a in range(100, 1000, 225)]

    assert summary.mean["ttft_s"].half_width == pytest.approx(3.1824463 * np.std(pieces, ddof=1) / 2)


def test_several_seeds_are_pooled_and_classes_picked() -> None:
    """Utilisation has an interval over seeds; a class is half of the requests."""
    runs = [served(seed=seed) for seed in range(3)]
    summary = summarise(runs)

    assert summary.requests == 2700
    assert summary.busy_frac["p"].half_width > 0
    assert math.isnan(summarise(runs[0]).busy_frac["p"].half_width)
    assert summarise(runs, class_id=1).requests == 1350


@pytest.mark.parametrize("q", [0.0, 1.0])
def test_quantiles_outside_the_open_interval_are_refused(q: float) -> None:
    with pytest.raises(ValueError, match="strictly between"):
        summarise(served(50), quantiles=[q])


def test_gaps_are_counted_over_tokens() -> None:
    """Two sequences of 4 steps at 0.1 s, then one alone 5 steps at 0.06 s: quantiles by tokens, to half a bin."""
    from pdplan.simulate import DecodePool, PrefillPool, SimFleet, SimRequests, gap_quantile_s, simulate

    fleet = SimFleet(
        prefill=[PrefillPool(name="p", replicas=1, fixed_s=1.0, max_requests=3)],
        decode=[DecodePool(name="d", replicas=1, batch=[1, 2], context=[0], step_s=[[0.06], [0.1]])],
    )
    asked = SimRequests(arrival_s=[0.0, 0.5, 0.5, 50.0], input_tokens=10, output_tokens=[1, 5, 10, 1])
    pools = simulate(fleet, asked).pools

    assert sum(pools[1].gaps) == 2 * 4 + 5
    assert gap_quantile_s(pools, 0.3) == pytest.approx(0.06, rel=0.01)
    assert gap_quantile_s(pools, 0.5) == pytest.approx(0.1, rel=0.01)
    assert np.isnan(gap_quantile_s(pools[:1], 0.5))
