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
from pdplan.perf.constants import GENERAL
from pdplan.perf.model import LatencyModel
from pdplan.serving.closed_loop import ClosedLoopResult, prefill_waiting
from pdplan.serving.deployments import Group, groups_of, join_results

Floats = NDArray[np.float64]

KEYS = ("compute_efficiency_bf16", "compute_efficiency_fp8", "compute_efficiency_fp4", "memory_efficiency",
        "activation_efficiency", "kernel_latency_us", "accumulation_latency_ns", "attention_compute_efficiency",
        "kv_memory_efficiency", "attention_latency_us", "moe_compute_efficiency", "moe_compute_efficiency_fp4",
        "moe_memory_efficiency", "moe_latency_us", "moe_latency_fp4_us", "all_reduce_latency_us", "link_efficiency",
        "elementwise_latency_us")
# Starting points: kernel tables for Hopper and Blackwell, round numbers for CDNA (section 6, "V0").
START = {
    "hopper": (.85, .65, .65, .93, .6, 3., .6, .58, .75, 9., .45, .45, .80, 25., 25., 6., .65, 20.),
    "blackwell": (.74, .70, .60, .95, .5, 3., .6, .62, .85, 9., .33, .38, .70, 20., 10., 7., .60, 15.),
    "cdna3": (.5, .40, .40, .70, .5, 5., .6, .35, .60, 12., .25, .25, .55, 35., 35., 12., .55, 25.),
    "cdna4": (.5, .45, .40, .75, .5, 4., .6, .40, .65, 10., .25, .25, .60, 25., 20., 10., .55, 20.),
}
FAMILY_MULTIPLIERS: dict[str, tuple[tuple[str, ...], float]] = {
    "compute": (("compute_efficiency_bf16", "compute_efficiency_fp8", "moe_compute_efficiency",
                 "attention_compute_efficiency"), .3),
    "compute fp4": (("compute_efficiency_fp4", "moe_compute_efficiency_fp4"), .3),
    "memory": (("memory_efficiency", "moe_memory_efficiency", "kv_memory_efficiency"), .15),
    "fixed latencies": (("kernel_latency_us", "moe_latency_us", "moe_latency_fp4_us", "elementwise_latency_us",
                         "attention_latency_us", "accumulation_latency_ns"), .3),
    "all-reduce latency": (("all_reduce_latency_us",), .5),
    "link": (("link_efficiency",), .12),
    "fp4 expert launch": (("moe_latency_fp4_us",), .5),
}
ENGINE_START: dict[str, tuple[float, float]] = {
    "host_latency_us": (400., .7), "per_sequence_latency_us": (15., .7), "all_to_all_latency_us": (35., .5),
    "request_overhead_ms": (60., .7), "prefill_time_factor": (1., .3), "first_token_steps": (2., .7),
    "odds": (3., .7), "launch_factor": (1., .2), "collective_latency_factor": (1., .3),
}
"""Start and prior width (log); odds = acceptance / (1 - acceptance) of a draft token."""
GENERAL_START: dict[str, tuple[float, float]] = {
    "expert_imbalance": (.4, .7), "expert_correlation": (.9, .15), "hot_rank_factor": (.5, .7),
    "prefill_interleave": (.9, .3), "prefill_factor": (1., .3), "elementwise_passes": (12., .4),
    "draft_layer_cost": (1., .7), "queue_weight": (1., .7), "transfer_latency_s": (.02, .7), "poll_weight": (1., .3),
    "dense_latency_factor": (1., .5), "gqa_latency_factor": (1., .5),
}
ENGINES = ("trtllm", "trtllm-dynamo", "sglang", "sglang-amd", "sglang-dynamo", "atom", "sglang-mori", "vllm")
OTHER_MODELS_WEIGHT = 0.3
"""Rows of other models weigh less: many come from few configurations, and means stand for medians."""


def names() -> list[tuple[str, str, str]]:
    return ([("family", f, k) for f in START for k in FAMILY_MULTIPLIERS]
            + [("engine", e, k) for e in ENGINES for k in ENGINE_START]
            + [("general", "", k) for k in GENERAL_START])


NAMES = names()
WIDTH = np.array([FAMILY_MULTIPLIERS[k][1] if o == "family" else ENGINE_START[k][1] if o == "engine"
                  else GENERAL_START[k][1] for o, _, k in NAMES])


