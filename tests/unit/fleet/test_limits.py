"""Every limit, state and term of the fleet program on instances solved by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pdplan.errors import InfeasibleError, SolverError
from pdplan.fleet.audit import failures
from pdplan.fleet.problem import (
    Band,
    CapacityTable,
    FleetProblem,
    Lane,
    Limits,
    LinkOption,
    NodeOffer,
    Phase,
    PoolOption,
    SiteOption,
    State,
)
from pdplan.fleet.solve import FleetSolution, SolveOptions, alternatives, solve_fleet
from pdplan.fleet.solver import Program

EXACT = SolveOptions(gap=1e-9)
DAY = State(id="day", rate_req_per_s=6.0, hours_per_year=4380.0)
NIGHT = State(id="night", rate_req_per_s=2.0, hours_per_year=4380.0)


def pool(name: str, role: Any = "colocated", *, kind: str = "x", per: float = 1.0, **changes: Any) -> PoolOption:
    """One card a replica, `per` req/s each."""
    table = CapacityTable(replicas=np.array([1]), rate_req_per_s=np.array([per]))
    given: dict[str, Any] = {"lane": "all", "site": "a", "destination_site": changes.get("site", "a"), **changes}
    return PoolOption(id=name, role=role, node_type=kind, cards_per_replica=1, capacity=table, **given)


def offer(kind: str = "x", usd: float = 1.0, **changes: Any) -> NodeOffer:
    given: dict[str, Any] = {"site": "a", "cards_per_node": 1, "power_w_per_node": 1e3, **changes}
    return NodeOffer(node_type=kind, cost_usd_per_node_hour=usd, **given)


def problem(pools: Sequence[PoolOption], offers: Sequence[NodeOffer], **changes: Any) -> FleetProblem:
    made = FleetProblem(
        pools=tuple(pools),
        lanes=(Lane(id="all", rate_frac=1.0),),
        sites=(SiteOption(id="a"), SiteOption(id="b")),
        offers=tuple(offers),
        links=(),
        limits=Limits(),
        states=(DAY,),
    )
    return replace(made, **changes)


def solved(given: FleetProblem, **options: Any) -> FleetSolution:
    """The answer, audited."""
    found = solve_fleet(given, replace(EXACT, **options))
    assert failures(given, found) == []
    return found


def test_owned_base_and_rented_burst_split_at_the_break_even() -> None:
    """6 by day, 2 at night, rent 1.5 for half of the hours = 0.75 against 1 always: base 2, burst 4: 2 + 4 x 0.75 = 5."""
    given = problem(
        [pool("c")], [offer(term="own"), offer(usd=1.5, term="rent", paid="when_used")], states=(DAY, NIGHT)
    )
    found = solved(given)

    assert found.objective == pytest.approx(5.0)
    assert found.bought == {("a", "x", "own"): 2}
    assert [one.rented for one in found.states] == [{("a", "x", "rent"): 4}, {}]
    dear = replace(given, offers=(offer(term="own"), offer(usd=2.5, term="rent", paid="when_used")))
    assert solved(dear).bought == {("a", "x", "own"): 6}


def test_nodes_switch_roles_between_states_unless_forbidden() -> None:
    """Prefill 6 + decode 2 by day, 2 + 6 in a night of long answers: 8 nodes with switching, 12 without."""
    pools = [
        pool("p", "prefill", variants={"n": CapacityTable(replicas=np.array([1]), rate_req_per_s=np.array([3.0]))}),
        pool(
            "d",
            "decode",
            per=3.0,
            variants={"n": CapacityTable(replicas=np.array([1]), rate_req_per_s=np.array([1.0]))},
        ),
    ]
    given = problem(pools, [offer()], states=(DAY, replace(DAY, id="long", variant="n")))

    assert solved(given).objective == pytest.approx(8.0)
    assert solved(replace(given, limits=Limits(allow_role_switch=False))).objective == pytest.approx(12.0)


@pytest.mark.parametrize(
    ("lost", "nodes"),
    [({("a", "x"): 1}, 7.0), ({("a", "x"): 2}, 8.0)],
)
def test_a_state_with_lost_nodes_needs_as_many_more(lost: dict[tuple[str, str], int], nodes: float) -> None:
    """6 nodes serve; the state without some of them must too."""
    given = problem([pool("c")], [offer()], states=(DAY, replace(DAY, id="loss", lost_nodes=lost, hours_per_year=0.0)))
    assert solved(given).objective == pytest.approx(nodes)


def test_a_lost_type_is_not_asked_of_a_fleet_without_it() -> None:
    """Losing two nodes of a type of which none is there costs nothing: y serves alone."""
    loss = replace(DAY, id="loss", lost_nodes={("a", "x"): 2}, hours_per_year=0.0)
    given = problem([pool("c"), pool("e", kind="y")], [offer(), offer("y", 1.1)], states=(DAY, loss))
    # x with two spares costs 8, y costs 6.6.
    assert solved(given).objective == pytest.approx(6.6)


def test_a_lost_site_is_served_by_the_other() -> None:
    """Half demand must survive the loss of site a: 3 nodes at b, 3 at a."""
    pools = [pool("c"), pool("e", site="b")]
    loss = replace(DAY, id="loss", rate_req_per_s=3.0, lost_sites=("a",), hours_per_year=0.0)
    given = problem(pools, [offer(), offer(usd=1.2, site="b")], states=(DAY, loss))
    assert solved(given).objective == pytest.approx(3 + 3.6)


def test_spare_nodes_and_their_idle_power() -> None:
    """N + 2: 8 nodes; power of 6 busy and 2 idle ones."""
    given = problem([pool("c")], [offer(idle_power_w_per_node=200.0)], limits=Limits(spare_nodes={"colocated": 2}))
    found = solved(given)
    assert found.nodes == {("a", "colocated", "x"): 8}
    tight = replace(given, limits=replace(given.limits, max_power_w=8e3 - 1))
    assert solved(tight).objective == pytest.approx(8.0)


def test_phases_buy_late_where_prices_fall_and_early_where_they_must() -> None:
    """Demand 2 then 6; 1.0 in phase 0, 0.5 in phase 1: 2 x 1 + 4 x 0.5 x half the time = 3."""
    states = (replace(NIGHT, hours_per_year=8760.0), replace(DAY, hours_per_year=8760.0, phase=1))
    phases = (Phase(id="q0", weight=0.5), Phase(id="q1", weight=0.5))
    given = problem(
        [pool("c")], [offer(cost_by_phase_usd_per_node_hour=(1.0, 0.5), term="t")], states=states, phases=phases
    )
    found = solved(given)

    assert found.objective == pytest.approx(3.0)
    assert found.bought_by_phase == {("a", "x", "t", 0): 2, ("a", "x", "t", 1): 4}
    late = replace(given, offers=(replace(given.offers[0], from_phase=1), offer(usd=5.0, term="now", max_nodes=2)))
    # Two dear nodes from the start, four of the late ones: 10 + 1.
    assert solved(late).objective == pytest.approx(11.0)


def test_overlapping_lanes_choose_their_shares() -> None:
    """Short half: on cheap y cards alone; long half on x. One lane for both would need x at 4 each."""
    bands = (Band(id="short", rate_frac=0.5), Band(id="long", rate_frac=0.5))
    lanes = (
        Lane(id="both", rate_frac=1.0, bands=(0, 1)),
        Lane(id="short", rate_frac=0.5, bands=(0,)),
        Lane(id="long", rate_frac=0.5, bands=(1,)),
    )
    pools = [pool("b", lane="both"), pool("s", lane="short", kind="y", per=3.0), pool("l", lane="long")]
    given = problem(pools, [offer(usd=4.0), offer("y")], lanes=lanes, bands=bands)
    found = solved(given)

    # 3 req/s short on one y, 3 req/s long on three x: 1 + 12, against 24 for all on x.
    assert found.objective == pytest.approx(13.0)
    assert found.peak.lane_share == {"short": 1.0, "long": 1.0}


def test_a_group_serves_lanes_in_turn() -> None:
    """2.5 + 3.5 replicas of one group are six, not seven."""
    bands = (Band(id="u", rate_frac=2.5 / 6), Band(id="w", rate_frac=3.5 / 6))
    lanes = (Lane(id="u", rate_frac=2.5 / 6, bands=(0,)), Lane(id="w", rate_frac=3.5 / 6, bands=(1,)))
    pools = [pool("u", lane="u", group="g"), pool("w", lane="w", group="g")]
    found = solved(problem(pools, [offer()], lanes=lanes, bands=bands))

    assert found.objective == pytest.approx(6.0)
    assert sum(found.peak.group_replicas.values()) == pytest.approx(6.0)
    alone = [replace(one, group="") for one in pools]
    assert solved(problem(alone, [offer()], lanes=lanes, bands=bands)).objective == pytest.approx(7.0)


TWO = [pool("p", "prefill"), pool("d", "decode", kind="y")]
TWO_OFFERS = [offer(vendor="v"), offer("y", 1.0, vendor="w"), offer("z", 3.0, vendor="v")]


def test_same_vendor_pays_for_it() -> None:
    """Decode on y of another vendor: 12; on z of the same vendor: 6 + 18."""
    given = problem([*TWO, pool("e", "decode", kind="z")], TWO_OFFERS)
    assert solved(given).objective == pytest.approx(12.0)
    assert solved(replace(given, limits=Limits(same_vendor=True))).objective == pytest.approx(24.0)


def test_pinned_counts_hold_exactly() -> None:
    """Four of y run already: two x for the rest, at 1 each, and y at 3."""
    given = problem(
        [pool("c"), pool("e", kind="y")],
        [offer(), offer("y", 3.0)],
        limits=Limits(pinned_nodes={("a", "colocated", "y"): 4}),
    )
    found = solved(given)
    assert found.nodes == {("a", "colocated", "x"): 2, ("a", "colocated", "y"): 4}


def test_maximum_change_counts_both_ways() -> None:
    """Today 5 y at 3 USD; x costs 1. Six changes: 3 y go, 3 x come, and one x more would be a seventh: 3 y + 3 x."""
    limits = Limits(current_nodes={("a", "y"): 5}, max_changed_nodes=6)
    offers = [offer(), offer("y", 0.0, owned_nodes=5, owned_cost_usd_per_node_hour=3.0, max_nodes=5)]
    found = solved(problem([pool("c"), pool("e", kind="y")], offers, limits=limits))
    # |x| + (5 - y) <= 6 with x + y >= 6: x = 3, y = 3 -> 5 changes; x = 4, y = 2 -> 7. So x = 3, y = 3.
    assert found.nodes == {("a", "colocated", "x"): 3, ("a", "colocated", "y"): 3}


def test_carbon_limits_and_is_minimised() -> None:
    """x: 1 USD, 2 kg; y: 3 USD, 1 kg. 9 kg: three of each."""
    offers = [offer(carbon_kg_per_node_hour=2.0), offer("y", 3.0, carbon_kg_per_node_hour=1.0)]
    given = problem([pool("c"), pool("e", kind="y")], offers, limits=Limits(max_carbon_kg_per_hour=9.0))
    assert solved(given).objective == pytest.approx(3 + 9)
    assert solved(replace(given, objective="carbon", limits=Limits())).objective == pytest.approx(6.0)
    with pytest.raises(InfeasibleError, match=r"the least is 6\.00"):
        solve_fleet(replace(given, limits=Limits(max_carbon_kg_per_hour=5.0)), EXACT)


def test_energy_is_paid_for_nodes_in_use() -> None:
    """Owned six nodes at 1 USD, 1 kW at 0.5 USD/kWh: 6 x 0.5 by day and 2 x 0.5 at night: 6 + (3 + 1) / 2."""
    given = problem([pool("c")], [offer(energy_usd_per_kwh=0.5)], states=(DAY, NIGHT))
    assert solved(given).objective == pytest.approx(8.0)


def test_the_largest_multiple_within_a_budget() -> None:
    """9 USD/h buy nine nodes: 1.5 times the demand."""
    given = problem([pool("c")], [offer()], objective="throughput", limits=Limits(budget_usd_per_hour=9.0))
    found = solve_fleet(given, EXACT)

    assert found.objective == pytest.approx(1.5, rel=2e-3)
    assert found.objective <= 1.5 * (1 + 1e-9) <= found.bound * (1 + 1e-9)


def test_a_second_objective_may_cost_a_stated_fraction() -> None:
    """Least power within 10 % of the least cost 6.0: y draws a tenth and costs 1.3 each, so two y (6.6 >= 6 + 2 x 0.3)."""
    offers = [offer(), offer("y", 1.3, power_w_per_node=100.0)]
    given = problem([pool("c"), pool("e", kind="y")], offers, then=(("power", 0.1),))
    found = solved(given)

    assert found.nodes == {("a", "colocated", "x"): 4, ("a", "colocated", "y"): 2}
    assert found.objective == pytest.approx(6.0)
    assert found.cost_usd_per_hour == pytest.approx(6.6)


def _linked(**state: Any) -> FleetProblem:
    link = LinkOption(
        site_a="a",
        site_b="b",
        unit_bandwidth_bytes_per_s=1e9,
        usable_frac=1.0,
        min_units=0,
        max_units=9,
        usd_per_unit_hour=1.0,
    )
    pools = [
        pool("p", "prefill", destination_site="b", kv_bytes_per_request=0.5e9),
        pool("d", "decode", site="b", kind="y"),
    ]
    loss = replace(DAY, id="loss", hours_per_year=0.0, **state)
    return problem(pools, [offer(), offer("y", site="b")], links=(link,), states=(DAY, loss))


def test_lost_link_units_are_bought_on_top() -> None:
    """3 GB/s need three units, four where one may be lost; a lost link cannot be bought around."""
    assert solved(_linked(lost_link_units={("b", "a"): 1})).link_units == {0: 4}
    with pytest.raises(InfeasibleError, match="without the loss of a-b it could be"):
        solve_fleet(_linked(lost_links=(("a", "b"),)), EXACT)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (problem([pool("d", "decode")], [offer()]), "lane 'all' has no pool that can serve it in state 'day'"),
        (
            problem([pool("c")], [offer()], limits=Limits(pinned_nodes={("a", "decode", "x"): 2})),
            "no layout of that type can serve that role",
        ),
        (problem([pool("c")], [offer(max_nodes=4)]), "4 x x at a are too few: 6 would do"),
        (problem([pool("c")], [offer(max_nodes=7)], limits=Limits(spare_nodes={"colocated": 2})), "the spare nodes"),
        (
            problem(
                [pool("c")], [offer(max_nodes=6)], states=(DAY, replace(DAY, id="down", lost_nodes={("a", "x"): 1}))
            ),
            "state 'down' cannot be met: without the loss of 1 x x at a",
        ),
        (
            problem([pool("c")], [offer()], limits=Limits(current_nodes={("a", "x"): 1}, max_changed_nodes=2)),
            "2 changed nodes are too few",
        ),
    ],
)
def test_reasons_name_the_requirement(given: FleetProblem, words: str) -> None:
    """What breaks the request, in words."""
    with pytest.raises(InfeasibleError, match=words):
        solve_fleet(given, EXACT)


def test_alternatives_open_other_places() -> None:
    """x alone 6, x and y 7 (one y at 2), y alone 12."""
    given = problem([pool("c"), pool("e", kind="y")], [offer(), offer("y", 2.0)])
    found = alternatives(given, 3, EXACT)

    assert [round(one.objective, 6) for one in found] == [6.0, 7.0, 12.0]


def test_a_simple_plan_stands_in_for_a_dead_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marked greedy, audited; without one the solver's fault is told."""

    def dead(self: Program, **options: Any) -> Any:
        raise SolverError("stopped")

    monkeypatch.setattr(Program, "solve", dead)
    found = solved(problem([pool("c"), pool("e", kind="y")], [offer(), offer("y", 2.0)], states=(DAY, NIGHT)))
    assert (found.proof, found.objective) == ("greedy", 6.0)
    with pytest.raises(SolverError):
        solve_fleet(problem([pool("c")], [offer(max_nodes=2)]), EXACT)


def test_implied_states_cost_no_columns() -> None:
    """A night that costs nothing by use is not solved, and gets the day's plan at its own demand."""
    one = solved(problem([pool("c")], [offer()]))
    both = solved(problem([pool("c")], [offer()], states=(DAY, NIGHT)))

    assert both.variables == one.variables
    assert both.states[1].flow_req_per_s == {"c": pytest.approx(2.0)}


def test_the_solver_log_is_written_on_request(tmp_path: Path) -> None:
    """HiGHS writes its own log there and nothing to standard output."""
    log = tmp_path / "solver.log"
    solve_fleet(problem([pool("c")], [offer()]), replace(EXACT, log_file=str(log)))
    assert "HiGHS" in log.read_text()
