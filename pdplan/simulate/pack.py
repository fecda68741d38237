"""From pools and requests to the flat arrays of the event loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdplan.simulate import records as rec
from pdplan.simulate.fleet import ROUTERS, ColocatedPool, DecodePool, PrefillPool, SimFleet, SimOptions, SimRequests
from pdplan.simulate.kernel import GAP_BINS

__all__ = ["Packed", "checked_requests", "pack"]

_GAP_SIZE = 512
_UNLIMITED = 1e15
"""Stands for "no limit" where an integer is made of it."""


@dataclass(slots=True, kw_only=True)
class Packed:
    """Arguments of :func:`pdplan.simulate.kernel.run_events` but the last, in order."""

    reqs: NDArray[Any]
    servers: NDArray[Any]
    pools: NDArray[Any]
    links: NDArray[Any]
    flows: NDArray[Any]
    times: NDArray[np.float64]
    tree: NDArray[np.int64]
    pending: NDArray[Any]
    gaps: NDArray[Any]
    failures: NDArray[Any]
    ranks: NDArray[Any]
    home: NDArray[np.int64]
    tab: NDArray[np.float64]
    hist: NDArray[np.float64]
    settings: NDArray[Any]

    def arguments(self) -> list[Any]:
        """In the order of the signature."""
        return [getattr(self, name) for name in self.__slots__]


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


def _pool_records(fleet: SimFleet, faults: list[str]) -> tuple[NDArray[Any], NDArray[np.float64]]:
    pools = fleet.pools()
    records = np.zeros(len(pools), dtype=rec.POOL)
    tab: list[float] = []
    first = 0
    for p, pool in enumerate(pools):
        row = records[p]
        if pool.replicas < 1:
            faults.append(f"pool {pool.name!r} has {pool.replicas} replicas; one or more is accepted")
        row["first"], row["count"], row["router"] = first, pool.replicas, ROUTERS.index(pool.router)
        first += max(pool.replicas, 0)
        row["table"], row["kv_cap"] = len(tab), pool.kv_tokens
        if isinstance(pool, PrefillPool):
            tab += _prefill_record(pool, row, faults)
        else:
            tab += _engine_record(pool, row, faults)
    return records, np.array(tab or [0.0])


def _prefill_record(pool: PrefillPool, row: Any, faults: list[str]) -> list[float]:
    for field, value in (
        ("pass_a", pool.fixed_s), ("pass_b", pool.per_token_s), ("pass_c", pool.per_token2_s), ("hot", pool.hot_frac),
        ("budget", pool.token_budget), ("extra", pool.overhead_s), ("nic", pool.nic_bytes_per_s),
        ("bytes_per_token", pool.kv_bytes_per_token), ("fixed_bytes", pool.kv_fixed_bytes),
        ("handshake", pool.handshake_s), ("layers", pool.overlap_layers), ("pass_limit", pool.max_requests),
        ("ranks", pool.ranks), ("stages", pool.pipeline_stages), ("max_queue", pool.max_queue),
    ):  # fmt: skip
        row[field] = value
    if min(pool.max_requests, pool.ranks, pool.pipeline_stages) < 1 or not pool.token_budget >= 1:
        faults.append(f"pool {pool.name!r}: max_requests, ranks, pipeline_stages and token_budget must be at least 1")
    times = (pool.fixed_s, pool.per_token_s, pool.per_token2_s, pool.overhead_s, pool.handshake_s)
    if not (min(times) >= 0 and pool.nic_bytes_per_s > 0 and 0 <= pool.hot_frac <= 1):
        faults.append(
            f"pool {pool.name!r}: times must not be negative, nic_bytes_per_s must be positive, hot_frac between 0 and 1"
        )
    if pool.table is None:
        return []
    x, y, z = pool.table
    tab, row["rows"], row["cols"] = _grid(
        pool.name, "table", x, y, np.asarray(z, dtype=np.float64) - pool.fixed_s, faults
    )
    return tab


def _engine_record(pool: DecodePool, row: Any, faults: list[str]) -> list[float]:
    for field, value in (
        ("engine", 1), ("pass_b", pool.prefill_per_token_s), ("pass_c", pool.prefill_per_token2_s),
        ("budget", min(pool.chunk_tokens, _UNLIMITED)), ("max_active", pool.max_sequences),
        ("per_step", pool.tokens_per_step), ("extra", pool.first_token_extra_s),
        ("first_steps", pool.first_token_steps), ("headroom", max(pool.headroom_tokens, pool.tokens_per_step)),
        ("staging", -1.0 if pool.staging_tokens is None else pool.staging_tokens),
        ("holds_prefix", pool.holds_prefix), ("first_at", pool.first_token_at == "prefill"),
        ("max_queue", pool.max_queue if isinstance(pool, ColocatedPool) else 0),
    ):  # fmt: skip
        row[field] = value
    if not (pool.tokens_per_step > 0 and pool.max_sequences >= 1 and pool.chunk_tokens >= 1):
        faults.append(
            f"pool {pool.name!r}: tokens_per_step must be positive, max_sequences and chunk_tokens at least 1"
        )
    if (
        not min(pool.prefill_per_token_s, pool.prefill_per_token2_s, pool.first_token_extra_s, pool.first_token_steps)
        >= 0
    ):
        faults.append(f"pool {pool.name!r}: times must not be negative")
    steps = np.asarray(pool.step_s, dtype=np.float64)
    if not np.all(steps > 0):
        faults.append(f"pool {pool.name!r}: step_s must be positive")
    tab, row["rows"], row["cols"] = _grid(pool.name, "step_s", pool.batch, pool.context, steps, faults)
    if row["rows"] > 1:
        # The first piece is read down to an empty batch (a lone prompt), the last one upwards without end.
        b = np.asarray(pool.batch, dtype=np.float64)
        if np.any(steps[0] - b[0] * (steps[1] - steps[0]) / (b[1] - b[0]) <= 0) or np.any(steps[-1] < steps[-2]):
            faults.append(
                f"pool {pool.name!r}: step_s must stay positive when its first piece is extended to batch 0, and must not"
                " fall over its last"
            )
    if pool.prompt_work is not None:
        tokens, seconds = (np.asarray(v, dtype=np.float64) for v in pool.prompt_work)
        if (
            tokens.ndim != 1 or tokens.shape != seconds.shape or len(tokens) < 2 or np.any(np.diff(tokens) <= 0)
            or not np.all(seconds >= 0) or not np.all(np.isfinite(seconds)) or seconds[-1] < seconds[-2]
        ):  # fmt: skip
            faults.append(
                f"pool {pool.name!r}: prompt_work must be two or more seconds, not negative and not falling at the end, over"
                " increasing tokens"
            )
        else:
            row["work"], row["work_rows"] = int(row["table"]) + len(tab), len(tokens)
            tab += [*tokens, *seconds]
    return tab


def _flows(fleet: SimFleet, faults: list[str]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Flow records: a row of shares and links for each source pool, and a last one for the arrivals."""
    pools = fleet.pools()
    index = {pool.name: p for p, pool in enumerate(pools)}
    if len(index) < len(pools):
        faults.append("two pools have the same name")
    n, prefill = len(pools), range(len(fleet.prefill))
    decode = range(len(prefill), len(prefill) + len(fleet.decode))
    flows = np.zeros((n + 1, n), dtype=rec.FLOW)
    flows["link"] = -1
    for p, pool in enumerate(pools):
        if isinstance(pool, PrefillPool | ColocatedPool):
            flows["share"][n, p] = pool.share
    if not np.any(flows["share"] > 0) or np.any(flows["share"] < 0):
        faults.append("arrivals go nowhere: a prefill or colocated pool with a positive share is needed")
    names = {link.name: j for j, link in enumerate(fleet.links)}
    for flow in fleet.flows:
        a, b, where = index.get(flow.source, -1), index.get(flow.target, -1), f"flow {flow.source!r} -> {flow.target!r}"
        if a not in prefill or b not in decode or not flow.share >= 0:
            faults.append(f"{where}: from a prefill pool to a decode pool, share >= 0, is accepted")
        elif flow.link is not None and flow.link not in names:
            faults.append(f"{where}: there is no link {flow.link!r}")
        else:
            flows[a, b] = flow.share, 0.0, -1 if flow.link is None else names[flow.link]
    for a in prefill:
        if not fleet.flows:
            flows["share"][a, decode] = [pools[p].replicas for p in decode]
        if not np.any(flows["share"][a] > 0):
            faults.append(f"prefill pool {pools[a].name!r} has nowhere to send: a flow to a decode pool is needed")
    links = np.zeros(max(len(fleet.links), 1), dtype=rec.LINK)
    for j, link in enumerate(fleet.links):
        if not (link.bandwidth_bytes_per_s > 0 and link.propagation_s >= 0):
            faults.append(f"link {link.name!r}: a positive bandwidth and a delay that is not negative are accepted")
        links[j] = 0.0, link.bandwidth_bytes_per_s, link.propagation_s
    return flows.ravel(), links


