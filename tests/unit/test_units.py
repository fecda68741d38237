import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplan.units import parse_quantity


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("3.35 TB/s", "byte/s", 3.35e12),
        ("400 Gb/s", "byte/s", 50e9),
        ("400 Gbit/s", "byte/s", 50e9),
        ("80 GB", "byte", 80e9),
        ("80 GiB", "byte", 80 * 2**30),
        ("989 TFLOP/s", "FLOP/s", 989e12),
        ("200 ms", "s", 0.2),
        ("1.5 MW", "W", 1.5e6),
        ("80km", "km", 80.0),
    ],
)
def test_quantity_is_read_in_si(text: str, dimension: str, value: float) -> None:
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    "text", ["3350", "3.35", "3.35 TB", "fast", "", "nan TB/s", "1 TB/s/s", "١ TB/s x", None, True]
)
def test_anything_else_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(ValueError, match="not a quantity in byte/s"):
        parse_quantity(text, "byte/s")


def test_overflow_is_not_a_quantity() -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        parse_quantity("1e400 TB/s", "byte/s")


@given(st.floats(1e-6, 1e6), st.sampled_from([("TB/s", 1e12), ("Gb/s", 1.25e8), ("MiB/s", 2.0**20)]))
def test_value_times_unit_round_trips(number: float, unit: tuple[str, float]) -> None:
    assert math.isclose(parse_quantity(f"{number!r} {unit[0]}", "byte/s"), number * unit[1], rel_tol=1e-12)
