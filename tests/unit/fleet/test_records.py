import numpy as np
import pytest

import pdplan
from pdplan.errors import InputError
from pdplan.fleet.plan import Plan, Stats, plan_from_json
from pdplan.fleet.problem import CapacityTable
from pdplan.fleet.tables import is_linear, replicas_for, segments, table_rate
from pdplan.scenario.resolve import annuity_usd_per_hour

TABLE = CapacityTable(replicas=np.array([1, 2, 4]), rate_req_per_s=np.array([1.0, 3.0, 8.0]))


def test_a_table_is_read_below_its_chords() -> None:
    """n = 3 lies between 3 and 8: the smaller slope (2 per replica) gives 5, the chord would promise 5.5."""
    assert [table_rate(TABLE, n) for n in (0, 1, 2, 3, 4, 6)] == [0.0, 1.0, 3.0, 5.0, 8.0, 13.0]
    assert segments(TABLE)[-1] == (4, None, 8.0, 2.5)


@pytest.mark.parametrize(("rate", "n"), [(0.5, 1), (1.0, 1), (1.1, 2), (4.9, 3), (5.1, 4), (8.1, 5)])
def test_fewest_replicas_for_a_rate(rate: float, n: int) -> None:
    assert replicas_for(TABLE, rate) == n
    assert table_rate(TABLE, n) >= rate > table_rate(TABLE, n - 1)


def test_linearity_is_seen() -> None:
    assert is_linear(CapacityTable(replicas=np.array([1, 2]), rate_req_per_s=np.array([1.5, 3.0])))
    assert not is_linear(TABLE)


def test_annuity_pays_back_the_purchase() -> None:
    """The instalments' present value is the purchase: 5 years at 10 %."""
    hourly = annuity_usd_per_hour(100_000.0, years=5, interest_per_year_frac=0.10)

    assert sum(hourly * 8760 / 1.1**year for year in range(1, 6)) == pytest.approx(100_000.0)


def test_a_plan_survives_json() -> None:
    plan = Plan(
        scenario={"name": "x"},
        catalog_digest="sha256:0",
        status="infeasible",
        mode="disaggregated",
        objective="cost",
        latency={"ttft_s": Stats(mean=1.0, p50=0.9, p90=1.5, p99=2.0)},
    )

    assert plan_from_json(plan.to_json()) == plan


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "other"}', '{"schema": "pdplan.plan/1", "status": 3}'])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"PLAN.json"):
        plan_from_json(text)


def test_importing_pdplan_loads_no_solver() -> None:
    import subprocess
    import sys

    code = "import sys, pdplan, pdplan.cli.app; print([m for m in ('pulp', 'highspy', 'scipy', 'numba') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    assert set(pdplan.__all__) >= {"Plan", "estimate", "load_scenario", "plan", "solve"}
    with pytest.raises(AttributeError):
        _ = pdplan.nothing
