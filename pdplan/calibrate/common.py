"""What the formats share: rows of cells -> deployments, by the same rules for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pdplan.calibrate.measured import Cells, Load, MeasuredRow
from pdplan.calibrate.names import engine_of, model_id_of, node_id_of, precision_label
from pdplan.catalog.load import Catalog
from pdplan.catalog.specs import ModelSpec
from pdplan.errors import InputError
from pdplan.serving.deployments import Deployment, Worker, benchmark_poll_steps, kv_cache_of, precision_of

__all__ = ["RANDOM_LENGTH_FRAC", "START_WAVE_FRAC", "assemble", "experts_of", "worker_from_cards"]

START_WAVE_FRAC = 0.1
"""Share of the first wave where ten requests per user are measured, as InferenceX does."""
RANDOM_LENGTH_FRAC = 0.9
"""Mean over nominal length where lengths are drawn uniformly from 0.8 to 1.0 of the nominal one, as InferenceX does."""


def experts_of(model: ModelSpec) -> bool:
    """Whether a model routes tokens to experts."""
    return any(block.ffn.experts for block in model.blocks)


def worker_from_cards(cards: int, *, replicas: int = 1, attention_dp: bool = False, ep: int | None = None) -> Worker:
    """A worker of so many cards: tensor-parallel attention, or one attention rank per card."""
    if attention_dp:
        return Worker(replicas=replicas, tp=1, ep=cards if ep is None else ep, attention_dp=cards)
    return Worker(replicas=replicas, tp=cards, ep=1 if ep is None else ep)


def assemble(
    cells: Cells,
    catalog: Catalog,
    *,
    row_id: str,
    model: str,
    hardware: str,
    framework: str,
    precision: str,
    decode: Worker,
    prefill: Worker | None,
    concurrency: float,
    input_tokens: float,
    output_tokens: float,
    measured: Mapping[str, float],
    kv_cache: str = "",
    cached_tokens: float = 0.0,
    draft_tokens: int = 0,
    acceptance_frac: float | None = None,
    max_batch_per_rank: int = 0,
    token_budget: float | None = None,
    ramp_frac: float = 0.0,
    poll: bool = True,
    start_wave_frac: float = 0.0,
    load: Load = "closed loop",
    doubts: tuple[str, ...] = (),
    labels: Mapping[str, str] | None = None,
) -> MeasuredRow:
    """A row from names and sizes as written; see :class:`~pdplan.serving.deployments.Deployment` for their meaning.

    Raises
    ------
    InputError
        A name that the catalog does not have.
    """
    faults: list[str] = []

    def find(get: Any, *args: Any) -> Any:
        try:
            return get(*args)
        except InputError as fault:
            faults.extend(fault.faults)
            return None

    model_id = find(model_id_of, model, catalog)
    node = find(node_id_of, hardware, catalog)
    weights = find(precision_label, precision)
    if faults:
        raise InputError(*faults)
    spec = catalog.model(model_id)
    engine = engine_of(framework, hardware, disaggregated=prefill is not None, catalog=catalog)
    notes = list(doubts)
    if engine.stands_in:
        notes.append(engine.stands_in)
    if not weights:
        notes.append("the number format is not stated; that of the released checkpoint is used")
        weights = spec.native_precision.get("weights", "bf16")
    chip = catalog.node(node).accelerator
    family = hardware.strip().lower()
    cache = kv_cache or ("bf16" if weights == "bf16" else kv_cache_of(framework.strip().lower(), family))
    deployment = Deployment(
        row_id=row_id,
        model=model_id,
        node=node,
        engine=engine.id,
        precision=precision_of(spec, weights, cache),
        decode=decode,
        prefill=prefill,
        concurrency=concurrency,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=cached_tokens,
        draft_tokens=draft_tokens,
        acceptance_frac=acceptance_frac,
        poll_steps=benchmark_poll_steps(framework.strip().lower(), family) if poll else 0.0,
        max_batch_per_rank=max_batch_per_rank,
        ramp_frac=ramp_frac,
        token_budget=token_budget,
        start_wave_frac=start_wave_frac,
    )
    found = {
        "model": model_id, "chip": chip, "precision": weights, "engine": engine.id,
        "mode": "disaggregated" if prefill is not None else "colocated",
        "speculation": "mtp" if draft_tokens else "none",
    }  # fmt: skip
    return MeasuredRow(
        row_id=row_id,
        line=cells.line,
        deployment=deployment,
        load=load,
        doubts=tuple(notes),
        measured=measured,
        labels={**found, **(labels or {})},
    )