def _failures(fleet: SimFleet, pools: NDArray[Any], faults: list[str]) -> NDArray[Any]:
    index = {pool.name: p for p, pool in enumerate(fleet.pools())}
    events: list[tuple[float, int, int]] = []
    for failure in fleet.failures:
        p, good = index.get(failure.pool), False
        if p is not None:
            good = 0 <= failure.replicas <= pools[p]["count"] - failure.spared and failure.at_s >= 0 <= failure.spared
            good = good and (failure.back_s is None or failure.back_s >= failure.at_s)
        if p is None or not good:
            faults.append(
                f"failure of {failure.replicas} replicas of {failure.pool!r} at {failure.at_s} s: a pool of the fleet, at"
                " most its replicas, and a return after the loss are accepted"
            )
            continue
        # The last replicas go: a pool's first one keeps its central queue.
        last = int(pools[p]["first"] + pools[p]["count"]) - failure.spared
        for j in range(last - failure.replicas, last):
            events.append((failure.at_s, 0, j))
            if failure.back_s is not None:
                events.append((failure.back_s, 1, j))
    records = np.zeros(max(len(events), 1), dtype=rec.FAILURE)
    for at, (time, back, j) in enumerate(sorted(events)):
        records[at] = time, j, back
    return records[: len(events)] if events else records[:0]


