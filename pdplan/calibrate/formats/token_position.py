"""Runs of one 8-card machine over prompt length and concurrency; the layout is a word such as tep8."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pdplan.calibrate.common import assemble, worker_from_cards
from pdplan.calibrate.measured import Cells, Given, MeasuredRow, Table, rows_of
from pdplan.catalog.load import Catalog
from pdplan.errors import InputError

NAME = "layout-word"
TITLE = "rows with a layout word (tp8, tep8, dep8, dp8), medians and token rates"
HOST_PACED = "the host paces the steps of such runs: TPOT at few users does not depend on the context"
_LAYOUT = re.compile(r"(tp|tep|dep|dp)(\d+)")


def recognises(table: Table) -> bool:
    """By the column of the layout word."""
    return table.kind == "csv" and {"layout", "hardware", "isl_tokens", "concurrency_requests"} <= table.columns


def read(table: Table, catalog: Catalog, given: Given) -> Iterable[MeasuredRow]:
    """Every row."""
    return rows_of(table, lambda cells: _row(cells, catalog), lambda cells: cells.text("row_id"))


def _row(cells: Cells, catalog: Catalog) -> MeasuredRow:
    word = cells.text("layout").lower()
    match = _LAYOUT.fullmatch(word)
    if match is None:
        raise InputError(f"layout: {word!r} is not known; accepted are tpN, tepN, dpN and depN")
    kind, cards = match.group(1), int(match.group(2))
    total = cells.count("gpus", cards)
    worker = worker_from_cards(
        cards, replicas=max(total // cards, 1), attention_dp=kind in ("dp", "dep"), ep=cards if "e" in kind else 1
    )
    drafts = cells.text("speculative_decoding", "none").lower()
    count = int(digits) if (digits := re.sub(r"\D", "", drafts)) else (0 if drafts == "none" else 1)
    measured = cells.measured(
        ttft_s=("ttft_median_s", 1.0), tpot_s=("tpot_median_s", 1.0), output_tok_per_s=("output_tput_tok_per_s", 1.0)
    )
    both = cells.measured(a=("input_tput_tok_per_s", 1.0), b=("output_tput_tok_per_s", 1.0))
    if len(both) == 2:
        measured["total_tok_per_s_per_card"] = (both["a"] + both["b"]) / total
    framework: str = cells.text("framework")
    doubts: tuple[str, ...] = ()
    if framework.lower() == "vllm":
        framework, doubts = "vllm-eager", (HOST_PACED,)
    return assemble(
        cells,
        catalog,
        row_id=cells.text("row_id", f"line-{cells.line}"),
        model=cells.text("model"),
        hardware=cells.text("hardware"),
        framework=framework,
        precision=cells.text("precision"),
        decode=worker,
        prefill=None,
        concurrency=cells.positive("concurrency_requests"),
        input_tokens=cells.positive("isl_tokens"),
        output_tokens=cells.positive("osl_tokens"),
        draft_tokens=min(count, 8),
        doubts=doubts,
        measured=measured,
        labels={
            "framework": cells.text("framework"),
            "hardware": cells.text("hardware"),
            "group": "/".join(
                cells.text(n) for n in ("model", "layout", "precision", "speculative_decoding", "isl_tokens")
            ),
        },
    )
