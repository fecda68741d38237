"""From a plan to the fleet that the simulator plays: pools with tables of the latency model, and links.

The simulator shares the service times with the queueing formulas and nothing else; docs/explanation/simulation.md says
how a plan is translated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdplan.errors import InputError
from pdplan.fleet.candidates import Fleet, fleet_of
from pdplan.fleet.evaluate import PoolSpec, layouts_of
from pdplan.fleet.plan import LinkLoad, Pool
from pdplan.fleet.pools import link_between, mean_context
from pdplan.perf.layout import Layouts
from pdplan.scenario.resolve import Scenario
from pdplan.simulate.fleet import ColocatedPool, DecodePool, Flow, Link, PrefillPool, Router, SimFleet

__all__ = ["PlayedPool", "fleet_to_play", "pool_names"]

Floats = NDArray[np.float64]
BOUNDARY_STEPS = 0.5
"""Steps of the way out of a first token that the simulator plays by itself: the wait for the next step, half of one on
average. The engines' fitted `first_token_steps` contain it."""
_GRID_TOKENS = 28
_GRID_CONTEXTS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedPool:
    """A pool of the plan and the name it has in the simulation."""

    name: str
    pool: Pool
    units: int
    """Queues played per replica: the attention ranks of a colocated replica admit and queue by themselves."""


def pool_names(pools: Sequence[Pool]) -> list[str]:
    """``prefill-1``, ``decode-1``, ``decode-2`` ...: by role, in the order of the plan."""
    seen: dict[str, int] = {}
    names = []
    for pool in pools:
        seen[pool.role] = seen.get(pool.role, 0) + 1
        names.append(f"{pool.role}-{seen[pool.role]}")
    return names


def _scalar(values: object) -> float:
    return float(np.ravel(np.asarray(values))[0])


def _layouts(fleet: Fleet, pool: Pool) -> Layouts:
    layout = pool.layout
    if pool.node_type not in fleet.index:
        raise InputError(
            f"pools: node type {pool.node_type!r} is not in the scenario; it has {', '.join(sorted(fleet.index))}"
        )
    return layouts_of(
        fleet,
        PoolSpec(
            role=pool.role, site=pool.site, node_type=pool.node_type, destination_site=pool.destination_site,
            tp=layout.tp, pp=layout.pp, ep=layout.ep, attention_dp=layout.attention_dp,
            token_budget=layout.token_budget, batch_cap=max(layout.max_batch, 1), replicas=pool.replicas,
            rate_req_per_s=pool.rate_req_per_s,
        ),
    )  # fmt: skip


def _spread(low: float, high: float, count: int) -> Floats:
    """Increasing whole numbers from `low` to `high`, evenly spaced in the logarithm."""
    if high <= low:
        return np.array([low])
    return np.unique(np.round(np.geomspace(low, high, count)))


def _kv_tokens(fleet: Fleet, layouts: Layouts, typical: float, longest: float) -> float:
    """Tokens of cache that fit in a replica, counted at sequences of `typical` tokens; never less than the longest."""
    free = _scalar(fleet.latency.memory(layouts).kv_bytes_per_card)
    per_card = _scalar(fleet.latency.kv_bytes_per_sequence_per_card(layouts, typical))
    return max(free / max(per_card, 1e-300) * typical * float(layouts.attention_dp[0]), longest)


