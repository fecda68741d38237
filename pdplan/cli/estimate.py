"""``pdplan estimate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pdplan.cli.console import emit

if TYPE_CHECKING:
    from pdplan.perf.bounds import Resources
    from pdplan.perf.uncertainty import Interval

__all__ = ["estimate"]


def estimate(
    model: str = typer.Option(..., "--model", help="Catalog id, or path to a Hugging Face config.json."),
    node: str = typer.Option(..., "--node", help="Catalog id of a node."),
    tp: int = typer.Option(1, "--tp", min=1, help="Tensor-parallel width."),
    pp: int = typer.Option(1, "--pp", min=1, help="Pipeline stages."),
    ep: int = typer.Option(1, "--ep", min=1, help="Expert-parallel ranks."),
    attention_dp: int = typer.Option(1, "--attention-dp", min=1, help="Attention data-parallel ranks."),
    input_tokens: int = typer.Option(1024, "--input-tokens", min=1, help="Prompt length."),
    output_tokens: int = typer.Option(256, "--output-tokens", min=1, help="Answer length."),
    cached_tokens: int = typer.Option(
        0, "--cached-tokens", min=0, help="Part of the prompt found in the prefix cache."
    ),
    concurrency: int = typer.Option(1, "--concurrency", min=1, help="Sequences decoding in the replica."),
    weights: str | None = typer.Option(None, "--weights", help="bf16, fp8, int8, fp4 or int4; default as released."),
    kv_cache: str | None = typer.Option(None, "--kv-cache", help="bf16, fp8, int8 or fp4."),
    engine: str = typer.Option("generic", "--engine", help="Catalog id of a serving engine."),
    draft_tokens: int = typer.Option(0, "--draft-tokens", min=0, max=16, help="Draft tokens per step (speculation)."),
    profile: Path | None = typer.Option(None, "--profile", help="Efficiency profile written by `pdplan calibrate`."),
    catalog: Path | None = typer.Option(None, "--catalog", help="Your catalog folder, laid over the shipped one."),
    json_: bool = typer.Option(False, "--json", help="Print JSON on stdout."),
) -> None:
    """Estimate TTFT, TPOT, throughput and memory of one layout.

    Example: pdplan estimate --model llama-3.3-70b --node h100-sxm-8 --tp 8 --weights fp8 --input-tokens 4000 --concurrency 32
    """
    from pdplan.errors import InputError
    from pdplan.fleet.estimate import estimate as run

    formats = ("bf16", "fp8", "int8", "fp4", "int4")
    for flag, value in (("--weights", weights), ("--kv-cache", kv_cache)):
        if value is not None and value not in formats:
            raise InputError(f"{flag}: {value!r} is not accepted; choose from {', '.join(formats)}")
    found = run(
        model=model,
        node=node,
        tp=tp,
        pp=pp,
        ep=ep,
        attention_dp=attention_dp,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=cached_tokens,
        concurrency=concurrency,
        weights=weights,
        kv_cache=kv_cache,
        engine=engine,
        draft_tokens=draft_tokens,
        profile=profile,
        catalog=catalog,
    )

    def one(values: object) -> float:
        import numpy as np

        return float(np.ravel(np.asarray(values))[0])

    def between(value: object, interval: Interval, low: str, high: str) -> tuple[float, float]:
        return one(value) * one(getattr(interval, low)), one(value) * one(getattr(interval, high))

    def shares(use: Resources, seconds: object) -> dict[str, float]:
        return {name: one(getattr(use, f"{name}_s")) / one(seconds) for name in ("flop", "hbm", "link")}

    use = {
        "prefill": shares(found.prefill_use, found.prefill_pass_s),
        "decode": shares(found.decode_use, found.decode_step_s),
    }
    if json_:
        import json

        emit(
            json.dumps(
                {
                    "schema": "pdplan.estimate/1",
                    "model": model,
                    "node": node,
                    "layout": {"tp": tp, "pp": pp, "ep": ep, "attention_dp": attention_dp},
                    "ttft_s": one(found.ttft_s),
                    "tpot_s": one(found.tpot_s),
                    "prefill_pass_s": one(found.prefill_pass_s),
                    "decode_step_s": one(found.decode_step_s),
                    "throughput_tok_per_s_per_card": one(found.throughput_tok_per_s_per_card),
                    "prefill_tok_per_s_per_card": one(found.prefill_tok_per_s_per_card),
                    "max_batch": one(found.max_batch),
                    "memory_bytes_per_card": {
                        "weights": one(found.weights_bytes_per_card),
                        "kv_free": one(found.kv_free_bytes_per_card),
                        "reserve": one(found.reserve_bytes_per_card),
                    },
                    "kv_bytes_per_request": one(found.kv_bytes_per_request),
                    "bounds": {
                        "prefill_roofline_s": one(found.prefill_roofline_s),
                        "decode_roofline_s": one(found.decode_roofline_s),
                    },
                    "resource_use_frac": use,
                    "intervals_s": {
                        name: {
                            "50": between(value, interval, "low_50", "high_50"),
                            "90": between(value, interval, "low_90", "high_90"),
                        }
                        for name, value, interval in (
                            ("ttft_s", found.ttft_s, found.ttft_interval),
                            ("tpot_s", found.tpot_s, found.tpot_interval),
                        )
                    },
                    "fits": one(found.max_batch) >= concurrency,
                    "confidence": found.confidence,
                },
                indent=1,
            )
        )
        return
    from tabulate import tabulate

    def band(value: object, interval: Interval) -> str:
        half, most = between(value, interval, "low_50", "high_50"), between(value, interval, "low_90", "high_90")
        return f"50 %: {half[0] * 1e3:.3g} to {half[1] * 1e3:.3g}, 90 %: {most[0] * 1e3:.3g} to {most[1] * 1e3:.3g} ms"

    def busy(phase: str) -> str:
        words = {"flop": "FLOP/s", "hbm": "HBM bandwidth", "link": "links"}
        return ", ".join(f"{share:.0%} of {words[name]}" for name, share in use[phase].items())

    rows = [
        ("TTFT, unloaded", f"{one(found.ttft_s) * 1e3:.1f} ms"),
        ("  measured lies within", band(found.ttft_s, found.ttft_interval)),
        (
            "prefill pass",
            f"{one(found.prefill_pass_s) * 1e3:.1f} ms (roofline {one(found.prefill_roofline_s) * 1e3:.1f})",
        ),
        ("  uses of the peak", busy("prefill")),
        (f"TPOT at {concurrency} sequences", f"{one(found.tpot_s) * 1e3:.2f} ms"),
        ("  measured lies within", band(found.tpot_s, found.tpot_interval)),
        ("decode step", f"{one(found.decode_step_s) * 1e3:.2f} ms (roofline {one(found.decode_roofline_s) * 1e3:.2f})"),
        ("  uses of the peak", busy("decode")),
        ("decode throughput", f"{one(found.throughput_tok_per_s_per_card):.0f} tokens/s per card"),
        ("prefill throughput, busy", f"{one(found.prefill_tok_per_s_per_card):.0f} tokens/s per card"),
        ("largest batch in memory", f"{one(found.max_batch):.0f} sequences"),
        ("weights per card", f"{one(found.weights_bytes_per_card) / 1e9:.1f} GB"),
        ("left for KV cache per card", f"{one(found.kv_free_bytes_per_card) / 1e9:.1f} GB"),
        ("KV sent per request", f"{one(found.kv_bytes_per_request) / 1e6:.1f} MB"),
        ("confidence", found.confidence),
    ]
    emit(tabulate(rows, tablefmt="plain"))
