"""Loading the catalog, the user's folder over it, and what is said about faults."""

from __future__ import annotations

import time

import pytest

from pdplan.catalog.load import PRICE_COLUMNS, Catalog, load_catalog, parse_price_rows, shipped_folder
from pdplan.errors import InputError

CARD = """\
id: my-card
name: My card
vendor: me
family: hopper
released: 2026-01
status: shipping
hbm: 80 GB
hbm_bandwidth: 3 TB/s
dense: {bf16: 900 TFLOP/s}
power: 700 W
scale_up_bandwidth: 400 GB/s
scale_up_domain_cards: 8
provenance:
  hbm: {basis: vendor, source: own_figure, note: on the label}
"""


def overlay(tmp_path, **files):
    for name, text in files.items():
        path = tmp_path / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return load_catalog(tmp_path)


def test_quantities_are_read_once_into_si():
    card = load_catalog().accelerator("h100-sxm")
    assert card.hbm_bandwidth_bytes_per_s == 3.35e12
    assert card.dense_flop_per_s["bf16"] == 989e12
    assert card.provenance["hbm"].source == "aiconfigurator_systems"


@pytest.mark.parametrize("name", ["aws-p5-48xlarge", "AWS-p5.48xlarge", "aws-p5.48xlarge"])
def test_node_names_as_clouds_write_them_are_understood(name):
    catalog = load_catalog()
    assert catalog.node(name).id == "aws-p5-48xlarge"
    assert catalog.price_rows(name) == catalog.price_rows("aws-p5-48xlarge") != []


def test_an_alias_finds_its_entry():
    assert load_catalog().node("h20-8").id == "h20-96-8"


def test_unknown_names_get_near_misses():
    with pytest.raises(InputError, match=r"unknown node 'h100-smx-8'. Did you mean 'h100-sxm-8'.*catalog list nodes"):
        load_catalog().node("h100-smx-8")
    with pytest.raises(InputError, match=r"unknown model 'qwen3-32'. Did you mean 'qwen3-32b'"):
        load_catalog().model("qwen3-32")
    with pytest.raises(InputError, match=r"unknown source 'vendor_datashet'\. Did you mean 'vendor_datasheet'"):
        load_catalog().source("vendor_datashet")
    with pytest.raises(InputError, match="unknown family 'hoper'"):
        load_catalog().family("hoper")


def test_the_users_folder_wins_entry_by_entry(tmp_path):
    theirs = (shipped_folder() / "nodes" / "h100-sxm-8.yaml").read_text(encoding="utf-8")
    catalog = overlay(
        tmp_path,
        **{"accelerators__my-card.yaml": CARD, "nodes__h100-sxm-8.yaml": theirs.replace("50 GB/s", "100 GB/s")},
    )
    assert catalog.accelerator("my-card").hbm_bytes == 80e9
    assert catalog.node("h100-sxm-8").nic_bandwidth_bytes_per_s_per_card == 100e9
    assert catalog.node("h200-sxm-8").nic_bandwidth_bytes_per_s_per_card == 50e9
    assert "my-card" in catalog.ids("accelerators")


def row(**fields):
    given = {
        "id": "me/x/h100-sxm-8/on-demand/2026-11-01", "node": "h100-sxm-8", "provider": "me", "region": "",
        "pricing_model": "on-demand", "currency": "USD", "price_per_node_hour": "10", "purchase_price": "",
        "date_observed": "2026-11-01", "basis": "vendor", "source": "own_figure", "tax_included": "no", "note": "",
    } | fields  # fmt: skip
    return ",".join(PRICE_COLUMNS) + "\n" + ",".join(given[name] for name in PRICE_COLUMNS) + "\n"


def test_prices_of_the_user_stand_beside_the_shipped_ones_even_under_the_same_file_name(tmp_path):
    shipped = load_catalog().price_rows("h100-sxm-8")
    catalog = overlay(tmp_path, **{"prices__semianalysis.csv": row()})
    rows = catalog.price_rows("h100-sxm-8")
    assert len(rows) == len(shipped) + 1
    assert [r.price_per_node_hour for r in rows if r.own] == [10.0]


