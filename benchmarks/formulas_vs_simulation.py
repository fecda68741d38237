"""The queueing formulas of pdplan.serving against the simulator, over a grid of loads.

Usage: OMP_NUM_THREADS=1 python benchmarks/formulas_vs_simulation.py [--requests N] [--write]

Both sides get the same service times and the same lengths, so that only the queueing differs. Stationary Poisson traffic.
`--write` puts the tables into docs/explanation/queueing-accuracy.md, between its markers.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pdplan.catalog.load import load_catalog
from pdplan.serving import colocated as co
from pdplan.serving import decode as de
from pdplan.serving import prefill as pre
from pdplan.serving.rank_passes import requests_of_full_pass
from pdplan.simulate import (
    ColocatedPool,
    DecodePool,
    PrefillPool,
    SimFleet,
    SimRequests,
    Summary,
    simulate,
    summarise,
)
from pdplan.workload.lengths import mix_from_spec

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "queueing-accuracy.md"
QUANTILES = (0.5, 0.9, 0.99)
LOADS = (0.3, 0.5, 0.7, 0.85)
BASE_S, PER_TOKEN_S, PER_TOKEN2_S = 0.022, 4.2e-5, 2.4e-10
"""Prefill pass: fixed, per new token, per pair of tokens (S(m) = A + b m + c m^2 / 2)."""
TARGETS = {"ttft_s": (0.10, 0.10, 0.15), "tpot_s": (0.08, 0.08, 0.08)}


class Lengths(NamedTuple):
    """Support points with whole tokens, which both sides use."""

    prompt: np.ndarray
    answer: np.ndarray
    weight: np.ndarray

    def draw(self, rng: np.random.Generator, n: int, rate: float) -> SimRequests:
        """Poisson arrivals of these lengths."""
        pick = rng.choice(len(self.weight), size=n, p=self.weight)
        return SimRequests(
            arrival_s=np.cumsum(rng.exponential(1 / rate, n)),
            input_tokens=self.prompt[pick],
            output_tokens=self.answer[pick],
        )

    def prefill_s(self) -> np.ndarray:
        """Pass time alone, (K,)."""
        return BASE_S + PER_TOKEN_S * self.prompt + PER_TOKEN2_S * self.prompt**2 / 2


def lengths(name: str) -> Lengths:
    """A shipped shape."""
    mix = mix_from_spec(name, catalog=load_catalog())
    return Lengths(np.rint(mix.input_tokens), np.maximum(np.rint(mix.output_tokens), 2), mix.weight / mix.weight.sum())


class Row(NamedTuple):
    """One comparison: simulated and predicted quantiles of one metric."""

    part: str
    case: str
    load: float
    metric: str
    simulated: tuple[float, ...]
    half_width: tuple[float, ...]
    predicted: tuple[float, ...]

    def errors(self) -> np.ndarray:
        """Relative, predicted over simulated."""
        return np.array(self.predicted) / np.array(self.simulated) - 1

    def within(self) -> bool:
        """Whether every quantile meets its target, the simulation's own interval allowed."""
        slack = np.array(self.half_width) / np.array(self.simulated)
        return bool(np.all(np.abs(self.errors()) <= np.array(TARGETS[self.metric]) + slack))


def _row(part: str, case: str, load: float, metric: str, summary: Summary, predicted: list[float]) -> Row:
    found = [summary.quantiles[metric][q] for q in QUANTILES]
    return Row(
        part, case, load, metric, tuple(e.value for e in found), tuple(e.half_width for e in found), tuple(predicted)
    )


def prefill_rows(n: int, rng: np.random.Generator) -> Iterator[Row]:
    """One request per pass, one queue for c replicas."""
    for shape in ("azure-conversation-2023", "azure-code-2023"):
        mix = lengths(shape)
        service = mix.prefill_s()
        queue = pre.PrefillService(service_s=service[:, None], weight=mix.weight)
        for c in (1, 4, 16):
            for load in LOADS:
                rate = load * c / float(mix.weight @ service)
                fleet = SimFleet(
                    prefill=[
                        PrefillPool(
                            name="p", replicas=c, fixed_s=BASE_S, per_token_s=PER_TOKEN_S, per_token2_s=PER_TOKEN2_S
                        )
                    ],
                    decode=[DecodePool(name="d", replicas=1, batch=[1], context=[0], step_s=[[1e-9]])],
                )
                summary = summarise(simulate(fleet, mix.draw(rng, n, rate)))
                predicted = [float(pre.ttft_quantile_s(q, rate, c, queue)[0]) for q in QUANTILES]
                yield _row("prefill, one request per pass", f"{shape}, c={c}", load, "ttft_s", summary, predicted)


