"""From a layout to the latencies and capacities of a pool: where perf and serving meet.

Everything takes C layouts at once; planning uses it to fill capacity tables, reports and the certificate to evaluate the
pools of a plan one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdplan.fleet.candidates import Fleet
from pdplan.perf.layout import Layouts
from pdplan.perf.transfer import kv_transfer_s
from pdplan.scenario.resolve import Scenario, SiteLink
from pdplan.serving.colocated import ColocatedModel
from pdplan.serving.prefill import PrefillService
from pdplan.serving.rank_passes import requests_of_full_pass
from pdplan.workload.mix import RequestMix

__all__ = [
    "BATCH_GRID",
    "DecodeModel",
    "PrefillModel",
    "colocated_model",
    "decode_model",
    "link_between",
    "mean_context",
    "prefill_model",
]

Floats = NDArray[np.float64]


def link_between(scenario: Scenario, a: str, b: str) -> SiteLink | None:
    """The link of two sites in either direction."""
    for link in scenario.links:
        if {link.site_a, link.site_b} == {a, b}:
            return link
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillModel:
    """Prefill of the scenario's mix on C layouts, sending to one place."""

    input_tokens: Floats
    """Of K prompts that stand for the mix, in order of the tokens to compute, (K,)."""
    weight: Floats
    """Their shares, (K,)."""
    single_s: Floats
    """Time the replica is taken by a request alone in its pass, (K, C)."""
    full_s: Floats
    """The same with one such request on every attention rank, (K, C)."""
    fixed_s: Floats
    """A pass without requests, (C,)."""
    ranks: NDArray[np.int64]
    """Attention ranks that share a pass, (C,)."""
    max_requests: Floats
    """Requests of a full pass, (C,): one without attention-DP, else what the token budget and the memory allow."""
    extra_s: Floats
    """After prefill and before the first token is out, without the decode step: overhead, transfer, pipeline, (K, C)."""
    transfer_s: Floats
    """The KV transfer alone, (K, C)."""
    send_s: Floats
    """Time the cache takes the network cards of its rank, (K, C)."""
    hidden_s: Floats
    """Wait for the network cards that passes unnoticed while the pass runs, (K, C)."""
    kv_bytes_per_request: Floats
    """Mean bytes sent, (C,)."""

    def take(self, index: NDArray[np.int64]) -> PrefillModel:
        """The candidates at `index`."""
        return PrefillModel(
            input_tokens=self.input_tokens,
            weight=self.weight,
            single_s=self.single_s[:, index],
            full_s=self.full_s[:, index],
            fixed_s=self.fixed_s[index],
            ranks=self.ranks[index],
            max_requests=self.max_requests[index],
            extra_s=self.extra_s[:, index],
            transfer_s=self.transfer_s[:, index],
            send_s=self.send_s[:, index],
            hidden_s=self.hidden_s[:, index],
            kv_bytes_per_request=self.kv_bytes_per_request[index],
        )

    def service(self, scenario: Scenario) -> PrefillService:
        """What the queueing formulas want to know."""
        return PrefillService(
            service_s=self.single_s,
            weight=self.weight,
            ranks=self.ranks,
            full_s=self.full_s,
            fixed_s=self.fixed_s,
            max_requests=self.max_requests,
            arrival_cv2=scenario.arrival_cv2,
            send_s=self.send_s,
            hidden_s=self.hidden_s,
        )


_PROMPTS = np.concatenate([np.linspace(0, 0.9, 91)[1:], np.linspace(0.9, 0.99, 31)[1:], np.linspace(0.99, 1, 11)[1:-1]])
"""Cumulative shares at which prompts of similar length are taken together, finer where percentiles are asked."""


def _prompts(mix: RequestMix) -> tuple[Floats, Floats, Floats]:
    """New tokens, cached tokens and share of at most 130 prompts that stand for the mix."""
    order = np.lexsort((mix.cached_tokens, mix.new_tokens))
    weight = mix.weight[order]
    group = np.searchsorted(_PROMPTS, np.cumsum(weight) - weight / 2)
    group = np.unique(group, return_inverse=True)[1]
    share = np.asarray(np.bincount(group, weights=weight), dtype=np.float64)
    new, cached = (
        np.bincount(group, weights=weight * tokens[order]) / share for tokens in (mix.new_tokens, mix.cached_tokens)
    )
    return new, cached, share


