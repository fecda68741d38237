"""Single published numbers: one metric per row, of a pool alone or of a whole deployment."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from pdplan.calibrate.common import assemble
from pdplan.calibrate.measured import Cells, Given, Load, MeasuredRow, Table, rows_of
from pdplan.catalog.load import Catalog
from pdplan.errors import InputError
from pdplan.serving.deployments import Worker

NAME = "published"
TITLE = "one published number per row (phase, load_kind, load_value, metric, value, unit)"

FLOOD_USERS_PER_CARD = 4096.0
"""Users that stand for ``max_load``: more than any cache holds, so that memory sets the batch."""


HOST_CARDS = 8


def recognises(table: Table) -> bool:
    """By the metric columns."""
    return table.kind == "csv" and {"phase", "metric", "load_kind", "hardware"} <= table.columns


def read(table: Table, catalog: Catalog, given: Given) -> Iterable[MeasuredRow]:
    """Every row."""

    def name(cells: Cells) -> str:
        return cells.text("id") or cells.text("row_id")

    return rows_of(table, lambda cells: _row(cells, catalog, name(cells) or f"line-{cells.line}"), name)


class _Drafts(NamedTuple):
    tokens: int
    acceptance_frac: float | None


def _drafts(text: str) -> _Drafts:
    """Drafts and acceptance from words such as ``mtp2_accept_2.4-2.7`` (tokens per step above 1, else a share)."""
    text = text.lower()
    if text in ("", "none", "unknown", "no"):
        return _Drafts(0, None)
    count = int(match.group(1)) if (match := re.search(r"mtp(\d)", text)) else 1
    if match := re.search(r"(\d+)pct", text):
        return _Drafts(count, min(int(match.group(1)) / 100, 0.99))
    numbers = [float(v) for v in re.findall(r"\d+\.\d+", text)]
    if not numbers:
        return _Drafts(count, None)
    value = sum(numbers) / len(numbers)
    if value < 1:
        return _Drafts(count, value)
    low, high = 0.0, 0.999  # tokens per step = 1 + a + ... + a^count
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**i for i in range(count + 1)) < value else (low, middle)
    return _Drafts(count, low)


def _measured(cells: Cells, cards: float) -> dict[str, float]:
    """The row's number as one of the metrics; empty where it is none of them (percentiles, attainment, transfer)."""
    metric, prefill = cells.text("metric"), cells.text("phase") == "prefill"
    try:
        value = cells.positive("value")
    except InputError:
        return {}
    scale = 1e-3 if cells.text("unit") == "ms" else 1.0
    if metric in ("ttft_mean", "ttft_p50", "ttft_unchunked", "ttft_dynamic_chunk_32k"):
        return {"ttft_s": value * scale}
    if metric in ("tpot_mean", "tpot", "tbt_p50", "tpot_p50"):
        return {"tpot_s": value * scale}
    if metric == "output_speed_per_user":
        return {"tpot_s": 1 / value}
    per_card = value / 8 if metric.endswith("_per_node") else value
    if metric.startswith("input_tput") and prefill:
        return {"total_tok_per_s_per_card": per_card}
    if metric.startswith("output_tput_per"):
        return {"output_tok_per_s": per_card * cards}
    return {"output_tok_per_s": value} if metric == "output_tput_system" else {}


def _load(cells: Cells, worker: Worker, cards: int, input_tokens: float) -> tuple[Load, float]:
    """Kind of load and its size over all replicas."""
    phase, kind = cells.text("phase"), cells.text("load_kind")
    if phase == "transfer":
        raise InputError("phase: a KV transfer alone is not predicted here; see `pdplan plan` for transfers")
    if kind == "request_rate_req_per_s":
        raise InputError("load_kind: an open-loop rate needs its arrivals; `pdplan plan` and `pdplan check` take rates")
    if not kind:
        raise InputError("load_kind: is blank: neither the batch nor the users in flight are stated")
    if phase == "prefill":
        if kind in ("tokens_per_gpu", "tokens_per_npu"):
            return "prefill pass", max(cells.positive("load_value") * cards / input_tokens, worker.replicas)
        if kind == "requests":
            return "prefill pass", cells.positive("load_value")
    if phase == "decode" and kind in ("requests_per_gpu", "requests_per_npu"):
        return "decode batch", cells.positive("load_value") * cards
    if kind == "max_load":
        return "closed loop", FLOOD_USERS_PER_CARD * cards
    if kind in ("mean_in_flight_requests", "requests"):
        return "closed loop", cells.positive("load_value")
    if kind in ("requests_per_gpu", "requests_per_npu"):
        return "closed loop", cells.positive("load_value") * cards
    raise InputError(f"load_kind: {kind!r} with phase {phase!r} is not known")


def _row(cells: Cells, catalog: Catalog, name: str) -> MeasuredRow:
    if cells.text("phase") == "e2e-disagg":
        raise InputError("phase: the row does not say how the cards are split between prefill and decode")
    tp, pp, ranks = cells.count("tp", 1), cells.count("pp", 1), cells.count("attn_dp", 1)
    stated = cells.count("gpus", 0)
    workers = cells.count("workers", 0)
    if not workers:
        workers = max(stated // (tp * pp * ranks), 1) if stated else 1
    worker = Worker(replicas=workers, tp=tp, pp=pp, ep=min(cells.count("ep", 1), tp * ranks), attention_dp=ranks)
    cards = tp * pp * ranks * workers
    input_tokens = cells.positive("isl_tokens")
    load, size = _load(cells, worker, cards, input_tokens)
    drafts = _drafts(cells.text("speculative_decoding"))
    framework = cells.text("framework")
    if load != "closed loop" and worker.ep > HOST_CARDS and framework in ("sglang", "in-house"):
        framework = "sglang-large-ep"  # such reports run with two-batch overlap and balanced experts
    doubts = []
    if cells.text("config_completeness") in ("partial", "insufficient"):
        doubts.append(f"the configuration is {cells.text('config_completeness')}")
    if load == "closed loop" and cells.text("load_kind") == "max_load":
        doubts.append("flood load: the batch is what memory holds")
    return assemble(
        cells,
        catalog,
        row_id=name,
        model=cells.text("model").removesuffix("(presumed)").strip(),
        hardware=cells.text("hardware"),
        framework=framework,
        precision=cells.text("precision"),
        decode=worker,
        prefill=None,
        concurrency=size,
        input_tokens=input_tokens,
        output_tokens=cells.positive("osl_tokens", 1.0),
        draft_tokens=drafts.tokens,
        acceptance_frac=drafts.acceptance_frac,
        poll=False,
        load=load,
        doubts=tuple(doubts),
        measured=_measured(cells, float(stated or cards)),
        labels={
            "framework": cells.text("framework"),
            "hardware": cells.text("hardware"),
            "mode": f"{cells.text('phase')}, {load}",
            "group": name.rsplit("-", 1)[0],
        },
    )
