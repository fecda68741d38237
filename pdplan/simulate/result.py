"""What a simulation gives, and its summary with confidence intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdplan.simulate import kernel as kn

__all__ = ["Estimate", "PoolUse", "SimResult", "Summary", "estimate", "gap_quantile_s", "summarise"]

Floats = NDArray[np.float64]
QUANTILES = (0.5, 0.9, 0.95, 0.99)
STATUS_NAMES: Mapping[int, str] = MappingProxyType(
    {
        kn.FINISHED: "finished",
        kn.OUTSIDE: "unfinished",
        kn.INSIDE: "unfinished",
        kn.NO_SERVER: "rejected: no replica works",
        kn.QUEUE_FULL: "rejected: queue full",
        kn.TOO_LARGE: "rejected: larger than the memory",
        kn.LOST: "lost in a failure",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """One pool over the measuring window, per replica where not said otherwise."""

    name: str
    busy_frac: float
    """Share of the time in a pass or an iteration."""
    mean_batch: float
    """Requests in the pass or batch, averaged over all time."""
    mean_kv_tokens: float
    kv_frac: float
    """Of its capacity; 0 where there is no limit."""
    prompt_tokens: float
    """Prompt tokens computed in the whole pool over the whole run, recomputation among them."""
    requests: int
    """Requests of the window that it served (the last to do so), whole pool."""
    mean_wait_s: float
    """Before the pass (prefill, colocated), or between landing and joining the batch (decode)."""
    p99_wait_s: float
    mean_queue: float
    """Requests in that wait, whole pool, by Little's law."""
    gaps: tuple[float, ...] = ()
    """Tokens of the window by the step before them, in bins that are even in the square root: see :func:`gap_quantile_s`."""


def gap_quantile_s(uses: Sequence[PoolUse], q: float) -> float:
    """q-quantile over tokens of the time since the token before, over pools or runs, to half a bin (0.5 % at 10 ms).

    Gaps of ordinary operation: waits for memory after a preemption are in the result's `itl_max_s` alone. NaN where no
    token was counted.
    """
    counts = np.sum([np.asarray(use.gaps) for use in uses], axis=0)
    total = np.cumsum(counts)
    if not len(total) or total[-1] <= 0:
        return float("nan")
    spot = int(np.searchsorted(total, q * total[-1] * (1 - 1e-12)))
    return float(((spot + 0.5) / kn.GAP_SCALE) ** 2)


@dataclass(slots=True, kw_only=True)
class SimResult:
    """Arrays of n requests in order of arrival; NaN where an event never came."""

    arrival_s: Floats
    ttft_s: Floats
    tpot_s: Floats
    """(last token - first token) / (output - 1); NaN for answers of one token."""
    e2e_s: Floats
    itl_max_s: Floats
    """Largest gap between two tokens. At most 512 falling maxima are kept per replica; beyond, neighbours are merged upwards."""
    status: NDArray[np.int8]
    """Codes of :data:`STATUS_NAMES`."""
    output_tokens: NDArray[np.int64]
    class_id: NDArray[np.int64]
    prefill_start_s: Floats
    prefill_end_s: Floats
    landed_s: Floats
    """The cache arrived at the decode replica."""
    admitted_s: Floats
    """First joined a decode batch."""
    end_s: Floats
    preemptions: NDArray[np.int32]
    retries: NDArray[np.int32]
    pools: tuple[PoolUse, ...]
    window_s: tuple[float, float]
    """Utilisation is measured between these times: after the warm-up, until the last arrival."""
    events: int
    engine: str

    def counts(self) -> dict[str, int]:
        """Requests by outcome."""
        out: dict[str, int] = {}
        for code, count in zip(*np.unique(self.status, return_counts=True), strict=True):
            name = STATUS_NAMES[int(code)]
            out[name] = out.get(name, 0) + int(count)
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number and the half-width of its 95 % confidence interval."""

    value: float
    half_width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Requests after the warm-up of one or several runs."""

    requests: int
    finished: int
    rejected: int
    unfinished: int
    preempted: int
    """Requests preempted at least once."""
    mean: Mapping[str, Estimate]
    """Of ttft_s, tpot_s, e2e_s and itl_max_s, over the requests that have one."""
    quantiles: Mapping[str, Mapping[float, Estimate]]
    """The same by quantile, over all requests: one without a first token (or an end) counts as infinite."""
    attainment: Estimate
    """Share of all requests, rejected and unfinished ones among them, within both limits."""
    busy_frac: Mapping[str, Estimate]
    """Utilisation by pool; the interval is over runs (NaN for one)."""
    throughput_req_per_s: float


def _student_t(degrees: int) -> float:
    """97.5 % point of Student's t."""
    if degrees < 1:
        return float("nan")
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975))


def estimate(value: float, pieces: Sequence[float]) -> Estimate:
    """A value with the half-width that the spread of independent pieces gives; NaN for fewer than two."""
    values = np.asarray(pieces, dtype=np.float64)
    if len(values) < 2:
        return Estimate(value=value, half_width=float("nan"))
    if not np.all(np.isfinite(values)):
        return Estimate(value=value, half_width=float("inf"))
    spread = float(values.std(ddof=1) / np.sqrt(len(values)))
    return Estimate(value=value, half_width=_student_t(len(values) - 1) * spread)


