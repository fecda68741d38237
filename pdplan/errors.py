"""The whole exception tree of pdplan, each class with its process exit code.

=================  ====  ==========================================================
class              exit  meaning
=================  ====  ==========================================================
PdplanError           1  an internal fault: pdplan contradicts itself
InputError            2  scenario, catalog, file or usage is wrong; nothing was written
InfeasibleError       3  the request is well formed and cannot be met
SolverError           4  the solver stopped (time limit) without any plan
=================  ====  ==========================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

__all__ = ["InfeasibleError", "InputError", "PdplanError", "Reason", "SolverError", "unknown_name"]


class PdplanError(Exception):
    """Base class; raised directly only for a fault of pdplan itself."""

    exit_code = 1


class InputError(PdplanError):
    """The user's input is wrong. One sentence per fault: what and where, what would be accepted.

    Parameters
    ----------
    *faults : str
        One or more complete sentences; all faults of a file are reported at once.
    """

    exit_code = 2

    def __init__(self, *faults: str) -> None:
        super().__init__("\n".join(faults))
        self.faults: tuple[str, ...] = faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a request cannot be met, in words, and the nearest value that can.

    `constraint` names the requirement (``slo.ttft_s.p90``, ``sites.east.max_nodes``), `required` is
    what was asked, `nearest` the closest feasible value in the same unit (None where no value of
    this requirement alone helps), `message` one sentence for people.
    """

    constraint: str
    required: float | None
    nearest: float | None
    message: str


class InfeasibleError(PdplanError):
    """No plan meets the request; `reasons` says which requirements break it."""

    exit_code = 3

    def __init__(self, message: str, reasons: Sequence[Reason] = ()) -> None:
        super().__init__(message)
        self.reasons: tuple[Reason, ...] = tuple(reasons)


class SolverError(PdplanError):
    """The solver stopped without a plan (time limit, crash)."""

    exit_code = 4


def unknown_name(kind: str, name: str, known: Iterable[str], *, hint: str = "") -> str:
    """Sentence for a name that is not known, with near misses.

    Examples
    --------
    >>> unknown_name("node", "h100-smx", ["h100-sxm", "l40s"])
    "unknown node 'h100-smx'. Did you mean 'h100-sxm'?"
    """
    names = sorted(known)
    by_folded = {other.lower(): other for other in names}
    close = [by_folded[key] for key in get_close_matches(name.lower(), list(by_folded), n=3, cutoff=0.6)]
    if close:
        tail = f"Did you mean {' or '.join(repr(c) for c in close)}?"
    elif len(names) <= 12:
        tail = f"Known: {', '.join(names) or 'none'}"
    else:
        tail = f"Known are {len(names)}, for example {', '.join(names[:4])}"
    return f"unknown {kind} {name!r}. {tail}" + (f" {hint}" if hint else "")
