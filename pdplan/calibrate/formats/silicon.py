"""Rows of a vendor's accuracy tracking: mean TTFT and TPOT of several models, layouts of attention and experts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pdplan.calibrate.common import RANDOM_LENGTH_FRAC, START_WAVE_FRAC, assemble, experts_of
from pdplan.calibrate.measured import Cells, Given, MeasuredRow, Table, rows_of
from pdplan.calibrate.names import model_id_of
from pdplan.catalog.load import Catalog
from pdplan.errors import InputError
from pdplan.serving.deployments import Worker

NAME = "silicon"
TITLE = "rows with ttft_mean_ms and tpot_mean_ms per layout (tp, attn_dp, moe_tp, moe_ep; prefill_* and decode_* where apart)"


def recognises(table: Table) -> bool:
    """By its layout columns."""
    return table.kind == "csv" and {"model", "hardware", "isl_tokens", "osl_tokens", "tp", "attn_dp"} <= table.columns


def read(table: Table, catalog: Catalog, given: Given) -> Iterable[MeasuredRow]:
    """Every row."""
    return rows_of(table, lambda cells: _row(cells, catalog), lambda cells: cells.text("row_id"))


def _worker(cells: Cells, prefix: str, *, moe: bool) -> Worker:
    tp, pp, ranks = cells.count(f"{prefix}tp"), cells.count(f"{prefix}pp", 1), cells.count(f"{prefix}attn_dp", 1)
    ep = cells.count(f"{prefix}moe_ep", 1) if moe else 1
    if ranks > 1 and ranks == tp and ep == tp * ranks:
        tp, ep = 1, ranks  # both columns hold the cards of the worker
    elif ep > 1 and ranks == 1 and tp == cells.count(f"{prefix}moe_tp", 1) * ep and tp > 8:
        tp = tp // ep  # cards were counted as tp x ep
    replicas = cells.count(f"{prefix}workers", 1)
    if ranks > 1 and not moe:  # data-parallel copies of a dense model
        replicas, ranks = replicas * ranks, 1
    return Worker(replicas=replicas, tp=tp, pp=pp, attention_dp=ranks, ep=min(ep, tp * ranks))


def _row(cells: Cells, catalog: Catalog) -> MeasuredRow:
    model = cells.text("model")
    moe = experts_of(catalog.model(model_id_of(model, catalog)))
    apart = cells.text("mode") == "disagg"
    decode = _worker(cells, "decode_" if apart else "", moe=moe)
    prefill = _worker(cells, "prefill_", moe=moe) if apart else None
    share = RANDOM_LENGTH_FRAC if cells.text("origin", "inferencex_dashboard") == "inferencex_dashboard" else 1.0
    doubts: tuple[str, ...] = ()
    if cells.text("concurrency_requests"):
        concurrency = cells.positive("concurrency_requests")
        per_replica = cells.number("batch_per_attn_rank", 0.0) * decode.attention_dp
        copies = concurrency / per_replica if per_replica > 0 else 1.0
        if not apart and decode.replicas == 1 and copies > 1 and copies == round(copies):
            # the row is about one replica, its users are those of the whole deployment
            decode = replace(decode, replicas=int(copies))
    else:
        prefix = "decode_" if apart else ""
        per_rank = cells.number(f"{prefix}batch_per_attn_rank", 0.0)
        if per_rank <= 0:
            raise InputError("concurrency_requests: is blank, and so is the batch per attention rank; give one of them")
        concurrency = per_rank * decode.attention_dp * decode.replicas
        doubts = ("the users in flight are not stated; batch times ranks is used",)
    return assemble(
        cells,
        catalog,
        row_id=cells.text("row_id", f"line-{cells.line}"),
        model=model,
        hardware=cells.text("hardware"),
        framework=cells.text("framework"),
        precision=cells.text("precision"),
        decode=decode,
        prefill=prefill,
        concurrency=concurrency,
        input_tokens=share * cells.positive("isl_tokens"),
        output_tokens=max(share * cells.positive("osl_tokens"), 1.0),
        start_wave_frac=START_WAVE_FRAC,
        doubts=doubts,
        measured=cells.measured(ttft_s=("ttft_mean_ms", 1e-3), tpot_s=("tpot_mean_ms", 1e-3)),
        labels={
            "origin": cells.text("origin"),
            "framework": cells.text("framework"),
            "hardware": cells.text("hardware"),
            "group": "/".join(
                cells.text(name)
                for name in (
                    "model",
                    "hardware",
                    "framework",
                    "precision",
                    "tp",
                    "pp",
                    "attn_dp",
                    "moe_tp",
                    "moe_ep",
                    "isl_tokens",
                    "osl_tokens",
                )
            ),
        },
    )
