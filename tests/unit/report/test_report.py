"""Reports tell the plan, whole and true: same totals, every field, hostile names kept harmless, all files or none."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pdplan import report
from pdplan.errors import InputError
from pdplan.fleet.plan import Plan, plan_from_json
from pdplan.report.formats.csv import TABLES, columns_of
from pdplan.report.view import money, nearest_text, number, plural, price, ratio_words, seconds

_PATH = Path(__file__).parents[2] / "golden" / "report" / "sample_plans.py"
_spec = importlib.util.spec_from_file_location("sample_plans", _PATH)
assert _spec is not None and _spec.loader is not None
samples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(samples)
PLANS: dict[str, Plan] = samples.PLANS


def tables(plan: Plan, folder: Path) -> dict[str, list[dict[str, str]]]:
    """The CSV tables as a reader gets them."""
    read = {}
    for path in report.write(plan, folder, ["csv"]):
        with path.open(encoding="utf-8-sig", newline="") as stream:
            read[path.stem.removeprefix("plan_")] = list(csv.DictReader(stream))
    return read


def test_formats_are_found() -> None:
    """One module per format."""
    assert report.formats() == ["csv", "html", "json", "md"]
    # The subpackage of the same name does not take the function's place once it is loaded.
    assert report.formats() == ["csv", "html", "json", "md"]


@pytest.mark.parametrize("name", sorted(PLANS))
def test_every_format_has_the_totals_of_the_json(name: str, tmp_path: Path) -> None:
    """The bill adds up, and each format shows the same one."""
    plan = PLANS[name]
    data = json.loads(report.render(plan, "json"))
    if plan.cost is None:
        assert data["cost"] is None
        assert tables(plan, tmp_path)["cost"] == []
        return
    total = data["cost"]["usd_per_hour"]
    cells = tables(plan, tmp_path)

    assert sum(float(row["usd_per_hour"]) for row in cells["cost"]) == pytest.approx(total, rel=1e-12)
    summary = {row["field"]: row["value"] for row in cells["summary"]}
    assert float(summary["usd_per_hour"]) == total
    assert int(summary["cards"]) == data["totals"]["cards"] == sum(int(row["cards"]) for row in cells["pools"])
    for suffix in ("md", "html"):
        assert f"{money(total)} USD per hour" in report.render(plan, suffix)


def leaves(value: Any) -> list[Any]:
    """Every plain value inside."""
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def test_every_figure_of_a_plan_is_in_a_table(tmp_path: Path) -> None:
    """Each value of the JSON stands in some CSV cell, and a field added to Plan fails here until a table has it."""
    plan = PLANS["two_sites"]
    cells = {cell for rows in tables(plan, tmp_path).values() for row in rows for cell in row.values()}
    data = json.loads(plan.to_json())
    missing = [
        leaf
        for leaf in leaves(data)
        if leaf is not None
        and leaf != ""
        and ("yes" if leaf is True else "no" if leaf is False else str(leaf)) not in cells
    ]

    assert missing == []
    # Values alone could hide behind equal ones: every field name has a column or a row, too.
    named = {name for table in TABLES for name in columns_of(table)} | {
        row["field"] for row in tables(plan, tmp_path)["summary"]
    }
    flat = " ".join(named)
    renamed = {
        "schema",
        "reasons",
        "cost",
        "totals",
        "pools",
        "purchases",
        "links",
        "slo",
        "latency",
        "colocated",
        "distances",
        "binding",
        "certificate",
        "solver",
        "candidates",
        "assumptions",
        "warnings",
        "sources",
        "scenario",
        "simulation",
        "assurance",
        "periods",
        "near_optimal",
        "inputs",  # whole files of the user, kept in plan.json only
    }
    assert [name for name in data if name not in renamed and name not in flat] == []
    one = {"schema", "totals", "colocated", "solver", "candidates", "warnings", "sources", "inputs", "assurance"}
    assert {"alternatives", "notes"} | (renamed - one) <= set(TABLES)


def test_columns_do_not_depend_on_the_plan(tmp_path: Path) -> None:
    """Every table is there with the same header, for any plan."""
    headers = []
    for name, plan in PLANS.items():
        paths = report.write(plan, tmp_path / name, ["csv"])
        headers.append({p.name: p.read_bytes().decode("utf-8-sig").split("\r\n")[0] for p in paths})

    assert all(header == headers[0] for header in headers)
    assert headers[0] == {f"plan_{table}.csv": ",".join(columns_of(table)) for table in TABLES}


def test_cells_cannot_run_as_formulas(tmp_path: Path) -> None:
    """Text that starts like a formula gets an apostrophe; numbers, negative ones too, stay numbers."""
    hostile = ["=1+1", "+1", "-1+2", "@SUM(A1)", "\t=1", " =1", "＝1", "\n=1"]
    plan = replace(PLANS["two_sites"], warnings=tuple(hostile), sources=())
    notes = tables(plan, tmp_path)["notes"]

    assert [row["text"] for row in notes] == ["'" + text for text in hostile]
    assert PLANS["two_sites"].certificate is not None
    checks = replace(PLANS["two_sites"].certificate.checks[0], slack=-0.5)
    plan = replace(plan, certificate=replace(PLANS["two_sites"].certificate, checks=(checks,)))
    assert tables(plan, tmp_path)["certificate"][0]["slack"] == "-0.5"


def test_tables_beyond_ascii_are_marked_as_utf8(tmp_path: Path) -> None:
    """Spreadsheets need the mark; plain files stay plain."""
    report.write(PLANS["single_site"], tmp_path, ["csv"])

    assert (tmp_path / "plan_scenario.csv").read_bytes().startswith(b"\xef\xbb\xbf")
    assert not (tmp_path / "plan_pools.csv").read_bytes().startswith(b"\xef\xbb\xbf")


class _Page(HTMLParser):
    """Checks nesting, and collects tags, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("name", sorted(PLANS))