def pack(fleet: SimFleet, requests: dict[str, NDArray[Any]], options: SimOptions) -> Packed:
    """Initial state of a run; a ValueError names every fault of the fleet."""
    faults: list[str] = []
    pools, tab = _pool_records(fleet, faults)
    flows, links = _flows(fleet, faults)
    failures = _failures(fleet, pools, faults)
    if faults:
        raise ValueError("; ".join(faults))
    arrival = requests["arrival_s"]
    n, servers = len(arrival), int(pools["count"].sum())
    reqs = np.zeros(n, dtype=rec.REQUEST)
    for field in ("pass_start", "pass_end", "landed", "admitted", "first", "last"):
        reqs[field] = -1.0
    for field in ("next", "prev", "left", "right", "server", "source"):
        reqs[field] = -1
    reqs["arrival"], reqs["draw"] = arrival, np.random.default_rng(options.seed).random(n)
    reqs["input"], reqs["cached"] = requests["input_tokens"], requests["cached_tokens"]
    reqs["output"], reqs["group"] = requests["output_tokens"], requests["prefix_group"]
    machines = np.zeros(servers, dtype=rec.SERVER)
    machines["pool"], machines["alive"] = np.repeat(np.arange(len(pools)), pools["count"]), 1
    machines["gap_base"] = np.arange(servers) * _GAP_SIZE
    for field in (
        "root", "active_head", "active_tail", "wait_head", "wait_tail", "queue_head", "queue_tail", "hold_head",
        "hold_tail", "pass_head",
    ):  # fmt: skip
        machines[field] = -1
    size = 1
    while size < servers + 3:
        size *= 2
    times = np.full(size, np.inf)
    if n:
        times[servers] = arrival[0]
    if len(failures):
        times[servers + 2] = failures["time"][0]
    tree = np.concatenate([np.zeros(size, dtype=np.int64), np.arange(size)])
    for at in range(size - 1, 0, -1):
        a, b = tree[2 * at], tree[2 * at + 1]
        tree[at] = b if times[b] <= times[a] else a
    settings = np.zeros(1, dtype=rec.SETTINGS)
    g = settings[0]
    g["horizon"], g["balance"] = options.horizon_s, options.prefix_balance
    g["floor_s"], g["floor_n"] = options.prefix_slack_s, options.prefix_slack_requests
    if n:
        g["window_from"], g["window_to"] = arrival[min(int(options.warmup_frac * n), n - 1)], arrival[-1]
    g["requests"], g["servers"], g["pools"], g["tree"], g["failures"] = n, servers, len(pools), size, len(failures)
    g["drop"], g["even_split"], g["gap_size"] = options.on_failure == "drop", options.split == "even", _GAP_SIZE
    groups = int(requests["prefix_group"].max(initial=-1)) + 1
    return Packed(
        reqs=reqs,
        servers=machines,
        pools=pools,
        links=links,
        flows=flows,
        times=times,
        tree=tree,
        pending=np.zeros(n + 1, dtype=rec.PENDING),
        gaps=np.zeros(servers * _GAP_SIZE, dtype=rec.GAP),
        failures=failures,
        ranks=np.zeros(int(pools["ranks"].max(initial=1)), dtype=rec.RANK),
        home=np.full(max(groups, 1), -1, dtype=np.int64),
        tab=tab,
        hist=np.zeros(len(pools) * GAP_BINS),
        settings=settings,
    )
