"""A plan in the simulator: hand-computed fleets, planned against simulated, failures, traces, determinism."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pdplan
from pdplan.errors import InputError
from pdplan.fleet.candidates import fleet_of
from pdplan.fleet.certify import _spec
from pdplan.fleet.evaluate import layouts_of
from pdplan.fleet.pipeline import plan_file, scenario_of
from pdplan.fleet.plan import Plan, plan_from_json
from pdplan.fleet.played_requests import draw_requests, trace_requests
from pdplan.fleet.simulated import BOUNDARY_STEPS, fleet_to_play, pool_names
from pdplan.fleet.verify import _chosen, _size, verify_plan
from pdplan.fleet.verify_options import VerifyOptions, options_of, parse_failure
from pdplan.scenario.load import parse_scenario
from pdplan.scenario.resolve import Scenario
from pdplan.simulate import SimOptions, SimRequests, simulate
from pdplan.workload.traces import Trace


def given(**changes: Any) -> dict[str, Any]:
    """A scenario with fixed lengths on priced H100 nodes."""
    return {
        "schema": "pdplan.scenario/1",
        "name": "test",
        "model": "qwen3-32b",
        "precision": {"weights": "fp8", "kv_cache": "fp8"},
        "workload": {"rate_req_per_s": 8, "lengths": {"fixed": {"input_tokens": 2000, "output_tokens": 200}}},
        "slo": {"ttft_s": {"p90": 1.0}, "tpot_s": {"p90": 0.04}},
        "sites": [{"name": "one", "nodes": [{"type": "h100-sxm-8", "usd_per_node_hour": 20.0}]}],
        **changes,
    }


@cache
def planned(kind: str = "") -> tuple[Plan, Scenario]:
    """A plan and its scenario, made once."""
    changes: dict[str, Any] = {}
    if kind == "two sites":
        nodes = [{"type": "h100-sxm-8", "usd_per_node_hour": 20.0}]
        changes = {
            "sites": [{"name": "east", "nodes": nodes}, {"name": "west", "nodes": nodes}],
            "links": [
                {"between": ["east", "west"], "distance_km": 100, "unit_bandwidth": "100 Gb/s", "usd_per_unit_month": 1}
            ],
            "fleet": {"prefill": {"sites": ["east"]}, "decode": {"sites": ["west"]}, "modes": ["disaggregated"]},
        }
    plan = plan_file(parse_scenario(given(**changes), name="scenario.yaml"))
    return plan, scenario_of(plan)


def test_pools_are_named_by_role_and_order() -> None:
    """prefill-1, decode-1, decode-2: as the how-to says."""
    plan, _ = planned()
    pool = plan.pools[0]
    pools = [replace(pool, role="prefill"), replace(pool, role="decode"), replace(pool, role="decode")]

    assert pool_names(pools) == ["prefill-1", "decode-1", "decode-2"]


def test_a_lone_request_takes_the_latency_models_times() -> None:
    """One request in an empty fleet: overhead, pass, transfer, half-step correction and steps, added up by hand."""
    plan, scenario = planned()
    fleet, _ = fleet_to_play(scenario, plan.pools, plan.links)
    result = simulate(
        fleet, SimRequests(arrival_s=[0.0], input_tokens=2000, output_tokens=2), SimOptions(engine="python")
    )
    model = fleet_of(scenario)
    sender = next(pool for pool in plan.pools if pool.role == "prefill")
    receiver = next(pool for pool in plan.pools if pool.role == "decode")
    at, to = layouts_of(model, _spec(sender)), layouts_of(model, _spec(receiver))
    latency, constants = model.latency, model.latency.engine_constants
    passes = float(latency.prefill_pass_s(at, 2000.0, 0.0, 1.0)[0])
    rate = (
        float(latency.nic_bandwidth_bytes_per_s(at)[0])
        * float(latency.kv_transfer_senders(at)[0])
        * latency.general["transfer_efficiency"]
    )
    stream = float(latency.kv_transfer_bytes(at, 2000.0)[0]) / rate
    moved = latency.general["transfer_latency_s"] + max(stream / scenario.model.layers, stream - passes)
    step = float(latency.decode_step_s(to, 1.0, 2001.0)[0])
    by_hand = (
        passes + moved + constants["request_overhead_ms"] + (constants["first_token_steps"] - BOUNDARY_STEPS) * step
    )

    assert result.ttft_s[0] == pytest.approx(by_hand, rel=2e-3)
    assert result.tpot_s[0] == pytest.approx(step, rel=2e-3)


def test_two_mean_prompts_in_a_pass_take_what_the_model_says() -> None:
    """The fixed time of a pass is chosen so."""
    plan, scenario = planned()
    fleet, _ = fleet_to_play(scenario, plan.pools, plan.links)
    pool = replace(fleet.prefill[0], replicas=1, max_requests=2)
    two = simulate(
        replace(fleet, prefill=[pool], flows=fleet.flows[:1] if len(fleet.prefill) == 1 else fleet.flows),
        SimRequests(arrival_s=[0.0, 1e-9, 2e-9], input_tokens=2000, output_tokens=1),
        SimOptions(engine="python"),
    )
    model = fleet_of(scenario)
    layouts = layouts_of(model, _spec(next(p for p in plan.pools if p.role == "prefill")))
    both = float(model.latency.prefill_pass_s(layouts, 2000.0, 0.0, 2.0)[0])

    # The first starts alone, the other two share the next pass.
    assert two.prefill_end_s[2] - two.prefill_start_s[2] == pytest.approx(both, rel=1e-2)


def test_plan_and_simulation_agree_at_a_moderate_load() -> None:
    """Planned p50 and p90 of TTFT within 20 %, of TPOT within 10 %; loads within 10 % of each other."""
    plan, scenario = planned()
    found = verify_plan(plan, scenario, VerifyOptions(runs=2, requests=4000))
    lines = {(line.metric, line.percentile): line for line in found.latency}

    for metric, room in (("ttft_s", 0.2), ("tpot_s", 0.1)):
        for percentile in (50.0, 90.0):
            line = lines[metric, percentile]
            assert line.planned == pytest.approx(line.simulated, rel=room), (metric, percentile)
    for pool in found.pools:
        if pool.role == "decode":
            assert pool.batch_simulated == pytest.approx(pool.batch_planned, rel=0.1)
        else:
            assert pool.utilization_simulated_frac == pytest.approx(pool.utilization_planned_frac, abs=0.1)
    assert found.requests == found.finished == 2 * 3200
    assert found.rejected == found.unfinished == 0


def test_the_number_of_requests_follows_the_scenario() -> None:
    """At least 20 mean lives and 100 requests beyond the highest percentile; a very long run is played once."""
    plan, scenario = planned()
    life = plan.latency["e2e_s"].mean
    found = verify_plan(plan, scenario)
    strict = replace(scenario, targets=(replace(scenario.targets[0], percentile=99.9), scenario.targets[1]))
    sure = verify_plan(plan, strict)

    assert found.runs == sure.runs == 3
    assert found.duration_s > 20 * life
    assert sure.requests * 0.001 >= 100
    fast = replace(scenario, rate_req_per_s=60_000 / (20 * life))
    assert _size(fast, [_chosen(plan)], VerifyOptions())[1] == 1


def test_a_fleet_too_small_is_found_out() -> None:
    """Forty times the traffic on the same fleet: missed, not ok, and the growing queue is named."""
    plan, scenario = planned()
    found = verify_plan(
        plan, replace(scenario, rate_req_per_s=40 * scenario.rate_req_per_s), VerifyOptions(runs=1, requests=3000)
    )

    assert not found.ok
    assert "missed" in {line.verdict for line in found.targets}
    assert any("still growing" in warning for warning in found.warnings)


def test_the_same_seed_gives_the_same_verification() -> None:
    """And another seed another one."""
    plan, scenario = planned()
    one, again, other = (verify_plan(plan, scenario, VerifyOptions(runs=1, requests=1000, seed=s)) for s in (5, 5, 6))

    assert one == again
    assert one.latency != other.latency


def test_a_lost_decode_node_is_felt_and_comes_back() -> None:
    """With its only decode node gone nothing is decoded until it is back: phases show it, and nobody is forgotten."""
    plan, scenario = planned()
    decode = [i for i, pool in enumerate(plan.pools) if pool.role == "decode"]
    assert decode
    options = VerifyOptions(runs=1, requests=4000, failures=(parse_failure("one@200:260"),))
    found = verify_plan(plan, scenario, options)

    assert found.phases[0].name == "all replicas work"
    assert "down" in found.phases[1].name
    assert found.phases[0].attainment_frac > 0.8
    assert found.phases[1].attainment_frac < 0.2
    assert found.rejected > 0
    assert found.requests == found.finished + found.rejected + found.unfinished


def test_a_lost_site_stops_everything_there() -> None:
    """Without the decode site no request after the loss is answered."""
    plan, scenario = planned("two sites")
    found = verify_plan(plan, scenario, VerifyOptions(runs=1, requests=2000, failures=(parse_failure("west@100"),)))

    assert found.phases[-1].attainment_frac == 0.0
    assert found.phases[-1].ttft_p90_s is None
    assert not found.ok


def test_two_failures_of_a_pool_take_different_replicas() -> None:
    """The second node lost is not the first one again, and more nodes than there are is an error."""
    plan, scenario = planned()
    pools = tuple(replace(pool, replicas=3 * pool.replicas) for pool in plan.pools)
    pool = next(p for p in pools if p.role == "decode")
    per_node = 8 // pool.layout.cards_per_replica
    name = pool_names(pools)[pools.index(pool)]
    nodes = -(-pool.replicas // per_node)
    times = [f"{name}@{50 + k}" for k in range(nodes + 1)]
    bigger = replace(plan, pools=pools)
    options = VerifyOptions(runs=1, requests=1000, failures=tuple(parse_failure(text) for text in times[:nodes]))
    found = verify_plan(bigger, scenario, options)

    assert found.phases[-1].name == f"{pool.replicas} replica{'' if pool.replicas == 1 else 's'} down"
    with pytest.raises(InputError, match="are lost already"):
        verify_plan(bigger, scenario, replace(options, failures=tuple(parse_failure(text) for text in times)))


def test_a_link_carries_the_cache_between_sites() -> None:
    """TTFT of a lone request grows by the way there and back when the fibre is longer."""
    plan, scenario = planned("two sites")
    far = replace(scenario, links=tuple(replace(link, one_way_s=link.one_way_s + 0.01) for link in scenario.links))

    def first(of: Scenario) -> float:
        fleet, _ = fleet_to_play(of, plan.pools, plan.links)
        assert len(fleet.links) == 1
        return float(simulate(fleet, SimRequests(arrival_s=[0.0], input_tokens=2000, output_tokens=2)).ttft_s[0])

    assert first(far) - first(scenario) == pytest.approx(0.02, rel=1e-6)


def test_the_colocated_alternative_has_larger_gaps() -> None:
    """Prompts in the same batch hold up decode: p99 over tokens and the largest gap of a request are larger than without."""
    plan, scenario = planned()
    found = verify_plan(plan, scenario, VerifyOptions(runs=2, requests=2000, colocated=True))
    other = found.alternative
    assert other is not None
    mine, theirs = ({(x.metric, x.percentile): x.simulated for x in each.latency} for each in (found, other))

    assert (found.mode, other.mode) == ("disaggregated", "colocated")
    assert found.simulated_requests == other.simulated_requests == 4000
    assert theirs["itl_s", 99.0] > 1.2 * mine["itl_s", 99.0]
    assert theirs["itl_max_s", 90.0] > 1.2 * mine["itl_max_s", 90.0]
    assert mine["itl_s", 50.0] < mine["itl_s", 99.0] <= 1.01 * mine["itl_max_s", 100.0]


def _trace(rate: float, n: int = 400) -> Trace:
    return Trace(
        arrival_s=np.arange(n) / rate,
        input_tokens=np.full(n, 1500),
        output_tokens=np.full(n, 100),
        format="generic",
    )


def test_a_trace_is_replayed_at_its_own_times_or_at_the_plans_rate() -> None:
    """Evenly spaced arrivals keep their distance, or get the plan's."""
    _, scenario = planned()
    own = trace_requests(scenario, _trace(2.0))
    fast = trace_requests(scenario, _trace(2.0), at_plan_rate=True)

    assert np.diff(own.arrival_s) == pytest.approx(0.5)
    assert np.diff(fast.arrival_s) == pytest.approx(1 / 8)


