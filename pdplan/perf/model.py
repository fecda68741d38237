"""Time of a prefill pass and of a decode step on many candidate layouts at once.

The formulas are those of docs/explanation/latency-model.md (pdplan latency model); this module only assembles the
operators of :mod:`pdplan.perf.operators` and :mod:`pdplan.perf.mixers`. A layout is reduced once to coefficients
(:class:`Assembly`), an evaluation is then a few dozen array operations whatever the number of layouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdplan.catalog.specs import EngineSpec, ModelSpec
from pdplan.perf import bounds, memory, validity
from pdplan.perf.assembly import Assembly, assemble
from pdplan.perf.constants import GENERAL, engine_constants, hardware_of, split_overrides
from pdplan.perf.layout import Layouts, Machine, Precision
from pdplan.perf.memory import MemoryBudget

__all__ = ["LatencyModel", "Speculation"]

Floats = NDArray[np.float64]

_KEPT_ASSEMBLIES = 8
_DRAFT_LAYER_FACTOR = 1.3
"""A draft layer over an ordinary one, its output head included (section 3)."""
_DRAFT_FIXED_S = 100e-6
"""Synchronisation per draft token (section 3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding, by the model's own draft layers or a small draft model."""

    draft_tokens: int
    acceptance_frac: float | None = None
    """Chance that a draft token is accepted given those before it; None is the engine's fitted value."""


class LatencyModel:
    """Latency of one model on one engine and precision, over any layouts of the given machines.

    Parameters
    ----------
    model : ModelSpec
    machines : sequence of Machine
        ``Layouts.machine`` indexes it.
    engine : EngineSpec
    precision : Precision
    speculation : Speculation, optional
    overrides : mapping, optional
        Constants to replace, as ``family.<name>``, ``engine.<name>`` or ``general.<name>``, in the units of the
        catalog files. Family constants are replaced for every machine.

    Notes
    -----
    Every array argument broadcasts against (..., C), with C the number of layouts; results have that shape.
    """

    def __init__(
        self,
        model: ModelSpec,
        machines: Sequence[Machine],
        engine: EngineSpec,
        precision: Precision,
        *,
        speculation: Speculation | None = None,
        overrides: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.model, self.machines, self.engine, self.precision = model, tuple(machines), engine, precision
        self.speculation = speculation if speculation and speculation.draft_tokens > 0 else None
        family, engine_values, general = split_overrides(overrides, self.machines, engine)
        self._family_overrides = family
        self.engine_constants = engine_constants(engine, engine_values)
        """Engine constants in SI units."""
        self.general: Mapping[str, float] = {**GENERAL, **general}
        self._assemblies: list[tuple[Layouts, Assembly]] = []

    # -- coefficients -------------------------------------------------------------------------------------------

    def assembly(self, layouts: Layouts) -> Assembly:
        """Coefficients of `layouts`, kept for the next call with the same object."""
        for known, kept in self._assemblies:
            if known is layouts:
                return kept
        built = assemble(
            self.model,
            hardware_of(
                self.machines,
                layouts.machine,
                self._family_overrides,
                launch_factor=self.engine_constants["launch_factor"],
                collective_latency_factor=self.engine_constants["collective_latency_factor"],
            ),
            layouts,
            self.precision,
            self.engine_constants,
            self.general,
        )
        self._assemblies = [*self._assemblies[-_KEPT_ASSEMBLIES + 1 :], (layouts, built)]
        return built

    def valid(self, layouts: Layouts) -> tuple[NDArray[np.bool_], list[str]]:
        """Which layouts exist, shape (C,), and one sentence per rule that some layout broke."""
        return validity.valid_layouts(self.model, self.machines, self.engine, layouts)

    # -- times --------------------------------------------------------------------------------------------------

    def prefill_pass_s(
        self, layouts: Layouts, new_tokens: ArrayLike, cached_tokens: ArrayLike = 0.0, requests: ArrayLike = 1.0
    ) -> Floats:
        """Seconds from the start of a prefill pass to its last layer.

        Parameters
        ----------
        layouts : Layouts
            C layouts.
        new_tokens, cached_tokens : array_like
            Tokens to compute, and tokens found in the prefix cache, per request.
        requests : array_like
            Requests in the pass, over the whole replica.
        """
        return self._prefill(layouts, new_tokens, cached_tokens, requests)["total"]

    def breakdown_prefill(
        self, layouts: Layouts, new_tokens: ArrayLike, cached_tokens: ArrayLike = 0.0, requests: ArrayLike = 1.0
    ) -> dict[str, Floats]:
        """Seconds of a prefill pass by component; ``total`` is their sum."""
        return self._prefill(layouts, new_tokens, cached_tokens, requests)

    def _prefill(
        self, layouts: Layouts, new_tokens: ArrayLike, cached_tokens: ArrayLike, requests: ArrayLike
    ) -> dict[str, Floats]:
        a = self.assembly(layouts)
        new, cached, count = (np.asarray(v, dtype=np.float64) for v in (new_tokens, cached_tokens, requests))
        parts = a.prefill_parts(new, cached, count)
        factor = self.engine_constants["prefill_time_factor"] * self.general["prefill_factor"]
        parts = {name: value * factor for name, value in parts.items()}
        parts["pipeline_hops"] = (layouts.pp - 1) * a.hop_s(new * count)
        parts["host"] = np.broadcast_to(self.engine_constants["host_latency_us"], np.shape(parts["head"]))
        parts["total"] = sum(parts.values(), start=np.zeros(()))
        return parts

    def prefill_interval_s(
        self, layouts: Layouts, new_tokens: ArrayLike, cached_tokens: ArrayLike = 0.0, requests: ArrayLike = 1.0
    ) -> Floats:
        """Seconds between the starts of successive prefill passes: shorter than one pass with pipeline stages."""
        return self.prefill_pass_s(layouts, new_tokens, cached_tokens, requests) / layouts.pp

    def decode_step_s(self, layouts: Layouts, batch: ArrayLike, context_tokens: ArrayLike) -> Floats:
        """Seconds of one engine step: verification of the drafts included where there is speculation.

        Parameters
        ----------
        layouts : Layouts
            C layouts.
        batch : array_like
            Sequences in the replica (at least 1 is assumed).
        context_tokens : array_like
            Mean context of a sequence.
        """
        return self._decode(layouts, batch, context_tokens)["total"]

    def breakdown_decode(self, layouts: Layouts, batch: ArrayLike, context_tokens: ArrayLike) -> dict[str, Floats]:
        """Seconds of a decode step by component; ``total`` is their sum."""
        return self._decode(layouts, batch, context_tokens)

    def _decode(self, layouts: Layouts, batch: ArrayLike, context_tokens: ArrayLike) -> dict[str, Floats]:
        a, drafts = self.assembly(layouts), self.draft_tokens
        context = np.asarray(context_tokens, dtype=np.float64)
        # with pipeline stages the batch goes round as pp micro-batches, at least one sequence each
        sequences = np.maximum(np.maximum(np.asarray(batch, dtype=np.float64), 1.0) / layouts.pp, 1.0)
        mean, parts = a.decode_parts(sequences, context, 1.0 + drafts, self.general["hot_rank_factor"])
        parts["pipeline_hops"] = np.where(layouts.pp > 1, layouts.pp * a.hop_s(sequences * (1.0 + drafts)), 0.0)
        if np.any(layouts.pp > 1):
            parts["pipeline_imbalance"] = a.stage_imbalance_s(parts)
        device = sum(parts.values(), start=np.zeros(()))
        if eager := self.engine_constants["eager_layer_latency_us"]:
            # kernels are launched one by one: the slower of device and host sets the pace
            launched = (device**4 + (self.model.layers * eager) ** 4) ** 0.25
            parts["eager_launch"] = launched - device
            device = launched
        parts["host"] = self.engine_constants["host_latency_us"] + self.engine_constants["per_sequence_latency_us"] * (
            mean * (1.0 + drafts)
        )
        if drafts:
            layer = _DRAFT_LAYER_FACTOR * device / self.model.layers + _DRAFT_FIXED_S
            parts["draft"] = drafts * self.general["draft_layer_cost"] * layer
            device = device + parts["draft"]
        parts["total"] = device + parts["host"]
        return parts

    @property
    def draft_tokens(self) -> int:
        """Draft tokens per step; 0 without speculation."""
        return self.speculation.draft_tokens if self.speculation else 0

    def tokens_per_step(self, layouts: Layouts) -> Floats:
        """Mean tokens one step adds to a sequence, shape (C,); 1 without speculation (section 3)."""
        if self.speculation is None:
            return np.ones(len(layouts))
        accepted = self.speculation.acceptance_frac
        if accepted is None:
            accepted = self.engine_constants["draft_acceptance_frac"]
        powers = [accepted**i for i in range(self.speculation.draft_tokens + 1)]
        return np.full(len(layouts), sum(powers))

    def prefill_requests_per_pass(self, layouts: Layouts, new_tokens: ArrayLike) -> Floats:
        """Most requests of `new_tokens` that one pass takes: per rank one, or as many as its token budget holds."""
        new = np.maximum(np.asarray(new_tokens, dtype=np.float64), 1.0)
        return np.asarray(layouts.attention_dp * np.maximum(1.0, self.engine.prefill_token_budget / new))

    # -- memory -------------------------------------------------------------------------------------------------

    def memory(self, layouts: Layouts) -> MemoryBudget:
        """Memory of one card, by use (section 4)."""
        hbm = self.assembly(layouts).hardware.hbm_bytes
        weights = memory.weights_on_card(self.model, layouts, self.precision, with_mtp=self.speculation is not None)
        reserve = (1 - self.general["memory_usable_frac"]) * hbm + self.general["memory_reserve_bytes"]
        return MemoryBudget(
            hbm_bytes=hbm,
            weights_bytes_per_card=weights,
            reserve_bytes_per_card=reserve,
            kv_bytes_per_card=np.maximum(hbm - reserve - weights, 0.0),
        )

    def kv_bytes_per_sequence(self, context_tokens: ArrayLike) -> Floats:
        """Cache and recurrent state of one sequence, stored once, bytes."""
        return memory.kv_bytes_of_sequence(self.model, context_tokens, self.precision)

    def kv_bytes_per_sequence_per_card(self, layouts: Layouts, context_tokens: ArrayLike) -> Floats:
        """The same on one card of the rank that serves the sequence, replication included, bytes, (..., C)."""
        return memory.kv_bytes_on_card(self.model, layouts, context_tokens, self.precision)

    def max_batch(self, layouts: Layouts, context_tokens: ArrayLike) -> Floats:
        """Sequences of `context_tokens` that a replica holds, (..., C); not rounded (section 4).

        The engine's admission limit per attention rank applies.
        """
        free = self.memory(layouts).kv_bytes_per_card
        per_sequence = self.kv_bytes_per_sequence_per_card(layouts, context_tokens)
        per_rank = free / np.maximum(per_sequence, 1e-300)
        if self.engine.max_batch_per_rank:
            per_rank = np.minimum(per_rank, float(self.engine.max_batch_per_rank))
        return np.asarray(np.where(free > 0, per_rank, 0.0) * layouts.attention_dp)

    # -- transfer -----------------------------------------------------------------------------------------------

    def kv_transfer_bytes(self, layouts: Layouts, tokens: ArrayLike) -> Floats:
        """Bytes that leave a prefill replica with one request of `tokens`, (..., C), copies of KV heads included."""
        return memory.transfer_bytes(self.model, layouts, tokens, self.precision)

    def kv_transfer_senders(self, layouts: Layouts) -> Floats:
        """Cards that send one request's cache side by side, (C,)."""
        return memory.kv_senders(self.model, layouts)

    def nic_bandwidth_bytes_per_s(self, layouts: Layouts) -> Floats:
        """Scale-out bandwidth of one card, (C,)."""
        return self.assembly(layouts).hardware.nic_bandwidth

    # -- physics ------------------------------------------------------------------------------------------------

    def roofline_prefill_s(
        self, layouts: Layouts, new_tokens: ArrayLike, cached_tokens: ArrayLike = 0.0, requests: ArrayLike = 1.0
    ) -> Floats:
        """No prefill pass is faster: the slowest of FLOPs, memory bytes and link bytes at datasheet peaks."""
        use = self.prefill_resources(layouts, new_tokens, cached_tokens, requests)
        return np.maximum(np.maximum(use.flop_s, use.hbm_s), use.link_s)

    def roofline_decode_s(self, layouts: Layouts, batch: ArrayLike, context_tokens: ArrayLike) -> Floats:
        """No decode step is faster: the slowest of FLOPs, memory bytes and link bytes at datasheet peaks."""
        use = self.decode_resources(layouts, batch, context_tokens)
        return np.maximum(np.maximum(use.flop_s, use.hbm_s), use.link_s)

    def prefill_resources(
        self, layouts: Layouts, new_tokens: ArrayLike, cached_tokens: ArrayLike = 0.0, requests: ArrayLike = 1.0
    ) -> bounds.Resources:
        """Seconds each resource of a mean card needs at its datasheet peak for one prefill pass, (..., C)."""
        new, cached, count = (np.asarray(v, dtype=np.float64) for v in (new_tokens, cached_tokens, requests))
        return bounds.prefill_resources(
            self.model, self.assembly(layouts).hardware, layouts, self.precision, self.general, new, cached, count
        )

    def decode_resources(self, layouts: Layouts, batch: ArrayLike, context_tokens: ArrayLike) -> bounds.Resources:
        """Seconds each resource of a mean card needs at its datasheet peak for one decode step, (..., C)."""
        return bounds.decode_resources(
            self.model, self.assembly(layouts).hardware, layouts, self.precision, self.general,
            np.maximum(np.asarray(batch, dtype=np.float64), 1.0), np.asarray(context_tokens, dtype=np.float64),
            1.0 + self.draft_tokens,
        )  # fmt: skip