def _pass_costs(scenario: Scenario, fleet: Fleet, layouts: Layouts) -> tuple[float, float]:
    """Fixed time of a pass and share of the work that the fullest rank alone decides, both at the mean prompt.

    With one request on each of R ranks a pass takes T(R), with two 2 T(R) - fixed; from T(1) and T(R) follows how much
    of the work grows with the sum over ranks. So one and two prompts of the mean length, and a full set of ranks, take
    what the latency model says.
    """
    latency, mix = fleet.latency, scenario.mix
    ranks = float(layouts.attention_dp[0])
    new, cached = float(mix.mean(mix.new_tokens)), float(mix.mean(mix.cached_tokens))

    def interval(requests: float) -> float:
        return _scalar(latency.prefill_interval_s(layouts, new, cached, requests))

    alone, full, twice = interval(1.0), interval(ranks), interval(2 * ranks)
    tiny = _scalar(latency.prefill_interval_s(layouts, 1.0, 0.0, 1.0))
    fixed = float(np.clip(2 * full - twice, 0.0, min(tiny, 0.95 * alone)))
    hot = 0.0
    if ranks > 1:
        work = alone - fixed
        hot = float(np.clip(1.0 - (full - fixed - work) / ((ranks - 1) * work), 0.0, 1.0))
    return fixed, hot


def _prefill(scenario: Scenario, fleet: Fleet, pool: Pool, name: str, router: Router) -> PrefillPool:
    latency, mix = fleet.latency, scenario.mix
    layouts = _layouts(fleet, pool)
    fixed, hot = _pass_costs(scenario, fleet, layouts)
    new = np.concatenate([[1.0], _spread(16.0, max(float(mix.new_tokens.max()), 32.0), _GRID_TOKENS)])
    most_cached = float(mix.cached_tokens.max())
    cached = np.concatenate([[0.0], _spread(64.0, most_cached, 8)]) if most_cached >= 1 else np.zeros(1)
    table = latency.prefill_interval_s(layouts, new[:, None, None], cached[:, None], 1.0)[..., 0]
    # A line through zero tokens that has the mix's mean: windows and states make the bytes bend.
    fixed_bytes = _scalar(latency.kv_transfer_bytes(layouts, 0.0))
    mean_bytes = float(mix.weight @ latency.kv_transfer_bytes(layouts, mix.new_tokens[:, None])[:, 0])
    per_token = (mean_bytes - fixed_bytes) / float(mix.mean(mix.new_tokens))
    # The network cards of all ranks, played as one.
    nic = (
        _scalar(latency.nic_bandwidth_bytes_per_s(layouts))
        * _scalar(latency.kv_transfer_senders(layouts))
        * latency.general["transfer_efficiency"]
        * pool.layout.attention_dp
    )
    handshake = latency.general["transfer_latency_s"]
    if pool.site != pool.destination_site:
        link = link_between(scenario, pool.site, pool.destination_site)
        if link is None:
            raise InputError(
                f"pool {name} at {pool.site} sends to {pool.destination_site}, but the scenario has no link between them"
            )
        # One transfer gets at most one unit of the link; the decode side's request for the cache travels it first.
        nic = min(nic, link.unit_bandwidth_bytes_per_s * link.usable_frac)
        handshake += link.one_way_s
    longest = float(mix.input_tokens.max())
    return PrefillPool(
        name=name,
        replicas=pool.replicas,
        fixed_s=fixed,
        table=(new, cached, table),
        max_requests=max(pool.layout.max_batch, pool.layout.attention_dp),
        token_budget=float(max(pool.layout.token_budget or scenario.engine.prefill_token_budget, 1)),
        ranks=pool.layout.attention_dp,
        hot_frac=hot,
        pipeline_stages=pool.layout.pp,
        kv_tokens=_kv_tokens(fleet, layouts, float(mix.mean(mix.input_tokens)), longest),
        router=router,
        share=pool.rate_req_per_s,
        overhead_s=latency.engine_constants["request_overhead_ms"],
        nic_bytes_per_s=nic,
        kv_bytes_per_token=per_token,
        kv_fixed_bytes=fixed_bytes,
        handshake_s=handshake,
        overlap_layers=scenario.model.layers,
    )


