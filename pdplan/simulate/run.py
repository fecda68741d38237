"""Run the event loop and read the result out of its records."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdplan.simulate.fleet import ColocatedPool, PrefillPool, SimFleet, SimOptions, SimRequests
from pdplan.simulate.kernel import FINISHED, GAP_BINS, INSIDE
from pdplan.simulate.kernel import run_events as plain_run_events
from pdplan.simulate.pack import Packed, checked_requests, pack
from pdplan.simulate.records import REQUEST, SERVER, SETTINGS, as_objects, as_rows, record_class
from pdplan.simulate.result import PoolUse, SimResult

__all__ = ["simulate"]

Floats = NDArray[np.float64]
_SLICES = 50
"""Compiled, progress is reported this many times."""
_TINY = 5_000
_SMALL = 40_000
"""Below the first, plain Python is done before numba is imported; below the second, before it has compiled."""
_BLOCK = 5_000
"""Requests made into objects at once."""


def _loop(options: SimOptions, requests: int) -> tuple[str, Callable[..., None]]:
    """The event loop to use and its name."""
    if options.engine == "python":
        return "python", plain_run_events
    if options.engine == "auto" and (requests < _TINY or importlib.util.find_spec("numba") is None):
        return "python", plain_run_events
    from pdplan.simulate import kernel_numba

    if options.engine == "auto" and requests < _SMALL and not kernel_numba.is_compiled():
        return "python", plain_run_events
    return "numba", kernel_numba.run_events


def simulate(fleet: SimFleet, requests: SimRequests, options: SimOptions | None = None) -> SimResult:
    """Serve every request by discrete-event simulation.

    Parameters
    ----------
    fleet : SimFleet
        Pools, links, flows and failures.
    requests : SimRequests
        In order of arrival.
    options : SimOptions, optional
        Engine, seed, horizon; the defaults run until all is served.

    Returns
    -------
    SimResult
        The same on either engine, and for the same seed.

    Raises
    ------
    ValueError
        Naming every fault of the input.

    Examples
    --------
    >>> fleet = SimFleet(
    ...     prefill=[PrefillPool(name="p", replicas=1, fixed_s=0.5)],
    ...     decode=[DecodePool(name="d", replicas=1, batch=[1, 2], context=[0], step_s=[[0.1], [0.1]])],
    ... )
    >>> result = simulate(fleet, SimRequests(arrival_s=[0.0, 0.0], input_tokens=10, output_tokens=3))
    >>> result.ttft_s.tolist(), result.e2e_s.round(9).tolist()
    ([0.5, 1.0], [0.7, 1.2])
    """
    options = options or SimOptions()
    arrays = checked_requests(requests)
    packed = pack(fleet, arrays, options)
    name, run_events = _loop(options, len(packed.reqs))
    if name == "numba":
        _run_compiled(run_events, packed, options)
    else:
        _run_plain(run_events, packed, options)
    return _read(fleet, arrays, options, packed, name)


def _run_compiled(run_events: Callable[..., None], state: Packed, options: SimOptions) -> None:
    n, arguments = len(state.reqs), state.arguments()
    slices = _SLICES if options.progress is not None else 1
    for part in range(1, slices + 1):
        run_events(*arguments, n * part // slices)
        if options.progress is not None:
            options.progress(n * part // slices)


def _run_plain(run_events: Callable[..., None], state: Packed, options: SimOptions) -> None:
    """Run on objects instead of structured arrays, which plain Python reads slowly."""
    others: dict[str, list[Any]] = {}
    for name in Packed.__slots__[1:]:
        values = getattr(state, name)
        others[name] = values.tolist() if values.dtype.names is None else as_objects(values)
    # The records form no cycles: looking for garbage among them would be wasted time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        _serve(run_events, state.reqs, list(others.values()), options)
    finally:
        if collecting:
            gc.enable()
    state.hist = np.array(others["hist"])
    state.servers, state.settings = as_rows(others["servers"], SERVER), as_rows(others["settings"], SETTINGS)


def _serve(run_events: Callable[..., None], rows: NDArray[Any], others: list[list[Any]], options: SimOptions) -> None:
    """Block after block of arrivals; requests are objects only from their arrival until the block they end in."""
    make, get = record_class(REQUEST), attrgetter(*(REQUEST.names or ()))
    reqs: list[Any] = [None] * len(rows)
    present: list[int] = []
    made = 0
    for until in [*range(_BLOCK, len(rows), _BLOCK), len(rows)]:
        # One more than arrives in this block: its arrival time is needed.
        fresh = range(made, min(until + 1, len(rows)))
        for i, values in zip(fresh, rows[fresh.start : fresh.stop].tolist(), strict=True):
            reqs[i] = make(values)
        made = fresh.stop
        run_events(reqs, *others, until)
        still = []
        for i in [*present, *fresh]:
            if reqs[i].status > INSIDE:
                rows[i] = get(reqs[i])
                reqs[i] = None
            else:
                still.append(i)
        present = still
        if options.progress is not None:
            options.progress(until)
    for i in present:
        rows[i] = get(reqs[i])


def _known(values: Floats) -> Floats:
    """Times that never came are NaN."""
    return np.where(values < 0, np.nan, values)


def _read(
    fleet: SimFleet, arrays: dict[str, NDArray[Any]], options: SimOptions, state: Packed, engine: str
) -> SimResult:
    n, r, g = len(state.reqs), state.reqs, state.settings[0]
    status = r["status"].astype(np.int8)
    finished = status == FINISHED
    first, last = _known(r["first"]), np.where(finished, r["last"], np.nan)
    arrival, delay, answer = r["arrival"].copy(), r["delay"], r["output"] - 1
    many = finished & (answer > 0)
    tpot = np.full(n, np.nan)
    np.divide(last - first, answer, out=tpot, where=many)
    result = SimResult(
        arrival_s=arrival,
        ttft_s=first + delay - arrival,
        tpot_s=tpot,
        e2e_s=last + delay - arrival,
        itl_max_s=np.where(many, r["gap"], np.nan),
        status=status,
        output_tokens=arrays["output_tokens"],
        class_id=arrays["class_id"],
        prefill_start_s=_known(r["pass_start"]),
        prefill_end_s=_known(r["pass_end"]),
        landed_s=_known(r["landed"]),
        admitted_s=_known(r["admitted"]),
        end_s=last,
        preemptions=r["preempted"].astype(np.int32),
        retries=r["retries"].astype(np.int32),
        pools=(),
        window_s=(float(g["window_from"]), float(min(g["window_to"], options.horizon_s))),
        events=int(g["events"]),
        engine=engine,
    )
    result.pools = _pool_use(fleet, result, state, r["source"], r["server"])
    return result


def _pool_use(
    fleet: SimFleet, result: SimResult, state: Packed, source: NDArray[np.int64], server: NDArray[np.int64]
) -> tuple[PoolUse, ...]:
    begin, end = result.window_s
    span, at = end - begin, 0
    inside = (result.arrival_s >= begin) & (result.arrival_s <= end)
    uses = []
    for p, pool in enumerate(fleet.pools()):
        rows, where = state.servers[at : at + pool.replicas], (at, at + pool.replicas)
        at += pool.replicas
        on = source if isinstance(pool, PrefillPool) else server
        here = inside & (on >= where[0]) & (on < where[1])
        if isinstance(pool, PrefillPool | ColocatedPool):
            wait = result.prefill_start_s[here] - result.arrival_s[here]
        else:
            wait = result.admitted_s[here] - result.landed_s[here]
        wait = wait[np.isfinite(wait)]
        scale = span * pool.replicas
        batch = float(rows["batch_s"].sum() / scale) if span > 0 else 0.0
        kv = float(rows["kv_s"].sum() / scale) if span > 0 else 0.0
        uses.append(
            PoolUse(
                name=pool.name,
                busy_frac=float(rows["busy_s"].sum() / scale) if span > 0 else 0.0,
                mean_batch=batch,
                mean_kv_tokens=kv,
                kv_frac=kv / pool.kv_tokens if np.isfinite(pool.kv_tokens) else 0.0,
                prompt_tokens=float(rows["tokens"].sum()),
                requests=int(here.sum()),
                mean_wait_s=float(wait.mean()) if len(wait) else 0.0,
                p99_wait_s=float(np.quantile(wait, 0.99)) if len(wait) else 0.0,
                mean_queue=float(wait.sum() / span) if span > 0 else 0.0,
                gaps=tuple(state.hist[p * GAP_BINS : (p + 1) * GAP_BINS].tolist()),
            )
        )
    return tuple(uses)
