"""``pdplan verify`` and ``pdplan plan --verify`` as a stranger uses them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run([sys.executable, "-m", "pdplan", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def reports(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart, planned and verified."""
    folder = tmp_path_factory.mktemp("reports")
    done = run(
        "plan",
        str(root / "examples" / "quickstart.yaml"),
        "--verify",
        "--out",
        str(folder),
        "--format",
        "md,csv,json,html",
    )
    assert done.returncode == 0, done.stderr
    assert "simulation: " in done.stderr
    return folder


def test_the_quickstart_holds(reports: Path) -> None:
    """Readable answer, exit code 0, the same bytes twice."""
    one, two = (run("verify", str(reports / "plan.json")) for _ in range(2))

    assert one.returncode == 0, one.stdout + one.stderr
    assert one.stdout == two.stdout
    assert "| TTFT p90" in one.stdout
    assert "| decode-1" in one.stdout


def test_plan_verify_stamps_every_report(reports: Path) -> None:
    """Markdown, HTML, CSV and JSON hold what the simulation found."""
    plan = json.loads((reports / "plan.json").read_text(encoding="utf-8"))

    assert plan["simulation"]["ok"] is True
    assert "## Checked by simulation" in (reports / "plan.md").read_text(encoding="utf-8")
    assert "Checked by simulation" in (reports / "plan.html").read_text(encoding="utf-8")
    table = (reports / "plan_simulation.csv").read_bytes().decode("utf-8-sig").splitlines()
    assert len(table) == 1 + len(plan["simulation"]["targets"])


def test_verify_repeats_what_the_plan_was_stamped_with(reports: Path) -> None:
    """The command on the file gives the numbers inside the file."""
    plan = json.loads((reports / "plan.json").read_text(encoding="utf-8"))
    found = json.loads(run("verify", str(reports / "plan.json"), "--json").stdout)

    assert found.pop("schema") == "pdplan.verification/1"
    assert found == plan["simulation"]


def test_out_writes_both_files(reports: Path, tmp_path: Path) -> None:
    """verification.md is what stdout shows."""
    done = run("verify", str(reports / "plan.json"), "--requests", "500", "--seeds", "1", "--out", str(tmp_path / "v"))

    assert (tmp_path / "v" / "verification.md").read_text(encoding="utf-8") == done.stdout
    assert json.loads((tmp_path / "v" / "verification.json").read_text(encoding="utf-8"))["runs"] == 1


def test_a_missed_target_is_exit_code_1(reports: Path, tmp_path: Path) -> None:
    """A failure without return of the only decode node."""
    done = run("verify", str(reports / "plan.json"), "--fail", "decode-1@100", "--seeds", "1")

    assert done.returncode == 1
    assert "MISSED" in done.stdout
    assert "down" in done.stdout


def test_a_trace_is_replayed(reports: Path, tmp_path: Path) -> None:
    """A small generic trace; its own rate is said."""
    trace = tmp_path / "t.csv"
    trace.write_text(
        "timestamp,input_tokens,output_tokens\n" + "".join(f"{i / 10},800,100\n" for i in range(300)), encoding="utf-8"
    )
    done = run("verify", str(reports / "plan.json"), "--trace", str(trace))

    assert done.returncode == 0, done.stderr
    assert "10 per second" in done.stdout
    assert "--at-plan-rate" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--router", "best"], "--router: 'best' is not accepted"),
        (["--fail", "decode-1"], "--fail: 'decode-1' is not accepted"),
        (["--fail", "moon@10"], "'moon' is no pool and no site"),
        (["--requests", "1"], "--requests: 1 is not accepted"),
        (["--trace", "missing.csv"], "missing.csv: no such file"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(reports: Path, arguments: list[str], words: str) -> None:
    """No traceback, nothing on stdout."""
    done = run("verify", str(reports / "plan.json"), *arguments)

    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_an_infeasible_plan_is_refused(root: Path, tmp_path: Path) -> None:
    """There is no fleet in it."""
    text = (root / "examples" / "quickstart.yaml").read_text(encoding="utf-8").replace("{p90: 0.04}", "{p90: 0.0001}")
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    plan = run("plan", str(tmp_path / "s.yaml"), "--json", "--verify")
    (tmp_path / "plan.json").write_text(plan.stdout, encoding="utf-8")
    done = run("verify", str(tmp_path / "plan.json"))

    assert plan.returncode == 3
    assert done.returncode == 2
    assert "no pools" in done.stderr
