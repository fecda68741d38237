"""Reports into a folder: all of them, or none and one sentence why."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from pdplan.errors import InputError
from pdplan.files import write_atomic

__all__ = ["write_texts"]


def _check(folder: Path, names: Mapping[str, str]) -> None:
    """Everything that can be known to fail, before the first file is written.

    Raises
    ------
    InputError
        With every fault found.
    """
    if (folder.exists() or folder.is_symlink()) and not folder.is_dir():
        raise InputError(f"{folder}: is a file; a folder is expected")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Permission bits say little (root, read-only and network file systems): try it.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as fault:
        raise InputError(f"{folder}: cannot be written ({fault.strerror}); choose another folder") from None
    taken = [
        f"{folder / name}: is a directory; a file is to be written there" for name in names if (folder / name).is_dir()
    ]
    if taken:
        raise InputError(*taken)


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write named texts into a folder, each file whole or not at all; the folder is checked first.

    Raises
    ------
    InputError
        A folder or a name that cannot be written; nothing is written then.
    """
    _check(folder, texts)
    for name, text in texts.items():
        write_atomic(folder / name, text)
    return [folder / name for name in texts]
