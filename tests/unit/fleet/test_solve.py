"""The fleet program on problems small enough to solve by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pdplan.errors import InfeasibleError, InputError, SolverError
from pdplan.fleet.problem import (
    CapacityTable,
    FleetProblem,
    Lane,
    Limits,
    LinkOption,
    NodeOffer,
    PoolOption,
    SiteOption,
    State,
)
from pdplan.fleet.solve import SolveOptions, solve_fleet
from pdplan.fleet.solver import Program, _verdict

EXACT = SolveOptions(gap=1e-9)


def _pool(
    name: str, role: Any = "colocated", site: str = "a", destination: str = "a", kv_bytes: float = 0.0
) -> PoolOption:
    """3 req/s a replica of one card: 5 req/s need two."""
    return PoolOption(
        id=name,
        role=role,
        lane="all",
        site=site,
        node_type="x",
        destination_site=destination,
        cards_per_replica=1,
        capacity=CapacityTable(replicas=np.arange(1, 7), rate_req_per_s=3.0 * np.arange(1, 7)),
        kv_bytes_per_request=kv_bytes,
    )


def _offer(site: str = "a", **changes: Any) -> NodeOffer:
    offer = NodeOffer(site=site, node_type="x", cards_per_node=1, cost_usd_per_node_hour=10.0, power_w_per_node=1e3)
    return replace(offer, **changes)


def _problem(pools: Sequence[PoolOption], offers: Sequence[NodeOffer], **changes: Any) -> FleetProblem:
    problem = FleetProblem(
        pools=tuple(pools),
        lanes=(Lane(id="all", rate_frac=1.0),),
        sites=(SiteOption(id="a"), SiteOption(id="b")),
        offers=tuple(offers),
        links=(),
        limits=Limits(),
        states=(State(id="design", rate_req_per_s=5.0, hours_per_year=8760.0),),
    )
    return replace(problem, **changes)


@pytest.mark.parametrize(
    ("offer", "expected"),
    [
        # 2 nodes in use, 4 bought as one lot, none owned: 4 x 10, and the idle ones earn nothing back.
        (_offer(lot_nodes=4, owned_cost_usd_per_node_hour=2.0), 40.0),
        # 2 in use, 1 owned, least order 4 counts the owned one: 3 x 10, the owned one stays cold.
        (_offer(min_nodes_if_used=4, owned_nodes=1, owned_cost_usd_per_node_hour=2.0), 30.0),
        # 2 of 4 owned ones in use: 2 x 2.
        (_offer(owned_nodes=4, owned_cost_usd_per_node_hour=2.0), 4.0),
        # Owned ones dearer to run than new ones are to buy: 2 x 1, and the program stays bounded.
        (_offer(owned_nodes=4, owned_cost_usd_per_node_hour=3.0, cost_usd_per_node_hour=1.0), 2.0),
    ],
)
def test_owned_nodes_cost_what_runs(offer: NodeOffer, expected: float) -> None:
    """Bought nodes cost their price, owned nodes in use their running cost, idle owned nodes nothing."""
    assert solve_fleet(_problem([_pool("c")], [offer]), EXACT).objective == pytest.approx(expected)


def _two_sites(links: int, *, on_lane: bool) -> FleetProblem:
    """5 req/s x 0.3 GB = 1.5 GB/s over links of one 1 GB/s unit each."""
    link = LinkOption(
        site_a="a",
        site_b="b",
        unit_bandwidth_bytes_per_s=1e9,
        usable_frac=1.0,
        min_units=0,
        max_units=1,
        usd_per_unit_hour=1.0,
    )
    return _problem(
        [_pool("p", "prefill", destination="b", kv_bytes=0.0 if on_lane else 0.3e9), _pool("d", "decode", "b", "b")],
        [_offer("a"), _offer("b")],
        links=(link,) * links,
        lanes=(Lane(id="all", rate_frac=1.0, kv_bytes_per_request=0.3e9 if on_lane else 0.0),),
    )


@pytest.mark.parametrize("on_lane", [False, True])
def test_links_carry_the_cache_wherever_its_size_is_given(on_lane: bool) -> None:
    """Two parallel links share the load; one is too narrow, also where only the lane says how much is sent."""
    found = solve_fleet(_two_sites(2, on_lane=on_lane), EXACT)

    assert dict(found.link_units) == {0: 1, 1: 1}
    assert found.objective == pytest.approx(42.0)
    with pytest.raises(InfeasibleError, match="links are too narrow"):
        solve_fleet(_two_sites(1, on_lane=on_lane), EXACT)


STATE = State(id="design", rate_req_per_s=5.0, hours_per_year=8760.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"states": (STATE, STATE)}, "states: 'design' is used twice"),
        ({"states": (replace(STATE, phase=1),)}, "phase: 1 is not one of the 1 phases"),
        ({"states": (replace(STATE, band_frac=(0.5, 0.5)),)}, "2 given; one for each of 1 bands"),
        ({"states": (replace(STATE, hours_per_year=0.0),)}, "its states have no hours"),
        ({"limits": Limits(pinned_nodes={("a", "decode", "y"): 1})}, "is not offered"),
        ({"offers": (_offer(paid="when_used", owned_nodes=1),)}, "owned nodes are there always"),
        ({"pools": (_pool("c"), _pool("c"))}, "used twice"),
        ({"offers": (_offer(), _offer())}, "is used twice"),
        ({"pools": (replace(_pool("c"), node_type="zz"),)}, "no offer of 'zz' at 'a'"),
        ({"pools": (replace(_pool("c"), lane="long"),)}, "'long' is not one of all"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], words: str) -> None:
    """Nothing in a problem is left out in silence."""
    with pytest.raises(InputError, match=words):
        solve_fleet(replace(_problem([_pool("c")], [_offer()]), **changes), EXACT)


def test_reasons_are_given_when_a_probe_stops_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that runs out of time costs its reason only, not the answer that the request cannot be met."""
    whole, calls = Program.solve, []

    def first_only(self: Program, **options: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise SolverError("stopped")
        return whole(self, **options)

    monkeypatch.setattr(Program, "solve", first_only)
    with pytest.raises(InfeasibleError):
        solve_fleet(_problem([_pool("c")], [_offer(max_nodes=1)]), EXACT)
    assert len(calls) > 1


def test_a_plan_by_cards_stands_when_the_second_solve_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without proof of being the cheapest of its kind it is called feasible."""
    whole, calls = Program.solve, []

    def first_only(self: Program, **options: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise SolverError("stopped")
        return whole(self, **options)

    monkeypatch.setattr(Program, "solve", first_only)
    found = solve_fleet(_problem([_pool("c")], [_offer()]), EXACT, objective="cards")

    assert (found.proof, found.objective) == ("feasible", 2.0)


def test_an_incumbent_at_the_time_limit_is_a_plan_without_proof() -> None:
    """Both PuLP majors: status Optimal with an integer feasible point (3.3), TimeLimit with a solution (4)."""
    words = SimpleNamespace(LpStatus={1: "Optimal", -1: "Infeasible"}, LpSolutionOptimal=1, LpSolutionIntegerFeasible=2)
    old = [SimpleNamespace(status=1, sol_status=s) for s in (1, 2, 0)]
    new = [
        SimpleNamespace(status=SimpleNamespace(name=name), has_solution=has)
        for name, has in (("Optimal", True), ("TimeLimit", True), ("TimeLimit", False))
    ]

    assert [_verdict(words, problem, None)[1:] for problem in old] == [(True, True), (True, False), (False, False)]
    assert [_verdict(words, object(), stats)[1:] for stats in new] == [(True, True), (True, False), (False, False)]
