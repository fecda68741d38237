"""Reading and writing files at the rim: guarded text and YAML in, atomic text out.

Every fault is an :class:`~pdplan.errors.InputError` that names the file; nothing else in pdplan opens
user files.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import yaml

from pdplan.errors import InputError

__all__ = ["MAX_YAML_BYTES", "parse_yaml", "read_text", "read_yaml", "write_atomic"]

MAX_YAML_BYTES = 4_000_000
"""A scenario is a few kB and the largest catalog file under 1 MB; more is a mistake or an attack."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _UniqueKeyLoader(_Loader):  # type: ignore[misc]
    """Safe loader that refuses duplicate keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int | float | bool):
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key!r} is given twice", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


def read_text(path: str | Path, *, max_bytes: int = 512_000_000) -> str:
    """Text of a UTF-8 file.

    Raises
    ------
    InputError
        Missing, a directory, unreadable, larger than `max_bytes`, or not UTF-8.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a directory; a file is expected here")
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise InputError(f"{path}: {size / 1e6:.0f} MB is larger than the {max_bytes / 1e6:.0f} MB accepted here")
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except UnicodeDecodeError as fault:
        raise InputError(f"{path}: byte {fault.start} is not UTF-8; save the file as UTF-8 text") from None
    except OSError as fault:
        raise InputError(f"{path}: cannot be read ({fault.strerror})") from None


def parse_yaml(text: str, *, name: str) -> Any:
    """Plain data of a YAML text: no aliases, no duplicate keys, no tags.

    Raises
    ------
    InputError
        With `name`, line and column of the first fault.
    """
    try:
        if "*" in text:  # an alias starts with a star; look at the events only where there is one
            for event in yaml.parse(text, Loader=_Loader):
                if isinstance(event, yaml.AliasEvent):
                    raise yaml.constructor.ConstructorError(
                        None,
                        None,
                        "aliases (*name) are not accepted; write the value out",
                        event.start_mark,  # type: ignore[arg-type]
                    )
        return yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = getattr(fault, "problem", None) or str(fault).splitlines()[0]
        raise InputError(f"{name}:{where} is not acceptable YAML: {what}") from None
    except RecursionError:
        raise InputError(f"{name}: is nested too deeply") from None
    except ValueError as fault:
        raise InputError(f"{name}: holds a value YAML cannot read: {fault}") from None


def read_yaml(path: str | Path) -> Any:
    """Plain data of a YAML file; see :func:`parse_yaml`."""
    return parse_yaml(read_text(path, max_bytes=MAX_YAML_BYTES), name=str(path))


def write_atomic(path: str | Path, text: str) -> None:
    """Write a UTF-8 file whole or not at all (temporary file in the same folder, then rename).

    Raises
    ------
    InputError
        When the folder cannot be made or written.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
                stream.write(text)
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as fault:
        raise InputError(f"{path}: cannot be written ({fault.strerror}); choose another folder") from None
