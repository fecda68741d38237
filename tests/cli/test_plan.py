"""The command line as a stranger uses it: results, exit codes, one sentence per fault, nothing half written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pdplan.fleet.plan import plan_from_json

BASE = {
    "schema": "pdplan.scenario/1",
    "name": "test",
    "model": "qwen3-32b",
    "precision": {"weights": "fp8", "kv_cache": "fp8"},
    "workload": {"rate_req_per_s": 4, "lengths": {"fixed": {"input_tokens": 2000, "output_tokens": 200}}},
    "slo": {"ttft_s": {"p90": 1.0}, "tpot_s": {"p90": 0.04}},
    "sites": [{"name": "one", "nodes": [{"type": "h100-sxm-8", "usd_per_node_hour": 20.0}]}],
}


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pdplan", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )


def changed(path: str, value: object) -> dict[str, object]:
    """BASE with one field replaced (dots for nesting, None removes)."""
    data = json.loads(json.dumps(BASE))
    *parents, last = path.split(".")
    at = data
    for key in parents:
        at = at[int(key)] if key.isdigit() else at.setdefault(key, {})
    if value is None:
        del at[last]
    else:
        at[last] = value
    return data


def write(folder: Path, data: object) -> Path:
    """A scenario file."""
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["quickstart", "read_write_separated", "price_shopping", "day_and_night"])
def test_every_example_gives_a_certified_plan(root: Path, tmp_path: Path, name: str) -> None:
    """Each shipped example ends in an optimal plan whose written file passes `check`."""
    done = run("plan", str(root / "examples" / f"{name}.yaml"), "--out", str(tmp_path / "out"), "--json")
    assert done.returncode == 0, done.stderr
    plan = plan_from_json(done.stdout)

    assert plan.status == "optimal"
    assert plan.certificate is not None and plan.certificate.ok
    assert all(line.met for line in plan.slo)
    assert (tmp_path / "out" / "plan.json").read_text() == done.stdout
    assert run("check", str(tmp_path / "out" / "plan.json")).returncode == 0


def test_quickstart_considers_a_thousand_layouts(root: Path) -> None:
    """The quickstart enumerates at least 1,000 candidate configurations."""
    plan = json.loads(run("plan", str(root / "examples" / "quickstart.yaml"), "--json").stdout)

    assert plan["candidates"]["enumerated"] >= 1000


def test_the_separated_example_shows_what_fibre_costs(root: Path) -> None:
    """At least 64 cards per role, a priced link, and the answer at 500 km."""
    plan = json.loads(run("plan", str(root / "examples" / "read_write_separated.yaml"), "--json").stdout)

    assert plan["totals"]["prefill_cards"] >= 64
    assert plan["totals"]["decode_cards"] >= 64
    assert sum(link["usd_per_hour"] for link in plan["links"]) > 0
    far = next(line for line in plan["distances"] if line["distance_km"] == 500)
    near = next(line for line in plan["distances"] if line["distance_km"] == 80)
    assert far["slo"][0]["predicted"] > near["slo"][0]["predicted"]


def test_output_is_byte_identical(tmp_path: Path) -> None:
    """The same input gives the same bytes in every file."""
    path = write(tmp_path, BASE)
    for out in ("a", "b"):
        assert run("plan", str(path), "--out", str(tmp_path / out), "--format", "md,csv,json").returncode == 0
    names = sorted(p.name for p in (tmp_path / "a").iterdir())

    assert names == sorted(p.name for p in (tmp_path / "b").iterdir())
    assert all((tmp_path / "a" / n).read_bytes() == (tmp_path / "b" / n).read_bytes() for n in names)


def test_token_prices_add_up_to_the_bill(tmp_path: Path) -> None:
    """Cost per million input and output tokens times the tokens is the fleet's cost."""
    plan = json.loads(run("plan", str(write(tmp_path, BASE)), "--json").stdout)
    cost = plan["cost"]
    million_in, million_out = 4 * 2000 * 3600 / 1e6, 4 * 200 * 3600 / 1e6

    total = cost["usd_per_million_input_tokens"] * million_in + cost["usd_per_million_output_tokens"] * million_out
    assert total == pytest.approx(cost["usd_per_hour"], rel=1e-9)


