"""Write the reference pages that follow the code: ``python docs/generate_reference.py [--check]``.

Command line from the commands, PLAN.json and the CSV tables from the records and their docstrings. With ``--check``
nothing is written; exit code 1 if a page is not what the code says.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import typer

from pdplan.cli import app as cli
from pdplan.fleet import plan as records
from pdplan.fleet import verification
from pdplan.report.formats.csv import TABLES

FOLDER = Path(__file__).resolve().parent / "reference"
WRITTEN = "<!-- written by docs/generate_reference.py from the code; run it after a change -->\n"

PLAIN = {
    "schema": "Always `pdplan.plan/1`.",
    "pdplan_version": "Version that made the plan.",
    "catalog_digest": "Digest of the catalog files used, the user's folder included.",
    "status": "`optimal` is proven within the asked gap; `feasible` is a plan without that proof.",
    "mode": "Way of serving.",
    "objective": "What was minimised: cost, cards or power.",
    "reasons": "Why the request cannot be met; empty for a plan.",
    "cost": "Null where there is no plan.",
    "totals": "Null where there is no plan.",
    "pools": "What runs where.",
    "purchases": "What to have.",
    "links": "KV traffic between and inside sites.",
    "slo": "Targets against predictions.",
    "latency": "By metric: `ttft_s`, `tpot_s`, `e2e_s`.",
    "binding": "Constraints without slack.",
    "certificate": "Every constraint recomputed.",
    "solver": "Null where the program was not solved.",
    "candidates": "How many layouts were looked at.",
    "assumptions": "Figures with their sources.",
    "warnings": "Sentences for the reader.",
    "sources": "Ids of the sources; `pdplan catalog list sources` prints them.",
    "constraint": "Name of the requirement or constraint.",
    "required": "What was asked.",
    "nearest": "Nearest value that can be met, same unit; none where no change of this alone helps.",
    "message": "The same in a sentence.",
    "usd_per_hour": "Cost per hour.",
    "usd_per_month": "Times 730 h.",
    "usd_per_year": "Times 8760 h.",
    "usd_per_million_output_tokens": "The rest of the cost over output tokens at the design rate.",
    "usd_per_million_input_tokens": "As in `Cost`.",
    "breakdown": "The bill, line by line.",
    "quantity": "Nodes or link units.",
    "unit_usd_per_hour": "Price of one.",
    "cards": "Accelerator cards, idle ones included.",
    "nodes": "Whole nodes.",
    "prefill_cards": "Cards of prefill nodes.",
    "decode_cards": "Cards of decode nodes.",
    "prefill_nodes": "Nodes that prefill.",
    "decode_nodes": "Nodes that decode.",
    "colocated_cards": "Cards of nodes that do both.",
    "colocated_nodes": "Nodes that do both.",
    "power_w": "Nodes under load.",
    "tp": "Tensor-parallel width.",
    "pp": "Pipeline stages.",
    "ep": "Expert-parallel ranks.",
    "attention_dp": "Attention data-parallel ranks.",
    "cards_per_replica": "tp x pp x attention_dp.",
    "hbm": "Memory of the card.",
    "weights": "Weights on the card.",
    "reserve": "Kept free for activations and the engine.",
    "free": "What is left.",
    "role": "prefill, decode, colocated; in the bill also idle or network.",
    "site": "Data centre.",
    "node_type": "Catalog id of the node.",
    "accelerator": "Catalog id of the card.",
    "destination_site": "Where its requests decode (prefill); its own site otherwise.",
    "replicas": "Copies of the layout.",
    "layout": "How one replica is spread over cards.",
    "rate_req_per_s": "Requests it gets.",
    "memory_bytes_per_card": "What fills a card.",
    "owned_nodes": "Nodes in use that were there before.",
    "cards_per_node": "Cards of one node.",
    "idle_cards": "Cards no replica uses.",
    "usd_per_node_hour": "Price of one node.",
    "price_basis": "Where the price comes from.",
    "from_site": "Where prefill runs.",
    "to_site": "Where decode runs.",
    "units": "Link units in the plan.",
    "load_gbit_per_s": "Mean KV traffic.",
    "utilization_frac": "Load over capacity.",
    "one_way_s": "Propagation over the fibre.",
    "metric": "`ttft_s`, `tpot_s` or `e2e_s`.",
    "percentile": "90 for p90.",
    "target": "Asked, seconds.",
    "predicted": "Of the plan, seconds.",
    "low_90": "Lower end of the 90 % interval, seconds.",
    "high_90": "Upper end of the 90 % interval, seconds.",
    "met": "Whether the prediction is within the target.",
    "mean": "Mean, seconds.",
    "p50": "Median, seconds.",
    "p90": "90th percentile, seconds.",
    "p99": "99th percentile, seconds.",
    "name": "What it is.",
    "lhs": "Left side, in the unit the name gives.",
    "rhs": "Right side.",
    "slack": "Right minus left side.",
    "ok": "Whether it holds.",
    "checks": "All of them.",
    "proof": "What the solver proved.",
    "gap": "Relative distance between the plan and the bound.",
    "bound": "No plan can have a lower objective.",
    "variables": "Of the program.",
    "constraints": "Of the program.",
    "rounds": "Times the program was solved.",
    "enumerated": "Before any test.",
    "feasible": "Valid, and able to hold the longest request.",
    "kept": "Not dominated by another.",
    "value": "As text or number.",
    "basis": "vendor, derived, measured, estimate or given.",
    "source": "Id of a source, file or `scenario`.",
    "distance_km": "Length of every link between sites.",
    "link_usd_per_hour": "Of it for links.",
    "field": "Name or path of the figure.",
    "kind": "warning, simulation warning or source.",
    "text": "The sentence or id.",
    "pool": "Number of the pool.",
    "period": "The operating state: a level of the day as a multiple of the rate, or what is lost.",
    "hours_per_year": "0 for a loss, which must only be survived.",
    "period_rate_req_per_s": "Requests per second of the whole fleet in this state.",
    "of": "plan or alternative.",
}
"""Meaning of fields whose name says nearly all; a docstring under the field in plan.py wins."""


def table(headers: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A plain markdown table."""
    lines = [list(headers)]
    lines.append(["---"] * len(lines[0]))
    lines += [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _prose(text: str) -> str:
    """Docstring markup as markdown."""
    return re.sub(r":\w+:`~?\.?([^`]*)`", r"`\1`", text).replace("``", "`")


def field_docs() -> dict[str, dict[str, str]]:
    """Record -> field -> the docstring under it, from the sources of plan.py and verification.py."""
    found: dict[str, dict[str, str]] = {}
    for node in (part for module in (records, verification) for part in ast.parse(inspect.getsource(module)).body):
        if isinstance(node, ast.ClassDef):
            mine = found[node.name] = {}
            for line, below in zip(node.body, node.body[1:], strict=False):
                if (
                    isinstance(line, ast.AnnAssign)
                    and isinstance(line.target, ast.Name)
                    and isinstance(below, ast.Expr)
                    and isinstance(below.value, ast.Constant)
                ):
                    mine[line.target.id] = _prose(str(below.value.value))
    return found


def _record(name: str) -> Any:
    """The record of that name, or None."""
    return getattr(records, name, None) or getattr(verification, name, None)


def _kind(annotation: str) -> str:
    text = annotation.replace("Mapping[str, Any]", "object").replace(
        "Mapping[str, Stats]", "object of `Stats` by metric"
    )
    text = re.sub(r"tuple\[(\w+), \.\.\.\]", r"list of \1", text)
    text = re.sub(
        r"Literal\[(.*)\]",
        lambda m: " or ".join(f"`{name}`" for name in re.findall(r"""["']([^"']+)["']""", m[1])),
        text,
    )
    text = text.replace(" | None", " or null")
    text = re.sub(r"\bstr\b", "text", text)
    text = re.sub(r"\bint\b", "integer", text)
    text = re.sub(r"\bfloat\b", "number", text)
    text = re.sub(r"\bbool\b", "true or false", text)
    return re.sub(r"\b([A-Z]\w+)\b(?!`)", lambda m: f"`{m[1]}`" if _record(m[1]) else m[1], text)


def plan_json() -> str:
    """Every field of PLAN.json."""
    docs = field_docs()
    order = [records.Plan]
    for record in order:
        for field in fields(record):
            for name in re.findall(r"[A-Z]\w+", str(field.type)):
                inner = _record(name)
                if is_dataclass(inner) and inner not in order:
                    order.append(inner)
    text = [
        "# PLAN.json",
        WRITTEN,
        "`pdplan plan SCENARIO --json` prints it and `--out DIR` writes it as `plan.json`: UTF-8, one object, the same "
        "bytes for the same input and version. An infeasible request gives the same object with `status` `infeasible`, "
        "`reasons`, and null or empty parts. Fields are added in later versions, never renamed; units stand in the "
        "names (see [notation](notation.md)). `solver.time_s` varies from run to run and is left out of written files.",
        "",
    ]
    for record in order:
        title = "The plan" if record is records.Plan else record.__name__
        summary = _prose((record.__doc__ or "").strip().split("\n\n")[0])
        rows = [
            (
                f"`{field.name}`",
                _kind(str(field.type)),
                docs.get(record.__name__, {}).get(field.name, PLAIN.get(field.name, "")),
            )
            for field in fields(record)
        ]
        text += [f"## {title}", "", summary, "", table(("field", "kind", "meaning"), rows)]
    return "\n".join(text)


def csv_tables() -> str:
    """Every column of every table."""
    docs = field_docs()

    def meaning(record: type, column: str) -> str:
        own = docs.get(record.__name__, {})
        names = [column, column.removesuffix("_bytes"), column.removesuffix("_s")]
        if column.startswith("layout_"):
            own, names = docs["PoolLayout"], [column.removeprefix("layout_")]
        return next((known[name] for known in (own, PLAIN) for name in names if name in known), "")

    text = [
        "# CSV tables",
        WRITTEN,
        "`pdplan plan SCENARIO --out DIR --format csv` writes one file per table, `plan_TABLE.csv`. Every file is always "
        "there with its header, also where it has no rows. Columns keep their names and order; new ones go to the end. "
        "Numbers have a decimal point, full precision and the unit in the column name; claims are `yes` and `no`; nothing "
        "is an empty cell. Lines end in CRLF and cells are quoted where needed (RFC 4180). A file with characters beyond "
        "ASCII starts with a UTF-8 byte-order mark, so that spreadsheets read it right; in Python, open it with "
        '`encoding="utf-8-sig"`. Text that a spreadsheet would run as a formula gets an apostrophe in front.',
        "",
    ]
    for name, item in TABLES.items():
        text += [
            f"## plan_{name}.csv",
            "",
            item.about,
            "",
            table(("column", "meaning"), ((f"`{column}`", meaning(item.record, column)) for column in item.columns)),
        ]
    return "\n".join(text)


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    inner: Mapping[str, Any] = getattr(command, "commands", {})
    if path != "pdplan" and not inner:
        yield path, command
    for name in sorted(inner):
        yield from _commands(inner[name], f"{path} {name}")


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or value is False or value == "" or callable(value):
        return ""
    return f"`{value}`"


def command_line() -> str:
    """Every command, argument and option."""
    cli._register()
    text = [
        "# Command line",
        WRITTEN,
        "The result goes to stdout and nothing else; notes, progress and errors go to stderr. `pdplan COMMAND --help` "
        "says the same as this page.",
        "",
        table(
            ("exit code", "meaning"),
            (
                ("0", "ok"),
                ("1", "an internal fault of pdplan; or `pdplan verify` found a target missed in simulation"),
                ("2", "bad input: one sentence per fault, nothing written"),
                ("3", "infeasible, with reasons and the nearest feasible target; or a violated check"),
                ("4", "the solver stopped without a plan"),
            ),
        ),
    ]
    for path, command in _commands(typer.main.get_command(cli.app), "pdplan"):
        about, *rest = inspect.cleandoc(command.help or "").split("\n\n")
        text += [f"## {path}", "", " ".join(about.split()), ""]
        for paragraph in rest:
            words = " ".join(paragraph.split())
            example = words.removeprefix("Example: ")
            text += [f"Example: `{example}`" if example != words else words, ""]
        rows = []
        for parameter in command.params:
            option = parameter.param_type_name == "option"
            names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
            if names == "`--help`":
                continue
            rows.append((names if option else f"`{parameter.name.upper()}`", _default(parameter), parameter.help or ""))
        if rows:
            text.append(table(("argument or option", "default", "meaning"), rows))
    return "\n".join(text)


def pages() -> dict[str, str]:
    """File name -> content of every generated page."""
    return {"plan-json.md": plan_json(), "csv-tables.md": csv_tables(), "cli.md": command_line()}


def main() -> None:
    """Write the pages, or check them."""
    stale = []
    for name, text in pages().items():
        path = FOLDER / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv[1:]:
            path.write_text(text, encoding="utf-8")
    if stale:
        sys.stderr.write(f"{'stale' if '--check' in sys.argv[1:] else 'written'}: {', '.join(stale)}\n")
    sys.exit(1 if stale and "--check" in sys.argv[1:] else 0)


if __name__ == "__main__":
    main()
