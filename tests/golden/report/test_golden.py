"""The text of every format over plans written by hand; regenerate with `pytest tests/golden --update-golden`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from pdplan import report

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("sample_plans", HERE / "sample_plans.py")
assert _spec is not None and _spec.loader is not None
samples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(samples)


@pytest.mark.parametrize("name", sorted(samples.PLANS))
@pytest.mark.parametrize("suffix", report.formats())
def test_a_format_prints_what_was_reviewed(name: str, suffix: str, request: pytest.FixtureRequest) -> None:
    """Byte for byte; a changed file is read in review."""
    text = report.render(samples.PLANS[name], suffix)
    path = HERE / "expected" / f"{name}.{suffix}"
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode())
    assert path.is_file(), f"{path.name} is not there yet; run pytest tests/golden --update-golden and read it"
    assert text == path.read_bytes().decode()


def test_no_golden_file_is_left_over() -> None:
    """A format or a plan that went away takes its golden files with it."""
    wanted = {f"{name}.{suffix}" for name in samples.PLANS for suffix in report.formats()}

    assert {path.name for path in (HERE / "expected").iterdir()} == wanted
