"""The event loop of :mod:`pdplan.simulate.kernel`, compiled by numba from the very same source.

Imported only when a simulation asks for it. Compiling takes a few seconds once; the result is kept on disk.
"""

from __future__ import annotations

from pathlib import Path
from types import FunctionType
from typing import Any

import numba

from pdplan.simulate import kernel

__all__ = ["is_compiled", "run_events"]


def _compiled() -> dict[str, Any]:
    """Compile-on-call versions of the kernel's functions that see one another instead of the plain ones."""
    space: dict[str, Any] = {**vars(kernel), "__name__": __name__}
    for plain in kernel.ORDER:
        twin = FunctionType(plain.__code__, space, plain.__name__)
        outer = plain is kernel.run_events
        # Without fastmath every operation rounds as Python's does, so both ways agree to the last bit. Only the outer
        # function is called from Python, so only it needs a way in and a copy on disk.
        compile_ = numba.njit(cache=outer, error_model="numpy", no_cpython_wrapper=not outer, no_cfunc_wrapper=True)
        space[plain.__name__] = compile_(twin)
    return space


run_events = _compiled()["run_events"]


def is_compiled() -> bool:
    """Whether a compiled loop no older than the source is on disk."""
    if run_events.signatures:
        return True
    source = Path(kernel.__file__)
    written = source.stat().st_mtime
    kept = Path(run_events.stats.cache_path).glob(f"{source.stem}.{run_events.__name__}-*.nbi")
    return any(index.stat().st_mtime >= written for index in kept)
