"""Quantities: exact values by definition of the unit, every kind of error with its message, round trips."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parasim import units
from parasim.errors import Malformed


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("0 B", "bytes", 0.0),
        ("25 MiB", "bytes", 25 * 2**20),
        ("80 GiB", "bytes", 80 * 2**30),
        ("80 GB", "bytes", 80 * 10**9),
        ("80GB", "bytes", 80 * 10**9),
        ("1kB", "bytes", 1000),
        ("1 KB", "bytes", 1000),
        ("1 KiB", "bytes", 1024),
        ("2 TiB", "bytes", 2 * 2**40),
        ("8 b", "bytes", 1),
        ("400 Gb", "bytes", 50 * 10**9),
        ("400 Gb/s", "bandwidth", 50 * 10**9),
        ("400Gbps", "bandwidth", 50 * 10**9),
        ("400 Gbit/s", "bandwidth", 50 * 10**9),
        ("50 GB/s", "bandwidth", 50 * 10**9),
        ("1 GiB/s", "bandwidth", 2**30),
        ("3.35 TB/s", "bandwidth", 3.35e12),
        ("989 TFLOP/s", "flops", 989e12),
        ("989 TFLOPS", "flops", 989e12),
        ("1 PFLOPs/s", "flops", 1e15),
        ("10 ms", "seconds", 0.01),
        ("3 us", "seconds", 3e-6),
        ("3 µs", "seconds", 3e-6),
        ("3 μs", "seconds", 3e-6),
        ("0.1 ns", "seconds", 1e-10),
        ("1.5 min", "seconds", 90),
        ("2 h", "seconds", 7200),
        ("1e3 s", "seconds", 1000),
        (" .5  s ", "seconds", 0.5),
        ("2.5 USD/h", "price", 2.5),
    ],
)
def test_values(text: str, dimension: units.Dimension, value: float) -> None:
    assert units.parse(text, dimension) == value


@pytest.mark.parametrize(
    ("text", "dimension", "message"),
    [
        (25, "bytes", "25 has no unit; write a size with its unit, such as 25 MiB or 25 GB"),
        ("25", "bytes", "25 has no unit; write a size with its unit, such as 25 MiB or 25 GB"),
        (0, "seconds", "0 has no unit; write a time with its unit, such as 0 ms or 0 us"),
        ("400 Gb", "bandwidth", "400 Gb is a size, a bandwidth needs /s: 400 Gb/s"),
        ("50 GB/s", "bytes", "50 GB/s is a bandwidth, a size has no /s: 50 GB"),
        ("50GBps", "bytes", "50 GBps is a bandwidth, a size has no /s: 50 GB"),
        ("3 ms", "bytes", "3 ms is a time, a size is due, such as 3 MiB or 3 GB"),
        ("989 TFLOP", "flops", "989 TFLOP is an amount; a compute rate is written as 989 TFLOP/s or 989 GFLOP/s"),
        ("2 USD", "price", "2 USD is an amount; a price is written as 2 USD/h"),
        ("25 mib", "bytes", "unknown unit 'mib' in 25 mib; write a size as 25 MiB or 25 Mib (b is bits, B is bytes)"),
        ("10 msec", "seconds", "unknown unit 'msec' in 10 msec; write a time as 10 ms or 10 us"),
        ("-1 s", "seconds", "-1 s is negative; a time is 0 ms or more"),
        ("1e400 s", "seconds", "1e400 s is too large to be a time"),
        ("1e308 GB", "bytes", "1e308 GB is too large to be a size"),
        ("fast", "bandwidth", "'fast' is not a bandwidth; write a number and a unit, such as 25 GB/s or 25 Gb/s"),
        ("", "seconds", "'' is not a time; write a number and a unit, such as 25 ms or 25 us"),
        ("nan s", "seconds", "'nan s' is not a time; write a number and a unit, such as 25 ms or 25 us"),
        (None, "bytes", "null is not a size; write a number and a unit, such as 25 MiB or 25 GB"),
        (True, "bytes", "true is not a size; write a number and a unit, such as 25 MiB or 25 GB"),
        ([1], "bytes", "[1] is not a size; write a number and a unit, such as 25 MiB or 25 GB"),
    ],
)
def test_errors(text: object, dimension: units.Dimension, message: str) -> None:
    with pytest.raises(Malformed) as error:
        units.parse(text, dimension)
    assert str(error.value) == message


def test_a_huge_exponent_is_answered_at_once() -> None:
    assert units.parse("1e-999999999 s", "seconds") == 0.0
    with pytest.raises(Malformed):
        units.parse("1e999999999 s", "seconds")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_bytes(80 * 2**30), "80 GiB"),
        (units.format_bytes(80e9), "80 GB"),
        (units.format_bytes(1024), "1 KiB"),
        (units.format_bytes(1e6), "1 MB"),
        (units.format_bytes(0), "0 B"),
        (units.format_bytes(12345678), "11.77 MiB"),
        (units.format_seconds(0), "0 s"),
        (units.format_seconds(3e-6), "3 us"),
        (units.format_seconds(0.99999), "1 s"),
        (units.format_seconds(0.9999), "999.9 ms"),
        (units.format_seconds(90), "1.5 min"),
        (units.format_seconds(3e-11), "0.03 ns"),
        (units.format_bandwidth(50e9), "50 GB/s"),
        (units.format_flops(989e12), "989 TFLOP/s"),
    ],
)
def test_formats(text: str, expected: str) -> None:
    assert text == expected


POSITIVE = st.floats(min_value=1e-12, max_value=1e24, allow_nan=False, allow_infinity=False)


@given(POSITIVE)
def test_what_is_printed_reads_back_to_four_digits(value: float) -> None:
    for text, dimension in (
        (units.format_bytes(value), "bytes"),
        (units.format_seconds(value), "seconds"),
        (units.format_bandwidth(value), "bandwidth"),
        (units.format_flops(value), "flops"),
    ):
        assert math.isclose(units.parse(text, dimension), value, rel_tol=5.1e-4), text  # type: ignore[arg-type]


@given(st.integers(0, 999), st.sampled_from(["B", "kB", "KiB", "MB", "MiB", "GB", "GiB", "TB", "TiB"]))
def test_sizes_of_three_digits_read_back_exactly(number: int, unit: str) -> None:
    value = units.parse(f"{number} {unit}", "bytes")
    assert units.parse(units.format_bytes(value), "bytes") == value


@given(st.integers(1, 10**6), st.sampled_from(["kb", "Mb", "Gb", "Tb"]))
def test_eight_bits_are_a_byte(number: int, unit: str) -> None:
    assert units.parse(f"{8 * number} {unit}/s", "bandwidth") == units.parse(f"{number} {unit[0]}B/s", "bandwidth")
