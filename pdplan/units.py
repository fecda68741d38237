"""Quantities as people write them, converted once into SI.

Inside pdplan everything is SI: bytes, bytes per second, FLOP per second, seconds, watts, metres
(distances in km only where the name says so). GB is 10**9 bytes and GiB 2**30 bytes (IEC 80000-13);
a lower-case ``b`` is a bit.
"""

from __future__ import annotations

import math
import re

__all__ = ["HOURS_PER_MONTH", "HOURS_PER_YEAR", "accepted_units", "parse_quantity"]

HOURS_PER_YEAR = 8760.0
"""365 days."""
HOURS_PER_MONTH = 730.0
"""A twelfth of 8760 h, the month cloud price lists use."""

_SI = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_IEC = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}

_BYTES = {p + "B": f for p, f in {**_SI, **_IEC}.items()}
_BITS_PER_S = {p + u: f / 8 for p, f in _SI.items() for u in ("b/s", "bit/s", "bps")}
_UNITS: dict[str, dict[str, float]] = {
    "byte": _BYTES,
    "byte/s": {**{u + "/s": f for u, f in _BYTES.items()}, **_BITS_PER_S},
    "FLOP/s": {p + u: f for p, f in _SI.items() for u in ("FLOP/s", "FLOPS", "OP/s", "OPS")},
    "s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0},
    "W": {p + "W": f for p, f in _SI.items()},
    "km": {"km": 1.0, "m": 1e-3, "mi": 1.609344},
}
_EXAMPLES = {
    "byte": "'80 GB'",
    "byte/s": "'3.35 TB/s' or '400 Gb/s'",
    "FLOP/s": "'989 TFLOP/s'",
    "s": "'200 ms'",
    "W": "'700 W'",
    "km": "'80 km'",
}
_PATTERN = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z/]*)")


def accepted_units(dimension: str) -> str:
    """An example of a well-formed quantity of this dimension, for messages."""
    return _EXAMPLES[dimension]


def parse_quantity(text: object, dimension: str) -> float:
    """Read a number with its unit.

    Parameters
    ----------
    text : object
        For instance ``"3.35 TB/s"``. A bare number has no unit and is refused.
    dimension : {"byte", "byte/s", "FLOP/s", "s", "W", "km"}
        The SI unit wanted (km for distance).

    Returns
    -------
    float
        The value in that unit.

    Raises
    ------
    ValueError
        When text is no finite quantity of that dimension; the message says what is accepted.

    Examples
    --------
    >>> parse_quantity("400 Gb/s", "byte/s")
    50000000000.0
    >>> parse_quantity("80 GiB", "byte")
    85899345920.0
    """
    match = _PATTERN.fullmatch(str(text).strip())
    factor = _UNITS[dimension].get(match.group(2)) if match else None
    if match is None or factor is None or not math.isfinite(value := float(match.group(1)) * factor):
        raise ValueError(
            f"{str(text)!r} is not a quantity in {dimension}; write a number and a unit, for example "
            f"{_EXAMPLES[dimension]}"
        )
    return value