@dataclass(frozen=True, slots=True)
class Constants:
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
    latency = LatencyModel(old.model, machines, engine, old.precision, speculation=old.speculation,
                           overrides={f"general.{k}": x for k, x in new.general.items()})
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
        s, o, n, n_d = g.column("input_tokens"), g.column("output_tokens"), g.column("concurrency"), g.replicas("decode")
        tpot, ttft, tput = self.rows.tpot_s[i], self.rows.ttft_s[i], self.rows.total_tok_per_s_per_card[i]
        cards = n_d * g.decode.cards_per_replica
        if g.prefill is not None:
            cards = cards + g.replicas("prefill") * g.prefill.cards_per_replica
        rate = np.where(np.isfinite(tput), tput * cards / (s + o) / .95, n / (ttft + (o - 1) * tpot))
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
        share = np.minimum(lat.general["prefill_interleave"] * rate / n_d * marginal * (users - 1) / users, .9)
        stall = 1.0 if g.prefill is not None else 1 / (1 - share)
        service, wait = prefill_waiting(np.minimum(rate, .9 * capacity), alone, full, per_pass, capacity, n_p, ranks,
                                        colocated=g.prefill is None)
        transfer: Floats | float = 0.0
        if g.prefill is not None:
            transfer = lat.general["transfer_latency_s"] + lat.kv_transfer_bytes(pre, s) / (
                lat.kv_transfer_senders(pre) * .5 * lat.nic_bandwidth_bytes_per_s(pre))
        e = lat.engine_constants
        steps = e["first_token_steps"] + e["poll_interval_steps"] / 2 * lat.general["poll_weight"]
        first = service + wait * lat.general["queue_weight"] + transfer + e["request_overhead_ms"] + steps * step * (n > 1)
        return np.stack([step * stall / lat.tokens_per_step(g.decode), first, capacity / rate])

    def residuals(self, v: Floats) -> Floats:
        tpot, ttft, spare = self.conditional(v)
        weight = np.where(self.deepseek, 1.0, OTHER_MODELS_WEIGHT)
        inputs = np.array([d.input_tokens for d in self.rows.deployments])
        disagg = np.array([d.prefill is not None for d in self.rows.deployments])
        unsaturated = self.deepseek & (self.rows.ttft_s < 5 * (.05 + .25 * (inputs > 2000)) + .6)
        full = self.deepseek & ~unsaturated & disagg & (spare > 1 / 2.5) & (spare < 1 / .55)
        with np.errstate(invalid="ignore"):
            a = soft(np.log(tpot / self.rows.tpot_s), .15) / .12 * weight
            b = np.where(unsaturated, soft(np.log(ttft / self.rows.ttft_s), .2) / .3, 0.0)
        c = np.where(full, soft(np.log(spare), .2) / .3, 0.0)
        return np.concatenate([np.nan_to_num(x) for x in (a, b, c)])

    def jacobian(self, v: Floats, base: Floats) -> Floats:
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
            tried = v + np.clip(step, -.5, .5)
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
    for name, p, m in (("TPOT", r.tpot_s, rows.tpot_s), ("tput", r.total_tok_per_s_per_card,
                       rows.total_tok_per_s_per_card), ("TTFT", r.ttft_s, rows.ttft_s)):
        line.append(name + " {:.1f}/{:.1f}/P90 {:.1f}/bias {:+.1f}".format(*error_line(p[keep], m[keep])))
    print("  ".join(line), flush=True)


def summary(title: str, rows: Rows, r: ClosedLoopResult) -> None:
    model, mode = rows.labels("model"), rows.labels("mode")
    ds = model == "deepseek-r1"
    report(f"{title}: DeepSeek-R1", rows, r, ds)
    report(f"{title}: DeepSeek-R1 colocated", rows, r, ds & (mode == "agg"))
    report(f"{title}: DeepSeek-R1 disaggregated", rows, r, ds & (mode == "disagg"))
    if (~ds).any():
        report(f"{title}: other models", rows, r, ~ds)


def join(a: Rows, b: Rows) -> Rows:
    return Rows([*a.deployments, *b.deployments], np.concatenate([a.ttft_s, b.ttft_s]),
                np.concatenate([a.tpot_s, b.tpot_s]),
                np.concatenate([a.total_tok_per_s_per_card, b.total_tok_per_s_per_card]))


def configuration(rows: Rows) -> list[str]:
    """Everything but the concurrency: rows of one deployment stay on one side of a fold."""
    return [repr(replace(d, row_id="", concurrency=0.0, labels={})) for d in rows.deployments]


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
    print("general constants (pdplan/perf/constants.py):")
    for k, x in new.general.items():
        print(f'    "{k}": {x:.5g},  # shipped {GENERAL[k]}')


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
        rows = join(rows, other.take((other.ttft_s < 10) & (other.labels("spec") == "none")))
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
        if args.save:
            np.savez(args.save, row_id=[d.row_id for d in rows.deployments], ttft_s=r.ttft_s, tpot_s=r.tpot_s,
                     tput=r.total_tok_per_s_per_card, rho=r.prefill_utilisation_frac)
    for chip in args.leave_out:
        out = rows.labels("hardware") == chip
        v = fit(Problem(rows.take(~out), catalog))
        held = rows.take(out)
        summary(f"without {chip}", held, predict(Problem(held, catalog), v))


if __name__ == "__main__":
    main()
