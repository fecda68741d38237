"""InferenceX rows as a table: one row per deployment and concurrency, layouts written out per role."""

from __future__ import annotations

from collections.abc import Iterable

from pdplan.calibrate.common import RANDOM_LENGTH_FRAC, assemble
from pdplan.calibrate.measured import Cells, Given, MeasuredRow, Table, rows_of
from pdplan.catalog.load import Catalog
from pdplan.errors import InputError
from pdplan.serving.deployments import BENCHMARK_RAMP_FRAC, Worker

NAME = "inferencex"
TITLE = "InferenceX rows as CSV, attention and expert layout per role"

_GROUP = (
    "hardware", "framework", "precision", "spec_method", "mode", "prefill_workers", "prefill_attn_tp", "prefill_attn_dp",
    "prefill_moe_ep", "decode_workers", "decode_attn_tp", "decode_attn_dp", "decode_moe_ep", "isl_max_tokens", "osl_max_tokens",
)  # fmt: skip
"""Columns that name a configuration; the rest of a row is load and result."""


def recognises(table: Table) -> bool:
    """By the load column and either layout."""
    return table.kind == "csv" and {"hardware", "concurrency_requests", "decode_attn_tp"} <= table.columns


def read(table: Table, catalog: Catalog, given: Given) -> Iterable[MeasuredRow]:
    """Every row; the model is DeepSeek-R1 unless a column or the user says otherwise."""

    def build(cells: Cells) -> MeasuredRow:
        return _row(cells, catalog, given)

    return rows_of(table, build, lambda cells: cells.text("row_id"))


def _worker(cells: Cells, role: str) -> tuple[Worker, tuple[str, ...]]:
    """The worker of a role and what had to be assumed about it."""
    workers = cells.count(f"{role}_workers", 1)
    doubts: tuple[str, ...] = ()
    if cells.text(f"{role}_attn_tp"):
        tp, ranks = cells.count(f"{role}_attn_tp"), cells.count(f"{role}_attn_dp", 1)
    else:
        total = cells.count(f"{role}_gpus_total", 0) or cells.count("gpus_total", 0)
        cards = cells.count(f"{role}_gpus_per_worker", 0) or (total // workers if total else 0)
        if not cards:
            raise InputError(f"{role}_attn_tp: is blank, and so are the card counts of {role}; give one of them")
        if cells.text(f"raw_{role}_dp_attention") in ("1", "true", "True") or cards > 8:
            tp, ranks = 1, cards
        else:
            tp, ranks = cards, 1
        doubts = (f"the {role} layout is not stated; {cards} cards are read as tp {tp} x attention-dp {ranks}",)
    # under attention-DP the expert-parallel labels are not reliable: experts are spread over all ranks
    ep = tp * ranks if ranks > 1 else min(cells.count(f"{role}_moe_ep", 1), tp)
    return Worker(replicas=workers, tp=tp, ep=ep, attention_dp=ranks), doubts


def _row(cells: Cells, catalog: Catalog, given: Given) -> MeasuredRow:
    hardware, framework = cells.text("hardware"), cells.text("framework")
    apart = cells.text("mode") == "disagg"
    decode, doubts = _worker(cells, "decode")
    prefill = None
    if apart:
        prefill, more = _worker(cells, "prefill")
        doubts += more
    if cells.text("config_quality") in ("inconsistent", "legacy_split_inferred"):
        doubts += (f"the benchmark marks this row {cells.text('config_quality')}",)
    mtp = cells.text("spec_method", "none") != "none"

    def length(side: str) -> float:
        if cells.text(f"{side}_mean_tokens"):
            return cells.positive(f"{side}_mean_tokens")
        return RANDOM_LENGTH_FRAC * cells.positive(f"{side}_max_tokens")

    return assemble(
        cells,
        catalog,
        row_id=cells.text("row_id", f"line-{cells.line}"),
        model=given.values.get("model") or cells.text("model", "deepseek-r1"),
        hardware=hardware,
        framework=framework,
        precision=cells.text("precision"),
        decode=decode,
        prefill=prefill,
        concurrency=cells.positive("concurrency_requests"),
        input_tokens=length("isl"),
        output_tokens=length("osl"),
        # the draft length is not recorded: 3 is usual with few sequences per rank, 1 with many
        draft_tokens=(1 if decode.attention_dp > 1 else 3) if mtp else 0,
        max_batch_per_rank=0,
        ramp_frac=BENCHMARK_RAMP_FRAC,
        token_budget=8192.0,
        doubts=doubts,
        measured=cells.measured(
            ttft_s=("ttft_median_s", 1.0),
            tpot_s=("tpot_median_s", 1.0),
            output_tok_per_s=("output_tput_tok_per_s_system", 1.0),
            total_tok_per_s_per_card=("total_tput_tok_per_s_per_gpu", 1.0),
        ),
        labels={
            "group": "/".join(cells.text(name) for name in _GROUP),
            "framework": framework,
            "hardware": hardware,
            "quality": cells.text("config_quality", "exact"),
            "old_software": cells.text("later_tpot_speedup"),
        },
    )
