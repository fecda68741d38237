"""Blocks of whole lines of a plain, gzipped or zstandard file."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, cast

from pdplan.errors import InputError

__all__ = ["BLOCK_BYTES", "line_blocks"]

BLOCK_BYTES = 16_000_000
MAX_LINE_BYTES = 64_000_000


def _open(path: Path, stack: ExitStack) -> BinaryIO:
    if path.is_dir():
        raise InputError(f"{path}: is a directory; a trace file is expected here")
    try:
        raw = stack.enter_context(path.open("rb"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as fault:
        raise InputError(f"{path}: cannot be read ({fault.strerror})") from None
    head = raw.read(4)
    raw.seek(0)
    if head[:2] == b"\x1f\x8b":
        return cast(BinaryIO, stack.enter_context(gzip.GzipFile(fileobj=raw)))
    if head == b"\x28\xb5\x2f\xfd":
        try:
            import zstandard
        except ImportError:
            raise InputError(f"{path}: is zstandard-compressed; install pdplan[zstd] or decompress it") from None
        return cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True))
    return raw


def line_blocks(path: Path) -> Iterator[bytes]:
    """The file's bytes in blocks that end at a line's end."""
    rest = b""
    with ExitStack() as stack:
        stream = _open(path, stack)
        try:
            while piece := stream.read(BLOCK_BYTES):
                piece = rest + piece
                cut = piece.rfind(b"\n") + 1
                if not cut and len(piece) > MAX_LINE_BYTES:
                    raise InputError(f"{path}: has a line longer than {MAX_LINE_BYTES / 1e6:.0f} MB; is it a trace?")
                rest = piece[cut:]
                if cut:
                    yield piece[:cut]
        except (OSError, EOFError, zlib.error) as fault:
            raise InputError(f"{path}: the compressed data are damaged ({fault})") from None
    if rest:
        yield rest + b"\n"