def test_a_trace_with_block_ids_brings_its_own_prefixes() -> None:
    """Blocks of 512: the second prompt begins with two blocks of the first, the third with none though it holds one."""
    _, scenario = planned()
    blocks = [[1, 2, 3], [1, 2, 4], [5, 2], [1]] + [[6 + i] for i in range(8)]
    trace = Trace(
        arrival_s=np.arange(12.0),
        input_tokens=np.array([1500, 1400, 600, 512] + [100] * 8),
        output_tokens=np.full(12, 5),
        block_ids=np.array([b for mine in blocks for b in mine]),
        block_offsets=np.cumsum([0, *(len(mine) for mine in blocks)]),
        format="mooncake",
    )
    asked = trace_requests(scenario, trace)

    assert np.asarray(asked.cached_tokens).tolist() == [0, 1024, 0, 511] + [0] * 8
    assert np.asarray(asked.prefix_group).tolist()[:4] == [0, 0, 1, 0]


def test_a_failure_inside_the_part_left_out_is_said() -> None:
    """The targets' percentiles do not show it, so the reader is told."""
    plan, scenario = planned()
    found = verify_plan(plan, scenario, VerifyOptions(runs=1, requests=4000, failures=(parse_failure("one@5:6"),)))

    assert any("leave out" in warning for warning in found.warnings)