BAD = [
    ("colour", "red", "unknown key 'colour'"),
    ("workload.rate", 3, "unknown key 'rate'"),
    ("model", "qwen3-23b", "Did you mean"),
    ("sites.0.nodes.0.type", "h100-smx-8", "Did you mean"),
    ("workload.rate_req_per_s", -1, "greater than 0"),
    ("workload.rate_req_per_s", 0, "greater than 0"),
    ("workload.rate_req_per_s", float("nan"), "workload.rate_req_per_s is nan"),
    ("workload.rate_req_per_s", float("inf"), "workload.rate_req_per_s is inf"),
    ("workload.rate_req_per_s", "fast", "a number"),
    ("slo.ttft_s.p90", 0, "greater than 0"),
    ("slo.ttft_s", {"p100": 1.0}, "not a percentile"),
    ("slo.tpot_s", {}, "at least one target"),
    ("sites.0.max_power", "3", "not a quantity in W"),
    ("sites.0.max_power", "3 GB", "not a quantity in W"),
    ("workload.lengths", {"fixed": {"input_tokens": 900000, "output_tokens": 10}}, "accepts at most"),
    ("workload.lengths", "azure-conversation-2032", "Did you mean"),
    ("workload.lengths", {"fixed": {"input_tokens": 0, "output_tokens": 10}}, "greater than 0"),
    ("sites.0.nodes", [], "at least 1 entry"),
    ("sites.0.nodes", [{"type": "h100-sxm-8", "usd_per_node_hour": 20.0, "max_nodes": 0}], "inventory of one is empty"),
    ("sites.0.nodes", ["ascend-910c-64"], "has no on-demand price"),
    ("links", [{"between": ["one", "two"], "distance_km": 1, "unit_bandwidth": "400 Gb/s"}], "unknown site 'two'"),
    ("links", [{"between": ["one", "one"], "distance_km": 1, "unit_bandwidth": "400"}], "not a quantity in byte/s"),
    ("schema", "pdplan.scenario/2", "accepted"),
    ("schema", None, "schema is missing"),
    ("engine", "vlm", "unknown engine"),
    ("fleet.prefill", {"sites": ["mars"]}, "unknown site 'mars'"),
    ("latency_overrides", {"family.memory_efficency": 0.5}, "Did you mean"),
]


@pytest.mark.parametrize(("field", "value", "words"), BAD, ids=[f"{f}={v}"[:50] for f, v, _ in BAD])
def test_bad_input_is_one_sentence_and_exit_2(tmp_path: Path, field: str, value: object, words: str) -> None:
    """One clear sentence naming the file, exit code 2, nothing written, no traceback."""
    path = write(tmp_path, changed(field, value))
    done = run("plan", str(path), "--out", str(tmp_path / "out"))

    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "out").exists()


def test_bad_files_are_named(tmp_path: Path) -> None:
    """Folders, binary text, bombs, broken configs and unwritable outputs end in exit code 2."""
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    (tmp_path / "bomb.yaml").write_text("a: &a [1]\nb: [*a, *a]\n")
    with (tmp_path / "huge.yaml").open("wb") as stream:
        stream.truncate(200_000_000)
    (tmp_path / "broken.json").write_text("{nope")
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 4096}')
    (tmp_path / "taken").write_text("")
    good = write(tmp_path, BASE)
    cases = [
        ("plan", str(tmp_path)),
        ("plan", str(tmp_path / "absent.yaml")),
        ("plan", str(tmp_path / "latin.yaml")),
        ("plan", str(tmp_path / "bomb.yaml")),
        ("plan", str(tmp_path / "huge.yaml")),
        ("plan", str(good), "--out", str(tmp_path / "taken")),
        ("plan", str(good), "--format", "pdf"),
        ("plan", str(good), "--objective", "beauty"),
        ("plan", str(good), "--solver", "gurobi"),
        ("check", str(tmp_path / "broken.json")),
        ("check", str(good)),
        ("estimate", "--model", str(tmp_path / "broken.json"), "--node", "h100-sxm-8"),
        ("estimate", "--model", str(tmp_path / "config.json"), "--node", "h100-sxm-8"),
        ("estimate", "--model", "llama-3.3-70b", "--node", "h100-sxm-8", "--tp", "3"),
    ]
    for case in cases:
        done = run(*case)
        assert done.returncode == 2, (case, done.stderr)
        assert done.stderr.startswith("error: "), (case, done.stderr)
        assert "Traceback" not in done.stderr, case
        assert len(done.stderr.splitlines()) <= 3, (case, done.stderr)


def test_tp_that_does_not_divide_the_heads_is_named() -> None:
    """The sentence says heads and the width."""
    done = run("estimate", "--model", "llama-3.3-70b", "--node", "h100-sxm-8", "--tp", "3")

    assert done.returncode == 2
    assert "head" in done.stderr


def test_unreachable_ttft_says_that_nodes_do_not_help(tmp_path: Path) -> None:
    """Exit code 3, the nearest target, and the same JSON schema."""
    path = write(tmp_path, changed("slo.ttft_s.p90", 0.02))
    done = run("plan", str(path), "--json")
    plan = plan_from_json(done.stdout)

    assert done.returncode == 3
    assert plan.status == "infeasible"
    assert "more nodes do not help" in done.stderr
    nearest = plan.reasons[0].nearest
    assert nearest is not None
    # The nearest target it names does work.
    assert run("plan", str(write(tmp_path, changed("slo.ttft_s.p90", nearest * 1.1)))).returncode == 0