def prefill_model(
    scenario: Scenario, fleet: Fleet, layouts: Layouts, link: SiteLink | None, *, same_site: bool
) -> PrefillModel:
    """Service and transfer times of every support point.

    A replica with attention-DP serves the requests of all ranks in a common pass, each rank up to the engine's token budget;
    a longer prompt takes several passes, each with the fixed cost. With pipeline stages the queue sees the interval
    between passes, the request the whole pass.
    """
    latency, mix = fleet.latency, scenario.mix
    tokens, held, weight = _prompts(mix)
    new, cached = tokens[:, None], held[:, None]
    budget = float(scenario.engine.prefill_token_budget)
    fixed = np.broadcast_to(latency.prefill_interval_s(layouts, 1.0, 0.0, 1.0), (len(layouts),))
    more = (np.ceil(new / budget) - 1) * fixed
    single = latency.prefill_interval_s(layouts, new, cached, 1.0) + more
    full = np.maximum(latency.prefill_interval_s(layouts, new, cached, layouts.attention_dp) + more, single)
    resident = latency.max_batch(layouts, float(mix.mean(mix.input_tokens)))
    taken = np.minimum(requests_of_full_pass(layouts.attention_dp, budget, tokens, weight), resident)
    passes = single * layouts.pp
    size = np.broadcast_to(latency.kv_transfer_bytes(layouts, new), single.shape)
    path = np.inf
    if not same_site and link is not None:
        path = link.unit_bandwidth_bytes_per_s * link.usable_frac
    senders, efficiency = latency.kv_transfer_senders(layouts), latency.general["transfer_efficiency"]
    stream = size / np.minimum(latency.nic_bandwidth_bytes_per_s(layouts) * senders * efficiency, path)
    transfer = kv_transfer_s(
        size,
        sender_bandwidth_bytes_per_s=latency.nic_bandwidth_bytes_per_s(layouts),
        parallel_senders=senders,
        efficiency_frac=efficiency,
        handshake_s=latency.general["transfer_latency_s"],
        distance_km=0.0 if same_site or link is None else link.distance_km,
        path_bandwidth_bytes_per_s=path,
        layers=scenario.model.layers,
        layerwise_overlap=True,
        prefill_s=passes,
    )
    overhead = latency.engine_constants["request_overhead_ms"]
    return PrefillModel(
        input_tokens=tokens + held,
        weight=weight,
        single_s=single,
        full_s=full,
        fixed_s=fixed,
        ranks=layouts.attention_dp,
        max_requests=np.where(layouts.attention_dp > 1, np.maximum(taken, layouts.attention_dp), 1.0),
        extra_s=overhead + transfer + (passes - single),
        transfer_s=transfer,
        send_s=stream,
        hidden_s=np.maximum(passes - stream + stream / scenario.model.layers, 0.0),
        kv_bytes_per_request=weight @ size,
    )


BATCH_GRID = np.unique(np.round(np.geomspace(1, 8192, 30)))
"""Batches at which step times are tabulated, sequences per replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeModel:
    """Decode of the scenario's mix on C layouts."""

    context_tokens: float
    """Mean context of a sequence in flight: long answers are in flight longer."""
    step_s: Floats
    """Step time on BATCH_GRID, (M, C)."""
    context_spread_s: Floats
    """What one standard deviation of a sequence's context adds to a step, (C,)."""
    mean_tokens: float
    """Mean tokens after the first."""
    max_batch: Floats
    """Resident sequences, (C,)."""
    tokens_per_step: Floats
    staging_s: float
    """Time a request's cache is held before its first step."""


STAGING_S = 0.1
"""How long the decode side holds a cache in transfer: the fitted hand-over of 26 ms plus a stream of tens of ms, rounded
up. The room is taken from the batch by Little's law."""


def mean_context(scenario: Scenario) -> float:
    """Context averaged over the sequences in flight, which are long answers more often."""
    mix = scenario.mix
    outputs = np.maximum(mix.output_tokens - 1, 1e-9)
    return float(
        (mix.weight * outputs * (mix.input_tokens + mix.output_tokens / 2)).sum() / (mix.weight * outputs).sum()
    )


