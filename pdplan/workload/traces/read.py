"""Which format a trace has, and its requests as arrays.

Comma-separated files are known by their header, JSON lines by the keys of the first line, one JSON document by its
arrays. Every line that yields no request is counted, and the first few are named.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdplan.errors import InputError
from pdplan.workload.traces.stream import line_blocks

__all__ = ["FORMATS", "Trace", "read_trace"]

Floats = NDArray[np.float64]
MAX_TOKENS = 10_000_000
NAMED_LINES = 5

FORMATS: dict[str, tuple[str, str, str]] = {
    "pdplan": ("arrival_s", "input_tokens", "output_tokens"),
    "azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "burstgpt": ("Timestamp", "Request tokens", "Response tokens"),
    "openai-usage": ("created", "prompt_tokens", "completion_tokens"),
    "otel-usage": ("timestamp", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"),
    "mooncake": ("timestamp", "input_length", "output_length"),
    "aiperf": ("request_start_ns", "input_sequence_length", "output_sequence_length"),
    "generic": ("timestamp", "input_tokens", "output_tokens"),
}
"""Column or key names of time, input and output per format; docs/reference/trace-formats.md explains each."""
_TIME_SCALE = {"mooncake": 1e-3, "aiperf": 1e-9}
_BLOCKS = {"pdplan": "block_ids", "mooncake": "hash_ids"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of arrival; arrays (R,). Times start at 0."""

    arrival_s: Floats
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    block_ids: NDArray[np.int64] | None = None
    """Blocks of all prompts one after another, or None."""
    block_offsets: NDArray[np.int64] | None = None
    """(R+1,): request i has block_ids[block_offsets[i]:block_offsets[i+1]]."""
    format: str = ""
    bad_lines: int = 0
    first_bad: tuple[str, ...] = ()
    """What is wrong with the first bad lines, with their numbers."""


class _Faults:
    def __init__(self) -> None:
        self.count, self.first = 0, list[str]()

    def add(self, line: int, why: str) -> None:
        self.count += 1
        if len(self.first) < NAMED_LINES:
            self.first.append(f"line {line}: {why}")


