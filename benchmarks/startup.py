"""Whole-process times of `--help` and of a plan, and where a plan's time goes. Medians; nothing is asserted.

python benchmarks/startup.py [SCENARIO] [REPEATS]
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

SPLIT = """
import json, sys, time
marks = [("start", time.perf_counter())]
def mark(name): marks.append((name, time.perf_counter()))
from pdplan import report
from pdplan.catalog.load import load_catalog
from pdplan.fleet import build, candidates, certify, evaluate, pipeline, solve
import pulp, highspy
mark("import")
scenario = pipeline.resolve(pipeline.load_scenario(sys.argv[1]), load_catalog())
mark("load")
fleet = candidates.fleet_of(scenario)
found, _ = candidates.enumerate_candidates(scenario, fleet)
mark("enumerate")
problems = {mode: build.build_problem(scenario, fleet, found, mode) for mode in scenario.fleet.modes}
mark("tables")
answers = {mode: solve.solve_fleet(built.problem) for mode, built in problems.items()}
mark("solve")
plan = pipeline.plan_scenario(scenario)
mark("(whole plan again)")
certify.certify(scenario, plan)
mark("certify")
report.render(plan, "md")
mark("report")
print(json.dumps({name: end - begin for (_, begin), (name, end) in zip(marks, marks[1:])}))
"""
COMMAND = [sys.executable, "-c", "from pdplan.cli.app import main; main()"]


def median_s(command: list[str], repeats: int) -> float:
    """Median wall time of a process."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    scenario = sys.argv[1] if len(sys.argv) > 1 else str(Path(__file__).parent.parent / "examples" / "quickstart.yaml")
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    bare = median_s([sys.executable, "-c", "pass"], repeats)
    whole = median_s([*COMMAND, "plan", scenario, "-q"], repeats)
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    print(f"bare interpreter      {bare:6.3f} s")
    print(f"pdplan --help         {median_s([*COMMAND, '--help'], repeats):6.3f} s")
    print(f"pdplan plan           {whole:6.3f} s   peak {peak_mb:.0f} MB   ({whole / bare:.0f} x the bare interpreter)")
    rows = [
        json.loads(
            subprocess.run([sys.executable, "-c", SPLIT, scenario], capture_output=True, text=True, check=True).stdout
        )
        for _ in range(repeats)
    ]
    for name in rows[0]:
        print(f"  {name:20s}{statistics.median(row[name] for row in rows):6.3f} s")


if __name__ == "__main__":
    main()