def rank_rows(n: int, rng: np.random.Generator) -> Iterator[Row]:
    """Attention-DP: requests lie on the ranks of a common pass that the fullest rank ends; 8192 tokens a rank."""
    budget = 8192.0
    for shape, hot, per_token in (("azure-conversation-2023", 0.7, 4.2e-5), ("azure-code-2023", 0.9, 8e-5)):
        mix = lengths(shape)
        for ranks, c in ((4, 1), (8, 1), (8, 4), (32, 2)):
            work = per_token * mix.prompt + PER_TOKEN2_S * mix.prompt**2 / 2
            service = pre.PrefillService(
                service_s=(BASE_S + work)[:, None],
                weight=mix.weight,
                ranks=ranks,
                full_s=(BASE_S + work * (hot + (1 - hot) * ranks))[:, None],
                fixed_s=BASE_S,
                max_requests=requests_of_full_pass(ranks, budget, mix.prompt, mix.weight),
            )
            for load in LOADS:
                rate = load / float(pre.prefill_utilisation(1.0, c, service)[0])
                fleet = SimFleet(
                    prefill=[
                        PrefillPool(
                            name="p",
                            replicas=c,
                            fixed_s=BASE_S,
                            per_token_s=per_token,
                            per_token2_s=PER_TOKEN2_S,
                            ranks=ranks,
                            max_requests=10_000,
                            token_budget=budget,
                            hot_frac=hot,
                        )
                    ],
                    decode=[DecodePool(name="d", replicas=1, batch=[1], context=[0], step_s=[[1e-9]])],
                )
                summary = summarise(simulate(fleet, mix.draw(rng, n // 3, rate)))
                predicted = [float(pre.ttft_quantile_s(q, rate, c, service)[0]) for q in QUANTILES]
                case = f"{shape}, {ranks} ranks, c={c}"
                yield _row("prefill with ranks, 8192 tokens a rank", case, load, "ttft_s", summary, predicted)


def decode_rows(n: int, rng: np.random.Generator) -> Iterator[Row]:
    """p = rate O be is the load. Random routing is the formula's case, least loaded the usual one."""
    mix = lengths("azure-conversation-2023")
    mean = float(mix.weight @ (mix.answer - 1))
    batch = np.unique(np.round(np.geomspace(1, 2048, 24)))
    for al, be, replicas in ((0.012, 4e-4, 4), (0.012, 1.2e-4, 4), (0.012, 4e-4, 12)):
        step = al + be * batch
        case = f"al={al}, be={be}, {replicas} replicas"
        for router in ("random", "least_loaded"):
            for load in LOADS:
                rate = load / (mean * be) * replicas
                pool = DecodePool(
                    name="d",
                    replicas=replicas,
                    batch=batch,
                    context=[0],
                    step_s=step[:, None],
                    router=router,  # type: ignore[arg-type]
                )
                fleet = SimFleet(prefill=[PrefillPool(name="p", replicas=1)], decode=[pool])
                summary = summarise(simulate(fleet, mix.draw(rng, n, rate)))
                state = de.decode_state(rate / replicas, batch, step[:, None], mean)
                alone = [float(de.tpot_quantile_s(q, state)[0]) for q in QUANTILES]
                if router == "random":
                    yield _row("decode, random routing", case, load, "tpot_s", summary, alone)
                else:
                    pooled = [float(de.tpot_quantile_s(q, state, 1.0, replicas)[0]) for q in QUANTILES]
                    yield _row("decode, least loaded, as if random", case, load, "tpot_s", summary, alone)
                    yield _row("decode, least loaded, as one pool", case, load, "tpot_s", summary, pooled)


def colocated_rows(n: int, rng: np.random.Generator) -> Iterator[Row]:
    """One replica with chunked prefill; the load is the share of the rate at which every iteration is full."""
    for shape, a0, be, bm in (
        ("azure-conversation-2023", 0.02, 2e-4, 4.2e-5),
        ("azure-code-2023", 0.02, 2e-4, 4.2e-5),
        ("servegen-deepseek-r1", 0.02, 2e-4, 4.2e-5),
        ("azure-conversation-2023", 0.03, 1e-4, 1e-4),
    ):
        mix = lengths(shape)
        for chunk in (512, 2048, 8192):
            model = co.ColocatedModel(
                base_s=np.array([a0]),
                per_sequence_s=np.array([be]),
                prefill_work_s=bm * mix.prompt[:, None],
                new_tokens=mix.prompt,
                decode_steps=mix.answer - 1,
                weight=mix.weight,
                chunk_tokens=np.array([float(chunk)]),
            )
            for load in LOADS:
                rate = load * float(co.saturation_req_per_s(model)[0])
                state = co.colocated_state(rate, model)
                pool = ColocatedPool(
                    name="c", replicas=1, batch=[1, 1001], context=[0], step_s=[[a0 + be], [a0 + 1001 * be]],
                    prefill_per_token_s=bm, chunk_tokens=chunk,
                )  # fmt: skip
                summary = summarise(simulate(SimFleet(colocated=[pool]), mix.draw(rng, n, rate)))
                ttft = [float(co.ttft_quantile_s(q, state, model)[0]) for q in QUANTILES]
                tpot = [float(co.tpot_quantile_s(q, state, model)[0]) for q in QUANTILES]
                case = f"{shape}, {1e6 * bm:.0f} us a token, chunk {chunk}, {rate:.2f}/s"
                yield _row("colocated", case, load, "ttft_s", summary, ttft)
                yield _row("colocated", case, load, "tpot_s", summary, tpot)


def fleet_rows(n: int, rng: np.random.Generator) -> Iterator[Row]:
    """A disaggregated fleet, both targets at once: the same load on either side, random routing to decode."""
    mix = lengths("azure-conversation-2023")
    service_s = mix.prefill_s()
    mean = float(mix.weight @ (mix.answer - 1))
    batch = np.unique(np.round(np.geomspace(1, 2048, 24)))
    step = 0.012 + 2.5e-4 * batch
    for load in LOADS:
        rate = load * 8 / float(mix.weight @ service_s)
        decoders = max(1, round(rate * mean * 2.5e-4 / load))
        fleet = SimFleet(
            prefill=[
                PrefillPool(
                    name="p",
                    replicas=8,
                    fixed_s=BASE_S,
                    per_token_s=PER_TOKEN_S,
                    per_token2_s=PER_TOKEN2_S,
                    handshake_s=0.03,
                )
            ],
            decode=[
                DecodePool(name="d", replicas=decoders, batch=batch, context=[0], step_s=step[:, None], router="random")
            ],
        )
        summary = summarise(simulate(fleet, mix.draw(rng, n, rate)))
        state = de.decode_state(rate / decoders, batch, step[:, None], mean)
        typical = float(state.base_s[0] + state.slope_s[0] * (1 + state.mean_batch[0]))
        queue = pre.PrefillService(service_s=service_s[:, None], weight=mix.weight)
        extra = 0.03 + typical / 2
        ttft = [float(pre.ttft_quantile_s(q, rate, 8, queue, extra_s=extra)[0]) for q in QUANTILES]
        tpot = [float(de.tpot_quantile_s(q, state)[0]) for q in QUANTILES]
        case = f"8 prefill, {decoders} decode"
        yield _row("disaggregated fleet", case, load, "ttft_s", summary, ttft)
        yield _row("disaggregated fleet", case, load, "tpot_s", summary, tpot)


PARTS = (prefill_rows, rank_rows, decode_rows, colocated_rows, fleet_rows)


def table(rows: list[Row]) -> str:
    """Markdown, milliseconds, errors in per cent."""
    out = []
    for part in dict.fromkeys(row.part for row in rows):
        mine = [row for row in rows if row.part == part]
        met = sum(row.within() for row in mine)
        out += [
            f"### {part[0].upper() + part[1:]}: {met} of {len(mine)} rows within target",
            "",
            "| case | load | metric | simulated p50 / p90 / p99, ms | formula | error, % | |",
            "|---|---:|---|---|---|---|---|",
        ]
        for row in mine:
            simulated = " / ".join(
                f"{1e3 * v:.1f}±{1e3 * h:.1f}" for v, h in zip(row.simulated, row.half_width, strict=True)
            )
            predicted = " / ".join(f"{1e3 * v:.1f}" for v in row.predicted)
            errors = " / ".join(f"{100 * e:+.0f}" for e in row.errors())
            out.append(
                f"| {row.case} | {row.load} | {row.metric[:4].upper()} | {simulated} | {predicted} | {errors} |"
                f" {'' if row.within() else 'out'} |"
            )
        out.append("")
    return "\n".join(out)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--requests", type=int, default=300_000)
    arguments.add_argument("--write", action="store_true")
    arguments.add_argument("--part", type=int, default=None)
    given = arguments.parse_args()

    rows: list[Row] = []
    for part in PARTS if given.part is None else PARTS[given.part : given.part + 1]:
        rows += part(given.requests, np.random.default_rng(20240901))
    text = table(rows)
    print(text)
    if given.write:
        before, rest = PAGE.read_text().split("<!-- table -->\n", 1)
        after = rest.split("<!-- /table -->", 1)[1]
        PAGE.write_text(f"{before}<!-- table -->\n\n{text}\n<!-- /table -->{after}")


if __name__ == "__main__":
    main()