def test_html_is_whole_and_loads_nothing(name: str) -> None:
    """Well nested, one title, headings in order, tables with header cells, no address to fetch, no script."""
    page = _Page()
    page.feed(report.render(PLANS[name], "html"))
    page.close()

    assert page.open == []
    tags = [tag for tag, _ in page.tags]
    assert tags.count("h1") == 1
    assert not {"script", "link", "img", "iframe", "object"} & set(tags)
    assert not [a for _, attributes in page.tags for a in attributes if a in ("src", "href", "onclick", "onload")]
    levels = [int(tag[1]) for tag in tags if tag in ("h1", "h2", "h3")]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert tags.count("caption") == tags.count("table")
    assert page.tags[0] == ("html", {"lang": "en"})
    assert "url(" not in report.render(PLANS[name], "html")


def test_hostile_names_stay_text() -> None:
    """Markup in a scenario is shown, not run."""
    page = _Page()
    page.feed(html := report.render(PLANS["single_site"], "html"))
    markdown = report.render(PLANS["single_site"], "md")

    assert "Café <b>=1+1</b> | 日本" in "".join(page.text)
    assert "<script>" not in html
    assert "\n# Café \\<b>" in "\n" + markdown
    assert "\n<script>" not in markdown
    rows = [line for line in markdown.splitlines() if "HYPERLINK" in line]
    assert len(rows) == 1
    assert "\\|" in rows[0]


def test_markdown_answers_in_three_lines() -> None:
    """Fleet, cost and latency, with the arithmetic of the sample: 160 + 240 + 10 = 410 USD per hour."""
    text = report.render(PLANS["two_sites"], "md")

    assert "12 nodes with 208 cards, of which 32 idle; 266.0 kW." in text
    assert "410.00 USD per hour, 299,300 per month, 3,591,600 per year" in text  # times 730 and 8760
    assert "TTFT p90 2.4 s (target 3 s, met); TPOT p90 43.1 ms (target 50 ms, met)" in text
    # 3.36 s is above 3 s; 47.4 ms is not above 50 ms.
    assert "**Not certain:** TTFT p90 lies within" in text
    assert "costs 50.0 % more. **Disaggregation saves 149,650 USD per month here.**" in text  # 205 x 730
    assert "of which 0.784 ms is the way there and back" in text
    assert "No plan meets the targets at 9,000 km." in text
    assert "TTFT p90 rises by 10 ms to 2.41 s and the cost goes from 410.00 to 426.00 USD per hour" in text


@pytest.mark.parametrize(
    ("mode", "other", "ratio", "words"),
    [
        ("disaggregated", "colocated", 0.5, "Disaggregation does not pay here: it costs 149,650 USD more per month."),
        ("colocated", "disaggregated", 0.5, "Disaggregation saves 149,650 USD per month here."),
        ("colocated", "disaggregated", 1.5, "Disaggregation does not pay here"),
        ("disaggregated", "colocated", 1.001, "Disaggregation neither pays nor costs here."),
    ],
)
def test_the_verdict_says_which_mode_pays(mode: Any, other: str, ratio: float, words: str) -> None:
    """Whichever of the two is the plan."""
    plan = PLANS["two_sites"]
    assert plan.colocated is not None
    changed = replace(
        plan.colocated, mode=other, cost_ratio=ratio, usd_per_hour=410 * ratio, usd_per_month=410 * ratio * 730
    )

    assert words in report.render(replace(plan, mode=mode, colocated=changed), "md")


