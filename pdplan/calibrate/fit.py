"""From a few measured points to an efficiency profile: only what the points determine is fitted.

Unknowns are logarithms of multipliers on groups of catalog constants, with a normal prior around 1 whose width says how
far a machine of a known kind can be off. Residuals are log errors of TPOT and TTFT. Multipliers join one at a time: first
the one about which the rows say most, measured by its information beyond those already in, relative to its prior; one that
the rows say little about stays at 1, and the report says so. With one TPOT that is a multiplier on the fixed latencies at low
batch, or on the memory efficiency at high batch; with many rows it is robust least squares over most of them
(pdplan latency model, sections 6 and 11).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pdplan.calibrate.measured import MeasuredRow
from pdplan.calibrate.predict import predict_rows
from pdplan.catalog.load import Catalog
from pdplan.catalog.profile import Profile
from pdplan.errors import InputError

__all__ = ["Calibration", "Multiplier", "calibrate"]

Floats = NDArray[np.float64]

_FAMILY_GROUPS: Mapping[str, tuple[tuple[str, ...], float]] = {
    "compute": (
        (
            "compute_efficiency_bf16", "compute_efficiency_fp8", "compute_efficiency_fp4", "moe_compute_efficiency",
            "moe_compute_efficiency_fp4", "attention_compute_efficiency",
        ),
        0.3,
    ),
    "memory": (("memory_efficiency", "moe_memory_efficiency", "kv_memory_efficiency"), 0.2),
    "fixed latencies": (
        (
            "kernel_latency_us", "moe_latency_us", "moe_latency_fp4_us", "elementwise_latency_us", "attention_latency_us",
            "accumulation_latency_ns",
        ),
        0.4,
    ),
    "all-reduce latency": (("all_reduce_latency_us",), 0.5),
    "link": (("link_efficiency",), 0.2),
}  # fmt: skip
_ENGINE_GROUPS: Mapping[str, tuple[tuple[str, ...], float]] = {
    "prefill time": (("prefill_time_factor",), 0.4),
    "request overhead": (("request_overhead_ms",), 0.7),
    "host time": (("host_latency_us", "per_sequence_latency_us"), 0.7),
    "draft acceptance": (("draft_acceptance_frac",), 0.3),
}
NOISE = {"tpot_s": 0.05, "ttft_s": 0.15}
"""Log error of a repeated measurement, with some room for what the model does not hold (accuracy page, noise floor)."""
_ENOUGH = 2.0
"""Information, in units of the prior's, from which a multiplier is fitted: its uncertainty shrinks by 40 %."""
_STEP = 1e-3
_MOST = np.log(4.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplier:
    """One group of constants of one family or engine."""

    owner: str
    """families or engines."""
    entry: str
    group: str
    constants: tuple[str, ...]
    prior: float
    """Standard deviation of the log multiplier before any row is seen."""

    @property
    def label(self) -> str:
        """For tables, e.g. ``hopper: memory``."""
        return f"{self.entry}: {self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A profile and how it came about."""

    profile: Profile
    fitted: tuple[tuple[Multiplier, float, float], ...]
    """Multiplier, value, and its standard deviation as a fraction."""
    undetermined: tuple[Multiplier, ...]
    """Left at 1."""
    used: NDArray[np.bool_]
    """Rows that took part, (n,)."""
    errors: Mapping[str, tuple[float, float, float]]
    """Metric -> median absolute error before, after, and cross-validated (NaN where it cannot be), as fractions."""
    points: int


class _Problem:
    """Log errors of the rows as a function of the log multipliers."""

    def __init__(self, rows: Sequence[MeasuredRow], catalog: Catalog) -> None:
        self.rows, self.catalog = rows, catalog
        found = predict_rows(rows, catalog)
        keep = found.supported()
        self.use: dict[str, NDArray[np.bool_]] = {}
        self.measured: dict[str, Floats] = {}
        for metric in NOISE:
            values = np.array([row.measured.get(metric, np.nan) for row in rows])
            usable = keep & np.isfinite(values) & np.isfinite(found.value[metric])
            if metric == "ttft_s":
                usable &= ~found.saturated  # the wait of a growing queue says nothing about constants
            self.use[metric], self.measured[metric] = usable, values
        self.any = np.logical_or.reduce(list(self.use.values()))
        self.weight = np.concatenate([np.full(int(self.use[m].sum()), 1 / NOISE[m]) for m in NOISE])

    def multipliers(self) -> list[Multiplier]:
        """Everything that could be fitted: groups of the families and engines that the rows use."""
        deployments = [
            row.deployment for row, used in zip(self.rows, self.any, strict=True) if used and row.deployment is not None
        ]
        out = []
        chips = sorted({self.catalog.node(d.node).accelerator for d in deployments})
        for family in sorted({self.catalog.accelerator(chip).family for chip in chips}):
            known = self.catalog.family(family).constants
            for group, (names, prior) in _FAMILY_GROUPS.items():
                have = tuple(name for name in names if name in known)
                out.append(Multiplier(owner="families", entry=family, group=group, constants=have, prior=prior))
        for engine in sorted({d.engine for d in deployments}):
            known = self.catalog.engine(engine).constants
            for group, (names, prior) in _ENGINE_GROUPS.items():
                have = tuple(name for name in names if known.get(name))
                if have:
                    out.append(Multiplier(owner="engines", entry=engine, group=group, constants=have, prior=prior))
        return out

    def constants(self, chosen: Sequence[Multiplier], logs: Floats) -> dict[str, dict[str, dict[str, float]]]:
        """owner -> entry -> constant -> value."""
        out: dict[str, dict[str, dict[str, float]]] = {"families": {}, "engines": {}}
        for m, log in zip(chosen, logs, strict=True):
            record = self.catalog.family(m.entry) if m.owner == "families" else self.catalog.engine(m.entry)
            for name in m.constants:
                value = record.constants[name] * float(np.exp(log))
                if "efficiency" in name:
                    value = min(value, 1.0)
                if name == "draft_acceptance_frac":
                    value = min(value, 0.99)
                out[m.owner].setdefault(m.entry, {})[name] = value
        return out

    def residuals(self, chosen: Sequence[Multiplier], logs: Floats) -> Floats:
        """log(predicted / measured) of every used value, in the order of `NOISE`."""
        table = self.constants(chosen, logs)
        found = predict_rows(self.rows, self.catalog.with_constants(table["families"], table["engines"]))
        parts = []
        for metric in NOISE:
            use = self.use[metric]
            ratio = found.value[metric][use] / self.measured[metric][use]
            parts.append(np.log(np.where(np.isfinite(ratio) & (ratio > 0), ratio, 1.0)))
        return np.concatenate(parts)

    def jacobian(self, chosen: Sequence[Multiplier], logs: Floats, base: Floats) -> Floats:
        """d residual / d log multiplier by forward differences, (values, multipliers)."""
        out = np.zeros((len(base), len(chosen)))
        for j in range(len(chosen)):
            moved = logs.copy()
            # efficiencies are capped at 1: step towards smaller ones
            step = -_STEP if "efficiency" in chosen[j].constants[0] else _STEP
            moved[j] += step
            out[:, j] = (self.residuals(chosen, moved) - base) / step
        return out

    def solve(self, chosen: Sequence[Multiplier], start: Floats) -> Floats:
        """Maximum a posteriori by damped Gauss-Newton with Huber weights."""
        logs = start
        prior = np.array([1 / m.prior for m in chosen])

        def cost(r: Floats, x: Floats) -> float:
            z = np.abs(r * self.weight)
            huber = np.where(z < 2.0, z * z, 4.0 * z - 4.0)
            return float(huber.sum() + ((x * prior) ** 2).sum())

        base = self.residuals(chosen, logs)
        best = cost(base, logs)
        for _ in range(12):
            jac = self.jacobian(chosen, logs, base)
            z = np.abs(base * self.weight)
            w = self.weight * np.sqrt(np.minimum(1.0, 2.0 / np.maximum(z, 1e-12)))
            a = np.vstack([jac * w[:, None], np.diag(prior)])
            b = np.concatenate([-base * w, -logs * prior])
            move = np.linalg.lstsq(a, b, rcond=None)[0]
            for _ in range(6):
                trial = np.clip(logs + move, -_MOST, _MOST)
                r = self.residuals(chosen, trial)
                value = cost(r, trial)
                if value < best:
                    break
                move = move / 2
            else:
                break
            gain = best - value
            logs, base, best = trial, r, value
            if gain < 1e-3 * max(best, 1e-3):
                break
        return logs


def _select(problem: _Problem, every: Sequence[Multiplier]) -> list[int]:
    """Multipliers to fit, best informed first: those whose information beyond the ones already in is `_ENOUGH`."""
    zero = np.zeros(len(every))
    base = problem.residuals(every, zero)
    scaled = problem.jacobian(every, zero, base) * problem.weight[:, None] * np.array([m.prior for m in every])
    left, chosen = scaled.copy(), list[int]()
    while len(chosen) < min(len(every), len(base)):
        information = (left**2).sum(axis=0)
        information[chosen] = 0.0
        best = int(np.argmax(information))
        if information[best] < _ENOUGH:
            break
        chosen.append(best)
        # what the other columns say beyond this one, the prior keeping the projection from being exact
        column = left[:, best]
        left = left - np.outer(column, column @ left) / (column @ column + 1.0)
    return sorted(chosen)


def _fit(problem: _Problem, every: Sequence[Multiplier]) -> tuple[list[Multiplier], Floats]:
    chosen = [every[i] for i in _select(problem, every)]
    if not chosen:
        return [], np.zeros(0)
    return chosen, problem.solve(chosen, np.zeros(len(chosen)))


def _groups(rows: Sequence[MeasuredRow], used: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Index sets to leave out in turn: rows of one configuration together, at most five sets."""
    keys: dict[str, list[int]] = {}
    for i in np.flatnonzero(used).tolist():
        keys.setdefault(rows[i].labels.get("group") or rows[i].row_id, []).append(i)
    sets: list[list[int]] = [[] for _ in range(min(len(keys), 5))]
    for j, members in enumerate(keys.values()):
        sets[j % len(sets)] += members
    return [np.array(members) for members in sets]


def _median_error(problem: _Problem, residuals: Floats) -> dict[str, float]:
    out, at = {}, 0
    for metric in NOISE:
        n = int(problem.use[metric].sum())
        if n:
            out[metric] = float(np.median(np.abs(np.expm1(residuals[at : at + n]))))
        at += n
    return out


def _cross_validated(rows: Sequence[MeasuredRow], problem: _Problem, catalog: Catalog) -> dict[str, float]:
    """Median error of rows that the fit had not seen; empty with fewer than three configurations."""
    sets = _groups(rows, problem.any)
    if len(sets) < 3:
        return {}
    errors: dict[str, list[float]] = {metric: [] for metric in NOISE}
    for left_out in sets:
        kept = [row for i, row in enumerate(rows) if i not in set(left_out.tolist())]
        part = _Problem(kept, catalog)
        chosen, logs = _fit(part, part.multipliers())
        table = part.constants(chosen, logs)
        unseen = [rows[i] for i in left_out.tolist()]
        found = predict_rows(unseen, catalog.with_constants(table["families"], table["engines"]))
        for metric in NOISE:
            use = problem.use[metric][left_out]
            ratio = found.value[metric][use] / problem.measured[metric][left_out][use]
            errors[metric] += np.abs(ratio - 1).tolist()
    return {metric: float(np.median(values)) for metric, values in errors.items() if values}


def calibrate(
    rows: Sequence[MeasuredRow], catalog: Catalog, *, name: str, source: str, version: str = ""
) -> Calibration:
    """Fit a profile to measured rows.

    Parameters
    ----------
    rows : sequence of MeasuredRow
        With a measured TPOT or TTFT in some of them; saturated TTFTs are not used.
    catalog : Catalog
        Where the constants start from.
    name, source, version : str
        Name of the profile, the file the rows came from and the version of pdplan, for its provenance.

    Raises
    ------
    InputError
        No usable row, or the rows determine no constant.
    """
    problem = _Problem(rows, catalog)
    points = int(sum(use.sum() for use in problem.use.values()))
    if not points:
        reasons = sorted({text for text in predict_rows(rows, catalog).problem if text})[:3]
        why = f" ({'; '.join(reasons)})" if reasons else ""
        raise InputError(f"{source}: no row has a measured ttft_s or tpot_s that can be predicted{why}")
    every = problem.multipliers()
    chosen, logs = _fit(problem, every)
    if not chosen:
        raise InputError(
            f"{source}: the {points} measured values determine no constant: each could move by its prior width and change "
            f"them by less than the noise; measure at another batch or prompt length"
        )
    residuals = problem.residuals(chosen, logs)
    prior = np.array([1 / m.prior for m in chosen])
    jac = problem.jacobian(chosen, logs, residuals) * problem.weight[:, None]
    spread = np.sqrt(np.diag(np.linalg.inv(jac.T @ jac + np.diag(prior**2))))
    before = _median_error(problem, problem.residuals([], np.zeros(0)))
    after, unseen = _median_error(problem, residuals), _cross_validated(rows, problem, catalog)
    table = problem.constants(chosen, logs)
    rounded = {
        owner: {entry: {k: float(f"{v:.5g}") for k, v in values.items()} for entry, values in part.items()}
        for owner, part in table.items()
    }
    errors = {m: (before[m], after[m], unseen.get(m, float("nan"))) for m in before}
    provenance = {
        "made_by": f"pdplan {version} calibrate",
        "rows_file": source,
        "rows_used": int(problem.any.sum()),
        "values_used": points,
        "multipliers": {
            m.label: {"value": float(f"{np.exp(x):.4g}"), "uncertainty_frac": float(f"{s:.2g}")}
            for m, x, s in zip(chosen, logs, spread, strict=True)
        },
        "median_error_frac": {
            metric: {"before": float(f"{b:.4g}"), "after": float(f"{a:.4g}")}
            | ({"cross_validated": float(f"{c:.4g}")} if np.isfinite(c) else {})
            for metric, (b, a, c) in errors.items()
        },
    }
    return Calibration(
        profile=Profile(name=name, families=rounded["families"], engines=rounded["engines"], provenance=provenance),
        fitted=tuple((m, float(np.exp(x)), float(s)) for m, x, s in zip(chosen, logs, spread, strict=True)),
        undetermined=tuple(m for m in every if m not in chosen),
        used=problem.any,
        errors=errors,
        points=points,
    )