@pytest.mark.parametrize(
    ("field", "value", "constraint"),
    [
        ("fleet.budget_usd_per_hour", 1.0, "fleet.budget_usd_per_hour"),
        ("fleet.max_power", "1 kW", "fleet.max_power"),
        ("workload.rate_req_per_s", 4000, "workload.rate_req_per_s"),
    ],
)
def test_infeasible_limits_name_the_nearest_value(tmp_path: Path, field: str, value: object, constraint: str) -> None:
    """Exit code 3; the named nearest value makes the request feasible."""
    data = changed(field, value)
    data["sites"][0]["nodes"][0]["max_nodes"] = 3  # type: ignore[index]
    done = run("plan", str(write(tmp_path, data)), "--json")
    plan = plan_from_json(done.stdout)
    reason = next(r for r in plan.reasons if r.constraint == constraint)

    assert done.returncode == 3
    assert reason.nearest is not None
    better = (
        f"{reason.nearest * 1.001 / 1e3} kW"
        if field.endswith("power")
        else reason.nearest * (1.001 if field.startswith("fleet") else 0.98)
    )
    data = changed(field, better)
    data["sites"][0]["nodes"][0]["max_nodes"] = 3  # type: ignore[index]
    assert run("plan", str(write(tmp_path, data))).returncode == 0


def test_init_writes_a_scenario_that_plans(tmp_path: Path) -> None:
    """The commented template is valid, answers, and is not overwritten."""
    assert run("init", "mine.yaml", cwd=tmp_path).returncode == 0
    assert run("plan", "mine.yaml", cwd=tmp_path).returncode == 0
    again = run("init", "mine.yaml", cwd=tmp_path)

    assert again.returncode == 2
    assert "exists" in again.stderr


def test_schema_accepts_the_examples(root: Path) -> None:
    """The printed JSON Schema knows every key the examples use."""
    schema = json.loads(run("schema").stdout)
    data = yaml.safe_load((root / "examples" / "read_write_separated.yaml").read_text())

    assert set(data) <= set(schema["properties"])
    assert schema["additionalProperties"] is False
    assert schema["properties"]["schema"]["description"] == "Always pdplan.scenario/1."
    assert "prefix cache" in schema["$defs"]["WorkloadFile"]["properties"]["prefix_hit_frac"]["description"]


def test_a_plan_from_files_of_ones_own_is_checked_elsewhere(tmp_path: Path) -> None:
    """A plan made from a config.json and a trace beside the scenario is checked from another folder, without them."""
    (tmp_path / "in").mkdir()
    config = {
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "intermediate_size": 18944,
        "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064,
        "max_position_embeddings": 32768, "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    rows = "\n".join(f"{i},{500 + 37 * i},{20 + 3 * i}" for i in range(50))
    (tmp_path / "in" / "requests.csv").write_text(f"arrival_s,input_tokens,output_tokens\n{rows}\n")
    data = changed("model", "./config.json")
    data["workload"] = {"rate_req_per_s": 4, "lengths": {"trace": "requests.csv"}}
    made = run("plan", str(write(tmp_path / "in", data)), "--out", str(tmp_path / "out"))
    assert made.returncode == 0, made.stderr
    (tmp_path / "in" / "config.json").unlink()
    (tmp_path / "in" / "requests.csv").unlink()
    done = run("check", str(tmp_path / "out" / "plan.json"))

    assert done.returncode == 0, done.stderr


def test_a_tampered_plan_fails_check(tmp_path: Path) -> None:
    """`check` names the violated constraint and exits with 3."""
    plan = json.loads(run("plan", str(write(tmp_path, BASE)), "--json").stdout)
    plan["pools"][0]["replicas"] += 100
    plan["cost"]["usd_per_hour"] *= 0.5
    (tmp_path / "bad.json").write_text(json.dumps(plan))
    done = run("check", str(tmp_path / "bad.json"))

    assert done.returncode == 3
    assert "VIOLATED" in done.stdout
    assert "replicas fit" in done.stderr
    assert "cost as printed" in done.stderr


@pytest.mark.parametrize("objective", ["cost", "cards", "power"])
def test_objectives_minimise_what_they_say(tmp_path: Path, objective: str) -> None:
    """No other objective's plan is better at it."""
    data = changed(
        "sites.0.nodes",
        [
            {"type": "h100-sxm-8", "usd_per_node_hour": 20.0},
            {"type": "l40s-8", "usd_per_node_hour": 6.0},
            {"type": "mi300x-8", "usd_per_node_hour": 14.0},
        ],
    )
    path = write(tmp_path, data)
    value = {}
    for goal in ("cost", "cards", "power"):
        plan = json.loads(run("plan", str(path), "--objective", goal, "--json").stdout)
        value[goal] = {
            "cost": plan["cost"]["usd_per_hour"],
            "cards": plan["totals"]["cards"],
            "power": plan["totals"]["power_w"],
        }[objective]

    assert value[objective] <= min(value.values()) * (1 + 1e-6)


def test_doubled_prices_double_the_cost(tmp_path: Path) -> None:
    """End to end, not only in the program."""
    one = json.loads(run("plan", str(write(tmp_path, BASE)), "--json").stdout)
    two = json.loads(
        run("plan", str(write(tmp_path, changed("sites.0.nodes.0.usd_per_node_hour", 40.0))), "--json").stdout
    )

    assert two["cost"]["usd_per_hour"] == pytest.approx(2 * one["cost"]["usd_per_hour"])
