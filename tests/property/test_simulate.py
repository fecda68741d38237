"""Properties of any fleet: nothing is lost, stamps are in order, seeds decide, both engines agree."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdplan.simulate import (
    ColocatedPool,
    DecodePool,
    Failure,
    Flow,
    Link,
    PrefillPool,
    SimFleet,
    SimOptions,
    SimRequests,
    SimResult,
    simulate,
)

BATCH, CONTEXT = np.array([1.0, 4, 16, 64]), np.array([0.0, 300, 1000, 4000])
STEP = 0.01 + 3e-4 * BATCH[:, None] + 1e-7 * BATCH[:, None] * CONTEXT
ROUTERS = ("central", "round_robin", "least_loaded", "prefix_aware", "random")


@st.composite
def fleets(draw: st.DrawFn) -> SimFleet:
    """Any mixture of pools, tight and loose memories, links and failures."""
    router = st.sampled_from(ROUTERS)
    memory = st.sampled_from([1500.0, 4000.0, np.inf])
    shared: dict[str, Any] = {"batch": BATCH, "context": CONTEXT, "step_s": STEP}
    decode = [
        DecodePool(
            name=f"d{j}",
            replicas=draw(st.integers(1, 3)),
            kv_tokens=draw(memory),
            max_sequences=draw(st.sampled_from([3, 1000])),
            tokens_per_step=draw(st.sampled_from([1.0, 1.75])),
            staging_tokens=draw(st.sampled_from([None, 800.0])),
            first_token_at=draw(st.sampled_from(["prefill", "decode"])),
            prefill_per_token_s=1e-4,
            router=draw(router),
            **shared,
        )
        for j in range(draw(st.integers(1, 2)))
    ]
    prefill = [
        PrefillPool(
            name=f"p{j}",
            replicas=draw(st.integers(1, 3)),
            fixed_s=0.02,
            per_token_s=2e-4,
            max_requests=draw(st.integers(1, 4)),
            token_budget=draw(st.sampled_from([400.0, np.inf])),
            ranks=draw(st.integers(1, 2)),
            hot_frac=0.5,
            kv_tokens=draw(memory),
            kv_bytes_per_token=1e5,
            nic_bytes_per_s=1e9,
            overlap_layers=draw(st.sampled_from([0, 8])),
            router=draw(router),
            share=draw(st.sampled_from([1.0, 2.0])),
        )
        for j in range(draw(st.integers(1, 2)))
    ]
    colocated = [
        ColocatedPool(
            name="c",
            replicas=draw(st.integers(1, 2)),
            kv_tokens=draw(memory),
            chunk_tokens=draw(st.sampled_from([64.0, 1024.0])),
            prefill_per_token_s=1e-4,
            router=draw(router),
            **shared,
        )
        for _ in range(draw(st.integers(0, 1)))
    ]
    flows = [
        Flow(source=p.name, target=d.name, share=1.0 + j, link="l" if j == 0 else None)
        for p in prefill
        for j, d in enumerate(decode)
    ]
    failures = [
        Failure(
            pool=draw(st.sampled_from([*prefill, *decode])).name, at_s=draw(st.floats(0, 10)), replicas=1, back_s=12.0
        )
        for _ in range(draw(st.integers(0, 2)))
    ]
    return SimFleet(
        prefill=prefill,
        decode=decode,
        colocated=colocated,
        links=[Link(name="l", bandwidth_bytes_per_s=2e8, propagation_s=1e-3)],
        flows=flows,
        failures=failures,
    )


def requests(seed: int, n: int = 120) -> SimRequests:
    rng = np.random.default_rng(seed)
    prompt = rng.integers(1, 900, n)
    return SimRequests(
        arrival_s=np.cumsum(rng.exponential(0.1, n)),
        input_tokens=prompt,
        cached_tokens=rng.integers(0, prompt + 1),
        output_tokens=rng.integers(1, 150, n),
        prefix_group=rng.integers(-1, 5, n),
    )


def same(a: SimResult, b: SimResult) -> None:
    for name in (
        "ttft_s", "tpot_s", "e2e_s", "itl_max_s", "status", "prefill_start_s", "landed_s", "admitted_s", "end_s",
        "preemptions", "retries",
    ):  # fmt: skip
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    assert a.pools == b.pools
    assert a.events == b.events


@settings(deadline=None, max_examples=40)
@given(fleet=fleets(), seed=st.integers(0, 10_000), action=st.sampled_from(["retry", "drop"]))
def test_every_request_ends_and_its_stamps_are_in_order(fleet: SimFleet, seed: int, action: Any) -> None:
    """Without a horizon nothing is left over; lost ones only where failures drop them or nobody was there."""
    asked = requests(seed)
    result = simulate(fleet, asked, SimOptions(engine="python", seed=seed, on_failure=action))
    done = result.status == 2
    answer = np.asarray(asked.output_tokens)

    assert "unfinished" not in result.counts()
    if not fleet.failures:
        assert set(result.counts()) <= {"finished"}
    assert sum(result.counts().values()) == len(answer)
    np.testing.assert_allclose(
        result.e2e_s[done],
        result.ttft_s[done] + np.where(answer > 1, result.tpot_s * (answer - 1), 0)[done],
        rtol=1e-9,
        atol=1e-9,
    )
    assert np.all(result.ttft_s[done] > 0)
    calm = done & (result.retries == 0)
    assert np.all(result.prefill_end_s[calm] >= result.prefill_start_s[calm])
    moved = calm & np.isfinite(result.landed_s)
    assert np.all(result.landed_s[moved] >= result.prefill_end_s[moved])
    assert np.all(result.admitted_s[moved] >= result.landed_s[moved])
    many = done & (answer > 1)
    assert np.all(result.itl_max_s[many] >= result.tpot_s[many] * (1 - 1e-9))
    for pool, use in zip(fleet.pools(), result.pools, strict=True):
        assert 0 <= use.busy_frac <= 1 + 1e-9
        assert use.mean_kv_tokens <= pool.kv_tokens * (1 + 1e-9)


@settings(deadline=None, max_examples=10)
@given(fleet=fleets(), seed=st.integers(0, 10_000))
def test_a_seed_decides_the_result(fleet: SimFleet, seed: int) -> None:
    asked = requests(seed)
    options = SimOptions(engine="python", seed=seed)

    same(simulate(fleet, asked, options), simulate(fleet, asked, options))


@settings(deadline=None, max_examples=15)
@given(fleet=fleets(), seed=st.integers(0, 10_000))
def test_requests_that_come_one_at_a_time_do_not_see_each_other(fleet: SimFleet, seed: int) -> None:
    """Ten of them, far apart, have the latencies of one alone."""
    one = requests(seed, 1)
    lonely = SimFleet(prefill=fleet.prefill[:1], decode=fleet.decode[:1])

    def served(n: int) -> SimResult:
        asked = SimRequests(
            arrival_s=np.arange(n) * 1000.0,
            input_tokens=np.repeat(one.input_tokens, n),
            cached_tokens=np.repeat(one.cached_tokens, n),
            output_tokens=np.repeat(one.output_tokens, n),
        )
        return simulate(lonely, asked, SimOptions(engine="python"))

    np.testing.assert_allclose(served(10).e2e_s, served(1).e2e_s[0], rtol=1e-6)


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
def test_both_engines_agree_to_the_last_bit() -> None:
    """Forty fleets drawn at random, one test so that the loop is compiled once."""

    @settings(deadline=None, max_examples=40, database=None)
    @given(fleet=fleets(), seed=st.integers(0, 10_000), split=st.sampled_from(["random", "even"]))
    def agree(fleet: SimFleet, seed: int, split: Any) -> None:
        asked = requests(seed)
        compiled, plain = (
            simulate(fleet, asked, SimOptions(engine=engine, seed=seed, split=split)) for engine in ("numba", "python")
        )
        same(compiled, plain)

    agree()
