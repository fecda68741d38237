"""Fleets written down by their owner."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdplan.errors import InputError
from pdplan.fleet.certify import certify
from pdplan.fleet.own import own_fleet
from pdplan.fleet.pipeline import plan_file
from pdplan.scenario.load import load_scenario


def write(folder: Path, root: Path, pools: str) -> Path:
    """A fleet beside the quickstart's scenario."""
    text = (root / "examples" / "quickstart.yaml").read_text(encoding="utf-8")
    (folder / "s.yaml").write_text(text, encoding="utf-8")
    path = folder / "fleet.yaml"
    path.write_text(f"schema: pdplan.fleet/1\nscenario: s.yaml\npools:\n{pools}", encoding="utf-8")
    return path


GOOD = """  - {role: prefill, site: cloud, type: aws-p5-48xlarge, nodes: 1, replicas: 4}
  - {role: decode, site: cloud, type: aws-p5-48xlarge, nodes: 1, replicas: 2, tp: 2}
"""


def test_a_fleet_with_room_holds_and_one_without_names_what_breaks(root: Path, tmp_path: Path) -> None:
    """Fewer prefill replicas than the work needs: TTFT and work are violated, nothing else."""
    plan, scenario = own_fleet(write(tmp_path, root, GOOD))
    assert certify(scenario, plan).ok
    assert [pool.rate_req_per_s for pool in plan.pools] == [20.0, 20.0]
    plan, scenario = own_fleet(write(tmp_path, root, GOOD.replace("replicas: 4", "replicas: 1")))
    broken = [check.name for check in certify(scenario, plan).checks if not check.ok]
    assert len(broken) == 2
    assert broken[0].startswith("TTFT p90")
    assert "work below" in broken[1]


def test_the_planned_fleet_written_down_scores_as_the_plan(root: Path, tmp_path: Path) -> None:
    """Counts, layouts and rates of a plan give the plan's own latencies."""
    plan = plan_file(load_scenario(root / "examples" / "quickstart.yaml"))
    lines = "".join(
        f"  - {{role: {p.role}, site: {p.site}, type: {p.node_type}, nodes: {p.nodes}, replicas: {p.replicas}, tp: {p.layout.tp}, "
        f"pp: {p.layout.pp}, ep: {p.layout.ep}, attention_dp: {p.layout.attention_dp}, max_batch: {p.layout.max_batch}, "
        f"rate_req_per_s: {p.rate_req_per_s!r}}}\n"
        for p in plan.pools
    )
    own, scenario = own_fleet(write(tmp_path, root, lines))
    certificate = certify(scenario, own)
    assert certificate.ok
    for line in plan.slo:
        name = {"ttft_s": "TTFT", "tpot_s": "TPOT"}[line.metric]
        found = next(c.lhs for c in certificate.checks if c.name.startswith(f"{name} p{line.percentile:g}"))
        assert found == pytest.approx(line.predicted, rel=1e-6)


@pytest.mark.parametrize(
    ("pools", "words"),
    [
        ("  - {role: prefill, site: cloud, type: aws-p5-48xlarge, nodes: 0, replicas: 4}\n", "nodes"),
        ("  - {role: router, site: cloud, type: aws-p5-48xlarge, nodes: 1, replicas: 4}\n", "role"),
        ("  - {role: prefill, site: cloud, type: aws-p5-48xlarge, nodes: 1, replicas: 4, colour: 1}\n", "colour"),
        ("  []\n", "pools"),
    ],
)
def test_odd_fleets_are_refused(root: Path, tmp_path: Path, pools: str, words: str) -> None:
    """One sentence with the field."""
    with pytest.raises(InputError, match=words):
        own_fleet(write(tmp_path, root, pools))
    (tmp_path / "x.yaml").write_text("a: 1\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"schema is not 'pdplan\.fleet/1'"):
        own_fleet(tmp_path / "x.yaml")
