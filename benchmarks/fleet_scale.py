"""How the fleet program scales: random realistic instances, size, time, memory, gap, and what each reduction gains.

    python benchmarks/fleet_scale.py                    the targets, five seeds each
    python benchmarks/fleet_scale.py --seeds 2 --only day week
    python benchmarks/fleet_scale.py --paired --seeds 5  each reduction on and off
    python benchmarks/fleet_scale.py --grow --seeds 3    one dimension at a time

Times depend on the machine and on what else runs on it; ratios taken side by side and gaps do not.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pdplan.errors import InfeasibleError, SolverError
from pdplan.fleet import reduce as reductions
from pdplan.fleet import rounding
from pdplan.fleet.audit import failures
from pdplan.fleet.formulation import Part
from pdplan.fleet.limits import build
from pdplan.fleet.problem import (
    Band,
    CapacityTable,
    FleetProblem,
    Lane,
    Limits,
    LinkOption,
    NodeOffer,
    PoolOption,
    Role,
    SiteOption,
    State,
)
from pdplan.fleet.reduce import reduce_states
from pdplan.fleet.shape import Shape
from pdplan.fleet.solve import SolveOptions, solve_fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Dimensions of a random instance."""

    types: int = 12
    layouts: int = 4
    sites: int = 3
    states: int = 24
    lanes: int = 4
    rate_req_per_s: float = 400.0


TARGETS = {
    "day": (Size(), 10.0),
    "week": (Size(states=168), 60.0),
    "pools": (Size(types=8, layouts=8, sites=8, lanes=1, rate_req_per_s=600.0), 10.0),
}
"""Name -> size and target seconds. `pools` has 8 x 8 x 8 decode and as many prefill pools per destination: about 4,600."""


def _table(rate: float, most: int, wait: float) -> CapacityTable:
    """Convex: n replicas carry rate (n - wait sqrt(n)), as pools of servers with one queue do."""
    n = np.unique(np.round(np.geomspace(1, max(most, 2), 10)).astype(np.int64))
    carried = rate * np.maximum(n - wait * np.sqrt(n), 0.3 * n)
    return CapacityTable(replicas=n, rate_req_per_s=np.maximum.accumulate(carried))


