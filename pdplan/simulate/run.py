"""Run the event loop and read the result out of its records."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdplan.simulate import kernel as kn
from pdplan.simulate.fleet import ColocatedPool, PrefillPool, SimFleet, SimOptions, SimRequests
from pdplan.simulate.pack import Packed, checked_requests, pack
from pdplan.simulate.result import PoolUse, SimResult

__all__ = ["simulate"]

Floats = NDArray[np.float64]
_SLICES = 50
"""Progress is reported this many times."""


def _loop(options: SimOptions) -> tuple[str, Callable[..., bool]]:
    wanted = options.engine
    if wanted == "auto":
        wanted = "numba" if importlib.util.find_spec("numba") is not None else "python"
    if wanted == "python":
        return "python", kn.run_events
    from pdplan.simulate import kernel_numba

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
    name, run_events = _loop(options)
    state = packed if name == "numba" else packed.for_python()
    arguments = state.arguments()
    n = len(arrays["arrival_s"])
    slices = _SLICES if options.progress is not None else 1
    for part in range(1, slices + 1):
        run_events(*arguments, n * part // slices if part < slices else n + 1)
        if options.progress is not None:
            options.progress(int(state.gi[kn.NEXT_ARRIVAL]))
    return _read(fleet, arrays, options, state, name)


def _array(values: Any, width: int, kind: Any) -> NDArray[Any]:
    return np.asarray(values, dtype=kind).reshape(-1, width)


def _known(values: Floats) -> Floats:
    """Times that never came are NaN."""
    return np.where(values < 0, np.nan, values)


def _read(
    fleet: SimFleet, arrays: dict[str, NDArray[Any]], options: SimOptions, state: Packed, engine: str
) -> SimResult:
    n = len(arrays["arrival_s"])
    q, k = _array(state.q, kn.QF, np.float64)[:n], _array(state.k, kn.QI, np.int64)[:n]
    sf, gf = _array(state.sf, kn.SF, np.float64), np.asarray(state.gf, dtype=np.float64)
    status = k[:, kn.STATUS].astype(np.int8)
    finished = status == kn.FINISHED
    first, last = _known(q[:, kn.FIRST]), np.where(finished, q[:, kn.LAST], np.nan)
    arrival, delay = q[:, kn.ARRIVAL], q[:, kn.DELAY]
    ttft = first + delay - arrival
    answer = arrays["output_tokens"] - 1
    many = finished & (answer > 0)
    tpot = np.full(n, np.nan)
    np.divide(last - first, answer, out=tpot, where=many)
    # Where an earlier stage decided, the stamps of the first try may be missing: they stay NaN.
    result = SimResult(
        arrival_s=arrival.copy(),
        ttft_s=ttft,
        tpot_s=tpot,
        e2e_s=last + delay - arrival,
        itl_max_s=np.where(many, q[:, kn.GAP], np.nan),
        status=status,
        output_tokens=arrays["output_tokens"],
        class_id=arrays["class_id"],
        prefill_start_s=_known(q[:, kn.PASS_START]),
        prefill_end_s=_known(q[:, kn.PASS_END]),
        landed_s=_known(q[:, kn.JOINED]),
        admitted_s=_known(q[:, kn.ADMITTED]),
        end_s=last,
        preemptions=k[:, kn.PREEMPTED].astype(np.int32),
        retries=k[:, kn.RETRIES].astype(np.int32),
        pools=(),
        window_s=(float(gf[kn.WINDOW_FROM]), float(min(gf[kn.WINDOW_TO], options.horizon_s))),
        events=int(state.gi[kn.EVENTS]),
        engine=engine,
    )
    result.pools = _pool_use(fleet, result, sf, k[:, kn.SOURCE], k[:, kn.SERVER])
    return result


def _pool_use(
    fleet: SimFleet, result: SimResult, sf: Floats, source: NDArray[np.int64], server: NDArray[np.int64]
) -> tuple[PoolUse, ...]:
    begin, end = result.window_s
    span, at = end - begin, 0
    inside = (result.arrival_s >= begin) & (result.arrival_s <= end)
    uses = []
    for pool in fleet.pools():
        rows, where = sf[at : at + pool.replicas], (at, at + pool.replicas)
        at += pool.replicas
        on = source if isinstance(pool, PrefillPool) else server
        here = inside & (on >= where[0]) & (on < where[1])
        if isinstance(pool, PrefillPool | ColocatedPool):
            wait = result.prefill_start_s[here] - result.arrival_s[here]
        else:
            wait = result.admitted_s[here] - result.landed_s[here]
        wait = wait[np.isfinite(wait)]
        scale = span * pool.replicas
        batch = float(rows[:, kn.BATCH_S].sum() / scale) if span > 0 else 0.0
        kv = float(rows[:, kn.KV_S].sum() / scale) if span > 0 else 0.0
        uses.append(
            PoolUse(
                name=pool.name,
                busy_frac=float(rows[:, kn.BUSY_S].sum() / scale) if span > 0 else 0.0,
                mean_batch=batch,
                mean_kv_tokens=kv,
                kv_frac=kv / pool.kv_tokens if np.isfinite(pool.kv_tokens) else 0.0,
                prompt_tokens=float(rows[:, kn.TOKENS].sum()),
                requests=int(here.sum()),
                mean_wait_s=float(wait.mean()) if len(wait) else 0.0,
                p99_wait_s=float(np.quantile(wait, 0.99)) if len(wait) else 0.0,
                mean_queue=float(wait.sum() / span) if span > 0 else 0.0,
            )
        )
    return tuple(uses)