def _seconds(text: Any) -> float:
    """A number of seconds, or a date and time in ISO order, as seconds."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return float(text)
    try:
        return float(text)
    except ValueError:
        clean = str(text).strip().removesuffix("Z").removesuffix("+00:00").replace(" ", "T")
        return float(np.datetime64(clean, "ns").astype(np.int64)) * 1e-9


def _expand(text: str) -> list[int]:
    """``0-13 20`` -> 0..13, 20."""
    out: list[int] = []
    for part in text.split():
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if high < low or high - low > MAX_TOKENS:
            raise ValueError(f"block range {part}")
        out.extend(range(low, high + 1))
    return out


def _request(values: Sequence[Any]) -> tuple[float, float, float]:
    time, inputs, outputs = _seconds(values[0]), float(values[1]), float(values[2])
    if not np.isfinite(time):
        raise ValueError(f"time {values[0]!r}")
    if not (1 <= inputs <= MAX_TOKENS and 0 <= outputs <= MAX_TOKENS):
        raise ValueError(f"lengths {inputs:g} and {outputs:g}; 1 to {MAX_TOKENS} tokens are accepted")
    return time, inputs, outputs


def _format_of(names: Sequence[str]) -> str | None:
    return next((name for name, columns in FORMATS.items() if all(column in names for column in columns)), None)


def _numbers(block: bytes, columns: tuple[int, int, int]) -> Floats:
    """Three columns of a block that holds nothing but numbers; other blocks raise ValueError or take longer."""
    width = block[: block.index(b"\n")].count(b",") + 1
    lines = block.count(b"\n")
    if b'"' not in block and block.count(b",") == lines * (width - 1):
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)
            try:
                flat = np.fromstring(block.replace(b"\n", b","), sep=",")
            except DeprecationWarning:  # text among the numbers
                flat = np.empty(0)
        if len(flat) == lines * width:
            return flat.reshape(lines, width)[:, columns]
    return np.loadtxt(io.BytesIO(block), delimiter=",", usecols=columns, ndmin=2, comments=None)


def _fast(block: bytes, columns: tuple[int, int, int], first_is_number: bool) -> Floats | None:
    """All rows of a block at once, or None where any line needs a closer look."""
    try:
        if first_is_number:
            table = _numbers(block, columns)
        else:
            lengths = np.loadtxt(io.BytesIO(block), delimiter=",", usecols=columns[1:], ndmin=2, comments=None)
            stamps = np.loadtxt(
                io.BytesIO(block), delimiter=",", usecols=columns[0], dtype="U40", ndmin=1, comments=None
            )
            times = stamps.astype("datetime64[ns]").astype(np.int64) * 1e-9
            table = np.column_stack([times, lengths])
    except ValueError:
        return None
    good = (table[:, 1:] <= MAX_TOKENS).all() and (table[:, 1] >= 1).all() and (table[:, 2] >= 0).all()
    whole = np.isfinite(table).all() and len(table) == block.count(b"\n")
    return table if good and whole else None


def _delimited(
    path: Path, blocks: Iterator[bytes], faults: _Faults
) -> tuple[str, list[Floats], list[list[int]] | None]:
    first = next(blocks)
    header, _, rest = first.partition(b"\n")
    names = [name.strip() for name in next(csv.reader([header.decode("utf-8-sig", "replace")]))]
    kind = _format_of(names)
    if kind is None:
        known = "; ".join(", ".join(columns) for columns in FORMATS.values())
        raise InputError(f"{path}: columns {', '.join(names)[:200]} are no known trace; accepted are: {known}")
    columns = tuple(names.index(column) for column in FORMATS[kind])
    at = names.index(_BLOCKS[kind]) if _BLOCKS.get(kind) in names else None
    parts: list[Floats] = []
    prompts: list[list[int]] | None = None if at is None else []
    line = 2
    for block in itertools.chain([rest] if rest else [], blocks):
        table = None
        if prompts is None:
            numeric = kind not in ("azure",)
            table = _fast(block, columns, numeric)  # type: ignore[arg-type]
        if table is None:
            rows = []
            for number, row in enumerate(csv.reader(io.StringIO(block.decode("utf-8", "replace"))), start=line):
                try:
                    if not row:
                        continue
                    request = _request([row[c] for c in columns])
                    if prompts is not None and at is not None:
                        prompts.append(_expand(row[at]) if at < len(row) else [])
                    rows.append(request)
                except (ValueError, IndexError, csv.Error) as fault:
                    faults.add(number, str(fault)[:120])
            table = np.array(rows).reshape(-1, 3)
        parts.append(table)
        line += block.count(b"\n")
    return kind, parts, prompts


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """Nested ``usage``, ``attributes``, ``metadata`` and ``metrics`` blocks brought to the top, metrics as numbers.

    Raises
    ------
    ValueError
        A request of a benchmark's warm-up, which is no part of the traffic.
    """
    out = dict(record)
    for key in ("usage", "attributes", "metadata", "metrics"):
        if isinstance(record.get(key), dict):
            out.update(record[key])
    if out.get("benchmark_phase") == "warmup":
        raise ValueError("a request of the warm-up")
    return {
        key: value["value"] if isinstance(value, dict) and "value" in value else value for key, value in out.items()
    }


def _json_lines(
    path: Path, blocks: Iterator[bytes], faults: _Faults
) -> tuple[str, list[Floats], list[list[int]] | None]:
    kind: str | None = None
    rows: list[tuple[float, float, float]] = []
    prompts: list[list[int]] = []
    line = 0
    for block in blocks:
        for text in block.splitlines():
            line += 1
            if not text.strip():
                continue
            try:
                record = json.loads(text)
                if not isinstance(record, dict):
                    raise ValueError("not a JSON object")
                record = _flat(record)
                kind = kind or _format_of(list(record))
                if kind is None:
                    raise ValueError(f"keys {', '.join(record)[:80]} are no known trace")
                request = _request([record[key] for key in FORMATS[kind]])
                hashes = [int(h) for h in record.get(_BLOCKS.get(kind, ""), [])]
            except (ValueError, KeyError, TypeError, RecursionError) as fault:
                faults.add(line, str(fault)[:120])
                continue
            rows.append(request)
            prompts.append(hashes)
    if kind is None:
        raise InputError(f"{path}: no line is a request; {'; '.join(faults.first) or 'the file is empty'}")
    return kind, [np.array(rows).reshape(-1, 3)], prompts if any(prompts) else None


def _benchmark(path: Path, document: dict[str, Any]) -> tuple[str, list[Floats], None]:
    """vLLM and SGLang benchmark results: arrays input_lens and output_lens, start times where stored."""
    inputs, outputs = document["input_lens"], document["output_lens"]
    starts = document.get("start_times")
    if not (isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs)):
        raise InputError(f"{path}: input_lens and output_lens must be arrays of one length")
    if not (isinstance(starts, list) and len(starts) == len(inputs)):
        starts = [0.0] * len(inputs)
    try:
        return "serving-benchmark", [np.array([_request(v) for v in zip(starts, inputs, outputs, strict=True)])], None
    except (TypeError, ValueError) as fault:
        raise InputError(f"{path}: input_lens, output_lens: {fault}") from None


def read_trace(path: str | Path) -> Trace:
    """Requests of a trace file, plain, gzip or zstandard; the format is found by itself.

    Raises
    ------
    InputError
        Unreadable, unknown format, or no usable line.
    """
    path = Path(path)
    faults = _Faults()
    blocks = line_blocks(path)
    first = next(blocks, b"")
    if not first.strip():
        raise InputError(f"{path}: is empty; a trace is expected here")
    source = itertools.chain([first], blocks)
    if first.lstrip()[:1] == b"{":
        head, _, _ = first.lstrip().partition(b"\n")
        document: Any = None
        try:
            document = json.loads(head)
        except ValueError:
            try:
                document = json.loads(b"".join(source))
            except (ValueError, RecursionError):
                raise InputError(f"{path}: is neither JSON lines nor one JSON document") from None
        if isinstance(document, dict) and "input_lens" in document and "output_lens" in document:
            kind, parts, prompts = _benchmark(path, document)
        else:
            kind, parts, prompts = _json_lines(path, source, faults)
    else:
        kind, parts, prompts = _delimited(path, source, faults)
    table = np.concatenate(parts) if parts else np.empty((0, 3))
    parts.clear()
    if not len(table):
        raise InputError(f"{path}: no usable request in it; {'; '.join(faults.first) or 'it has only a header'}")
    return _trace(table, prompts, kind, faults)


def _trace(table: Floats, prompts: list[list[int]] | None, kind: str, faults: _Faults) -> Trace:
    times = table[:, 0] * _TIME_SCALE.get(kind, 1.0)
    in_order = bool((times[1:] >= times[:-1]).all())
    order = slice(None) if in_order else np.argsort(times, kind="stable")
    ids = offsets = None
    if prompts is not None:
        ordered = [prompts[i] for i in np.arange(len(table))[order]]
        offsets = np.concatenate([[0], np.cumsum([len(p) for p in ordered])]).astype(np.int64)
        ids = np.fromiter(itertools.chain.from_iterable(ordered), dtype=np.int64, count=int(offsets[-1]))
    return Trace(
        arrival_s=times[order] - times.min(),
        input_tokens=table[order, 1].astype(np.int64),
        output_tokens=table[order, 2].astype(np.int64),
        block_ids=ids,
        block_offsets=offsets,
        format=kind,
        bad_lines=faults.count,
        first_bad=tuple(faults.first),
    )
