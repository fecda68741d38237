"""pdplan: least-cost fleets for serving large language models with prefill and decode on separate machines.

The public face; everything is loaded when first used, so importing pdplan costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdplan.fleet.estimate import Estimate, estimate
    from pdplan.fleet.pipeline import plan_from_anything as plan
    from pdplan.fleet.plan import Plan
    from pdplan.fleet.solve import solve
    from pdplan.fleet.verify import verify_anything as verify
    from pdplan.scenario.load import load_scenario

__version__ = "0.1.0"

__all__ = ["Estimate", "Plan", "__version__", "estimate", "load_scenario", "plan", "solve", "verify"]

_HOME = {
    "Estimate": ("pdplan.fleet.estimate", "Estimate"),
    "Plan": ("pdplan.fleet.plan", "Plan"),
    "estimate": ("pdplan.fleet.estimate", "estimate"),
    "load_scenario": ("pdplan.scenario.load", "load_scenario"),
    "plan": ("pdplan.fleet.pipeline", "plan_from_anything"),
    "solve": ("pdplan.fleet.solve", "solve"),
    "verify": ("pdplan.fleet.verify", "verify_anything"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pdplan' has no attribute {name!r}")
    module, attribute = _HOME[name]
    return getattr(importlib.import_module(module), attribute)