def _context_spread(scenario: Scenario) -> float:
    """Standard deviation of the context over the sequences in flight: of their middles, and of the way through an answer."""
    mix, mean = scenario.mix, mean_context(scenario)
    share = mix.weight * np.maximum(mix.output_tokens - 1, 1e-9)
    square = (share * ((mix.input_tokens + mix.output_tokens / 2) ** 2 + mix.output_tokens**2 / 12)).sum() / share.sum()
    return float(np.sqrt(max(square - mean**2, 0.0)))


def decode_model(scenario: Scenario, fleet: Fleet, layouts: Layouts, batch_cap: ArrayLike) -> DecodeModel:
    """Decode side of C layouts; memory is counted at the mean final length of the sequences in flight."""
    mix, context = scenario.mix, mean_context(scenario)
    final = context + 0.5 * float(mix.mean(mix.output_tokens))
    ranks = np.asarray(layouts.attention_dp, dtype=np.float64)
    away = min(_context_spread(scenario), context - 1.0)
    longer = fleet.latency.decode_step_s(layouts, ranks, context + away)
    shorter = fleet.latency.decode_step_s(layouts, ranks, context - away)
    return DecodeModel(
        context_tokens=context,
        context_spread_s=np.maximum(longer - shorter, 0.0) / 2 / np.sqrt(ranks),
        step_s=fleet.latency.decode_step_s(layouts, BATCH_GRID[:, None], context),
        mean_tokens=float(mix.weight @ np.maximum(mix.output_tokens - 1, 0.5)),
        max_batch=np.minimum(
            np.floor(fleet.latency.max_batch(layouts, final)), np.asarray(batch_cap, dtype=np.float64)
        ),
        tokens_per_step=fleet.latency.tokens_per_step(layouts),
        staging_s=STAGING_S,
    )


def colocated_model(scenario: Scenario, fleet: Fleet, layouts: Layouts, chunk: ArrayLike) -> ColocatedModel:
    """Coefficients of an iteration of one attention rank (queueing.md, section 3) from the latency model.

    With attention-DP every rank admits, queues and decodes its own requests in iterations common to all: the model is that
    of one rank, which gets its share of the replica's rate.

    Base and slope are the tangent of the decode step between 16 and 64 sequences. A prompt's work is its prefill pass
    less the fixed cost of a pass that the iteration has anyway (weights read, launches): the pass of one chunk, scaled
    to the prompt, plus the attention the scaling misses.
    """
    latency, mix, context = fleet.latency, scenario.mix, mean_context(scenario)
    ranks = layouts.attention_dp
    low = latency.decode_step_s(layouts, 16.0 * ranks, context)
    high = latency.decode_step_s(layouts, 64.0 * ranks, context)
    slope = np.maximum((high - low) / 48.0, 1e-9)
    base = np.maximum(low - 16.0 * slope, 1e-6)
    size = np.asarray(chunk, dtype=np.float64)
    new, cached = mix.new_tokens[:, None], mix.cached_tokens[:, None]
    host = latency.engine_constants["host_latency_us"]
    part = np.minimum(new, size)
    piece = latency.prefill_pass_s(layouts, part, cached, layouts.attention_dp) - host
    tiny = latency.prefill_pass_s(layouts, 1.0, cached, layouts.attention_dp) - host
    # Each chunk sees, on average, half of the prompt before it: attention beyond the first chunk's own.
    middle = cached + np.maximum(new - part, 0.0) / 2
    later = latency.prefill_pass_s(layouts, part, middle, layouts.attention_dp) - host
    work = np.maximum(np.maximum(piece, later) - tiny, 0.3 * piece) * (new / part)
    return ColocatedModel(
        base_s=base,
        per_sequence_s=slope,
        prefill_work_s=work,
        new_tokens=mix.new_tokens,
        decode_steps=np.maximum(mix.output_tokens - 1, 0.5) / float(latency.tokens_per_step(layouts)[0]),
        weight=mix.weight,
        chunk_tokens=size,
        tokens_per_step=float(latency.tokens_per_step(layouts)[0]),
        arrival_cv2=scenario.arrival_cv2,
    )