def test_a_slow_trace_warns() -> None:
    """A trace below the plan's rate says little about the plan, and says so."""
    plan, scenario = planned()
    found = verify_plan(plan, scenario, VerifyOptions(runs=1, trace=_trace(2.0), trace_name="x.csv"))

    assert found.rate_req_per_s == pytest.approx(2.0)
    assert any("--at-plan-rate" in warning for warning in found.warnings)
    assert "the trace's answers have 100 tokens on average, those of the scenario 200" in found.warnings


def test_drawn_requests_have_the_scenarios_rate_and_lengths() -> None:
    """Mean gap and fixed lengths."""
    _, scenario = planned()
    asked = draw_requests(scenario, 20_000, 3)

    assert np.mean(np.diff(asked.arrival_s)) == pytest.approx(1 / 8, rel=0.03)
    assert set(np.asarray(asked.input_tokens).tolist()) == {2000.0}
    assert set(np.asarray(asked.output_tokens).tolist()) == {200.0}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("decode-1", "is not accepted"),
        ("decode-1@", "is not accepted"),
        ("decode-1@ten", "is not accepted"),
        ("decode-1@50:20", "return after the loss"),
        ("0*decode-1@50", "at least one node"),
    ],
)
def test_bad_failures_are_named(text: str, words: str) -> None:
    """One sentence with what would be accepted."""
    with pytest.raises(InputError, match=words):
        parse_failure(text)