def random_instance(size: Size, seed: int) -> FleetProblem:
    """Node types of 8 to 128 cards with reserved and some rented offers, stock, power, links, least cards, a load curve."""
    rng = np.random.default_rng(seed)
    sites = [f"s{i}" for i in range(size.sites)]
    kinds = [f"h{i:02d}" for i in range(size.types)]
    cards = {kind: int(rng.choice([8, 8, 8, 16, 64, 128])) for kind in kinds}
    speed = {kind: float(rng.lognormal(0.0, 0.4)) for kind in kinds}
    bias = {kind: float(rng.uniform(0.6, 1.6)) for kind in kinds}  # decode against prefill
    price = {kind: cards[kind] * speed[kind] ** 0.8 * float(rng.uniform(1.2, 2.4)) for kind in kinds}
    offers = []
    for site in sites:
        for kind in kinds:
            factor = float(rng.uniform(0.9, 1.15))
            offers.append(
                NodeOffer(
                    site=site,
                    node_type=kind,
                    term="reserved",
                    cards_per_node=cards[kind],
                    cost_usd_per_node_hour=price[kind] * factor,
                    power_w_per_node=cards[kind] * 900.0,
                    max_nodes=max(2, int(rng.integers(20, 80) * 8 / cards[kind])),
                )
            )
            if rng.random() < 0.3:
                offers.append(
                    NodeOffer(
                        site=site,
                        node_type=kind,
                        term="on-demand",
                        cards_per_node=cards[kind],
                        cost_usd_per_node_hour=price[kind] * factor * float(rng.uniform(1.5, 2.5)),
                        power_w_per_node=cards[kind] * 900.0,
                        max_nodes=max(1, int(rng.integers(5, 20) * 8 / cards[kind])),
                        paid="when_used",
                    )
                )
    bands = tuple(
        Band(id=f"b{i}", rate_frac=float(f))
        for i, f in enumerate(rng.dirichlet([3.0] * {1: 1, 2: 2, 3: 2}.get(size.lanes, 3)))
    )
    # Contiguous unions of bands, the single ones first, so that lanes overlap and their shares are decided.
    spans = sorted(itertools.combinations(range(len(bands) + 1), 2), key=lambda ab: (ab[1] - ab[0], ab))
    lanes = tuple(
        Lane(
            id=f"l{a}{b}",
            bands=tuple(range(a, b)),
            rate_frac=sum(bands[i].rate_frac for i in range(a, b)),
            kv_bytes_per_request=2e8 * (a + b),
        )
        for a, b in (spans * size.lanes)[: min(size.lanes, len(spans))]
    )
    pools: list[PoolOption] = []
    for lane in lanes:
        length = 1.0 + float(np.mean(lane.bands))
        for kind in kinds:
            for k in range(size.layouts):
                tp = 2**k if 2**k <= cards[kind] else cards[kind]
                efficiency = float(rng.uniform(0.7, 1.0)) * tp**-0.08
                wait = 0.3 + 0.3 * float(rng.random())
                for site in sites:
                    per = tp * speed[kind] * efficiency / length
                    decode = per * bias[kind] * 0.5
                    most = int(size.rate_req_per_s * lane.rate_frac * 1.2 / (per * 0.3)) + 2
                    n = np.array([1], dtype=np.int64)
                    linear = CapacityTable(replicas=n, rate_req_per_s=decode * n)
                    pools.append(_pool("decode", lane.id, site, kind, site, tp, k, linear))
                    pools += [
                        _pool("prefill", lane.id, site, kind, other, tp, k, _table(per, most, wait)) for other in sites
                    ]
    hours = np.arange(size.states)
    curve = 0.65 + 0.3 * np.sin(2 * np.pi * (hours % 24 - 9) / 24) + 0.05 * rng.random(size.states)
    curve /= curve.max()
    return FleetProblem(
        pools=tuple(pools),
        lanes=lanes,
        bands=bands,
        sites=tuple(SiteOption(id=site, max_power_w=float(rng.uniform(1.5, 4.0)) * 1e6) for site in sites),
        offers=tuple(offers),
        links=tuple(
            LinkOption(
                site_a=a,
                site_b=b,
                unit_bandwidth_bytes_per_s=12.5e9,
                usable_frac=0.7,
                min_units=0,
                max_units=16,
                usd_per_unit_hour=12.0,
            )
            for a, b in itertools.combinations(sites, 2)
        ),
        limits=Limits(min_cards_by_role={"prefill": 64, "decode": 64}),
        states=tuple(
            State(id=f"t{i:03d}", rate_req_per_s=size.rate_req_per_s * float(c), hours_per_year=8760 / size.states)
            for i, c in enumerate(curve)
        ),
    )


def _pool(
    role: Role, lane: str, site: str, kind: str, destination: str, cards: int, k: int, table: CapacityTable
) -> PoolOption:
    return PoolOption(
        id=f"{role}-{lane}-{site}-{kind}-{k}-{destination}",
        role=role,
        lane=lane,
        site=site,
        node_type=kind,
        destination_site=destination,
        cards_per_replica=cards,
        capacity=table,
    )


def _one(problem: FleetProblem, options: SolveOptions) -> tuple[str, float, float, int, int]:
    """Verdict, seconds, gap, variables, rows."""
    began = time.perf_counter()
    try:
        found = solve_fleet(problem, options)
    except InfeasibleError:
        return "infeasible", time.perf_counter() - began, 0.0, 0, 0
    except SolverError:
        return "no plan", time.perf_counter() - began, 1.0, 0, 0
    took = time.perf_counter() - began
    verdict = found.proof if not failures(problem, found) else "BROKEN"
    return verdict, took, found.gap, found.variables, found.constraints


def _print(name: str, runs: list[tuple[str, float, float, int, int]], note: str = "") -> None:
    seconds = sorted(run[1] for run in runs)
    gaps = [run[2] for run in runs]
    verdicts = ",".join(run[0] for run in runs)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{name:24s} {statistics.median(seconds):8.2f} s (most {seconds[-1]:7.2f})  gap most {max(gaps):7.3%}  "
        f"{runs[0][3]:7d} columns {runs[0][4]:7d} rows  peak {memory:5.0f} MiB  {verdicts} {note}",
        flush=True,
    )


