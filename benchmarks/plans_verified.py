"""Plans for random scenarios, each simulated under its own traffic: how many hold, and by how much the others miss.

Usage: OMP_NUM_THREADS=1 python benchmarks/plans_verified.py [--scenarios N] [--seed N] [--modes disaggregated,colocated] [--verbose]

A scenario draws a model, an engine, three to six node types with prices per card, lengths from the shipped shapes, a rate, arrivals
(Poisson or more bursty), p90 and p99 targets for TTFT and TPOT, and now and then a second site. Requests that cannot be met are drawn
again and counted. A plan passes when every target's simulated percentile is within its limit, or above it by less than the
simulation's 95 % interval. Aim: 19 of 20 pass, and no miss is larger than 10 % of its target.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import numpy as np

from pdplan.catalog.load import Catalog, load_catalog
from pdplan.errors import PdplanError
from pdplan.fleet.pipeline import plan_scenario, scenario_of
from pdplan.fleet.plan import Plan
from pdplan.fleet.verification import Verification
from pdplan.fleet.verify import verify_plan
from pdplan.fleet.verify_options import VerifyOptions
from pdplan.scenario.load import parse_scenario
from pdplan.scenario.resolve import resolve

ENGINES = ("generic", "vllm", "sglang", "trtllm", "trtllm-dynamo", "sglang-equal-tp")
SHARE_TWO_SITES = 0.2


def _nodes(rng: np.random.Generator, catalog: Catalog) -> list[dict[str, Any]]:
    """Three to six node types, priced by their peak FLOP/s with some scatter."""
    chosen = rng.choice(sorted(catalog.ids("nodes")), size=int(rng.integers(3, 7)), replace=False)
    nodes = []
    for name in chosen:
        node = catalog.node(str(name))
        peak = max(catalog.accelerator(node.accelerator).dense_flop_per_s.values())
        price = node.cards_per_node * (0.3 + peak / 1e15) * float(rng.uniform(0.7, 1.4))
        nodes.append({"type": str(name), "usd_per_node_hour": round(price, 2)})
    return nodes


def random_scenario(rng: np.random.Generator, catalog: Catalog, modes: list[str]) -> dict[str, Any]:
    """A scenario file."""
    ttft, tpot = (
        float(np.exp(rng.uniform(np.log(0.5), np.log(8)))),
        float(np.exp(rng.uniform(np.log(0.015), np.log(0.1)))),
    )
    shape = str(rng.choice(sorted(catalog.ids("workloads"))))
    scenario: dict[str, Any] = {
        "schema": "pdplan.scenario/1",
        "name": "random",
        "model": str(rng.choice(sorted(catalog.ids("models")))),
        "engine": str(rng.choice(ENGINES)),
        "workload": {
            "rate_req_per_s": round(float(np.exp(rng.uniform(np.log(0.5), np.log(60)))), 2),
            "lengths": shape,
            "arrivals": "poisson" if rng.random() < 0.7 else {"cv": round(float(rng.uniform(0.5, 2.0)), 2)},
            "prefix_hit_frac": round(float(rng.choice([0.0, 0.0, 0.3, 0.6])), 2),
        },
        "slo": {"ttft_s": {"p99": round(ttft, 3)}, "tpot_s": {"p99": round(tpot, 4)}},
        "sites": [{"name": "one", "nodes": _nodes(rng, catalog)}],
        "fleet": {"modes": modes},
        "solver": {"gap": 0.01, "time_limit_s": 20.0},
    }
    if rng.random() < 0.5:
        scenario["slo"]["ttft_s"]["p90"] = round(ttft * 0.6, 3)
        scenario["slo"]["tpot_s"]["p90"] = round(tpot * 0.8, 4)
    if rng.random() < SHARE_TWO_SITES and modes[0] == "disaggregated":
        scenario["sites"].append({"name": "two", "nodes": _nodes(rng, catalog)})
        scenario["links"] = [
            {
                "between": ["one", "two"],
                "distance_km": float(rng.integers(5, 800)),
                "unit_bandwidth": "100 Gb/s",
                "usd_per_unit_month": 3000.0,
            }
        ]
        scenario["fleet"] |= {"prefill": {"sites": ["one"]}, "decode": {"sites": ["two"]}}
    return scenario


def worst_miss(found: Verification) -> float:
    """Largest relative excess over a limit, beyond the interval; 0 where all hold."""
    worst = 0.0
    for line in found.targets:
        if line.verdict == "missed":
            worst = max(worst, float("inf") if line.simulated is None else line.simulated / line.target - 1)
    return worst


def fleet_words(plan: Plan) -> str:
    """Pools in short."""
    return ", ".join(
        f"{p.role} {p.replicas} x {p.node_type} tp{p.layout.tp} pp{p.layout.pp} ep{p.layout.ep} dp{p.layout.attention_dp}"
        f" (busy {p.utilization_frac:.0%})"
        for p in plan.pools
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", type=int, default=20)
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--modes", default="disaggregated")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    catalog, rng = load_catalog(), np.random.default_rng(given.seed)
    done = passed = refused = strict = 0
    misses: list[float] = []
    while done < given.scenarios:
        data = random_scenario(rng, catalog, given.modes.split(","))
        began = time.perf_counter()
        try:
            loaded = parse_scenario(data, name=f"scenario {done + 1}")
            plan = plan_scenario(resolve(loaded, catalog))
        except PdplanError as fault:
            refused += 1
            if given.verbose:
                print(f"  refused: {str(fault).splitlines()[0][:160]}")
            continue
        if not plan.pools:
            refused += 1
            continue
        done += 1
        planned = time.perf_counter() - began
        found = verify_plan(plan, scenario_of(plan), VerifyOptions())
        miss = worst_miss(found)
        passed += found.ok
        strict += all(line.verdict == "met" for line in found.targets)
        if not found.ok:
            misses.append(miss)
        lines = "; ".join(
            f"{t.metric[:4].upper()} p{t.percentile:g} {t.planned:.4g} planned, {t.simulated or float('inf'):.4g} simulated, "
            f"limit {t.target:g} ({t.verdict})"
            for t in found.targets
        )
        print(
            f"{done:3d} {'pass' if found.ok else f'MISS by {miss:.1%}'}  {data['model']} on {data['engine']}, "
            f"{data['workload']['rate_req_per_s']}/s {data['workload']['lengths']}: {lines}"
            f"  [{planned:.1f} s planned, {time.perf_counter() - began - planned:.1f} s simulated]"
        )
        if given.verbose or not found.ok:
            print(f"      {fleet_words(plan)}")
            print(f"      {json.dumps(data)}")
        sys.stdout.flush()
    print(
        f"{passed} of {done} plans hold ({strict} without the interval); {refused} requests could not be met. "
        f"Misses: {', '.join(f'{m:.1%}' for m in misses) or 'none'}"
    )


if __name__ == "__main__":
    main()
