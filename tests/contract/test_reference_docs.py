"""The generated reference is fresh and complete, and the tutorial's commands run as written."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def generator(root: Path) -> ModuleType:
    """docs/generate_reference.py, loaded."""
    spec = importlib.util.spec_from_file_location("generate_reference", root / "docs" / "generate_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cli.md", "plan-json.md", "csv-tables.md"])
def test_the_reference_says_what_the_code_says(generator: ModuleType, root: Path, name: str) -> None:
    """A new option, field or column needs its page written again."""
    page = root / "docs" / "reference" / name

    assert page.read_text(encoding="utf-8") == generator.pages()[name], "run python docs/generate_reference.py"


@pytest.mark.parametrize("name", ["plan-json.md", "csv-tables.md", "cli.md"])
def test_every_row_of_the_reference_has_a_meaning(generator: ModuleType, name: str) -> None:
    """No field, column or option is left for the reader to guess."""
    rows = [line for line in generator.pages()[name].splitlines() if line.startswith("| `")]

    assert len(rows) > 30
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_page_is_in_the_index(root: Path) -> None:
    """A page nobody can find is not documentation."""
    docs = root / "docs"
    index = (docs / "index.md").read_text(encoding="utf-8")
    linked = {(docs / link).resolve() for link in re.findall(r"\]\(([^)#]+)", index)}
    pages = {path.resolve() for path in docs.rglob("*.md")} - {(docs / "index.md").resolve()}

    assert pages - linked == set()


def test_the_tutorial_runs_as_written(root: Path, tmp_path: Path) -> None:
    """Every command of the tutorial, in order, in an empty folder."""
    text = (root / "docs" / "tutorial" / "first-plan.md").read_text(encoding="utf-8")
    commands = [
        line.removeprefix("$ ")
        for block in re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL)
        for line in block.splitlines()
    ]
    assert len(commands) >= 6
    for command in commands:
        words = shlex.split(command)
        assert words[0] == "pdplan"
        done = subprocess.run(
            [sys.executable, "-c", "from pdplan.cli.app import main; main()", *words[1:]],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
    headings = re.findall(
        r"^## (.+)$", (tmp_path / "reports" / "plan.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    # The sections the tutorial explains are those the report has.
    explained = re.findall(r"^- \*\*(.+?)\*\*", text, flags=re.MULTILINE)
    assert [name for name in explained if not any(heading.startswith(name) for heading in headings)] == []
