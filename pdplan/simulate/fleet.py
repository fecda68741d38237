"""What a simulation is told: pools, links, flows and failures as plain numbers, without any notion of a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "ColocatedPool",
    "DecodePool",
    "Failure",
    "Flow",
    "Link",
    "PrefillPool",
    "SimFleet",
    "SimOptions",
    "SimRequests",
]

Floats = NDArray[np.float64]
Router = Literal["central", "round_robin", "least_loaded", "prefix_aware", "random"]
ROUTERS: tuple[Router, ...] = ("central", "round_robin", "least_loaded", "prefix_aware", "random")
"""central: one queue for the pool; least_loaded: seconds of prompt work ahead or, where that is more, of caches at the NIC
(requests in a decoding replica);
prefix_aware: where the request's prefix group was served last, unless that replica is too busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPool:
    """Replicas that compute prompts in passes and send the KV cache on.

    A pass of requests r takes ``fixed_s + sum over r of w(r)`` with
    ``w = per_token_s n + per_token2_s n (cached + n/2)``, n the tokens that are not cached, or ``w`` from the table.
    With several ranks each request lies on one of them and a share `hot_frac` of the work is that of the fullest rank:
    ``fixed_s + hot_frac max over ranks + (1 - hot_frac) sum``.
    """

    name: str
    replicas: int
    fixed_s: float = 0.0
    per_token_s: float = 0.0
    per_token2_s: float = 0.0
    table: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None
    """(new tokens (R,), cached tokens (C,), time of a pass with that one request (R, C), `fixed_s` in it)."""
    max_requests: int = 1
    """Requests per pass."""
    token_budget: float = np.inf
    """New tokens per pass and rank; a longer prompt takes several passes in a row."""
    ranks: int = 1
    hot_frac: float = 0.0
    pipeline_stages: int = 1
    """A replica is free after one pass time, the request is done after `pipeline_stages` of them."""
    kv_tokens: float = np.inf
    """Tokens of cache a replica can hold for requests in their pass or waiting for their transfer."""
    router: Router = "least_loaded"
    share: float = 1.0
    """Of the arrivals, relative to the other pools with a share."""
    overhead_s: float = 0.0
    """Added to the delivery of every token: tokenisation, scheduling, network."""
    nic_bytes_per_s: float = np.inf
    """At which a replica sends, one cache after the other."""
    kv_bytes_per_token: float = 0.0
    kv_fixed_bytes: float = 0.0
    handshake_s: float = 0.0
    """Latency of a transfer that occupies nothing."""
    overlap_layers: int = 0
    """Layers sent while the pass runs; 0 sends everything after it."""
    max_queue: int = 0
    """Requests that may wait at a replica (in the pool for `central`); 0 is no limit. Others are rejected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePool:
    """Replicas that decode with continuous batching.

    The step time is bilinear in the batch and its mean context; the outer pieces of the grid go on for ever.
    """

    name: str
    replicas: int
    batch: ArrayLike
    """(M,) increasing."""
    context: ArrayLike
    """(N,) increasing; one value means no dependence."""
    step_s: ArrayLike
    """(M, N)"""
    tokens_per_step: float = 1.0
    kv_tokens: float = np.inf
    """Tokens of cache per replica."""
    max_sequences: float = np.inf
    headroom_tokens: float = 16.0
    """Per running sequence, kept free when another one is let in."""
    staging_tokens: float | None = None
    """A buffer for caches that have not joined the batch yet; None reserves their room in the KV cache."""
    holds_prefix: bool = False
    """The cached prefix is here already: only new tokens are sent."""
    first_token_at: Literal["prefill", "decode"] = "decode"
    """Where the first token is released: at the end of the pass, or when the sequence joins the batch."""
    first_token_extra_s: float = 0.0
    first_token_steps: float = 0.0
    """Both delay all tokens of a request: a time, and a multiple of a decode step: its first, or (colocated) the one its
    prompt's last iteration would be without prompts."""
    prefill_per_token_s: float = 0.0
    prefill_per_token2_s: float = 0.0
    """Work of prompt tokens inside an iteration, as in :class:`PrefillPool`; here only for recomputation."""
    prompt_work: tuple[ArrayLike, ArrayLike] | None = None
    """(tokens (R,), seconds (R,)): what all prompt tokens of an iteration add together, beside the two above."""
    chunk_tokens: float = 8192.0
    """Tokens of an iteration, decode tokens among them."""
    router: Router = "least_loaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColocatedPool(DecodePool):
    """Replicas that compute prompts in chunks beside the decode steps; the iteration time is a decode step plus prompts."""

    share: float = 1.0
    max_queue: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """First come, first served; shared by all flows that name it."""

    name: str
    bandwidth_bytes_per_s: float
    propagation_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Part of a prefill pool's requests that decode in one pool, over which link (None: the NIC alone)."""

    source: str
    target: str
    share: float = 1.0
    link: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Replicas of a pool that stop at a time, with everything on them, and perhaps return empty."""

    pool: str
    at_s: float
    replicas: int
    back_s: float | None = None
    spared: int = 0
    """The last replicas of the pool go; this many of them are left out, because another failure takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimFleet:
    """All that serves. Without flows every prefill pool sends to every decode pool in proportion to its replicas."""

    prefill: Sequence[PrefillPool] = ()
    decode: Sequence[DecodePool] = ()
    colocated: Sequence[ColocatedPool] = ()
    links: Sequence[Link] = ()
    flows: Sequence[Flow] = ()
    failures: Sequence[Failure] = ()

    def pools(self) -> list[PrefillPool | DecodePool]:
        """Prefill, decode and colocated pools in this order."""
        return [*self.prefill, *self.decode, *self.colocated]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimRequests:
    """Arrays of n requests in order of arrival."""

    arrival_s: ArrayLike
    input_tokens: ArrayLike
    output_tokens: ArrayLike
    cached_tokens: ArrayLike = 0
    """Tokens of the prompt found in the prefix cache; where groups are given, only on the replica of the group."""
    prefix_group: ArrayLike = -1
    """Requests that share a prefix have the same number (0, 1, ...); -1 has none."""
    class_id: ArrayLike = 0
    """Not used by the simulation; carried to the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """How to run."""

    engine: Literal["auto", "numba", "python"] = "auto"
    """auto is numba where it is installed."""
    seed: int = 0
    """Of the random splits; the same seed gives the same result, on either engine."""
    split: Literal["random", "even"] = "random"
    """How shares over pools are kept: independently for each request, or as evenly as possible."""
    on_failure: Literal["retry", "drop"] = "retry"
    """Requests on a lost replica start again (their tokens so far are kept), or count as failed."""
    horizon_s: float = np.inf
    """Requests not answered by then are unfinished."""
    warmup_frac: float = 0.1
    """Share of the arrivals before utilisation is measured."""
    prefix_balance: float = 1.5
    prefix_slack_s: float = 0.5
    prefix_slack_requests: float = 4.0
    """A prefix-aware router stays with a group's replica while its load is at most balance x least + slack."""
    progress: Callable[[int], None] | None = field(default=None, compare=False)
    """Called now and then with the number of requests that have arrived."""
