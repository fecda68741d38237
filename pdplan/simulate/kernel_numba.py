"""The event loop of :mod:`pdplan.simulate.kernel`, compiled by numba from the very same source.

Imported only when a simulation asks for it. Compiling takes a few seconds once; the result is kept on disk.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import numba

from pdplan.simulate import kernel

__all__ = ["run_events"]


def _compiled() -> dict[str, Any]:
    """Compile-on-call versions of the kernel's functions that see one another instead of the plain ones."""
    space: dict[str, Any] = {**vars(kernel), "__name__": __name__}
    for plain in kernel.ORDER:
        twin = FunctionType(plain.__code__, space, plain.__name__)
        # Without fastmath every operation rounds as Python's does, so both ways agree to the last bit.
        inner = plain is not kernel.run_events
        space[plain.__name__] = numba.njit(
            cache=not inner, error_model="numpy", no_cpython_wrapper=inner, no_cfunc_wrapper=True
        )(twin)
    return space


run_events = _compiled()["run_events"]
