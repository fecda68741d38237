"""Every file of the shipped catalog: adding one is enough for it to be tested."""

from __future__ import annotations

from collections import Counter

import pytest
from tabulate import tabulate

from pdplan.catalog.check import check_catalog
from pdplan.catalog.load import KINDS, load_catalog, shipped_folder
from pdplan.catalog.published import compare_with_published
from pdplan.catalog.view import figures, listing, plain, record_of

CATALOG = load_catalog()
ENTRIES = [(kind, entry) for kind in KINDS for entry in CATALOG.ids(kind)]
TRACED = ("accelerators", "nodes", "links", "models")


def test_the_whole_catalog_is_sound():
    report = check_catalog(load_catalog())
    assert report.faults == []


@pytest.mark.parametrize(("kind", "entry"), ENTRIES, ids=[f"{kind}/{entry}" for kind, entry in ENTRIES])
def test_each_file_loads_and_every_number_can_be_traced(kind, entry):
    record = record_of(CATALOG, kind, entry)
    if kind == "workloads":
        assert isinstance(record, dict)
        return
    assert record.id == CATALOG.path(kind, entry).stem
    for origin in record.provenance.values():
        assert CATALOG.source(origin.source).date
    if kind in TRACED:
        rows = [row for row in figures(CATALOG, kind, entry) if any(c.isdigit() for c in row.value)]
        text = ("name", "released", "hf id", "kind", "accelerator", "as released", "architecture", "family")
        text += ("efficiency family", "scale-out link", "per", "note")
        bare = [row.field for row in rows if not row.source and row.field not in text]
        assert bare == []


def test_the_catalog_is_as_wide_as_promised():
    counts = {kind: len(CATALOG.ids(kind)) for kind in KINDS}
    assert counts["accelerators"] >= 45
    assert counts["nodes"] >= 60
    assert counts["models"] >= 60
    assert len(CATALOG.all_price_rows()) >= 300
    supernodes = [CATALOG.node(n).cards_per_node for n in CATALOG.ids("nodes") if CATALOG.node(n).kind == "supernode"]
    assert {64, 72, 128, 384} <= set(supernodes)


@pytest.mark.parametrize(
    ("accelerator", "bf16", "fp8", "fp4", "hbm_bandwidth", "link", "domain", "hbm"),
    [
        # the accelerator table of the pdplan latency model, section 1.1; its fits hold for these numbers only
        ("a100-sxm-80", 312, None, None, 2.039, 300, 8, 85.9),
        ("h100-sxm", 989, 1979, None, 3.35, 450, 8, 85.9),
        ("h200-sxm", 989, 1979, None, 4.80, 450, 8, 151.4),
        ("b200", 2250, 4500, 9000, 7.70, 900, 8, 193.3),
        ("b300", 2250, 4500, 13500, 7.75, 900, 8, 288.4),
        ("gb200-nvl72", 2500, 5000, 10000, 8.00, 900, 72, 198.7),
        ("gb300-nvl72", 2500, 5000, 15000, 8.00, 900, 72, 298.0),
        ("mi300x", 1307, 2615, None, 5.30, 448, 8, 206.1),
        ("mi325x", 1307, 2615, None, 6.00, 448, 8, 274.9),
        ("mi355x", 2516, 5033, 10066, 8.00, 538, 8, 309.2),
    ],
)
def test_chips_the_constants_were_fitted_with(accelerator, bf16, fp8, fp4, hbm_bandwidth, link, domain, hbm):
    a = CATALOG.accelerator(accelerator)
    for precision, tera in (("bf16", bf16), ("fp8", fp8), ("fp4", fp4)):
        have = a.dense_flop_per_s.get(precision)
        assert have == (None if tera is None else pytest.approx(tera * 1e12, rel=1e-3))
    assert a.hbm_bandwidth_bytes_per_s == pytest.approx(hbm_bandwidth * 1e12)
    assert a.scale_up_bandwidth_bytes_per_s == pytest.approx(link * 1e9, rel=2e-3)
    assert a.scale_up_domain_cards == domain
    assert a.hbm_bytes == pytest.approx(hbm * 1e9)


def test_parameter_counts_agree_with_the_publishers():
    """Total within 1 %, active within 2 %, or the model file says why not."""
    rows = compare_with_published(CATALOG)
    columns = ("id", "total_b", "published_total_b", "total_error", "active_b", "published_active_b", "active_error")
    print(tabulate([[getattr(row, name) for name in columns] for row in rows], headers=columns, floatfmt=".4f"))
    for row in rows:
        for error, allowed in ((row.total_error, 0.01), (row.active_error, 0.02)):
            if error is None:
                continue
            assert abs(error) <= allowed or row.accepted, f"{row.id} differs by {error:+.2%}"
            assert abs(error) <= 0.09, f"{row.id}: no reason excuses {error:+.2%}"
    excused = [row.id for row in rows if row.accepted]
    assert len(excused) <= 10, "reasons are for the few publishers who print rounded figures"
    assert sum(row.published_total_b is not None for row in rows) >= 60


def test_price_rows_name_tax_and_currency_and_no_row_is_given_twice():
    rows = CATALOG.all_price_rows()
    assert all(len(row.currency) == 3 for row in rows)
    lines = sum(
        len(path.read_text(encoding="utf-8").splitlines()) - 1 for path in (shipped_folder() / "prices").glob("*.csv")
    )
    assert len(rows) == lines, "a row with the id of another replaces it"
    assert {"on-demand", "spot", "purchase"} <= set(Counter(row.pricing_model for row in rows))


@pytest.mark.parametrize("kind", [*KINDS, "prices", "sources"])
def test_listings_have_a_cell_for_every_header(kind):
    table = listing(CATALOG, kind)
    assert all(len(row) == len(table.headers) for row in table.rows)


def test_records_become_plain_json(tmp_path):
    import json

    for kind, entry in ENTRIES[::17]:
        assert json.loads(json.dumps(plain(record_of(CATALOG, kind, entry))))