def _engine_fields(
    scenario: Scenario, fleet: Fleet, pool: Pool, layouts: Layouts, ranks: int, chunk: float
) -> dict[str, Any]:
    """What decode and colocated pools share: step table, prompt work, memory, way out of the first token.

    All for one of `ranks` ranks that work in step.
    """
    latency, mix = fleet.latency, scenario.mix
    constants = latency.engine_constants
    most = max(pool.layout.max_batch, 2 * ranks)
    batch = np.unique(np.r_[1.0, 2.0, _spread(2.0, float(most), 26)]) / ranks
    batch = batch[batch >= 1.0] if ranks > 1 else batch
    longest = float((mix.input_tokens + mix.output_tokens).max())
    shortest = max(float(mix.input_tokens.min()), 16.0)
    context = _spread(shortest, max(longest, 2 * shortest), _GRID_CONTEXTS)
    step = np.asarray(latency.decode_step_s(layouts, ranks * batch[:, None, None], context[:, None]))[..., 0]
    final = mean_context(scenario) + 0.5 * float(mix.mean(mix.output_tokens))
    work, per_pair = _prompt_work(fleet, layouts, chunk, longest)
    steps = constants["first_token_steps"] + constants["poll_interval_steps"] / 2 - BOUNDARY_STEPS
    return {
        "batch": batch,
        "context": context,
        "step_s": np.maximum.accumulate(step, axis=0),
        "tokens_per_step": _scalar(latency.tokens_per_step(layouts)),
        "kv_tokens": max(_kv_tokens(fleet, layouts, final, longest) / ranks, longest),
        "max_sequences": max(pool.layout.max_batch // ranks, 1),
        "first_token_steps": max(steps, 0.0),
        "chunk_tokens": chunk,
        "prompt_work": work,
        "prefill_per_token2_s": per_pair,
    }


def _decode(scenario: Scenario, fleet: Fleet, pool: Pool, name: str, router: Router) -> DecodePool:
    budget = float(max(scenario.engine.prefill_token_budget, 1))
    fields = _engine_fields(scenario, fleet, pool, _layouts(fleet, pool), 1, budget)
    return DecodePool(name=name, replicas=pool.replicas, holds_prefix=True, router=router, **fields)


def _prompt_work(fleet: Fleet, layouts: Layouts, chunk: float, longest: float) -> tuple[tuple[Floats, Floats], float]:
    """What the prompt tokens of an iteration add to it: a line over their number, and seconds per pair of tokens.

    A pass of n tokens less one of a single token, which costs what the iteration has anyway, and at least three tenths
    of the pass (docs/explanation/latency-model.md, colocated serving). The pairs are the attention of a chunk to what
    lies before it, from the difference between a chunk behind nothing and one behind a whole long prompt.
    """
    latency, ranks = fleet.latency, layouts.attention_dp
    host = latency.engine_constants["host_latency_us"]
    tokens = np.concatenate([[0.0, 1.0], _spread(4.0, max(chunk, 8.0), _GRID_TOKENS)])
    piece = np.asarray(latency.prefill_pass_s(layouts, np.maximum(tokens, 1.0)[:, None], 0.0, ranks))[:, 0] - host
    size = max(min(chunk, longest / 2), 1.0)
    early = _scalar(latency.prefill_pass_s(layouts, size, 0.0, ranks))
    late = _scalar(latency.prefill_pass_s(layouts, size, longest, ranks))
    per_pair = max((late - early) / (size * longest), 0.0)
    work = np.maximum(piece - piece[1], 0.3 * piece)
    # The attention inside the chunk is counted by pairs.
    line = np.maximum.accumulate(np.maximum(work - per_pair * tokens**2 / 2, 0.0))
    line[0] = 0.0
    return (tokens, line), per_pair


def _colocated(scenario: Scenario, fleet: Fleet, pool: Pool, name: str, router: Router) -> ColocatedPool:
    layouts, ranks = _layouts(fleet, pool), pool.layout.attention_dp
    chunk = float(max(pool.layout.token_budget, 1))
    return ColocatedPool(
        name=name,
        replicas=pool.replicas * ranks,
        router=router,
        share=pool.rate_req_per_s,
        first_token_extra_s=fleet.latency.engine_constants["request_overhead_ms"],
        **_engine_fields(scenario, fleet, pool, layouts, ranks, chunk),
    )


def _flows(
    scenario: Scenario, played: Sequence[PlayedPool], links: Sequence[LinkLoad]
) -> tuple[list[Flow], list[Link]]:
    units = {(line.from_site, line.to_site): line.units for line in links}
    flows, found = [], {}
    for source in played:
        if source.pool.role != "prefill":
            continue
        a, b = source.pool.site, source.pool.destination_site
        name = None
        if a != b:
            name = f"{a} to {b}"
            link = link_between(scenario, a, b)
            assert link is not None  # the pool was built over it
            found[name] = Link(
                name=name,
                bandwidth_bytes_per_s=max(units.get((a, b), 0), 1) * link.unit_bandwidth_bytes_per_s * link.usable_frac,
                propagation_s=link.one_way_s,
            )
        targets = [
            target
            for target in played
            if target.pool.role == "decode"
            and target.pool.site == b
            and (not scenario.engine.equal_tp or target.pool.layout.tp == source.pool.layout.tp)
        ]
        if not targets:
            raise InputError(f"pool {source.name} sends to {b}, where no decode pool takes its requests")
        flows += [
            Flow(source=source.name, target=target.name, share=target.pool.rate_req_per_s, link=name)
            for target in targets
        ]
    return flows, list(found.values())


def _check(pools: Sequence[Pool]) -> None:
    """Plans may be written by hand: numbers that no fleet has."""
    faults = []
    if not pools:
        faults.append("the plan has no pools: there is no fleet to simulate")
    for name, pool in zip(pool_names(pools), pools, strict=True):
        layout = pool.layout
        if pool.replicas < 1 or not 0 <= pool.rate_req_per_s < np.inf:
            faults.append(
                f"pool {name}: {pool.replicas} replicas at {pool.rate_req_per_s:g} req/s; at least one replica, and a rate of "
                "0 or more, can be simulated"
            )
        if min(layout.tp, layout.pp, layout.ep, layout.attention_dp) < 1:
            faults.append(f"pool {name}: tp, pp, ep and attention_dp of its layout must be at least 1")
    if pools and {pool.role for pool in pools} == {"decode"}:
        faults.append("the plan has decode pools only: there is nothing that computes prompts")
    if faults:
        raise InputError(*faults)


def fleet_to_play(
    scenario: Scenario,
    pools: Sequence[Pool],
    links: Sequence[LinkLoad] = (),
    *,
    prefill_router: Router = "least_loaded",
    decode_router: Router = "least_loaded",
) -> tuple[SimFleet, list[PlayedPool]]:
    """The fleet of a plan (or of its alternative) as the simulator sees it.

    Parameters
    ----------
    scenario : Scenario
        Of the plan, resolved.
    pools, links
        Of the plan.
    prefill_router, decode_router : str
        How a request finds its replica inside a pool; over pools requests are split by the plan's rates.

    Returns
    -------
    SimFleet
        Without failures.
    list of PlayedPool
        In the order of the simulator's pools: prefill, decode, colocated.

    Raises
    ------
    InputError
        No pools, a machine the scenario does not have, or a transfer without a link.
    """
    _check(pools)
    fleet = fleet_of(scenario)
    order = {"prefill": 0, "decode": 1, "colocated": 2}
    played = sorted(
        (
            PlayedPool(name=name, pool=pool, units=pool.layout.attention_dp if pool.role == "colocated" else 1)
            for name, pool in zip(pool_names(pools), pools, strict=True)
        ),
        key=lambda item: order[item.pool.role],
    )
    prefill = [_prefill(scenario, fleet, p.pool, p.name, prefill_router) for p in played if p.pool.role == "prefill"]
    decode = [_decode(scenario, fleet, p.pool, p.name, decode_router) for p in played if p.pool.role == "decode"]
    both = [_colocated(scenario, fleet, p.pool, p.name, decode_router) for p in played if p.pool.role == "colocated"]
    flows, wires = _flows(scenario, played, links)
    return SimFleet(prefill=prefill, decode=decode, colocated=both, flows=flows, links=wires), played