def test_a_price_row_with_the_id_of_a_shipped_one_replaces_it(tmp_path):
    old = load_catalog().price_rows("h100-sxm-8")[0]
    catalog = overlay(tmp_path, **{"prices__mine.csv": row(id=old.id)})
    rows = catalog.price_rows("h100-sxm-8")
    assert len(rows) == len(load_catalog().price_rows("h100-sxm-8"))
    assert [r.price_per_node_hour for r in rows if r.id == old.id] == [10.0]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("price_per_node_hour", "-1", "price_per_node_hour '-1' is not accepted; a number greater than 0"),
        ("price_per_node_hour", "nan", "price_per_node_hour 'nan' is not accepted"),
        ("price_per_node_hour", "", "price_per_node_hour or purchase_price is expected"),
        ("date_observed", "May 2026", "date_observed 'May 2026' is no day"),
        ("basis", "rumour", "basis 'rumour' is not one of vendor"),
        ("tax_included", "perhaps", "tax_included 'perhaps' is not accepted"),
        ("currency", "", "currency is empty"),
    ],
)
def test_faulty_price_rows_name_line_and_column(tmp_path, field, value, message):
    with pytest.raises(InputError, match="line 2: " + message.replace("(", r"\(")):
        parse_price_rows(tmp_path / "p.csv", row(**{field: value}))


def test_a_price_file_without_a_column_says_which(tmp_path):
    with pytest.raises(InputError, match="column source is missing"):
        parse_price_rows(tmp_path / "p.csv", row().replace("source", "origin", 1))


def test_all_faults_of_a_file_come_at_once(tmp_path):
    text = CARD.replace("3 TB/s", "3350").replace("power: 700 W", "power: hot").replace("status", "state")
    catalog = overlay(tmp_path, **{"accelerators__my-card.yaml": text})
    with pytest.raises(InputError) as caught:
        catalog.accelerator("my-card")
    told = "\n".join(caught.value.faults)
    assert "hbm_bandwidth: '3350' is not a quantity in byte/s" in told
    assert "power: 'hot' is not a quantity in W" in told
    assert "status is missing" in told
    assert "unknown key 'state'. Did you mean 'status'" in told


def test_the_id_must_equal_the_file_name(tmp_path):
    catalog = overlay(tmp_path, **{"accelerators__other.yaml": CARD})
    with pytest.raises(InputError, match="id is 'my-card'; it must equal the file name 'other'"):
        catalog.accelerator("other")


def test_an_overlay_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not a folder"):
        load_catalog(tmp_path / "missing")


def test_the_digest_follows_the_content_of_what_was_used(tmp_path):
    def digest(card):
        catalog = overlay(tmp_path, **{"accelerators__my-card.yaml": card})
        catalog.accelerator("my-card")
        return catalog.digest()

    first = digest(CARD)
    assert first.startswith("sha256:")
    assert digest(CARD) == first
    assert digest(CARD.replace("700 W", "701 W")) != first


def test_nothing_is_read_before_it_is_asked_for(tmp_path):
    catalog = overlay(tmp_path, **{"accelerators__broken.yaml": "id: [", "nodes__broken.yaml": "{"})
    assert catalog.accelerator("h100-sxm").id == "h100-sxm"
    with pytest.raises(InputError, match=r"broken.yaml: line 2"):
        catalog.accelerator("broken")


def test_what_one_plan_needs_loads_fast():
    """A third of a second is asked for here, on any machine; a fast one takes 0.03 s."""
    start = time.perf_counter()
    catalog = Catalog(shipped_folder())
    catalog.model("deepseek-r1"), catalog.node("h100-sxm-8"), catalog.price_rows("h100-sxm-8"), catalog.sources
    assert time.perf_counter() - start < 0.35
