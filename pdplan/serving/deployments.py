"""Measured deployments as the public benchmarks describe them, and their prediction by the closed-loop model.

What a benchmark row leaves out (number format of the cache, draft length, polling) is filled in by the rules below,
stated in docs/explanation/accuracy.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdplan.catalog.load import Catalog
from pdplan.catalog.specs import EngineSpec, FamilySpec, ModelSpec
from pdplan.perf.layout import Layouts, Machine, Precision
from pdplan.perf.model import LatencyModel, Speculation
from pdplan.serving.closed_loop import ClosedLoopResult, PrefillPool, closed_loop

__all__ = [
    "BENCHMARK_RAMP_FRAC",
    "ENGINE_OF",
    "NODE_OF",
    "Deployment",
    "Group",
    "Worker",
    "benchmark_poll_steps",
    "groups_of",
    "join_results",
    "kv_cache_of",
    "precision_of",
    "predict_deployments",
]

Floats = NDArray[np.float64]

BENCHMARK_RAMP_FRAC = 0.05
"""Share of a public benchmark run spent in ramp and drain, inside its throughput figures."""

NODE_OF: Mapping[str, str] = {
    "a100": "a100-sxm-80-8", "h100": "h100-sxm-8", "h200": "h200-sxm-8", "b200": "b200-8", "b300": "b300-8",
    "gb200": "gb200-nvl72", "gb300": "gb300-nvl72", "mi300x": "oam-mi300x-8", "mi325x": "oam-mi325x-8",
    "mi355x": "oam-mi355x-8", "h20": "h20-96-8", "l40s": "l40s-8", "h800": "h800-8",
}  # fmt: skip
"""Hardware names of the public benchmarks -> node ids."""

ENGINE_OF: Mapping[str, str] = {
    "trt": "trtllm", "trtllm": "trtllm", "dynamo-trt": "trtllm-dynamo", "dynamo-trtllm": "trtllm-dynamo",
    "sglang": "sglang", "dynamo-sglang": "sglang-dynamo", "mori-sglang": "sglang-mori", "atom": "atom", "vllm": "vllm",
    "dynamo-vllm": "vllm",
}  # fmt: skip
"""Framework names of the public benchmarks -> engine ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Engine instances of one role."""

    replicas: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    attention_dp: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One measured point: what ran, under which load. Lengths are true means."""

    row_id: str
    model: str
    """Catalog id."""
    node: str
    engine: str
    """Catalog ids."""
    precision: Precision
    decode: Worker
    prefill: Worker | None = None
    """None is colocated."""
    concurrency: float
    input_tokens: float
    output_tokens: float
    cached_tokens: float = 0.0
    draft_tokens: int = 0
    acceptance_frac: float | None = None
    poll_steps: float = 0.0
    max_batch_per_rank: int = 0
    ramp_frac: float = 0.0
    token_budget: float | None = None
    start_wave_frac: float = 0.0
    """Share of the averaged requests that arrived together at the start, for a TTFT that is a mean; 0 for a median."""
    labels: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Free labels for tables: hardware, mode, spec ..."""


def kv_cache_of(framework: str, hardware: str) -> str:
    """Cache format that the public recipes run with: fp8 except SGLang and vLLM before Blackwell."""
    fp8 = framework in ("trt", "trtllm", "dynamo-trt", "dynamo-trtllm", "atom") or hardware.startswith(("b", "gb"))
    return "fp8" if fp8 else "bf16"


def precision_of(model: ModelSpec, weights: str, kv_cache: str) -> Precision:
    """Number formats of a checkpoint by its label (pdplan latency model, section 1.3)."""
    latent = any(block.mixer.type in ("mla", "dsv4") for block in model.blocks)
    wide = weights in ("fp4", "int4") and (latent or model.native_precision.get("attention") == "bf16")
    return Precision(
        weights=weights,
        attention_weights="bf16" if wide else weights,
        output_projection="bf16" if wide and not latent else weights,
        kv_cache=kv_cache,
    )


def benchmark_poll_steps(framework: str, hardware: str) -> float:
    """Decode steps between two looks at the request queue: the public SGLang recipes on Blackwell set 30."""
    return 30.0 if framework == "sglang" and hardware.startswith(("b", "gb")) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Deployments that share a latency model, with everything as arrays."""

    index: NDArray[np.int64]
    """Position in the list they came from."""
    rows: tuple[Deployment, ...]
    latency: LatencyModel
    decode: Layouts
    prefill: Layouts | None

    def column(self, name: str) -> Floats:
        """A numeric field of the deployments, (n,)."""
        return np.array([float(getattr(row, name) or 0.0) for row in self.rows])

    def replicas(self, role: str) -> Floats:
        """Replicas of a role, (n,)."""
        return np.array([float(getattr(row, role).replicas) for row in self.rows])

    def predict(self) -> ClosedLoopResult:
        """Closed-loop steady state of every deployment."""
        limit = self.column("max_batch_per_rank") * self.decode.attention_dp
        pool = None
        if self.prefill is not None:
            pool = PrefillPool(latency=self.latency, layouts=self.prefill, replicas=self.replicas("prefill"))
        budgets = [row.token_budget for row in self.rows]
        result = closed_loop(
            self.latency,
            self.decode,
            concurrency=self.column("concurrency"),
            input_tokens=self.column("input_tokens"),
            output_tokens=self.column("output_tokens"),
            cached_tokens=self.column("cached_tokens"),
            replicas=self.replicas("decode"),
            prefill=pool,
            token_budget=np.array([self.latency.engine.prefill_token_budget if b is None else b for b in budgets]),
            max_batch=np.where(limit > 0, limit, np.inf),
            ramp_frac=self.rows[0].ramp_frac,
        )
        return _with_start_wave(result, self.column("concurrency"), self.column("start_wave_frac"))


