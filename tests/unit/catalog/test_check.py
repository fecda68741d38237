"""`check` finds each kind of fault; every case starts from a sound folder."""

from __future__ import annotations

import pytest

from pdplan.catalog.check import check_catalog
from pdplan.catalog.load import Catalog, shipped_folder
from pdplan.catalog.view import diff

FILES = {
    "sources.yaml": "s: {title: A sheet, publisher: Me, date: '2026', checked: read}\n",
    "families/f.yaml": "id: f\nversion: '1'\nfitted_on: x\nconfidence: guess\nconstants: {a: 1}\n",
    "accelerators/c.yaml": """\
id: c
name: C
vendor: v
family: f
released: 2026-01
status: shipping
hbm: 80 GB
hbm_bandwidth: 3 TB/s
dense: {bf16: 900 TFLOP/s}
power: 700 W
scale_up_bandwidth: 400 GB/s
scale_up_domain_cards: 8
provenance:
  hbm: {basis: vendor, source: s}
  hbm_bandwidth: {basis: vendor, source: s}
  dense.bf16: {basis: vendor, source: s}
  power: {basis: vendor, source: s}
  scale_up_bandwidth: {basis: vendor, source: s}
  scale_up_domain_cards: {basis: vendor, source: s}
""",
    "nodes/n-8.yaml": """\
id: n-8
name: N
provider: generic
kind: server
accelerator: c
cards_per_node: 8
scale_up_domain_cards: 8
nic_bandwidth_per_card: 50 GB/s
power: 8 kW
provenance:
  cards_per_node: {basis: vendor, source: s}
  scale_up_domain_cards: {basis: vendor, source: s}
  nic_bandwidth_per_card: {basis: vendor, source: s}
  power: {basis: vendor, source: s}
""",
    "links/l.yaml": """\
id: l
kind: wide_area
bandwidth: 400 Gb/s
per: wave
efficiency_frac: 0.8
latency: 2 us
latency_per_km: 4.9 us
provenance:
  bandwidth: {basis: vendor, source: s}
  efficiency_frac: {basis: vendor, source: s}
  latency: {basis: vendor, source: s}
  latency_per_km: {basis: vendor, source: s}
""",
    "models/m.yaml": """\
id: m
name: M
hf_id: x/m
family: llama
released: 2026-01
hidden: 64
vocab: 1000
tied_embeddings: true
max_context_tokens: 4096
blocks: [{count: 2, mixer: full, ffn: dense}]
mixers: {full: {type: gqa, heads: 4, kv_heads: 2, head_dim: 16}}
ffns: {dense: {type: gated, size: 128}}
published: {total_params_b: 0.000138}
source: [s]
""",
    "prices/p.csv": "id,node,provider,region,pricing_model,currency,price_per_node_hour,purchase_price,date_observed,"
    "basis,source,tax_included,note\na,n-8,me,,on-demand,USD,10,,2026-01-01,vendor,s,no,\n",
}


def check(folder, edits=()):
    files = dict(FILES)
    for name, old, new in edits:
        assert old in files.get(name, old)
        files[name] = files.get(name, "").replace(old, new) if name in files else new
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return check_catalog(Catalog(folder)).faults


