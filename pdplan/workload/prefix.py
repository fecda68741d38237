"""Prefix-cache hit ratio of a trace against cache size: least recently used over prompt blocks."""

from __future__ import annotations

import itertools
from collections import OrderedDict

from pdplan.workload.traces.read import Trace

__all__ = ["lru_hit_frac"]


def lru_hit_frac(trace: Trace, capacity_blocks: float = float("inf")) -> float:
    """Blocks found as a leading run in the cache, over all blocks of all prompts.

    Raises
    ------
    ValueError
        The trace has no block ids.
    """
    if trace.block_ids is None or trace.block_offsets is None:
        raise ValueError("the trace has no block ids; prefix reuse cannot be known from lengths alone")
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    ids, offsets = trace.block_ids.tolist(), trace.block_offsets.tolist()
    for a, b in itertools.pairwise(offsets):
        leading = True
        for block in ids[a:b]:
            known = block in cache
            leading = leading and known
            hits += leading
            if known:
                cache.move_to_end(block)
            else:
                cache[block] = None
                if len(cache) > capacity_blocks:
                    cache.popitem(last=False)
    return hits / max(len(ids), 1)
