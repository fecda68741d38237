"""Public price tables into the user's folder."""

from __future__ import annotations

from datetime import date

import pytest

from pdplan.catalog.import_prices import import_prices
from pdplan.catalog.load import load_catalog
from pdplan.errors import InputError

SKYPILOT = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice,AvailabilityZone
p5.48xlarge,H100,8.0,192.0,2048.0,55.04,us-east-1,x,20.5,us-east-1a
p5.48xlarge,H100,8.0,192.0,2048.0,55.04,us-east-1,x,18.25,us-east-1b
m7i.large,,,2.0,8.0,0.1,us-east-1,,0.03,us-east-1a
p9.48xlarge,Z900,8.0,192.0,2048.0,99.0,us-east-1,x,,us-east-1a
,H100,8.0,,,30.0,us-east-1,x,,us-east-1a
p5.48xlarge,H100,4.0,192.0,2048.0,27.0,us-east-2,x,,us-east-2a
"""
GPUHUNT = """\
instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor,flags
gpu_8x_h100_sxm5,us-west-1,23.92,208,1800,8,H100,80,False,22000,nvidia,
gpu_8x_h100_sxm5,us-west-1,12.5,208,1800,8,H100,80,True,22000,nvidia,
cpu_4x,us-west-1,0.2,4,16,0,,,False,,,
"""


def put(tmp_path, name, text):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_skypilot_rows_are_placed_and_the_others_reported(tmp_path):
    own = tmp_path / "own"
    report = import_prices(put(tmp_path, "aws/vms.csv", SKYPILOT), own, load_catalog(), seen=date(2026, 11, 30))
    assert (report.format, report.placed, report.nodes, report.without_accelerator) == ("SkyPilot catalog", 2, 1, 1)
    assert sum(count for _, count in report.unplaced) == 3
    told = " ".join(why for why, _ in report.unplaced)
    reasons = ("Z900: accelerator is not in the catalog",)
    reasons += ("priced without its machine", "4 cards in the file, 8 in node")
    for words in reasons:
        assert words in told
    rows = {r.pricing_model: r for r in load_catalog(own).price_rows("aws-p5-48xlarge") if r.own}
    assert rows["on-demand"].price_per_node_hour == 55.04
    assert rows["spot"].price_per_node_hour == 18.25, "the cheapest zone of the region"
    assert rows["spot"].date_observed == date(2026, 11, 30)


def test_gpuhunt_rows_are_placed(tmp_path):
    own = tmp_path / "own"
    report = import_prices(put(tmp_path, "lambda.csv", GPUHUNT), own, load_catalog(), seen=date(2026, 11, 30))
    assert (report.format, report.placed) == ("gpuhunt", 2)
    own_rows = [r for r in load_catalog(own).all_price_rows() if r.own]
    assert {(r.pricing_model, r.price_per_node_hour) for r in own_rows} == {("on-demand", 23.92), ("spot", 12.5)}
    node = load_catalog().node(own_rows[0].node)
    assert (node.accelerator, node.cards_per_node) == ("h100-sxm", 8)


def test_a_table_in_another_format_is_refused(tmp_path):
    path = put(tmp_path, "prices.csv", "gpu,usd\nh100,3\n")
    with pytest.raises(InputError, match="columns gpu, usd are no price table known here; accepted are the SkyPilot"):
        import_prices(path, tmp_path / "own", load_catalog())
    assert not (tmp_path / "own").exists()


def test_a_table_without_a_usable_row_writes_nothing(tmp_path):
    path = put(tmp_path, "aws/vms.csv", SKYPILOT.splitlines()[0] + "\np9.48xlarge,Z900,8.0,1,1,99.0,us-east-1,x,,a\n")
    with pytest.raises(InputError, match="no row could be placed for provider 'aws': Z900"):
        import_prices(path, tmp_path / "own", load_catalog())
    assert not (tmp_path / "own").exists()


def test_importing_twice_changes_nothing(tmp_path):
    own, path = tmp_path / "own", put(tmp_path, "aws/vms.csv", SKYPILOT)
    first = import_prices(path, own, load_catalog(), seen=date(2026, 11, 30)).file.read_text(encoding="utf-8")
    again = import_prices(path, own, load_catalog(own), seen=date(2026, 11, 30)).file.read_text(encoding="utf-8")
    assert first == again
