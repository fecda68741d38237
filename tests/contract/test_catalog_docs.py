"""The catalog's pages are fresh, and its how-to guides do what they say."""

from __future__ import annotations

import importlib.util
import re
import shlex

import pytest
from typer.testing import CliRunner

from pdplan.catalog.load import load_catalog
from pdplan.cli.catalog import app

BLOCK = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_reference_pages_say_what_the_catalog_says(root):
    spec = importlib.util.spec_from_file_location("generate_catalog", root / "docs" / "generate_catalog.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    stale = [
        name
        for name, text in module.pages(load_catalog()).items()
        if not (page := root / "docs" / "reference" / name).is_file() or page.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run python docs/generate_catalog.py"


@pytest.mark.parametrize("page", ["add-a-gpu", "add-a-price", "add-a-model"])
def test_how_to_guides_work_as_written(page, root, tmp_path, monkeypatch):
    """Files are written, then commands run, in the order of the page."""
    monkeypatch.chdir(tmp_path)
    commands = 0
    for language, file, text in BLOCK.findall((root / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8")):
        if file:
            path = tmp_path / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif language == "console":
            for line in text.splitlines():
                words = shlex.split(line.removeprefix("$ "))
                assert words[:2] == ["pdplan", "catalog"]
                result = CliRunner().invoke(app, words[2:])
                assert result.exit_code == 0, (line, result.output, result.exception)
                assert result.stdout.strip()
                commands += 1
    assert commands >= 3


def test_every_field_of_the_readme_is_one_the_loader_knows(root):
    """Fields named in the tables of catalogs/README.md exist in the files or columns."""
    from pdplan.catalog.load import PRICE_COLUMNS

    text = (root / "catalogs" / "README.md").read_text(encoding="utf-8")
    section = text.split("## nodes/")[1].split("## links/")[0]
    names = {name for row in re.findall(r"^\| ([a-z_, ]+) \|", section, re.MULTILINE) for name in row.split(", ")}
    known = set(load_catalog().raw("nodes", "h100-sxm-8"))
    assert names <= known
    prices = text.split("## prices/")[1].split("## families/")[0]
    columns = {n for row in re.findall(r"^\| ([a-z_, ]+) \|", prices, re.MULTILINE) for n in re.split(r", | or ", row)}
    assert columns <= set(PRICE_COLUMNS)
