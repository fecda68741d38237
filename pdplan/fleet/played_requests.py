"""Requests for the simulator: drawn from a scenario's workload, or a trace replayed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pdplan.errors import InputError
from pdplan.scenario.resolve import Scenario
from pdplan.simulate import SimRequests
from pdplan.workload.traces import Trace

__all__ = ["draw_requests", "trace_requests"]


def draw_requests(scenario: Scenario, count: int, seed: int) -> SimRequests:
    """Requests of the scenario's workload at its design rate; the same seed gives the same requests.

    Lengths are support points of the scenario's mix (input, cached and output together), in whole tokens.
    """
    from pdplan.workload.arrivals import renewal_arrivals_s

    rng = np.random.default_rng(seed)
    arrival = renewal_arrivals_s(rng, count, scenario.rate_req_per_s, float(np.sqrt(scenario.arrival_cv2)))
    mix = scenario.mix
    pick = rng.choice(len(mix.weight), size=count, p=mix.weight / mix.weight.sum())
    inputs = np.maximum(np.rint(mix.input_tokens[pick]), 1)
    return SimRequests(
        arrival_s=arrival,
        input_tokens=inputs,
        output_tokens=np.maximum(np.rint(mix.output_tokens[pick]), 1),
        cached_tokens=np.clip(np.rint(mix.cached_tokens[pick]), 0, inputs - 1),
    )


def _own_prefixes(trace: Trace, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Tokens of each prompt that an earlier one began with, and its group (the first block); None without block ids.

    As with a cache that forgets nothing; the simulator looks for a group's prefix only where the group was served last.
    """
    if trace.block_ids is None or trace.block_offsets is None:
        return None
    offsets, ids = trace.block_offsets[: count + 1], trace.block_ids
    blocks = np.diff(offsets)
    inputs = np.asarray(trace.input_tokens[:count], dtype=np.int64)
    # The last block of a prompt is not full: the size is the least that holds every prompt.
    size = int(np.ceil((inputs / np.maximum(blocks, 1)).max(where=blocks > 0, initial=1.0)))
    seen: set[int] = set()
    names: dict[int, int] = {}
    cached, group = np.zeros(count, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    for i, (a, b) in enumerate(pairwise(offsets.tolist())):
        mine = ids[a:b].tolist()
        found = 0
        while found < len(mine) and mine[found] in seen:
            found += 1
        cached[i] = found * size
        if mine:
            group[i] = names.setdefault(mine[0], len(names))
        seen.update(mine)
    return np.minimum(cached, np.maximum(inputs - 1, 0)), group


def trace_requests(
    scenario: Scenario, trace: Trace, *, count: int | None = None, at_plan_rate: bool = False, name: str = "trace"
) -> SimRequests:
    """The first `count` requests of a trace (all for None) at their own times, or stretched to the plan's rate.

    Cached tokens are those of its block ids where it has them, else the scenario's share of each prompt.

    Raises
    ------
    InputError
        Too few requests, or all at one time.
    """
    count = len(trace.arrival_s) if count is None else min(count, len(trace.arrival_s))
    arrival = np.asarray(trace.arrival_s[:count], dtype=np.float64)
    if count < 10 or arrival[-1] <= arrival[0]:
        raise InputError(f"{name}: {count} requests; at least 10, at more than one time, can be replayed")
    arrival = arrival - arrival[0]
    if at_plan_rate:
        arrival = arrival * ((count - 1) / float(arrival[-1]) / scenario.rate_req_per_s)
    mix = scenario.mix
    inputs = np.maximum(np.asarray(trace.input_tokens[:count]), 1)
    prefixes = _own_prefixes(trace, count)
    if prefixes is None:
        hit = float(mix.mean(mix.cached_tokens)) / float(mix.mean(mix.input_tokens))
        prefixes = np.clip(np.rint(inputs * hit), 0, inputs - 1).astype(np.int64), np.full(count, -1, dtype=np.int64)
    return SimRequests(
        arrival_s=arrival,
        input_tokens=inputs,
        output_tokens=np.maximum(np.asarray(trace.output_tokens[:count]), 1),
        cached_tokens=prefixes[0],
        prefix_group=prefixes[1],
    )
