"""What pools, links, memory and failures do, on cases worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

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

PYTHON = SimOptions(engine="python")
PREFILL = PrefillPool(name="p", replicas=1, fixed_s=1.0)
DECODE = DecodePool(name="d", replicas=1, batch=[1, 2], context=[0], step_s=[[0.1], [0.1]])


def run(fleet: SimFleet, options: SimOptions = PYTHON, **requests: object) -> SimResult:
    return simulate(fleet, SimRequests(**{"arrival_s": [0.0], "input_tokens": 100, **requests}), options)  # type: ignore[arg-type]


def test_a_pass_takes_what_waits_up_to_limit_and_budget() -> None:
    """1 s + 1 ms a token, two a pass, 250 tokens: 0 alone; 1 and 2 together; 3 would exceed the limit."""
    pool = replace(PREFILL, per_token_s=1e-3, max_requests=2, token_budget=250)
    result = run(SimFleet(prefill=[pool], decode=[DECODE]), arrival_s=[0, 0.1, 0.2, 0.3], output_tokens=1)

    np.testing.assert_allclose(result.prefill_end_s, [1.1, 2.3, 2.3, 3.4])


def test_the_budget_ends_a_pass_and_longer_prompts_take_several() -> None:
    """Budget 150: two prompts of 100 do not share a pass; 400 tokens pay the fixed second three times."""
    pool = replace(PREFILL, per_token_s=1e-3, max_requests=9, token_budget=150)
    fleet = SimFleet(prefill=[pool], decode=[DECODE])

    result = run(fleet, arrival_s=[0, 0.1, 0.2], input_tokens=[100, 100, 400], output_tokens=1)

    np.testing.assert_allclose(result.prefill_end_s, [1.1, 2.2, 2.2 + 3 + 0.4])


def test_ranks_share_a_pass_that_the_fullest_one_ends() -> None:
    """Two ranks, hot share 1: the pass lasts as long as the rank with 300 tokens, whatever the other has."""
    pool = replace(PREFILL, per_token_s=1e-3, max_requests=3, ranks=2, hot_frac=1.0)
    fleet = SimFleet(prefill=[pool], decode=[DECODE])

    result = run(fleet, arrival_s=[0, 0.1, 0.1, 0.1], input_tokens=[1, 300, 100, 150], output_tokens=1)

    np.testing.assert_allclose(result.prefill_end_s, [1.001] + [1.001 + 1.3] * 3)


def test_pipeline_stages_delay_the_request_not_the_next_pass() -> None:
    """Three stages of 1 s: requests end at 3 and 4 s."""
    fleet = SimFleet(prefill=[replace(PREFILL, pipeline_stages=3)], decode=[DECODE])

    np.testing.assert_allclose(run(fleet, arrival_s=[0, 0], output_tokens=1).ttft_s, [3.0, 4.0])


def test_a_table_replaces_the_coefficients() -> None:
    """Bilinear: 150 new and 50 cached tokens lie in the middle of both cells, (1.2 + 1.4 + 1.6 + 1.8)/4 s."""
    pool = replace(PREFILL, table=([100, 200], [0, 100], [[1.2, 1.4], [1.6, 1.8]]))

    result = run(SimFleet(prefill=[pool], decode=[DECODE]), input_tokens=200, cached_tokens=50, output_tokens=1)

    np.testing.assert_allclose(result.ttft_s, [1.5])


def test_transfers_queue_on_the_nic_and_on_the_shared_link() -> None:
    """Two replicas end at 1 s; each cache takes 0.1 s on its NIC, 0.5 s on the link they share, plus 0.02 s."""
    pool = replace(
        PREFILL, replicas=2, kv_bytes_per_token=1e6, nic_bytes_per_s=1e9, handshake_s=0.015, router="round_robin"
    )  # fmt: skip
    fleet = SimFleet(
        prefill=[pool],
        decode=[DECODE],
        links=[Link(name="l", bandwidth_bytes_per_s=2e8, propagation_s=0.005)],
        flows=[Flow(source="p", target="d", link="l")],
    )

    result = run(fleet, arrival_s=[0, 0], output_tokens=2)

    np.testing.assert_allclose(np.sort(result.landed_s), [1.52, 2.02])


def test_layers_sent_during_the_pass_leave_the_last_one() -> None:
    """A stream of 0.5 s is shorter than the pass: one tenth of it remains; one of 1.5 s leaves 0.5 s."""
    pool = replace(PREFILL, kv_bytes_per_token=1e6, nic_bytes_per_s=2e8, overlap_layers=10)
    short = run(SimFleet(prefill=[pool], decode=[DECODE]), output_tokens=2)
    long = run(SimFleet(prefill=[pool], decode=[DECODE]), input_tokens=300, output_tokens=2)

    assert short.landed_s[0] == pytest.approx(1.05)
    assert long.landed_s[0] == pytest.approx(1.5)


def test_two_caches_of_a_pass_share_its_nic_from_the_start() -> None:
    """Streams of 0.8 s each: the first is done inside the pass of 1.6 s but for its last layer, the second right after it."""
    pool = replace(PREFILL, kv_bytes_per_token=1e6, nic_bytes_per_s=1.25e8, overlap_layers=10, max_requests=2)
    fleet = SimFleet(prefill=[pool], decode=[DECODE])
    result = run(fleet, arrival_s=[0, 0.5, 0.5], output_tokens=2)
    start, end = result.prefill_start_s[1], result.prefill_end_s[1]

    assert result.prefill_start_s[2] == start
    assert end - start < 1.6
    np.testing.assert_allclose(result.landed_s[1:], [max(start + 0.8, end + 0.08), start + 1.6])


def test_a_nic_carries_no_more_than_its_bandwidth_whatever_overlaps() -> None:
    """A pass of 1 s and four stages: caches of 1.5 s leave one after the other, the last two at 7 and 8 times 1.5 s."""
    pool = replace(PREFILL, kv_bytes_per_token=1e6, nic_bytes_per_s=2 / 3 * 1e8, overlap_layers=10, pipeline_stages=4)
    result = run(SimFleet(prefill=[pool], decode=[DECODE]), arrival_s=[0.0] * 8, output_tokens=2)

    np.testing.assert_allclose(result.landed_s[[0, 6, 7]], [4.15, 10.5, 12.0])


def test_the_least_loaded_replica_is_not_one_whose_nic_is_busy() -> None:
    """Passes of 1 s and streams of 3 s: requests 2 s apart find both replicas idle and must alternate."""
    pool = replace(PREFILL, replicas=2, kv_bytes_per_token=1e6, nic_bytes_per_s=1e8 / 3)
    result = run(SimFleet(prefill=[pool], decode=[DECODE]), arrival_s=[0.0, 2.0, 4.0, 6.0], output_tokens=2)

    np.testing.assert_allclose(result.landed_s, [4.0, 6.0, 8.0, 10.0])


def test_where_the_first_token_is_released() -> None:
    """At the end of the pass the transfer is a gap between tokens; at decode it is part of the TTFT."""
    pool = replace(PREFILL, handshake_s=0.4)
    early = run(SimFleet(prefill=[pool], decode=[replace(DECODE, first_token_at="prefill")]), output_tokens=3)
    late = run(
        SimFleet(prefill=[pool], decode=[replace(DECODE, first_token_steps=2, first_token_extra_s=0.03)]),
        output_tokens=3,
    )

    assert (early.ttft_s[0], early.itl_max_s[0], early.tpot_s[0]) == pytest.approx((1.0, 0.5, 0.3))
    assert (late.ttft_s[0], late.itl_max_s[0], late.tpot_s[0]) == pytest.approx((1.4 + 0.2 + 0.03, 0.1, 0.1))
    assert late.e2e_s[0] == pytest.approx(1.6 + 0.2 + 0.03)


def test_tokens_per_step_shorten_the_answer() -> None:
    """Eight tokens after the first at 2.5 a step are four steps."""
    result = run(SimFleet(prefill=[PREFILL], decode=[replace(DECODE, tokens_per_step=2.5)]), output_tokens=9)

    assert result.end_s[0] == pytest.approx(1.4)


def test_the_kv_cache_admits_no_more_than_fits_and_nobody_overtakes() -> None:
    """Room for one of 100 tokens and its growth: the second cache stays at its sender until the first is done."""
    decode = replace(DECODE, kv_tokens=150, headroom_tokens=1)
    result = run(
        SimFleet(prefill=[replace(PREFILL, replicas=2)], decode=[decode]), arrival_s=[0, 0.01], output_tokens=11
    )

    np.testing.assert_allclose(result.admitted_s, [1.0, 2.0])
    np.testing.assert_allclose(result.end_s, [2.0, 3.0])


def test_a_staging_buffer_takes_caches_while_the_batch_is_full() -> None:
    """The buffer takes the second cache at once; the third waits at its sender for the buffer."""
    decode = replace(DECODE, kv_tokens=150, headroom_tokens=1, staging_tokens=110)
    result = run(
        SimFleet(prefill=[replace(PREFILL, replicas=3)], decode=[decode]), arrival_s=[0, 0.01, 0.02], output_tokens=11
    )

    np.testing.assert_allclose(result.landed_s, [1.0, 1.01, 2.0])
    np.testing.assert_allclose(result.admitted_s, [1.0, 2.0, 3.0])


def test_a_full_sender_holds_its_next_pass_back() -> None:
    """Memory for one prompt: the second pass starts when the first cache has been sent, at 1.4 s."""
    pool = replace(PREFILL, kv_tokens=150, handshake_s=0.4)

    result = run(SimFleet(prefill=[pool], decode=[DECODE]), arrival_s=[0, 0], output_tokens=2)

    np.testing.assert_allclose(result.prefill_start_s, [0.0, 1.4])


def test_growth_beyond_the_cache_preempts_the_youngest_and_recomputes_it() -> None:
    """230 tokens of cache: 101 from 1.0 s, 101 more from 1.1 s (a step was under way), both growing by one a step.
    At 2.4 s, after 13 steps together, they hold 229: the younger leaves with 14 tokens made, until the other ends at 6.6 s.
    """
    decode = replace(DECODE, kv_tokens=230, headroom_tokens=1, prefill_per_token_s=1e-3)
    result = run(
        SimFleet(prefill=[replace(PREFILL, replicas=2)], decode=[decode]), arrival_s=[0, 0.05], output_tokens=57
    )

    assert result.preemptions.tolist() == [0, 1]
    assert result.end_s[0] == pytest.approx(1 + 5.6)
    # 114 tokens are computed again in an iteration of 0.1 s + 0.114 s that makes the 15th; 42 are left.
    assert result.end_s[1] == pytest.approx(6.6 + 0.214 + 4.2)
    assert result.itl_max_s[1] == pytest.approx(6.6 + 0.214 - 2.4)
    assert result.pools[1].prompt_tokens == 114
    assert result.counts() == {"finished": 2}


def test_shares_split_the_arrivals() -> None:
    """A 3:1 split is exact when even, and near it when random."""
    fleet = SimFleet(
        prefill=[replace(PREFILL, name="a", fixed_s=0, share=3.0), replace(PREFILL, name="b", fixed_s=0)],
        decode=[DECODE],
    )  # fmt: skip
    many = {"arrival_s": np.arange(4000.0), "output_tokens": 1}

    even = run(fleet, SimOptions(engine="python", split="even", warmup_frac=0), **many)
    random = run(fleet, SimOptions(engine="python", warmup_frac=0), **many)

    assert [use.requests for use in even.pools] == [3000, 1000, 0]
    assert random.pools[0].requests == pytest.approx(3000, abs=3 * np.sqrt(4000 * 3 / 16))


def test_a_prefix_aware_router_finds_the_cached_prefix() -> None:
    """Two groups on two replicas: each follows its own; round robin finds the other replica half of the time."""
    pool = replace(PREFILL, replicas=2, fixed_s=0.1, per_token_s=1e-3)
    group = np.array([0, 0, 1, 1] * 50)
    many = {"arrival_s": np.arange(200.0), "output_tokens": 1, "cached_tokens": 80, "prefix_group": group}

    aware = run(SimFleet(prefill=[replace(pool, router="prefix_aware")], decode=[DECODE]), **many)
    blind = run(SimFleet(prefill=[replace(pool, router="round_robin")], decode=[DECODE]), **many)

    assert np.isclose(aware.ttft_s, 0.2).sum() == 2  # the first of each group
    assert np.isclose(aware.ttft_s, 0.12).sum() == 198
    assert np.isclose(blind.ttft_s, 0.2).sum() > 90


@pytest.mark.parametrize(
    ("action", "outcome", "first"),
    [("drop", {"finished": 1, "lost in a failure": 1}, 1.0), ("retry", {"finished": 2}, 2.0)],
)
def test_a_prefill_replica_lost_in_a_pass(action: str, outcome: dict[str, int], first: float) -> None:
    """The second replica dies at 0.5 s; its request starts again behind the other one, or is lost."""
    fleet = SimFleet(
        prefill=[replace(PREFILL, replicas=2)], decode=[DECODE], failures=[Failure(pool="p", at_s=0.5, replicas=1)]
    )  # fmt: skip

    result = run(fleet, SimOptions(engine="python", on_failure=action), arrival_s=[0, 0], output_tokens=1)  # type: ignore[arg-type]

    assert result.counts() == outcome
    assert np.nanmax(result.ttft_s) == pytest.approx(first)


def test_a_decode_replica_lost_keeps_the_tokens_made_and_computes_the_cache_again() -> None:
    """It dies at 2.05 s after ten steps and is back at 3: prefill again until 3.05, one token, 89 left."""
    fleet = SimFleet(
        prefill=[PREFILL], decode=[DECODE], failures=[Failure(pool="d", at_s=2.05, replicas=1, back_s=3.0)]
    )  # fmt: skip

    result = run(fleet, output_tokens=101)

    assert result.retries[0] == 1
    assert result.end_s[0] == pytest.approx(3.05 + 8.9)
    assert result.ttft_s[0] == pytest.approx(1.0)
    assert result.itl_max_s[0] == pytest.approx(1.05)


def test_a_pool_without_replicas_rejects_and_a_later_one_serves() -> None:
    """Between loss and return requests find nobody; before and after they are served."""
    fleet = SimFleet(
        prefill=[PREFILL], decode=[DECODE], failures=[Failure(pool="p", at_s=2.0, replicas=1, back_s=4.0)]
    )  # fmt: skip

    result = run(fleet, arrival_s=[0, 3, 5], output_tokens=1)

    assert result.counts() == {"finished": 2, "rejected: no replica works": 1}
    assert np.isnan(result.ttft_s[1])


def test_a_sender_lost_before_the_transfer_ends_costs_the_request_its_cache() -> None:
    """The transfer would land at 3 s; the sender is gone at 2 and back at 2.5: a new pass starts when it lands."""
    pool = replace(PREFILL, handshake_s=2.0)
    fleet = SimFleet(prefill=[pool], decode=[DECODE], failures=[Failure(pool="p", at_s=2.0, replicas=1, back_s=2.5)])

    result = run(fleet, output_tokens=2)

    assert result.retries[0] == 1
    assert result.landed_s[0] == pytest.approx(3 + 1 + 2)


def test_a_horizon_leaves_requests_unfinished() -> None:
    """At 1.55 s the first has its first token and no end, the second nothing."""
    fleet = SimFleet(prefill=[PREFILL], decode=[DECODE])

    result = run(fleet, SimOptions(engine="python", horizon_s=1.55), arrival_s=[0, 0], output_tokens=50)

    assert result.counts() == {"unfinished": 2}
    assert result.ttft_s[0] == pytest.approx(1.0)
    assert np.isnan(result.ttft_s[1]) and np.isnan(result.e2e_s).all()


def test_a_request_that_can_never_fit_is_rejected_and_a_full_queue_rejects() -> None:
    """300 + 1 tokens into 250; then two of three waiting for a queue of one."""
    small = SimFleet(prefill=[PREFILL], decode=[replace(DECODE, kv_tokens=250)])
    queue = SimFleet(prefill=[replace(PREFILL, max_queue=1)], decode=[DECODE])

    assert run(small, input_tokens=300, output_tokens=2).counts() == {"rejected: larger than the memory": 1}
    assert run(queue, arrival_s=[0, 0.1, 0.2, 0.3], output_tokens=1).counts() == {
        "finished": 2,
        "rejected: queue full": 2,
    }


def test_every_fault_of_fleet_and_requests_is_named() -> None:
    """Wrong pools, flows, links and failures in one message; wrong requests in one message."""
    fleet = SimFleet(
        prefill=[replace(PREFILL, replicas=0, nic_bytes_per_s=0)],
        decode=[replace(DECODE, batch=[2, 1]), replace(DECODE, name="e", step_s=[[0.3], [0.1]])],
        links=[Link(name="l", bandwidth_bytes_per_s=0)],
        flows=[Flow(source="p", target="d", link="m"), Flow(source="d", target="p")],
        failures=[Failure(pool="x", at_s=1, replicas=1)],
    )
    with pytest.raises(ValueError) as fault:
        run(fleet, output_tokens=2)
    for words in (
        "0 replicas", "nic_bytes_per_s", "increasing grids", "must not fall", "no link 'm'", "'d' -> 'p'", "'x' at 1 s",
        "positive bandwidth",
    ):  # fmt: skip
        assert words in str(fault.value)
    with pytest.raises(
        ValueError, match=r"increasing order; input_tokens goes down to 0; .*2 values|one value per arrival"
    ):
        run(SimFleet(prefill=[PREFILL], decode=[DECODE]), arrival_s=[1, 0], input_tokens=0, output_tokens=[1, 2, 3])
    with pytest.raises(ValueError, match="cached_tokens exceeds"):
        run(SimFleet(prefill=[PREFILL], decode=[DECODE]), cached_tokens=101, output_tokens=2)


def test_no_requests_are_served_at_once() -> None:
    result = run(SimFleet(colocated=[ColocatedPool(name="c", replicas=1, batch=[1], context=[0], step_s=[[1.0]])]),
                 arrival_s=[], output_tokens=1)  # fmt: skip

    assert len(result.ttft_s) == 0 and result.pools[0].busy_frac == 0.0


def test_prompt_work_is_by_the_tokens_of_an_iteration() -> None:
    """A line that flattens: two prompts of 100 in one iteration cost less than twice one, and a token of delay is a plain step."""
    pool = ColocatedPool(
        name="c", replicas=1, batch=[1, 2], context=[0], step_s=[[0.1], [0.1]], chunk_tokens=1000,
        prompt_work=([0, 100, 200, 1000], [0.0, 0.5, 0.6, 2.2]), first_token_steps=1.0,
    )  # fmt: skip
    one = run(SimFleet(colocated=[pool]), output_tokens=2)
    two = run(SimFleet(colocated=[pool]), arrival_s=[0.0, 0.0], output_tokens=2)

    assert one.ttft_s[0] == pytest.approx(0.1 + 0.5 + 0.1)
    assert two.ttft_s.max() == pytest.approx(0.1 + 0.6 + 0.1)
    with pytest.raises(ValueError, match="prompt_work"):
        run(SimFleet(colocated=[replace(pool, prompt_work=([0, 0], [1, 2]))]), output_tokens=2)
