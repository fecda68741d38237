"""`pdplan trace`, and what a plan says about the trace it rests on."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from pdplan.workload.lengths import compress


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pdplan", *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )


def write_trace(folder: Path, *, bad: bool = False, bursts: bool = False) -> Path:
    """600 requests over ten minutes; with bursts all of a minute's requests come in every other minute."""
    rng = np.random.default_rng(1)
    times = np.sort(rng.uniform(0, 600, 600))
    if bursts:
        times = np.sort((times // 120) * 120 + times % 120 / 4)
    lines = ["arrival_s,input_tokens,output_tokens"]
    lines += [
        f"{t:.3f},{a},{b}"
        for t, a, b in zip(times, rng.integers(100, 3000, 600), rng.integers(10, 300, 600), strict=True)
    ]
    if bad:
        lines.insert(5, "oops,1,2")
        lines.append("1.0,-5,7")
    path = folder / "trace.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_describe_prints_rate_lengths_and_burstiness(tmp_path: Path) -> None:
    """A reader sees what the trace holds; JSON has the same."""
    write_trace(tmp_path)
    shown = run("trace", "describe", "trace.csv", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "600 requests" in shown.stdout
    assert "burstiness" in shown.stdout
    data = json.loads(run("trace", "describe", "trace.csv", "--json", cwd=tmp_path).stdout)
    assert data["requests"] == 600
    assert data["rate_req_per_s"] == pytest.approx(1.0, rel=0.03)
    assert data["bad_lines"] == 0


def test_bad_lines_are_counted_and_named(tmp_path: Path) -> None:
    """Never dropped in silence."""
    write_trace(tmp_path, bad=True)
    shown = run("trace", "describe", "trace.csv", cwd=tmp_path)
    assert shown.returncode == 0
    assert "2 lines hold no request" in shown.stderr
    assert "line 6" in shown.stderr


def test_convert_writes_a_shape_that_plans(tmp_path: Path, root: Path) -> None:
    """The shape of a gzipped trace keeps its means, and a scenario takes it."""
    path = write_trace(tmp_path)
    packed = tmp_path / "trace.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    done = run("trace", "convert", "trace.csv.gz", "--out", "shape.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shape = yaml.safe_load((tmp_path / "shape.yaml").read_text(encoding="utf-8"))
    points = np.array(shape["joint"])
    rows = np.loadtxt(path, delimiter=",", skiprows=1)
    assert points[:, 2].sum() == pytest.approx(1.0, abs=1e-4)
    assert points[:, 0] @ points[:, 2] == pytest.approx(rows[:, 1].mean(), rel=1e-3)
    assert points[:, 1] @ points[:, 2] == pytest.approx(rows[:, 2].mean(), rel=1e-3)
    again = run("trace", "convert", "trace.csv.gz", cwd=tmp_path)
    assert again.stdout.strip() == (tmp_path / "shape.yaml").read_text(encoding="utf-8").strip()


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "arrival_s,input_tokens,output_tokens\nx,y,z\n"])
def test_traces_without_a_request_are_refused(tmp_path: Path, text: str) -> None:
    """One sentence, exit code 2."""
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    shown = run("trace", "describe", "t.csv", cwd=tmp_path)
    assert shown.returncode == 2
    assert "t.csv" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_plan_says_what_is_wrong_with_its_trace(tmp_path: Path, root: Path) -> None:
    """Lines left out and arrivals that are not stationary are warnings of the plan."""
    write_trace(tmp_path, bad=True, bursts=True)
    data = yaml.safe_load((root / "examples" / "quickstart.yaml").read_text(encoding="utf-8"))
    data["workload"]["lengths"] = {"trace": "trace.csv"}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    shown = run("plan", "s.yaml", "--json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    warnings = json.loads(shown.stdout)["warnings"]
    assert any("2 lines hold no request" in w for w in warnings)
    assert any("times as much as stationary arrivals" in w for w in warnings)


def test_a_shape_keeps_the_percentiles_that_are_asked_for() -> None:
    """p50, p90, p95 and p99 of both lengths within 3 % on skewed, correlated lengths; means exactly."""
    rng = np.random.default_rng(3)
    base = rng.normal(size=20_000)
    inputs = np.exp(6.5 + base)
    outputs = np.exp(5 + 0.5 * base + rng.normal(size=20_000))
    a, b, w = compress(inputs, outputs)
    assert len(w) < 130
    for points, values in ((a, inputs), (b, outputs)):
        order = np.argsort(points)
        below = np.cumsum(w[order])
        assert w @ points == pytest.approx(values.mean(), rel=1e-9)
        for q in (0.5, 0.9, 0.99):
            at = points[order][np.searchsorted(below, q)]
            assert at == pytest.approx(np.quantile(values, q), rel=0.03)