def test_an_infeasible_request_gets_reasons_and_nearest_values() -> None:
    """In the units of the limits."""
    text = report.render(PLANS["infeasible"], "md")

    assert "**No disaggregated plan meets this request.**" in text
    assert "Nearest that works: **310 ms** (asked: 50 ms)." in text
    assert "Nearest that works: **7.8 kW** (asked: 1.0 kW)." in text
    assert "Nearest that works: **16.00 USD per hour** (asked: 1.00 USD per hour)." in text
    assert "Not possible here: no card holds the weights." in text


def test_a_missed_target_and_a_broken_certificate_are_said_loudly() -> None:
    """No plan like this is printed by the planner; a plan edited by hand may be."""
    plan = PLANS["colocated_only"]
    assert plan.certificate is not None
    check = replace(plan.certificate.checks[0], ok=False, slack=-1.0)
    text = report.render(replace(plan, certificate=replace(plan.certificate, ok=False, checks=(check,))), "md")

    assert "TTFT p90 3.2 s (target 3 s, MISSED)" in text
    assert "0 of 1 constraints, recomputed without the solver, hold: this plan is NOT valid." in text
    assert "VIOLATED" in text
    assert "not proven optimal, gap 3.1 %" in text


@pytest.mark.parametrize("name", sorted(PLANS))
def test_json_round_trips(name: str) -> None:
    """Reading the file back gives the plan, less the solver's time."""
    text = report.render(PLANS[name], "json")
    again = plan_from_json(text)

    assert again == PLANS[name].without_times()
    assert again.to_json() == text


def test_output_is_byte_identical_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Twice the same bytes, over older files too; no temporary file stays; a format named twice is written once."""
    first = report.write(PLANS["two_sites"], tmp_path, ["md", "csv", "json", "html", "md"])
    before = {p.name: p.read_bytes() for p in first}
    report.write(PLANS["two_sites"], tmp_path, ["md", "csv", "json", "html"])

    assert len(first) == len(before) == len(TABLES) + 3
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_nothing_is_written_where_anything_cannot_be(tmp_path: Path) -> None:
    """A file for a folder, a folder in the way of a file, an unknown format: one sentence each, no file."""
    taken = tmp_path / "taken"
    taken.write_text("mine")
    with pytest.raises(InputError, match="is a file; a folder is expected"):
        report.write(PLANS["two_sites"], taken, ["md"])
    with pytest.raises(InputError, match="cannot be written"):
        report.write(PLANS["two_sites"], taken / "below", ["md"])
    blocked = tmp_path / "blocked"
    (blocked / "plan.json").mkdir(parents=True)
    with pytest.raises(InputError, match=r"plan\.json: is a directory"):
        report.write(PLANS["two_sites"], blocked, ["md", "csv", "json"])
    with pytest.raises(InputError, match="'pdf' is not known; choose from csv, html, json, md"):
        report.write(PLANS["two_sites"], tmp_path / "new", ["md", "pdf"])

    assert [p.name for p in blocked.iterdir()] == ["plan.json"]
    assert not (tmp_path / "new").exists()
    assert taken.read_text() == "mine"


def test_printed_tables_name_themselves() -> None:
    """Several tables on one stream: each under its file name, and readable by the csv module."""
    text = report.render(PLANS["two_sites"], "csv")
    part = text.split("# plan_links.csv\n")[1].split("\n\n")[0]

    assert text.count("# plan_") == len(TABLES)
    assert next(csv.DictReader(io.StringIO(part)))["load_gbit_per_s"] == "412.5"


def test_view_rounds_as_people_read() -> None:
    """Three digits, no exponents, milliseconds below a second, cents from a dollar."""
    assert [number(x) for x in (0, 0.01234, 6, 999.96, 12345.6, -2.5)] == [
        "0",
        "0.0123",
        "6",
        "1,000",
        "12,346",
        "-2.5",
    ]
    assert [seconds(x) for x in (0.0, 0.000392, 0.99996, 1.0, 1234.0, None)] == [
        "0 ms",
        "0.392 ms",
        "1 s",
        "1 s",
        "1,234 s",
        "-",
    ]
    assert [price(x) for x in (0.08314, 15.8835, 0.0, None)] == ["0.0831", "15.88", "0.00", "-"]
    assert [ratio_words(x) for x in (1.135, 2.4, 0.8, 1.001)] == [
        "13.5 % more",
        "2.4 times as much",
        "20.0 % less",
        "the same to within half a percent",
    ]
    assert nearest_text("workload.rate_req_per_s", 3.379) == "3.38 requests per second"
    assert nearest_text("sites.east.max_nodes", 25.0) == "25"
    assert [plural(1, "card"), plural(1200, "card")] == ["1 card", "1,200 cards"]
