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
from pdplan.scenario.resolve import Scenario, SiteLink, Target

__all__ = ["DecodeModel", "PrefillModel", "colocated_coefficients", "decode_model", "link_between", "pairs", "prefill_model"]

Floats = NDArray[np.float64]


def pairs(targets: tuple[Target, ...]) -> list[tuple[float | None, float]]:
    """Targets as (percentile, limit)."""
    return [(target.percentile, target.limit_s) for target in targets]


def link_between(scenario: Scenario, a: str, b: str) -> SiteLink | None:
    """The link of two sites in either direction."""
    for link in scenario.links:
        if {link.site_a, link.site_b} == {a, b}:
            return link
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillModel:
    """Prefill of the scenario's mix on C layouts, sending to one place."""

    service_s: Floats
    """Time a server is busy per request, (K, C)."""
    extra_s: Floats
    """After prefill and before the first token is out, without the decode step: overhead, transfer, pipeline, (K, C)."""
    transfer_s: Floats
    """The KV transfer alone, (K, C)."""
    servers_per_replica: NDArray[np.int64]
    """Requests served side by side: one per attention rank, (C,)."""
    kv_bytes_per_request: Floats
    """Mean bytes sent, (C,)."""


def prefill_model(scenario: Scenario, fleet: Fleet, layouts: Layouts, link: SiteLink | None, *, same_site: bool) -> PrefillModel:
    """Service and transfer times of every support point.

    A replica with attention-DP serves one request per rank in a common pass; the pass is taken with every rank busy,
    which is right under load and pessimistic when idle. With pipeline stages the queue sees the interval between
    passes, the request the whole pass.
    """
    latency, mix = fleet.latency, scenario.mix
    new, cached = mix.new_tokens[:, None], mix.cached_tokens[:, None]
    passes = latency.prefill_pass_s(layouts, new, cached, layouts.attention_dp)
    interval = latency.prefill_interval_s(layouts, new, cached, layouts.attention_dp)
    size = latency.kv_transfer_bytes(layouts, new)
    path = np.inf
    if not same_site and link is not None:
        path = link.unit_bandwidth_bytes_per_s * link.usable_frac
    transfer = kv_transfer_s(
        size, sender_bandwidth_bytes_per_s=latency.nic_bandwidth_bytes_per_s(layouts),
        parallel_senders=latency.kv_transfer_senders(layouts), efficiency_frac=latency.general["transfer_efficiency"],
        handshake_s=latency.general["transfer_latency_s"], distance_km=0.0 if same_site or link is None else link.distance_km,
        path_bandwidth_bytes_per_s=path, layers=scenario.model.layers, layerwise_overlap=True, prefill_s=passes,
    )
    overhead = latency.engine_constants["request_overhead_ms"]
    return PrefillModel(
        service_s=interval, extra_s=overhead + transfer + (passes - interval), transfer_s=transfer,
        servers_per_replica=layouts.attention_dp, kv_bytes_per_request=np.tensordot(mix.weight, size, axes=(0, 0)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeModel:
    """Decode of the scenario's mix on C layouts."""

    latency: object
    layouts: Layouts
    context_tokens: float
    """Mean context of a sequence in flight: long answers are in flight longer."""
    output_tokens: Floats
    """Tokens after the first, (K,)."""
    weight: Floats
    max_batch: Floats
    """Resident sequences, staging of transfers excluded, (C,)."""
    tokens_per_step: Floats

    def step_s(self, batch: Floats) -> Floats:
        """Step time at a batch, (..., C)."""
        result: Floats = self.latency.decode_step_s(self.layouts, batch, self.context_tokens)  # type: ignore[attr-defined]
        return result


def _marginal(values: Floats, weight: Floats, points: int = 12) -> tuple[Floats, Floats]:
    """A weighted sample as equal-weight bin means, finer in both tails."""
    order = np.argsort(values, kind="stable")
    value, share = values[order], weight[order] / weight.sum()
    top = np.cumsum(share)
    edges = np.linspace(0, 1, points + 1)
    means, weights = [], []
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        part = np.clip(np.minimum(top, high) - np.maximum(top - share, low), 0, None)
        if part.sum() > 0:
            means.append(float((part * value).sum() / part.sum()))
            weights.append(float(part.sum()))
    return np.array(means), np.array(weights)


def mean_context(scenario: Scenario) -> float:
    """Context averaged over the sequences in flight, which are long answers more often."""
    mix = scenario.mix
    outputs = np.maximum(mix.output_tokens - 1, 1e-9)
    return float((mix.weight * outputs * (mix.input_tokens + mix.output_tokens / 2)).sum() / (mix.weight * outputs).sum())


def decode_model(scenario: Scenario, fleet: Fleet, layouts: Layouts, batch_cap: ArrayLike, staging_s: float = 0.1) -> DecodeModel:
    """Decode side of C layouts.

    `staging_s` is the time a request's cache waits on the decode side before its first step; the room for it is taken
    from the batch in proportion to the life of a request (Little's law).
    """
    mix = scenario.mix
    longest = mean_context(scenario) + 0.5 * float(mix.mean(mix.output_tokens))
    capacity = fleet.latency.max_batch(layouts, longest)
    outputs = np.maximum(mix.output_tokens - 1, 0.5)
    # A life at the slowest pace the targets allow gives the smallest share of staging that is safe to assume.
    pace_s = min((target.limit_s for target in scenario.tpot_targets()), default=0.05)
    life = float(mix.weight @ outputs) * pace_s + staging_s
    points, weight = _marginal(outputs, mix.weight)
    return DecodeModel(
        latency=fleet.latency, layouts=layouts, context_tokens=mean_context(scenario), output_tokens=points, weight=weight,
        max_batch=np.minimum(np.floor(capacity * (1 - staging_s / life)), np.asarray(batch_cap, dtype=np.float64)),
        tokens_per_step=fleet.latency.tokens_per_step(layouts),
    )


def colocated_coefficients(scenario: Scenario, fleet: Fleet, layouts: Layouts, chunk: Floats) -> dict[str, Floats]:
    """a0, be and bm of an iteration (queueing.md, section 3) from the latency model.

    bm is the marginal prefill time per token of a full chunk at the mean context of a prompt in progress, interleaving
    factor applied; a0 and be are the tangent of the decode step at a batch of 16.
    """
    latency, mix = fleet.latency, scenario.mix
    context = mean_context(scenario)
    one = np.full(len(layouts), 16.0)
    step, more = latency.decode_step_s(layouts, one, context), latency.decode_step_s(layouts, one * 2, context)
    slope = np.maximum((more - step) / one, 1e-9)
    fixed = np.maximum(step - slope * one, 1e-6)
    # A prompt's chunks attend to what came before: on average half of a length-weighted prompt.
    lengths = mix.new_tokens
    before = float((mix.weight * lengths * (mix.cached_tokens + lengths / 2)).sum() / (mix.weight * lengths).sum())
    size = np.asarray(chunk, dtype=np.float64) * layouts.attention_dp
    full = latency.prefill_pass_s(layouts, size / layouts.attention_dp, np.maximum(before - size / 2, 0.0), layouts.attention_dp)
    host = latency.engine_constants["host_latency_us"]
    # Inside a mixed iteration the weights are read once for both jobs, so a chunk costs its pass less the decode floor
    # where compute does not hide it; never less than its compute share.
    marginal = np.maximum(full - host - fixed, 0.5 * (full - host)) / size
    return {"fixed_s": fixed, "per_sequence_s": slope, "per_token_s": marginal, "chunk": size}