def test_bad_options_are_all_named_at_once() -> None:
    """Router, seed, seeds, requests, rate without trace."""
    with pytest.raises(InputError) as fault:
        options_of(router="best", seed=-1, seeds=0, requests=3, at_plan_rate=True, failures=["x"])
    text = str(fault.value)

    for word in ("--router", "--seed:", "--seeds", "--requests", "--at-plan-rate", "--fail"):
        assert word in text


def test_a_failure_must_hit_something_and_in_time() -> None:
    """Unknown names list the known ones; a failure after the last arrival is refused."""
    plan, scenario = planned()
    with pytest.raises(InputError, match="pools: prefill-1"):
        verify_plan(plan, scenario, VerifyOptions(failures=(parse_failure("nowhere@1"),)))
    with pytest.raises(InputError, match="the last request arrives"):
        verify_plan(
            plan,
            scenario,
            VerifyOptions(runs=1, requests=500, failures=(parse_failure("one@1000000"),)),
        )


def test_a_plan_without_pools_or_alternative_is_refused() -> None:
    """There is nothing to simulate, in words."""
    plan, scenario = planned()
    with pytest.raises(InputError, match="no pools"):
        verify_plan(replace(plan, pools=()), scenario)
    with pytest.raises(InputError, match="no alternative"):
        verify_plan(replace(plan, colocated=None), scenario, VerifyOptions(colocated=True))


def test_a_plan_written_by_hand_is_checked_first() -> None:
    """Every impossible number at once; rates of 0 give the simulator nothing to do."""
    plan, scenario = planned()
    wrong = tuple(replace(pool, replicas=0, layout=replace(pool.layout, tp=0)) for pool in plan.pools)
    with pytest.raises(InputError) as fault:
        verify_plan(replace(plan, pools=wrong), scenario)
    for words in ("prefill-1: 0 replicas", "decode-1: 0 replicas", "must be at least 1"):
        assert words in str(fault.value)
    decode = tuple(pool for pool in plan.pools if pool.role == "decode")
    with pytest.raises(InputError, match="decode pools only"):
        verify_plan(replace(plan, pools=decode), scenario)
    idle = tuple(replace(pool, rate_req_per_s=0.0) for pool in plan.pools)
    with pytest.raises(InputError, match="cannot be simulated"):
        verify_plan(replace(plan, pools=idle), scenario)


def test_a_plan_keeps_its_verification_through_json() -> None:
    """PLAN.json with a simulation reads back equal, and without one too."""
    plan, scenario = planned()
    stamped = replace(plan, simulation=verify_plan(plan, scenario, VerifyOptions(runs=1, requests=500)))

    assert plan_from_json(stamped.to_json()).simulation == stamped.simulation
    assert plan_from_json(plan.to_json()).simulation is None


def test_the_python_face_takes_a_plan_or_its_file(tmp_path: Path) -> None:
    """Both give the same; options are those of the command."""
    plan, _ = planned()
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json(), encoding="utf-8")
    one = pdplan.verify(plan, seeds=1, requests=500)

    assert one == pdplan.verify(path, seeds=1, requests=500)
    with pytest.raises(InputError, match="--router"):
        pdplan.verify(plan, router="best")
