"""From pools and requests to the flat arrays of the event loop."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdplan.simulate import kernel as kn
from pdplan.simulate.fleet import ROUTERS, ColocatedPool, DecodePool, PrefillPool, SimFleet, SimOptions, SimRequests

__all__ = ["Packed", "checked_requests", "pack"]

_GAP_SIZE = 512
_UNLIMITED = 1e15
"""Stands for "no limit" where an integer is made of it."""


@dataclass(slots=True, kw_only=True)
class Packed:
    """Arguments of :func:`pdplan.simulate.kernel.run_events` by name, in order."""

    q: Any
    k: Any
    sf: Any
    si: Any
    pf: Any
    pi: Any
    gf: Any
    gi: Any
    tab: Any
    share: Any
    route: Any
    links: Any
    home: Any
    tree: Any
    when: Any
    times: Any
    loads: Any
    gap_value: Any
    gap_run: Any
    fail_time: Any
    fail_server: Any
    fail_back: Any
    scratch: Any

    def arguments(self) -> list[Any]:
        """In the order of the signature."""
        return [getattr(self, name) for name in self.__slots__]

    def for_python(self) -> Packed:
        """Containers that plain Python reads fast: arrays where there are many entries, lists elsewhere."""
        out = {}
        for name in self.__slots__:
            values = getattr(self, name)
            if name in ("q", "k", "times", "loads"):
                fast = array("d" if values.dtype == np.float64 else "q")
                fast.frombytes(memoryview(values).cast("B"))
                out[name] = fast
            else:
                out[name] = values.tolist()
        return Packed(**out)


def _whole(name: str, values: Any, n: int, least: int, faults: list[str]) -> NDArray[np.int64]:
    given = np.asarray(values, dtype=np.float64)
    try:
        spread = np.broadcast_to(given, (n,))
    except ValueError:
        faults.append(f"{name} has shape {given.shape}; a number or one value per arrival ({n}) is accepted")
        return np.full(n, least, dtype=np.int64)
    if n and not np.all(np.isfinite(spread)):
        faults.append(f"{name} holds a value that is not finite; whole numbers are accepted")
        return np.full(n, least, dtype=np.int64)
    whole = np.rint(spread).astype(np.int64)
    if n and int(whole.min()) < least:
        faults.append(f"{name} goes down to {int(whole.min())}; {least} or more is accepted")
    return whole


def checked_requests(requests: SimRequests) -> dict[str, NDArray[Any]]:
    """Arrays of one length, or a ValueError that names every fault."""
    faults: list[str] = []
    arrival = np.array(requests.arrival_s, dtype=np.float64)
    if arrival.ndim != 1:
        raise ValueError(f"arrival_s has shape {arrival.shape}; one time per request is accepted")
    n = len(arrival)
    if n and not (np.all(np.isfinite(arrival)) and arrival[0] >= 0 and np.all(np.diff(arrival) >= 0)):
        faults.append("arrival_s must be finite, not negative and in increasing order")
    out: dict[str, NDArray[Any]] = {"arrival_s": arrival}
    for name, least in (
        ("input_tokens", 1), ("cached_tokens", 0), ("output_tokens", 1), ("prefix_group", -1), ("class_id", 0),
    ):  # fmt: skip
        out[name] = _whole(name, getattr(requests, name), n, least, faults)
    if not faults and np.any(out["cached_tokens"] > out["input_tokens"]):
        faults.append("cached_tokens exceeds input_tokens somewhere; at most the whole prompt is cached")
    if faults:
        raise ValueError("; ".join(faults))
    return out


def _grid(name: str, what: str, x: Any, y: Any, z: Any, faults: list[str]) -> tuple[list[float], int, int]:
    rows, cols, values = (np.asarray(v, dtype=np.float64) for v in (x, y, z))
    good = (
        rows.ndim == cols.ndim == 1 and values.shape == (len(rows), len(cols)) and len(rows) > 0 and len(cols) > 0
        and bool(np.all(np.diff(rows) > 0)) and bool(np.all(np.diff(cols) > 0)) and bool(np.all(np.isfinite(values)))
    )  # fmt: skip
    if not good:
        faults.append(
            f"pool {name!r}: {what} must be finite, of shape (rows, columns), over increasing grids; got"
            f" {rows.shape}, {cols.shape}, {values.shape}"
        )
        return [], 0, 0
    return [*rows, *cols, *values.ravel()], len(rows), len(cols)


def _pool_records(
    fleet: SimFleet, faults: list[str]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    pools = fleet.pools()
    pf, pi = np.zeros((len(pools), kn.PF)), np.zeros((len(pools), kn.PI), dtype=np.int64)
    tab: list[float] = []
    owner: list[int] = []
    for p, pool in enumerate(pools):
        f, i = pf[p], pi[p]
        if pool.replicas < 1:
            faults.append(f"pool {pool.name!r} has {pool.replicas} replicas; one or more is accepted")
        i[kn.FROM], i[kn.COUNT], i[kn.ROUTER] = len(owner), pool.replicas, ROUTERS.index(pool.router)
        owner += [p] * pool.replicas
        i[kn.TABLE] = len(tab)
        f[kn.KV_CAP] = pool.kv_tokens
        if isinstance(pool, PrefillPool):
            f[kn.PASS_A], f[kn.PASS_B], f[kn.PASS_C] = pool.fixed_s, pool.per_token_s, pool.per_token2_s
            f[kn.BUDGET], f[kn.HOT], f[kn.EXTRA] = pool.token_budget, pool.hot_frac, pool.overhead_s
            f[kn.NIC], f[kn.BYTES_PER_TOKEN] = pool.nic_bytes_per_s, pool.kv_bytes_per_token
            f[kn.FIXED_BYTES], f[kn.HANDSHAKE], f[kn.LAYERS] = pool.kv_fixed_bytes, pool.handshake_s, pool.overlap_layers
            i[kn.PASS_LIMIT], i[kn.RANKS], i[kn.STAGES] = pool.max_requests, pool.ranks, pool.pipeline_stages
            i[kn.MAX_QUEUE] = pool.max_queue
            if min(pool.max_requests, pool.ranks, pool.pipeline_stages) < 1 or pool.token_budget < 1:
                faults.append(
                    f"pool {pool.name!r}: max_requests, ranks, pipeline_stages and token_budget must be at least 1"
                )
            if pool.nic_bytes_per_s <= 0 or min(pool.fixed_s, pool.per_token_s, pool.per_token2_s) < 0:
                faults.append(f"pool {pool.name!r}: times must not be negative and nic_bytes_per_s must be positive")
            if pool.table is not None:
                x, y, z = pool.table
                more, i[kn.ROWS], i[kn.COLS] = _grid(
                    pool.name, "table", x, y, np.asarray(z, dtype=np.float64) - pool.fixed_s, faults
                )
                tab += more
            continue
        i[kn.ENGINE] = 1
        f[kn.PASS_B], f[kn.PASS_C] = pool.prefill_per_token_s, pool.prefill_per_token2_s
        f[kn.BUDGET] = min(pool.chunk_tokens, _UNLIMITED)
        f[kn.MAX_ACTIVE], f[kn.PER_STEP], f[kn.EXTRA] = pool.max_sequences, pool.tokens_per_step, pool.first_token_extra_s
        f[kn.FIRST_STEPS], f[kn.HEADROOM] = pool.first_token_steps, max(pool.headroom_tokens, pool.tokens_per_step)
        f[kn.STAGING] = -1.0 if pool.staging_tokens is None else pool.staging_tokens
        i[kn.HOLDS_PREFIX], i[kn.FIRST_AT] = pool.holds_prefix, pool.first_token_at == "prefill"
        if isinstance(pool, ColocatedPool):
            i[kn.MAX_QUEUE] = pool.max_queue
        if pool.tokens_per_step <= 0 or pool.max_sequences < 1 or pool.chunk_tokens < 1:
            faults.append(
                f"pool {pool.name!r}: tokens_per_step must be positive, max_sequences and chunk_tokens at least 1"
            )
        steps = np.asarray(pool.step_s, dtype=np.float64)
        if not np.all(steps > 0):
            faults.append(f"pool {pool.name!r}: step_s must be positive")
        more, i[kn.ROWS], i[kn.COLS] = _grid(pool.name, "step_s", pool.batch, pool.context, steps, faults)
        tab += more
        if len(more) and i[kn.ROWS] > 1:
            # The line through the first two batches is read down to an empty batch, beside a lone prompt.
            b, t = np.asarray(pool.batch, dtype=np.float64), steps
            if np.any(t[0] - b[0] * (t[1] - t[0]) / (b[1] - b[0]) <= 0) or np.any(t[-1] < t[-2]):
                faults.append(
                    f"pool {pool.name!r}: step_s must stay positive when its first piece is extended to batch 0, and"
                    " must not fall over its last"
                )
    return pf, pi, np.array(tab or [0.0]), np.array(owner, dtype=np.int64)


def _flows(fleet: SimFleet, faults: list[str]) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    pools = fleet.pools()
    index = {pool.name: p for p, pool in enumerate(pools)}
    if len(index) < len(pools):
        faults.append("two pools have the same name")
    n, decode = len(pools), range(len(fleet.prefill), len(fleet.prefill) + len(fleet.decode))
    share, route = np.zeros((2 * (n + 1), n)), np.full((n, n), -1, dtype=np.int64)
    for p, pool in enumerate(pools):
        if isinstance(pool, PrefillPool | ColocatedPool):
            share[n, p] = pool.share
    if not np.any(share[n] > 0) or np.any(share < 0):
        faults.append("arrivals go nowhere: a prefill or colocated pool with a positive share is needed")
    names = {link.name: j for j, link in enumerate(fleet.links)}
    for flow in fleet.flows:
        a, b = index.get(flow.source, -1), index.get(flow.target, -1)
        if a not in range(len(fleet.prefill)) or b not in decode or flow.share < 0:
            faults.append(
                f"flow {flow.source!r} -> {flow.target!r}: from a prefill pool to a decode pool, share >= 0, is accepted"
            )
            continue
        share[a, b] = flow.share
        if flow.link is not None:
            if flow.link not in names:
                faults.append(f"flow {flow.source!r} -> {flow.target!r}: there is no link {flow.link!r}")
            else:
                route[a, b] = names[flow.link]
    for a in range(len(fleet.prefill)):
        if not fleet.flows:
            share[a, decode] = [pools[p].replicas for p in decode]
        if not np.any(share[a] > 0):
            faults.append(f"prefill pool {pools[a].name!r} has nowhere to send: a flow to a decode pool is needed")
    links = np.zeros((max(len(fleet.links), 1), kn.LF))
    for j, link in enumerate(fleet.links):
        if link.bandwidth_bytes_per_s <= 0 or link.propagation_s < 0:
            faults.append(f"link {link.name!r}: a positive bandwidth and a delay that is not negative are accepted")
        links[j] = 0.0, link.bandwidth_bytes_per_s, link.propagation_s
    return share, route, links


def _failures(fleet: SimFleet, pi: NDArray[np.int64], faults: list[str]) -> list[tuple[float, int, int]]:
    index = {pool.name: p for p, pool in enumerate(fleet.pools())}
    events: list[tuple[float, int, int]] = []
    for failure in fleet.failures:
        p = index.get(failure.pool)
        good = p is not None and 0 <= failure.replicas <= pi[p, kn.COUNT] and failure.at_s >= 0
        if not good or (failure.back_s is not None and failure.back_s < failure.at_s):
            faults.append(
                f"failure of {failure.replicas} replicas of {failure.pool!r} at {failure.at_s} s: a pool of the fleet, at"
                " most its replicas, and a return after the loss are accepted"
            )
            continue
        # The last replicas go: the first ones of a pool keep its central queue.
        last = int(pi[p, kn.FROM] + pi[p, kn.COUNT])
        for s in range(last - failure.replicas, last):
            events.append((failure.at_s, 0, s))
            if failure.back_s is not None:
                events.append((failure.back_s, 1, s))
    return sorted(events)


def pack(fleet: SimFleet, requests: dict[str, NDArray[Any]], options: SimOptions) -> Packed:
    """Initial state of a run; a ValueError names every fault of the fleet."""
    faults: list[str] = []
    pf, pi, tab, owner = _pool_records(fleet, faults)
    share, route, links = _flows(fleet, faults)
    failures = _failures(fleet, pi, faults)
    if faults:
        raise ValueError("; ".join(faults))
    n, servers = len(requests["arrival_s"]), len(owner)
    q = np.full((n + 1, kn.QF), -1.0)
    q[:, kn.DELAY] = q[:, kn.GAP] = 0.0
    q[:n, kn.ARRIVAL] = requests["arrival_s"]
    q[:n, kn.DRAW] = np.random.default_rng(options.seed).random(n)
    k = np.zeros((n + 1, kn.QI), dtype=np.int64)
    for name, at in (
        ("input_tokens", kn.INPUT), ("cached_tokens", kn.CACHED), ("output_tokens", kn.OUTPUT),
        ("prefix_group", kn.GROUP),
    ):  # fmt: skip
        k[:n, at] = requests[name]
    for at in (kn.NEXT, kn.PREV, kn.LEFT, kn.RIGHT, kn.SERVER, kn.SOURCE):
        k[:, at] = -1
    sf, si = np.zeros((servers, kn.SF)), np.zeros((servers, kn.SI), dtype=np.int64)
    si[:, kn.POOL], si[:, kn.ALIVE] = owner, 1
    for at in (
        kn.ROOT, kn.ACTIVE_HEAD, kn.ACTIVE_TAIL, kn.WAIT_HEAD, kn.WAIT_TAIL, kn.QUEUE_HEAD, kn.QUEUE_TAIL, kn.HOLD_HEAD,
        kn.HOLD_TAIL, kn.PASS_HEAD,
    ):  # fmt: skip
        si[:, at] = -1
    size = 1
    while size < servers + 3:
        size *= 2
    when = np.full(size, np.inf)
    if n:
        when[servers] = requests["arrival_s"][0]
    if failures:
        when[servers + 2] = failures[0][0]
    tree = np.zeros(2 * size, dtype=np.int64)
    tree[size:] = np.arange(size)
    for node in range(size - 1, 0, -1):
        a, b = tree[2 * node], tree[2 * node + 1]
        tree[node] = a if when[a] <= when[b] else b
    gf = np.zeros(7)
    gf[kn.HORIZON], gf[kn.BALANCE] = options.horizon_s, options.prefix_balance
    gf[kn.FLOOR_S], gf[kn.FLOOR_N] = options.prefix_slack_s, options.prefix_slack_requests
    if n:
        gf[kn.WINDOW_FROM] = requests["arrival_s"][min(int(options.warmup_frac * n), n - 1)]
        gf[kn.WINDOW_TO] = requests["arrival_s"][-1]
    gi = np.zeros(12, dtype=np.int64)
    gi[kn.N_REQ], gi[kn.N_SERVERS], gi[kn.N_POOLS], gi[kn.TREE] = n, servers, len(pf), size
    gi[kn.N_FAIL], gi[kn.DROP], gi[kn.EVEN_SPLIT] = len(failures), options.on_failure == "drop", options.split == "even"
    gi[kn.GAP_SIZE] = _GAP_SIZE
    groups = int(requests["prefix_group"].max(initial=-1)) + 1

    def column(at: int, kind: Callable[[Any], Any]) -> NDArray[Any]:
        return np.array([kind(event[at]) for event in failures] or [kind(0)])

    return Packed(
        q=q.ravel(), k=k.ravel(), sf=sf.ravel(), si=si.ravel(), pf=pf.ravel(), pi=pi.ravel(), gf=gf, gi=gi, tab=tab,
        share=share.ravel(), route=route.ravel(), links=links.ravel(), home=np.full(max(groups, 1), -1, dtype=np.int64),
        tree=tree, when=when, times=np.zeros(n + 1), loads=np.zeros(n + 1, dtype=np.int64),
        gap_value=np.zeros(servers * _GAP_SIZE), gap_run=np.zeros(servers * _GAP_SIZE, dtype=np.int64),
        fail_time=column(0, float), fail_server=column(2, int), fail_back=column(1, int),
        scratch=np.zeros(2 * max(int(pi[:, kn.RANKS].max(initial=1)), 1)),
    )  # fmt: skip
