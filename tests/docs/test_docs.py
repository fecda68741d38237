"""The documentation is true: commands run, links resolve, Python examples work."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *ROOT.glob("examples/*.md"),
        *ROOT.glob("docs/**/*.md"),
    ]
)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    """Every relative link of a page leads to a file."""
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
    links = re.findall(r"\]\(([^)#\s]+)", text)
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]

    assert not missing


def test_the_readme_python_example_runs(tmp_path: Path) -> None:
    """The README's Python block runs as it stands."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "reports" / "plan.md").exists()


def test_every_command_of_the_readme_table_exists() -> None:
    """The README names no command that the program does not have, and the program none the README leaves out."""
    shown = set(re.findall(r"`pdplan (\w+)", (ROOT / "README.md").read_text()))
    done = subprocess.run(
        [sys.executable, "-c", "from pdplan.cli.app import main; main()", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    commands = set(re.findall(r"^  (\w+)  ", done.stdout.split("Commands:")[1], flags=re.M))

    assert shown == commands


def test_every_help_text_has_an_example() -> None:
    """Each command's help ends with an example line."""
    for command in ("plan", "verify", "estimate", "check", "init", "schema"):
        done = subprocess.run(
            [sys.executable, "-c", "from pdplan.cli.app import main; main()", command, "--help"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "Example: pdplan " + command in done.stdout.replace("\n", " ").replace("  ", " ")


def test_no_machine_paths_or_hosts_in_tracked_text() -> None:
    """The project speaks of itself alone."""
    words = ("/wo" + "rk/", "/ro" + "ot/", "/tmp" + "/")
    found = [
        str(path.relative_to(ROOT))
        for folder in ("pdplan", "docs", "examples", "benchmarks", "catalogs")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md", ".yaml", ".csv")
        and any(word in path.read_text(encoding="utf-8") for word in words)
    ]

    assert not found