def _with_start_wave(result: ClosedLoopResult, users: Floats, share: Floats) -> ClosedLoopResult:
    """Mean TTFT over a run that starts with all users at once: the first wave queues behind itself.

    N prompts that arrive together leave a prefill side of capacity c after N / c, so that they wait N / (2 c) on average;
    `share` of the averaged requests do.
    """
    if not share.any():
        return result
    capacity = result.request_rate_per_s / np.maximum(result.prefill_utilisation_frac, 1e-12)
    return replace(result, ttft_s=result.ttft_s + share * users / (2 * capacity))


def _layouts(workers: Sequence[Worker], machine: NDArray[np.int64]) -> Layouts:
    def column(name: str) -> NDArray[np.int64]:
        return np.array([getattr(worker, name) for worker in workers], dtype=np.int64)

    return Layouts(
        machine=machine, tp=column("tp"), pp=column("pp"), ep=column("ep"), attention_dp=column("attention_dp")
    )


def groups_of(
    rows: Sequence[Deployment],
    catalog: Catalog,
    *,
    families: Mapping[str, FamilySpec] = MappingProxyType({}),
    engines: Mapping[str, EngineSpec] = MappingProxyType({}),
    general: Mapping[str, float] = MappingProxyType({}),
) -> list[Group]:
    """Sort deployments into groups that one vectorised call predicts.

    Parameters
    ----------
    rows : sequence of Deployment
        In any order.
    catalog : Catalog
        Where models, nodes and constants come from.
    families, engines : mapping
        Records that replace the catalog's, by id.
    general : mapping
        ``general.<name>`` constants that replace the shipped ones (names without the prefix).
    """
    keyed: dict[tuple[Any, ...], list[int]] = {}
    for i, row in enumerate(rows):
        key = (
            row.model, row.engine, row.precision, row.draft_tokens, row.acceptance_frac, row.poll_steps,
            row.prefill is None, row.ramp_frac,
        )  # fmt: skip
        keyed.setdefault(key, []).append(i)
    result = []
    for indices in keyed.values():
        members = tuple(rows[i] for i in indices)
        first = members[0]
        nodes = list(dict.fromkeys(row.node for row in members))
        machines = []
        for name in nodes:
            node = catalog.node(name)
            card = catalog.accelerator(node.accelerator)
            family = families.get(card.family) or catalog.family(card.family)
            machines.append(Machine(node=node, accelerator=card, family=family))
        engine = engines.get(first.engine) or catalog.engine(first.engine)
        if first.poll_steps:
            engine = replace(engine, constants={**engine.constants, "poll_interval_steps": first.poll_steps})
        speculation = None
        if first.draft_tokens:
            speculation = Speculation(draft_tokens=first.draft_tokens, acceptance_frac=first.acceptance_frac)
        latency = LatencyModel(
            catalog.model(first.model), machines, engine, first.precision, speculation=speculation,
            overrides={f"general.{name}": value for name, value in general.items()},
        )  # fmt: skip
        machine = np.array([nodes.index(row.node) for row in members], dtype=np.int64)
        prefills = [row.prefill for row in members if row.prefill is not None]
        result.append(
            Group(
                index=np.array(indices),
                rows=members,
                latency=latency,
                decode=_layouts([row.decode for row in members], machine),
                prefill=_layouts(prefills, machine) if prefills else None,
            )
        )
    return result


def join_results(groups: Iterable[Group], results: Iterable[ClosedLoopResult]) -> ClosedLoopResult:
    """Results of groups in the order of the rows they came from."""
    pairs = list(zip(groups, results, strict=True))
    order = np.argsort(np.concatenate([group.index for group, _ in pairs]))
    columns = {
        name: np.concatenate([getattr(result, name) for _, result in pairs])[order]
        for name in ClosedLoopResult.__slots__
    }
    return ClosedLoopResult(**columns)


def predict_deployments(rows: Sequence[Deployment], catalog: Catalog, **replaced: Any) -> ClosedLoopResult:
    """Closed-loop prediction of every row, arrays in the order of `rows`; keywords as in :func:`groups_of`."""
    groups = groups_of(rows, catalog, **replaced)
    return join_results(groups, [group.predict() for group in groups])
