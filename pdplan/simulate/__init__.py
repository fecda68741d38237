"""Discrete-event simulation of a fleet: what the queueing formulas are checked against.

The face is numeric and knows nothing of plans: :func:`simulate` takes a :class:`SimFleet` and :class:`SimRequests` and
gives a :class:`SimResult`; :func:`summarise` turns results into percentiles with confidence intervals.
"""

from __future__ import annotations

from pdplan.simulate.fleet import (
    ColocatedPool,
    DecodePool,
    Failure,
    Flow,
    Link,
    PrefillPool,
    SimFleet,
    SimOptions,
    SimRequests,
)
from pdplan.simulate.result import Estimate, PoolUse, SimResult, Summary, gap_quantile_s, summarise
from pdplan.simulate.run import simulate

__all__ = [
    "ColocatedPool",
    "DecodePool",
    "Estimate",
    "Failure",
    "Flow",
    "Link",
    "PoolUse",
    "PrefillPool",
    "SimFleet",
    "SimOptions",
    "SimRequests",
    "SimResult",
    "Summary",
    "gap_quantile_s",
    "simulate",
    "summarise",
]