def test_the_small_catalog_is_sound(tmp_path):
    assert check(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("accelerators/c.yaml", "hbm: 80 GB", "hbm: 80 TB", "hbm: 8e+13 is outside 4e+09 to 2e+12; is the unit right?"),
        ("accelerators/c.yaml", "hbm: 80 GB", "hbm: 80", "hbm: '80' is not a quantity in byte"),
        ("accelerators/c.yaml", "family: f", "family: g", "family: 'g' is not one of f"),
        ("accelerators/c.yaml", "900 TFLOP/s}", "900 GFLOP/s}", "dense.bf16: 9e+11 is outside"),
        ("accelerators/c.yaml", "bf16: 900", "fp7: 900", "dense: bf16 is missing"),
        ("accelerators/c.yaml", "  power: {basis: vendor, source: s}\n", "", "provenance.power is missing"),
        ("accelerators/c.yaml", "id: c\n", "id: d\n", "it must equal the file name"),
        ("accelerators/c.yaml", "vendor: v", "vendor: v\ncolour: red", "unknown key 'colour'"),
        ("accelerators/c.yaml", "source: s}\n  dense", "source: t}\n  dense", "source 't' is not in sources.yaml"),
        ("nodes/n-8.yaml", "accelerator: c", "accelerator: d", "accelerator: unknown accelerator 'd'"),
        ("nodes/n-8.yaml", "power: 8 kW", "power: 800 kW", "power over cards_per_node: 100000 is outside"),
        ("nodes/n-8.yaml", "kind: server", "kind: toaster", "kind: 'toaster' is not accepted; one of server, instance"),
        ("links/l.yaml", "4.9 us", "2 us", "latency_per_km: faster than light"),
        ("links/l.yaml", "frac: 0.8", "frac: 1.8", "efficiency_frac: 1.8 is outside 0.01 to 1"),
        ("models/m.yaml", "0.000138", "0.000238", "published: total parameters differ by -42.0% from the count"),
        ("models/m.yaml", "kv_heads: 2", "kv_heads: 3", "4 heads do not divide over 3 kv heads"),
        ("models/m.yaml", "type: gated", "type: gaited", "ffn type 'gaited' is not known"),
        ("prices/p.csv", ",n-8,", ",n-9,", "node 'n-9' is not in the catalog"),
        ("prices/p.csv", ",10,", ",10000,", "price_per_card_hour: 1250 is outside"),
        ("prices/p.csv", ",USD,", ",dollars,", "currency 'dollars' is not a three-letter code"),
        ("prices/p.csv", "on-demand", "bargain", "pricing_model 'bargain' is not on-demand"),
        ("prices/p.csv", "vendor,s,", "vendor,t,", "source 't' is not in sources.yaml"),
        ("sources.yaml", "'2026'", "'long ago'", "date 'long ago' names no year"),
        ("sources.yaml", "checked: read", "checked: heard", "checked 'heard' is not read, listing or recollection"),
    ],
)
def test_each_fault_is_found(name, old, new, message, tmp_path):
    faults = check(tmp_path, [(name, old, new)])
    assert any(message in fault for fault in faults), faults


def test_orphans_and_double_rows_are_found(tmp_path):
    orphan = FILES["accelerators/c.yaml"].replace("id: c\n", "id: lone\n")
    line = FILES["prices/p.csv"].splitlines()[1] + "\n"
    faults = check(tmp_path, [("accelerators/lone.yaml", "", orphan), ("prices/p.csv", line, line + line)])
    assert any("lone.yaml: no node has this accelerator" in fault for fault in faults)
    assert any("the row a is given 2 times" in fault for fault in faults)


def test_an_alias_may_not_hide_an_id(tmp_path):
    second = FILES["nodes/n-8.yaml"].replace("id: n-8\n", "id: n-4\naliases: [n-8]\n")
    assert any("alias 'n-8' is the id" in f for f in check(tmp_path, [("nodes/n-4.yaml", "", second)]))


def test_diff_shows_what_the_users_folder_changes(tmp_path):
    shipped = Catalog(shipped_folder())
    theirs = (shipped_folder() / "nodes" / "h100-sxm-8.yaml").read_text(encoding="utf-8")
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "h100-sxm-8.yaml").write_text(theirs.replace("50 GB/s", "100 GB/s"), encoding="utf-8")
    (tmp_path / "nodes" / "new-8.yaml").write_text(theirs.replace("id: h100-sxm-8", "id: new-8"), encoding="utf-8")
    rows = diff(shipped, Catalog(shipped_folder(), tmp_path)).rows
    changed = ("nodes", "h100-sxm-8", "nic_bandwidth_bytes_per_s_per_card", "50000000000.0", "100000000000.0")
    assert changed in rows
    assert any(row[:3] == ("nodes", "new-8", "(new)") for row in rows)
    assert len(rows) == 2
