"""The records that the event loop works on: NumPy structured arrays for numba, small objects for plain Python.

`array[i].field` reads and writes alike on both, which is what lets one source serve both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "FAILURE", "FLOW", "GAP", "LINK", "PENDING", "POOL", "RANK", "REQUEST", "SERVER", "SETTINGS", "as_objects",
    "as_rows", "record_class",
]  # fmt: skip


def _record(floats: str, integers: str) -> np.dtype[Any]:
    return np.dtype([(name, np.float64) for name in floats.split()] + [(name, np.int64) for name in integers.split()])


REQUEST = _record(
    # Times of the latest try; `delay` is the constant way out of every token, `gap` the largest between two tokens; `work`
    # is that of its prompt where it waits for a pass.
    "arrival pass_start pass_end landed admitted first last delay gap draw work",
    # What it is.
    "input cached output group "
    # Where it is: its queue (next), its batch (prev, next), its place in the heap of the batch (left, right).
    "status next prev left right "
    # Its stay in a batch: last step, step and run at which it joined, tokens of context then; tokens made before.
    "finish started run context done "
    # Whose cache lies where, and which life of that server (epochs count failures).
    "server epoch source source_epoch "
    "preempted retries prefilled taken cached_now reserved",
)
SERVER = _record(
    # The pass or run under way: its start and, for a run, duration of its first step, with and without prompts, and what
    # each next one adds.
    "start c0 plain c1 context_sum kv_used staged queued_work held nic_free "
    # Time integrals inside the window.
    "busy_s batch_s kv_s tokens",
    "pool alive age steps step run_no active root active_head active_tail wait_head wait_tail "
    "queue_head queue_tail queued hold_head hold_tail pass_head assigned chunked half_done gaps gap_base",
)
POOL = _record(
    "pass_a pass_b pass_c budget kv_cap max_active per_step extra first_steps staging nic bytes_per_token fixed_bytes "
    "handshake layers hot headroom",
    "engine first count router turn pass_limit ranks stages table rows cols work work_rows max_queue holds_prefix first_at",
)
LINK = _record("free rate delay", "")
FLOW = _record("share credit", "link")
PENDING = _record("time", "load")
GAP = _record("value", "run")
FAILURE = _record("time", "server back")
RANK = _record("tokens work", "")
SETTINGS = _record(
    "window_from window_to horizon balance floor_s floor_n now",
    "requests servers pools tree next_arrival pending failures next_failure drop even_split gap_size events",
)


def record_class(dtype: np.dtype[Any]) -> type:
    """Class with the record's fields as slots, made from the tuple of its values."""
    names = dtype.names or ()
    targets = ", ".join(f"self.{name}" for name in names)
    scope: dict[str, Any] = {}
    # A constructor written out for these fields is several times faster than a loop over their names.
    exec(f"def __init__(self, values):\n    ({targets},) = values", scope)
    return type("Record", (), {"__slots__": names, "__init__": scope["__init__"]})


def as_objects(rows: NDArray[Any]) -> list[Any]:
    """Records as objects."""
    make = record_class(rows.dtype)
    return [make(values) for values in rows.tolist()]


def as_rows(objects: list[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Objects as a structured array again."""
    from operator import attrgetter

    get = attrgetter(*(dtype.names or ()))
    single = len(dtype.names or ()) == 1
    return np.array([(get(item),) if single else get(item) for item in objects], dtype=dtype)