def targets(only: list[str], seeds: int, options: SolveOptions) -> None:
    """The stated sizes."""
    for name in only:
        size, seconds = TARGETS[name]
        instances = [random_instance(size, seed) for seed in range(seeds)]
        _print(
            f"{name} ({len(instances[0].pools)} pools)", [_one(p, options) for p in instances], f"target {seconds:g} s"
        )


def paired(seeds: int, options: SolveOptions) -> None:
    """Each reduction on and off over the same instances."""
    size = Size(types=6, layouts=2, sites=2, states=12, lanes=1, rate_req_per_s=100.0)
    instances = [random_instance(size, seed) for seed in range(seeds)]

    def ratio(name: str, without: Callable[[FleetProblem], float]) -> None:
        ratios = []
        for problem in instances:
            began = time.perf_counter()
            _one(problem, replace(options, method="states"))
            with_it = time.perf_counter() - began
            ratios.append(without(problem) / with_it)
        shown = " ".join(f"{r:.1f}" for r in ratios)
        print(f"{name:50s} without / with: median {statistics.median(ratios):5.1f} ({shown})", flush=True)

    def timed(problem: FleetProblem, how: SolveOptions) -> float:
        began = time.perf_counter()
        _one(problem, how)
        return time.perf_counter() - began

    ratio("states relaxed, then rounded", lambda p: timed(p, replace(options, method="exact", gap=5e-3)))
    most = rounding.CLUSTERS

    def unclustered(problem: FleetProblem) -> float:
        rounding.CLUSTERS = 10_000  # type: ignore[misc]
        try:
            return timed(problem, replace(options, method="states"))
        finally:
            rounding.CLUSTERS = most  # type: ignore[misc]

    instances = [random_instance(replace(size, states=168), seed) for seed in range(seeds)]
    ratio("168 states clustered for the bound", unclustered)
    owned = [replace(p, offers=tuple(o for o in p.offers if o.paid == "always")) for p in instances]
    for problem in owned[:1]:
        kept = len(reductions.reduce_states(problem).problem.states)
        print(f"implied states without rented nodes: 168 -> {kept}")


def grow(seeds: int, options: SolveOptions) -> None:
    """One dimension at a time from a small instance."""
    base = Size(types=6, layouts=2, sites=2, states=12, lanes=1, rate_req_per_s=200.0)
    steps = {"types": (3, 6, 12), "layouts": (2, 4, 8), "sites": (1, 2, 4), "states": (12, 48, 168), "lanes": (1, 3, 6)}
    for name, values in steps.items():
        for value in values:
            size = replace(base, **{name: value})
            _print(f"{name} = {value}", [_one(random_instance(size, seed), options) for seed in range(seeds)])


def build_only(seeds: int) -> None:
    """Rows and seconds of the all-integer program of the day."""
    for seed in range(seeds):
        shape = Shape(reduce_states(random_instance(TARGETS["day"][0], seed)).problem)
        began = time.perf_counter()
        program, _ = build(shape, Part(states=tuple(range(len(shape.problem.states)))))
        print(
            f"all-integer, seed {seed}: {program.size} columns and rows, built in {time.perf_counter() - began:.1f} s"
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--paired", action="store_true")
    parser.add_argument("--grow", action="store_true")
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--time-limit-s", type=float, default=60.0)
    parser.add_argument("--gap", type=float, default=1e-2)
    given = parser.parse_args()
    options = SolveOptions(time_limit_s=given.time_limit_s, gap=given.gap)
    if given.paired:
        paired(given.seeds, options)
    elif given.grow:
        grow(given.seeds, options)
    elif given.build:
        build_only(given.seeds)
    else:
        targets(given.only, given.seeds, options)
        for solver in ("cbc", "scip"):
            if shutil.which(solver):
                print(solver, end=": ")
                targets(["day"], given.seeds, replace(options, solver=solver))


if __name__ == "__main__":
    main()
