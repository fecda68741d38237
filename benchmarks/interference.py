"""What prompts in the same batch do to the answers of others: gaps between tokens, disaggregated and colocated, by chunk size.

Usage: OMP_NUM_THREADS=1 python benchmarks/interference.py [--requests N] [--write]

The quickstart scenario on H100 nodes of one card at its own rate: a disaggregated plan, and colocated plans with one token budget each. All
are simulated under the same requests; the cost is what each plan needs to meet the same targets. `--write` puts the table
into docs/explanation/simulation.md, between its markers.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pdplan.catalog.load import load_catalog
from pdplan.fleet.pipeline import plan_scenario, scenario_of
from pdplan.fleet.verify import verify_plan
from pdplan.fleet.verify_options import VerifyOptions
from pdplan.scenario.load import load_scenario, parse_scenario
from pdplan.scenario.resolve import resolve

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "simulation.md"
CHUNKS = (256, 512, 1024, 2048, 4096, 8192)


def scenario(mode: str, chunk: int | None) -> dict[str, Any]:
    """The quickstart with one mode, one machine and one token budget."""
    given = dict(load_scenario(ROOT / "examples" / "quickstart.yaml").given)
    given["sites"] = [{"name": "cloud", "nodes": ["aws-p5-4xlarge"]}]
    given["fleet"] = {"modes": [mode], **({"chunk_tokens": [chunk]} if chunk else {})}
    return given


def row(name: str, data: dict[str, Any], requests: int) -> str:
    """One line of the table, milliseconds."""
    plan = plan_scenario(resolve(parse_scenario(data, name="interference"), load_catalog()))
    if plan.cost is None or plan.totals is None:
        return f"| {name} | cannot meet the targets | | | | | | | |"
    found = verify_plan(plan, scenario_of(plan), VerifyOptions(requests=requests))
    values = {(line.metric, line.percentile): line.simulated for line in found.latency}
    cells = [
        values[key]
        for key in (
            ("itl_s", 50.0),
            ("itl_s", 99.0),
            ("itl_max_s", 50.0),
            ("itl_max_s", 100.0),
            ("tpot_s", 99.0),
            ("ttft_s", 99.0),
        )
    ]
    text = " | ".join("no answer" if value is None else f"{1e3 * value:.1f}" for value in cells)
    return f"| {name} | {plan.totals.cards} | {plan.cost.usd_per_hour:.2f} | {text} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    lines = [
        "| fleet | cards | USD per hour | gap p50, ms | gap p99 | largest gap of a request, median | largest of all | TPOT p99 | TTFT p99 |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        row("disaggregated", scenario("disaggregated", None), given.requests),
        *(row(f"colocated, {chunk} tokens", scenario("colocated", chunk), given.requests) for chunk in CHUNKS),
    ]
    table = "\n".join(lines)
    print(table)
    if given.write:
        before, rest = PAGE.read_text(encoding="utf-8").split("<!-- interference -->\n", 1)
        after = rest.split("<!-- /interference -->", 1)[1]
        PAGE.write_text(f"{before}<!-- interference -->\n{table}\n<!-- /interference -->{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