def _sorted_quantile(ordered: Floats, q: float) -> float:
    """Smallest value that at least a share q does not exceed (infinite ones are at the end)."""
    if not len(ordered):
        return float("nan")
    return float(ordered[min(max(int(np.ceil(q * len(ordered) - 1e-9)) - 1, 0), len(ordered) - 1)])


def summarise(
    results: SimResult | Sequence[SimResult],
    *,
    quantiles: Sequence[float] = QUANTILES,
    ttft_limit_s: ArrayLike = np.inf,
    tpot_limit_s: ArrayLike = np.inf,
    warmup_frac: float = 0.1,
    cooldown_frac: float = 0.0,
    batches: int = 20,
    class_id: int | None = None,
) -> Summary:
    """Percentiles, attainment and utilisation with 95 % confidence intervals.

    Each run is cut into `batches` pieces by arrival (at least 200 requests each, where there are that many); the spread
    of the pieces of all runs gives the interval (batch means). Pieces shorter than the relaxation time of the queue
    depend on one another and make it too narrow: prefer several seeds near saturation.

    Parameters
    ----------
    results : SimResult or sequence of SimResult
        Runs of the same fleet with different seeds.
    quantiles : sequence of float
        Fractions between 0 and 1.
    ttft_limit_s, tpot_limit_s : float
        What `attainment` counts against, both at once.
    warmup_frac : float
        First part of the arrivals left out.
    cooldown_frac : float
        Last part of the arrivals left out: they are served while the fleet empties.
    batches : int
        Pieces per run.
    class_id : int, optional
        Only requests of this class.
    """
    runs = [results] if isinstance(results, SimResult) else list(results)
    if not runs:
        raise ValueError("summarise needs at least one result")
    for q in quantiles:
        if not 0 < q < 1:
            raise ValueError(f"quantile {q!r}; fractions strictly between 0 and 1 are accepted")
    metrics = ("ttft_s", "tpot_s", "e2e_s", "itl_max_s")
    pooled: dict[str, list[Floats]] = {name: [] for name in metrics}
    pieces: dict[str, list[Floats]] = {name: [] for name in metrics}
    good_pieces: list[float] = []
    total = done = turned = open_ = again = good = 0
    rate = 0.0
    for run in runs:
        number, n = np.arange(len(run.status)), len(run.status)
        keep = (number >= int(warmup_frac * n)) & (number < n - int(cooldown_frac * n))
        if class_id is not None:
            keep &= run.class_id == class_id
        status = run.status[keep]
        count = len(status)
        finished = status == kn.FINISHED
        total, done = total + count, done + int(finished.sum())
        waiting = (status == kn.INSIDE) | (status == kn.OUTSIDE)
        open_ += int(waiting.sum())
        turned += int((~finished & ~waiting).sum())
        again += int((run.preemptions[keep] > 0).sum())
        parts = max(1, min(batches, count // 200))
        cuts = np.linspace(0, count, parts + 1).astype(np.int64)
        answered = run.output_tokens[keep] > 1
        met = finished.copy()
        for name, limit in (
            ("ttft_s", ttft_limit_s),
            ("tpot_s", tpot_limit_s),
            ("e2e_s", np.inf),
            ("itl_max_s", np.inf),
        ):
            values = getattr(run, name)[keep]
            single = ~answered if name in ("tpot_s", "itl_max_s") else np.zeros(count, dtype=np.bool_)
            values = np.where(np.isnan(values) & ~single, np.inf, values)
            met &= (values <= np.asarray(limit)) | single
            pooled[name].append(values[~single])
            pieces[name] += [values[a:b][~single[a:b]] for a, b in pairwise(cuts)]
        good += int(met.sum())
        good_pieces += [float(met[a:b].mean()) for a, b in pairwise(cuts) if b > a]
        ends = np.sort(run.end_s[keep][finished])
        if len(ends) > 1:
            rate += (len(ends) - 1) / max(float(ends[-1] - ends[0]), 1e-300) / len(runs)
    mean: dict[str, Estimate] = {}
    levels: dict[str, dict[float, Estimate]] = {}
    for name in metrics:
        ordered = np.sort(np.concatenate(pooled[name]))
        ranked = [np.sort(piece) for piece in pieces[name] if len(piece)]
        known = ordered[: int(np.searchsorted(ordered, np.inf))]
        means = [float(piece[np.isfinite(piece)].mean()) for piece in ranked if np.isfinite(piece[0])]
        mean[name] = estimate(float(known.mean()) if len(known) else float("nan"), means)
        levels[name] = {
            float(q): estimate(_sorted_quantile(ordered, q), [_sorted_quantile(piece, q) for piece in ranked])
            for q in quantiles
        }
    busy = {
        use.name: estimate(
            float(np.mean([run.pools[p].busy_frac for run in runs])), [run.pools[p].busy_frac for run in runs]
        )
        for p, use in enumerate(runs[0].pools)
    }
    return Summary(
        requests=total,
        finished=done,
        rejected=turned,
        unfinished=open_,
        preempted=again,
        mean=mean,
        quantiles=levels,
        attainment=estimate(good / total if total else float("nan"), good_pieces),
        busy_frac=busy,
        throughput_req_per_s=rate,
    )
