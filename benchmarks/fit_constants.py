"""Fit the shipped family and engine constants to the public measurements, and write their catalog files.

Usage: python benchmarks/fit_constants.py [FOLDER] [--write] [--folds N] [--leave-out CHIP ...]

Robust least squares on log errors with quadratic priors on log multipliers (pdplan latency model, section 6). The
unknowns are a few multipliers per family on constants that came from kernel tables, the constants of each engine and
some shared ones. Residuals: TPOT given the measured batch; median TTFT of unsaturated rows; prefill capacity of
saturated ones. Every residual depends on one family and one engine, so that the Jacobian needs one evaluation per kind
of constant.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from numpy.typing import NDArray
from public_rows import DEFAULT_FOLDER, Rows, error_line, inferencex, silicon

from pdplan.catalog.load import Catalog, load_catalog, shipped_folder
from pdplan.catalog.specs import EngineSpec, FamilySpec
from pdplan.perf import constants as constants_module
from pdplan.perf.constants import GENERAL
from pdplan.perf.model import LatencyModel
from pdplan.serving.closed_loop import ClosedLoopResult, prefill_waiting
from pdplan.serving.deployments import Group, groups_of, join_results

Floats = NDArray[np.float64]

KEYS = (
    "compute_efficiency_bf16",
    "compute_efficiency_fp8",
    "compute_efficiency_fp4",
    "memory_efficiency",
    "activation_efficiency",
    "kernel_latency_us",
    "accumulation_latency_ns",
    "attention_compute_efficiency",
    "kv_memory_efficiency",
    "attention_latency_us",
    "moe_compute_efficiency",
    "moe_compute_efficiency_fp4",
    "moe_memory_efficiency",
    "moe_latency_us",
    "moe_latency_fp4_us",
    "all_reduce_latency_us",
    "link_efficiency",
    "elementwise_latency_us",
)
# Starting points: kernel tables for Hopper and Blackwell, round numbers for CDNA (section 6, "V0").
START = {
    "hopper": (0.85, 0.65, 0.65, 0.93, 0.6, 3.0, 0.6, 0.58, 0.75, 9.0, 0.45, 0.45, 0.80, 25.0, 25.0, 6.0, 0.65, 20.0),
    "blackwell": (
        0.74,
        0.70,
        0.60,
        0.95,
        0.5,
        3.0,
        0.6,
        0.62,
        0.85,
        9.0,
        0.33,
        0.38,
        0.70,
        20.0,
        10.0,
        7.0,
        0.60,
        15.0,
    ),
    "cdna3": (0.5, 0.40, 0.40, 0.70, 0.5, 5.0, 0.6, 0.35, 0.60, 12.0, 0.25, 0.25, 0.55, 35.0, 35.0, 12.0, 0.55, 25.0),
    "cdna4": (0.5, 0.45, 0.40, 0.75, 0.5, 4.0, 0.6, 0.40, 0.65, 10.0, 0.25, 0.25, 0.60, 25.0, 20.0, 10.0, 0.55, 20.0),
}
FAMILY_MULTIPLIERS: dict[str, tuple[tuple[str, ...], float]] = {
    "compute": (
        ("compute_efficiency_bf16", "compute_efficiency_fp8", "moe_compute_efficiency", "attention_compute_efficiency"),
        0.3,
    ),
    "compute fp4": (("compute_efficiency_fp4", "moe_compute_efficiency_fp4"), 0.3),
    "memory": (("memory_efficiency", "moe_memory_efficiency", "kv_memory_efficiency"), 0.15),
    "fixed latencies": (
        (
            "kernel_latency_us",
            "moe_latency_us",
            "moe_latency_fp4_us",
            "elementwise_latency_us",
            "attention_latency_us",
            "accumulation_latency_ns",
        ),
        0.3,
    ),
    "all-reduce latency": (("all_reduce_latency_us",), 0.5),
    "link": (("link_efficiency",), 0.12),
    "fp4 expert launch": (("moe_latency_fp4_us",), 0.5),
}
ENGINE_START: dict[str, tuple[float, float]] = {
    "host_latency_us": (400.0, 0.7),
    "per_sequence_latency_us": (15.0, 0.7),
    "all_to_all_latency_us": (35.0, 0.5),
    "request_overhead_ms": (60.0, 0.7),
    "prefill_time_factor": (1.0, 0.3),
    "first_token_steps": (2.0, 0.7),
    "odds": (3.0, 0.7),
    "launch_factor": (1.0, 0.2),
    "collective_latency_factor": (1.0, 0.3),
}
"""Start and prior width (log); odds = acceptance / (1 - acceptance) of a draft token."""
GENERAL_START: dict[str, tuple[float, float]] = {
    "expert_imbalance": (0.4, 0.7),
    "expert_correlation": (0.9, 0.15),
    "hot_rank_factor": (0.5, 0.7),
    "prefill_interleave": (0.9, 0.3),
    "prefill_factor": (1.0, 0.3),
    "elementwise_passes": (12.0, 0.4),
    "draft_layer_cost": (1.0, 0.7),
    "queue_weight": (1.0, 0.7),
    "transfer_latency_s": (0.02, 0.7),
    "poll_weight": (1.0, 0.3),
    "dense_latency_factor": (1.0, 0.5),
    "gqa_latency_factor": (1.0, 0.5),
    "indexer_latency_factor": (4.0, 0.7),
    "dense_collective_factor": (1.0, 0.5),
}
ENGINES = ("trtllm", "trtllm-dynamo", "sglang", "sglang-amd", "sglang-dynamo", "atom", "sglang-mori", "vllm")
COPIES = (
    *(("families", name, "cdna3") for name in ("ascend", "gaudi", "trainium", "other")),
    ("families", "tpu", "hopper"),
    ("engines", "sglang-equal-tp", "sglang"),
)
"""(kind, file, the fitted record it copies)."""
OTHER_MODELS_WEIGHT = 0.3
"""Rows of other models weigh less: many come from few configurations, and means stand for medians."""


def names() -> list[tuple[str, str, str]]:
    return (
        [("family", f, k) for f in START for k in FAMILY_MULTIPLIERS]
        + [("engine", e, k) for e in ENGINES for k in ENGINE_START]
        + [("general", "", k) for k in GENERAL_START]
    )


NAMES = names()
WIDTH = np.array(
    [
        FAMILY_MULTIPLIERS[k][1] if o == "family" else ENGINE_START[k][1] if o == "engine" else GENERAL_START[k][1]
        for o, _, k in NAMES
    ]
)


@dataclass(frozen=True, slots=True)
class Constants:
    """One set of constants: what a vector of log multipliers stands for."""

    families: dict[str, FamilySpec]
    engines: dict[str, EngineSpec]
    general: dict[str, float]


def constants(v: Floats, catalog: Catalog) -> Constants:
    families = {}
    value = {name: float(np.exp(x)) for name, x in zip(NAMES, v, strict=True)}
    for f, start in START.items():
        c = dict(zip(KEYS, start, strict=True))
        for k, (which, _) in FAMILY_MULTIPLIERS.items():
            for name in which:
                c[name] *= value["family", f, k]
        c = {name: min(x, 1.0) if "efficiency" in name else x for name, x in c.items()}
        families[f] = replace(catalog.family(f), constants=c)
    engines = {}
    for e in ENGINES:
        c = {k: start * value["engine", e, k] for k, (start, _) in ENGINE_START.items()}
        odds = c.pop("odds")
        c["draft_acceptance_frac"] = odds / (1 + odds)
        engines[e] = replace(catalog.engine(e), constants={**catalog.engine(e).constants, **c})
    general = {k: start * value["general", "", k] for k, (start, _) in GENERAL_START.items()}
    general["expert_correlation"] = min(general["expert_correlation"], 1.1)
    return Constants(families, engines, general)


def with_constants(group: Group, new: Constants) -> Group:
    old = group.latency
    machines = [replace(m, family=new.families.get(m.family.id, m.family)) for m in old.machines]
    engine = new.engines.get(old.engine.id, old.engine)
    if poll := group.rows[0].poll_steps:
        engine = replace(engine, constants={**engine.constants, "poll_interval_steps": poll})
    latency = LatencyModel(
        old.model,
        machines,
        engine,
        old.precision,
        speculation=old.speculation,
        overrides={f"general.{k}": x for k, x in new.general.items()},
    )
    return replace(group, latency=latency)


def soft(e: Floats, scale: float) -> Floats:
    """Residual whose square is the soft-L1 loss."""
    return np.asarray(np.sign(e) * np.sqrt(2 * scale**2 * (np.sqrt(1 + (e / scale) ** 2) - 1)))


class Problem:
    """Rows with their structure prepared once."""

    def __init__(self, rows: Rows, catalog: Catalog) -> None:
        self.rows, self.catalog = rows, catalog
        self.groups = groups_of(rows.deployments, catalog)
        self.n = len(rows.deployments)
        self.deepseek = rows.labels("model") == "deepseek-r1"
        card_family = {d.node: catalog.accelerator(catalog.node(d.node).accelerator).family for d in rows.deployments}
        self.family = np.array([card_family[d.node] for d in rows.deployments])
        self.engine = np.array([d.engine for d in rows.deployments])

    def conditional(self, v: Floats) -> tuple[Floats, Floats, Floats]:
        """(TPOT, TTFT, prefill capacity) given the measured rate and batch."""
        new = constants(v, self.catalog)
        out = np.zeros((3, self.n))
        for group in self.groups:
            g = with_constants(group, new)
            out[:, g.index] = self._of_group(g)
        return out[0], out[1], out[2]

    def _of_group(self, g: Group) -> Floats:
        lat, i = g.latency, g.index
        s, o, n, n_d = (
            g.column("input_tokens"),
            g.column("output_tokens"),
            g.column("concurrency"),
            g.replicas("decode"),
        )
        tpot, ttft, tput = self.rows.tpot_s[i], self.rows.ttft_s[i], self.rows.total_tok_per_s_per_card[i]
        cards = n_d * g.decode.cards_per_replica
        if g.prefill is not None:
            cards = cards + g.replicas("prefill") * g.prefill.cards_per_replica
        rate = np.where(np.isfinite(tput), tput * cards / (s + o) / 0.95, n / (ttft + (o - 1) * tpot))
        batch = np.minimum(rate * o * tpot / n_d, n / n_d)
        step = lat.decode_step_s(g.decode, batch, s + o / 2)
        pre, n_p = (g.decode, n_d) if g.prefill is None else (g.prefill, g.replicas("prefill"))
        ranks = pre.attention_dp
        budget = np.array([d.token_budget or lat.engine.prefill_token_budget for d in g.rows])
        per_pass = ranks * np.maximum(budget / s, 1.0)
        alone, full = lat.prefill_pass_s(pre, s), lat.prefill_pass_s(pre, s, 0.0, per_pass)
        capacity = n_p * per_pass / full
        busy = np.minimum(rate / capacity, 1.0)
        marginal = (alone + (full - alone) * busy) / (1 + (per_pass - 1) * busy)
        users = n / n_d
        share = np.minimum(lat.general["prefill_interleave"] * rate / n_d * marginal * (users - 1) / users, 0.9)
        stall = 1.0 if g.prefill is not None else 1 / (1 - share)
        service, wait = prefill_waiting(
            np.minimum(rate, 0.9 * capacity), alone, full, per_pass, capacity, n_p, ranks, colocated=g.prefill is None
        )
        transfer: Floats | float = 0.0
        if g.prefill is not None:
            transfer = lat.general["transfer_latency_s"] + lat.kv_transfer_bytes(pre, s) / (
                lat.kv_transfer_senders(pre) * 0.5 * lat.nic_bandwidth_bytes_per_s(pre)
            )
        e = lat.engine_constants
        steps = e["first_token_steps"] + e["poll_interval_steps"] / 2 * lat.general["poll_weight"]
        first = (
            service + wait * lat.general["queue_weight"] + transfer + e["request_overhead_ms"] + steps * step * (n > 1)
        )
        first = first + g.column("start_wave_frac") * n / (2 * capacity)
        return np.stack([step * stall / lat.tokens_per_step(g.decode), first, capacity / rate])

    def residuals(self, v: Floats) -> Floats:
        """Weighted soft log errors of TPOT, TTFT and capacity, three per row, 0 where a row has none."""
        tpot, ttft, spare = self.conditional(v)
        weight = np.where(self.deepseek, 1.0, OTHER_MODELS_WEIGHT)
        inputs = np.array([d.input_tokens for d in self.rows.deployments])
        disagg = np.array([d.prefill is not None for d in self.rows.deployments])
        # engines without DeepSeek rows get their TTFT constants from other models
        timed = self.deepseek | (self.engine == "vllm")
        unsaturated = timed & (self.rows.ttft_s < 5 * (0.05 + 0.25 * (inputs > 2000)) + 0.6)
        full = self.deepseek & ~unsaturated & disagg & (spare > 1 / 2.5) & (spare < 1 / 0.55)
        with np.errstate(invalid="ignore"):
            a = soft(np.log(tpot / self.rows.tpot_s), 0.15) / 0.12 * weight
            b = np.where(unsaturated, soft(np.log(ttft / self.rows.ttft_s), 0.2) / 0.3 * weight, 0.0)
        c = np.where(full, soft(np.log(spare), 0.2) / 0.3, 0.0)
        return np.concatenate([np.nan_to_num(x) for x in (a, b, c)])

    def jacobian(self, v: Floats, base: Floats) -> Floats:
        """Forward differences, all families and all engines moved at once."""
        h = 1e-4
        kinds = list(dict.fromkeys((o, k) for o, _, k in NAMES))
        jac = np.zeros((len(base), len(v)))
        for owner, kind in kinds:
            columns = [j for j, (o, _, k) in enumerate(NAMES) if (o, k) == (owner, kind)]
            moved = v.copy()
            moved[columns] += h
            slope = (self.residuals(moved) - base) / h
            for j in columns:
                where = {"family": self.family, "engine": self.engine}.get(owner)
                mask = np.ones(self.n, bool) if where is None else where == NAMES[j][1]
                jac[:, j] = np.where(np.tile(mask, 3), slope, 0.0)
        return jac


def fit(problem: Problem, *, steps: int = 14) -> Floats:
    """Levenberg-Marquardt with the priors as further residuals."""
    v, damping = np.zeros(len(NAMES)), 1e-2
    base = problem.residuals(v)
    cost = base @ base + (v / WIDTH) @ (v / WIDTH)
    for _ in range(steps):
        jac = problem.jacobian(v, base)
        hessian = jac.T @ jac + np.diag(1 / WIDTH**2)
        gradient = jac.T @ base + v / WIDTH**2
        for _ in range(6):
            step = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), -gradient)
            tried = v + np.clip(step, -0.5, 0.5)
            now = problem.residuals(tried)
            new_cost = now @ now + (tried / WIDTH) @ (tried / WIDTH)
            if new_cost < cost:
                break
            damping *= 4
        else:
            break
        gain, v, base, cost, damping = cost - new_cost, tried, now, new_cost, damping / 4
        if gain < 1e-4 * cost:
            break
    return v


def predict(problem: Problem, v: Floats) -> ClosedLoopResult:
    new = constants(v, problem.catalog)
    groups = [with_constants(g, new) for g in problem.groups]
    return join_results(groups, [g.predict() for g in groups])


def report(title: str, rows: Rows, r: ClosedLoopResult, keep: NDArray[np.bool_]) -> None:
    line = [f"{title} n={keep.sum()}"]
    for name, p, m in (
        ("TPOT", r.tpot_s, rows.tpot_s),
        ("tput", r.total_tok_per_s_per_card, rows.total_tok_per_s_per_card),
        ("TTFT", r.ttft_s, rows.ttft_s),
    ):
        line.append(name + " {:.1f}/{:.1f}/P90 {:.1f}/bias {:+.1f}".format(*error_line(p[keep], m[keep])))
    print("  ".join(line), flush=True)


def summary(title: str, rows: Rows, r: ClosedLoopResult) -> None:
    model, mode = rows.labels("model"), rows.labels("mode")
    ds = model == "deepseek-r1"
    report(f"{title}: DeepSeek-R1", rows, r, ds)
    report(f"{title}: DeepSeek-R1 colocated", rows, r, ds & (mode == "colocated"))
    report(f"{title}: DeepSeek-R1 disaggregated", rows, r, ds & (mode == "disaggregated"))
    if (~ds).any():
        report(f"{title}: other models", rows, r, ~ds)


def join(a: Rows, b: Rows) -> Rows:
    return Rows((*a.measured, *b.measured))


def configuration(rows: Rows) -> list[str]:
    """Everything but the concurrency: rows of one deployment stay on one side of a fold."""
    return [f"{model} {group}" for model, group in zip(rows.labels("model"), rows.labels("group"), strict=True)]


def folds_of(rows: Rows, count: int) -> NDArray[np.int64]:
    keys = configuration(rows)
    order = np.random.default_rng(1).permutation(sorted(set(keys)))
    place = {key: i % count for i, key in enumerate(order)}
    return np.array([place[key] for key in keys])


def cross_validate(rows: Rows, catalog: Catalog, part: NDArray[np.int64]) -> ClosedLoopResult:
    """Predictions of every row by a fit that has not seen its configuration."""
    kept: dict[str, NDArray[np.generic]] = {}
    for k in np.unique(part):
        v = fit(Problem(rows.take(part != k), catalog))
        held = Problem(rows.take(part == k), catalog)
        r = predict(held, v)
        for name in ClosedLoopResult.__slots__:
            column = getattr(r, name)
            kept.setdefault(name, np.zeros(len(part), column.dtype))[part == k] = column
    return ClosedLoopResult(**kept)


def write(v: Floats, catalog: Catalog) -> None:
    """Replace the constants block of every fitted family and engine file."""
    new = constants(v, catalog)
    folder = shipped_folder()
    for kind, records in (("families", new.families), ("engines", new.engines)):
        for record in records.values():
            path = folder / kind / f"{record.id}.yaml"
            block = "constants:\n" + "".join(f"  {k}: {float(f'{x:.5g}')}\n" for k, x in record.constants.items())
            text = re.sub(r"constants:\n(?:  .*\n)+", block, path.read_text(encoding="utf-8"), count=1)
            path.write_text(text, encoding="utf-8")
    for kind, copy, origin in COPIES:
        record = {**new.families, **new.engines}[origin]
        path = folder / kind / f"{copy}.yaml"
        block = "constants:\n" + "".join(f"  {k}: {float(f'{x:.5g}')}\n" for k, x in record.constants.items())
        path.write_text(re.sub(r"constants:\n(?:  .*\n)+", block, path.read_text(encoding="utf-8"), count=1))
    path = Path(constants_module.__file__)
    text = path.read_text(encoding="utf-8")
    for k, x in new.general.items():
        text = re.sub(rf'(    "{k}": )[0-9.e+-]+,', rf"\g<1>{float(f'{x:.5g}')!r},", text, count=1)
        print(f"general.{k}: {GENERAL[k]} -> {x:.5g}")
    path.write_text(text, encoding="utf-8")


def situations_of(rows: Rows, r: ClosedLoopResult) -> dict[str, NDArray[np.bool_]]:
    """Rows by what the width of an interval depends on."""
    deepseek = rows.labels("model") == "deepseek-r1"
    disagg = rows.labels("mode") == "disaggregated"
    busy = r.prefill_utilisation_frac >= 0.7
    return {
        "colocated": deepseek & ~disagg,
        "disaggregated": deepseek & disagg & ~busy,
        "disaggregated, busy prefill": deepseek & disagg & busy,
        "other models": ~deepseek,
    }


def write_uncertainty(rows: Rows, r: ClosedLoopResult) -> None:
    """Quantiles of measured over predicted (5, 25, 75, 95 %) under cross-validation, and how often they cover."""
    situations = situations_of(rows, r)
    metrics = {
        "ttft_s": (rows.ttft_s, r.ttft_s),
        "tpot_s": (rows.tpot_s, r.tpot_s),
        "throughput": (rows.total_tok_per_s_per_card, r.total_tok_per_s_per_card),
    }
    lines = [
        "# Quantiles (5, 25, 75, 95 %) of measured over predicted on rows whose configuration the fit had not seen.",
        "# Written by benchmarks/fit_constants.py --write --folds N; read by pdplan/perf/uncertainty.py.",
        "source: inferencex_benchmark",
        "quantiles:",
    ]
    for metric, (measured, predicted) in metrics.items():
        lines.append(f"  {metric}:")
        for name, mask in situations.items():
            ratio = (measured / predicted)[mask]
            ratio = ratio[np.isfinite(ratio)]
            if not len(ratio):  # no throughput is recorded for other models: rates go with the inverse of TPOT
                ratio = (r.tpot_s / rows.tpot_s)[mask]
                ratio = ratio[np.isfinite(ratio)]
            q = np.quantile(ratio, (0.05, 0.25, 0.75, 0.95))
            lines.append(f"    {name}: [{', '.join(f'{x:.3f}' for x in q)}]  # {len(ratio)} rows")
    (shipped_folder() / "uncertainty.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def print_coverage(rows: Rows, r: ClosedLoopResult, *, repeats: int = 20) -> None:
    """How often quantiles from one half of the configurations hold the measured value in the other half."""
    kinds = situations_of(rows, r)
    keys, rng = np.array(configuration(rows)), np.random.default_rng(0)
    known = np.array(sorted(set(keys.tolist())))
    for metric, measured, predicted in (
        ("TPOT", rows.tpot_s, r.tpot_s),
        ("tput", rows.total_tok_per_s_per_card, r.total_tok_per_s_per_card),
        ("TTFT", rows.ttft_s, r.ttft_s),
    ):
        for name, mask in kinds.items():
            ratio, inside = measured / predicted, []
            ok = mask & np.isfinite(ratio)
            if ok.sum() < 20:
                continue
            for _ in range(repeats):
                seen = np.isin(keys, rng.permutation(known)[: len(known) // 2])
                q, held = np.quantile(ratio[ok & seen], (0.05, 0.25, 0.75, 0.95)), ratio[ok & ~seen]
                inside.append((((held >= q[0]) & (held <= q[3])).mean(), ((held >= q[1]) & (held <= q[2])).mean()))
            wide, narrow = np.mean(inside, axis=0)
            print(f"coverage {metric} {name}: {wide:.0%} in the 90 % interval, {narrow:.0%} in the 50 % interval")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--write", action="store_true", help="write catalogs/families and catalogs/engines")
    parser.add_argument("--folds", type=int, default=0, help="cross-validate by configuration in N folds")
    parser.add_argument("--leave-out", nargs="*", default=[], help="chips to leave out one by one, e.g. h200 b200")
    parser.add_argument("--save", type=Path, help="write cross-validated predictions (npz)")
    parser.add_argument("--deepseek-only", action="store_true")
    args = parser.parse_args()
    catalog = load_catalog()
    rows = inferencex(args.folder / "inferencex_train.csv", catalog)
    if not args.deepseek_only:
        other = silicon(args.folder / "silicon_extra.csv", catalog)
        rows = join(rows, other.take((other.ttft_s < 10) & (other.labels("speculation") == "none")))
    problem = Problem(rows, catalog)
    start = time.time()
    v = fit(problem)
    summary("fitted", rows, predict(problem, v))
    print(f"{time.time() - start:.0f} s")
    for name, x in zip(NAMES, v, strict=True):
        if name[0] != "engine":
            print(name, f"x{np.exp(x):.3f}")
    if args.write:
        write(v, catalog)
    if args.folds:
        part = folds_of(rows, args.folds)
        r = cross_validate(rows, catalog, part)
        summary(f"{args.folds}-fold cross-validated", rows, r)
        print_coverage(rows, r)
        if args.save:
            np.savez(
                args.save,
                row_id=[d.row_id for d in rows.deployments],
                ttft_s=r.ttft_s,
                tpot_s=r.tpot_s,
                tput=r.total_tok_per_s_per_card,
                rho=r.prefill_utilisation_frac,
            )
        if args.write:
            write_uncertainty(rows, r)
    for chip in args.leave_out:
        out = rows.labels("hardware") == chip
        v = fit(Problem(rows.take(~out), catalog))
        held = rows.take(out)
        summary(f"without {chip}", held, predict(Problem(held, catalog), v))


if __name__ == "__main__":
    main()
