"""Simulated requests per CPU second at a light and at a queueing load, compiled and in plain Python; memory; first use.

Usage: OMP_NUM_THREADS=1 python benchmarks/simulation_speed.py [--requests N] [--million]

Two fleets: the plan of examples/quickstart.yaml, as `pdplan verify` plays it, and a made-up one: 8 prefill and 6 decode replicas, prompts of 1155 and answers of 211 tokens on average, a link shared by all
transfers. Full metrics: every summary percentile with its interval is part of the time.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from pdplan.fleet.pipeline import plan_file, scenario_of
from pdplan.fleet.played_requests import draw_requests
from pdplan.fleet.simulated import fleet_to_play
from pdplan.scenario.load import load_scenario
from pdplan.scenario.resolve import Scenario
from pdplan.simulate import (
    DecodePool,
    Flow,
    Link,
    PrefillPool,
    SimFleet,
    SimOptions,
    SimRequests,
    Summary,
    simulate,
    summarise,
)

LIGHT, QUEUEING = 6.0, 20.0
"""Requests/s: prefill busy 27 % and 91 %."""
QUICKSTART = Path(__file__).parents[1] / "examples" / "quickstart.yaml"
QUICKSTART_LOADS = {"light": 0.4, "own": 1.0, "queueing": 1.25}
"""Rates over the scenario's own."""


def fleet() -> SimFleet:
    """Prefill 0.36 s and decode step 29 ms + 0.5 ms a sequence on average: batches of 60 at 20 requests/s."""
    batch, context = np.array([1.0, 8, 16, 32, 64, 128, 256]), np.array([0.0, 512, 1024, 2048, 4096, 8192, 16384])
    step_s = 0.027 + 5.3e-4 * batch[:, None] + 4e-8 * batch[:, None] * context
    return SimFleet(
        prefill=[
            PrefillPool(
                name="prefill",
                replicas=8,
                fixed_s=0.03,
                per_token_s=2.85e-4,
                per_token2_s=2e-9,
                kv_bytes_per_token=35e3,
                nic_bytes_per_s=25e9,
                handshake_s=0.026,
            )
        ],
        decode=[
            DecodePool(
                name="decode",
                replicas=6,
                batch=batch,
                context=context,
                step_s=step_s,
                kv_tokens=1e6,
                max_sequences=256,
            )
        ],
        links=[Link(name="wave", bandwidth_bytes_per_s=50e9, propagation_s=5e-4)],
        flows=[Flow(source="prefill", target="decode", link="wave")],
    )


def requests(rate: float, n: int) -> SimRequests:
    """Poisson arrivals, gamma lengths."""
    rng = np.random.default_rng(7)
    return SimRequests(
        arrival_s=np.cumsum(rng.exponential(1 / rate, n)),
        input_tokens=np.maximum(np.rint(rng.gamma(1.6, 1155 / 1.6, n)), 1),
        output_tokens=np.maximum(np.rint(rng.gamma(1.6, 211 / 1.6, n)), 1),
    )


@cache
def quickstart() -> tuple[SimFleet, Scenario]:
    """The plan of the first example, and its scenario."""
    plan = plan_file(load_scenario(QUICKSTART))
    scenario = scenario_of(plan)
    return fleet_to_play(scenario, plan.pools, plan.links)[0], scenario


def measure(engine: str, served: SimFleet, asked: SimRequests) -> tuple[float, Summary]:
    """CPU seconds of simulation and summary."""
    begin = time.process_time()
    result = simulate(served, asked, SimOptions(engine=engine))  # type: ignore[arg-type]
    summary = summarise(result, ttft_limit_s=2.0, tpot_limit_s=0.1)
    return time.process_time() - begin, summary


def cases(n: int) -> Iterator[tuple[str, SimFleet, SimRequests]]:
    """Name, fleet and requests of every load measured."""
    for name, rate in (("light", LIGHT), ("queueing", QUEUEING)):
        yield f"made-up fleet, {name} load ({rate:g}/s)", fleet(), requests(rate, n)
    served, scenario = quickstart()
    for name, factor in QUICKSTART_LOADS.items():
        faster = replace(scenario, rate_req_per_s=factor * scenario.rate_req_per_s)
        yield f"quickstart, {name} load ({faster.rate_req_per_s:g}/s)", served, draw_requests(faster, n, 7)


FIRST = """
import sys; sys.path.insert(0, "benchmarks")
from simulation_speed import fleet, requests
from pdplan.simulate import SimOptions, simulate
simulate(fleet(), requests(20.0, {n}), SimOptions(engine="{engine}"))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--million", action="store_true", help="peak memory of 1,000,000 requests")
    given = parser.parse_args()
    if given.million:
        seconds, summary = measure("auto", fleet(), requests(QUEUEING, 1_000_000))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"1,000,000 requests: {seconds:.1f} CPU s, {summary.finished} finished, peak {peak:.2f} GB")
        return
    engines = ["python"] + (["numba"] if importlib.util.find_spec("numba") else [])
    for engine in engines:
        for n in (20_000,) if engine == "python" else (20_000, 100_000):
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", FIRST.format(n=n, engine="auto")], check=True)
            print(f"whole process, {n} requests, engine auto: {time.perf_counter() - begin:.2f} s")
        n = given.requests if engine == "numba" else max(given.requests // 10, 1000)
        measure(engine, fleet(), requests(LIGHT, 1000))
        for name, served, asked in cases(n):
            seconds, summary = min((measure(engine, served, asked) for _ in range(3)), key=lambda pair: pair[0])
            busy = max(share.value for pool, share in summary.busy_frac.items() if pool.startswith("prefill"))
            print(
                f"{engine:>6}, {name}: {n / seconds:,.0f} requests per CPU s (prefill busy {busy:.0%}, TTFT p99 "
                f"{summary.quantiles['ttft_s'][0.99].value:.2f} s)"
            )


if __name__ == "__main__":
    main()
