"""Quantities at the boundary: text with a unit in, SI floats inside, text with a unit out.

b is bits, B is bytes; k, M, G, T, P are powers of 1000 and Ki, Mi, Gi, Ti powers of 1024, kept apart. Sizes are bytes, times seconds,
bandwidths bytes/s, compute rates FLOP/s. Money is the one exception to SI: a price is USD per hour, as every price list has it.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

from .errors import Malformed

Dimension = Literal["bytes", "seconds", "bandwidth", "flops", "price"]


class DimensionSpec(NamedTuple):
    """`noun` with its article, the unit of the parsed float, and legal examples."""

    noun: str
    si: str
    examples: tuple[str, ...]


DIMENSIONS: dict[Dimension, DimensionSpec] = {
    "bytes": DimensionSpec("a size", "bytes", ("MiB", "GB", "GiB")),
    "seconds": DimensionSpec("a time", "seconds", ("ms", "us", "s")),
    "bandwidth": DimensionSpec("a bandwidth", "bytes/s", ("GB/s", "Gb/s")),
    "flops": DimensionSpec("a compute rate", "FLOP/s", ("TFLOP/s", "GFLOP/s")),
    "price": DimensionSpec("a price", "USD/hour", ("USD/h",)),
}

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_TIMES = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "ms": Fraction(1, 10**3),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(24 * 3600),
}
_NUMBER = re.compile(r"\s*(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>\S.*?)?\s*")
_MICRO = str.maketrans({"µ": "u", "μ": "u"})


def _table() -> dict[str, tuple[Dimension, Fraction]]:
    out: dict[str, tuple[Dimension, Fraction]] = {unit: ("seconds", factor) for unit, factor in _TIMES.items()}
    for prefix, scale in (_DECIMAL | {"K": 10**3} | _BINARY).items():
        for base, bytes_ in (("b", Fraction(1, 8)), ("bit", Fraction(1, 8)), ("B", Fraction(1))):
            out[prefix + base] = ("bytes", scale * bytes_)
            out[f"{prefix}{base}/s"] = out[f"{prefix}{base}ps"] = ("bandwidth", scale * bytes_)
    for prefix, scale in _DECIMAL.items():
        for base in ("FLOP/s", "FLOPs/s", "FLOPS"):
            out[prefix + base] = ("flops", Fraction(scale))
    return out | {"USD/h": ("price", Fraction(1))}


_UNITS = _table()
_INCOMPLETE = {"FLOP": "/s", "FLOPs": "/s", "USD": "/h"}


def parse(text: object, dimension: Dimension) -> float:
    """The value of `text` ("25 MiB", "400 Gb/s", "3 us") in bytes, seconds, bytes/s, FLOP/s or USD/hour.

    Raises `Malformed` for a missing or unknown unit, a unit of another dimension, a negative or non-finite number; the message shows what
    is legal.
    """
    noun = DIMENSIONS[dimension].noun
    match = _NUMBER.fullmatch(str(text)) if isinstance(text, str | int | float) and not isinstance(text, bool) else None
    if match is None:
        shown = repr(text) if isinstance(text, str) else _yaml_word(text)
        raise Malformed(f"{shown} is not {noun}; write a number and a unit, such as {_examples('25', dimension)}")
    number, unit = match["number"], (match["unit"] or "").translate(_MICRO)
    factor = _factor(number, unit, dimension)
    if number.startswith("-") and float(number) < 0:
        raise Malformed(f"{str(text).strip()} is negative; {noun} is 0 {DIMENSIONS[dimension].examples[0]} or more")
    if not math.isfinite(float(number)) or not math.isfinite(float(number) * float(factor)):
        raise Malformed(f"{str(text).strip()} is too large to be {noun}")
    return float(Fraction(number) * factor) if float(number) else 0.0


def _factor(number: str, unit: str, dimension: Dimension) -> Fraction:
    if not unit:
        raise Malformed(f"{number} has no unit; write {DIMENSIONS[dimension].noun} with its unit, such as {_examples(number, dimension)}")
    if unit not in _UNITS:
        raise Malformed(_unknown(number, unit, dimension))
    got, factor = _UNITS[unit]
    if got != dimension:
        raise Malformed(_wrong(f"{number} {unit}", got, dimension))
    return factor


def _unknown(number: str, unit: str, dimension: Dimension) -> str:
    """Message for a unit outside the table, with the nearest legal ones of the wanted dimension."""
    stem = next((s for s in _INCOMPLETE if unit == s or (unit.endswith(s) and unit[: -len(s)] in _DECIMAL)), None)
    if stem is not None:
        return f"{number} {unit} is an amount; {DIMENSIONS[dimension].noun} is written as {_examples(number, dimension)}"
    legal = {u for u, (d, _) in _UNITS.items() if d == dimension}
    near = sorted(u for u in legal if u.casefold() == unit.casefold())
    near = near or difflib.get_close_matches(unit, sorted(legal), n=2, cutoff=0.7)
    hint = " or ".join(f"{number} {u}" for u in near) or _examples(number, dimension)
    bits = " (b is bits, B is bytes)" if {u[-1] for u in near} >= {"b", "B"} else ""
    return f"unknown unit '{unit}' in {number} {unit}; write {DIMENSIONS[dimension].noun} as {hint}{bits}"


def _wrong(text: str, got: Dimension, wanted: Dimension) -> str:
    """Message for a legal unit of another dimension."""
    noun, due = DIMENSIONS[got].noun, DIMENSIONS[wanted].noun
    if (got, wanted) == ("bytes", "bandwidth"):
        return f"{text} is {noun}, {due} needs /s: {text}/s"
    if (got, wanted) == ("bandwidth", "bytes"):
        return f"{text} is {noun}, {due} has no /s: {text.removesuffix('/s').removesuffix('ps')}"
    return f"{text} is {noun}, {due} is due, such as {_examples(text.split()[0], wanted)}"


def _examples(number: str, dimension: Dimension) -> str:
    return " or ".join(f"{number} {unit}" for unit in DIMENSIONS[dimension].examples[:2])


def _yaml_word(value: object) -> str:
    """A YAML value as a person would have written it."""
    words = {None: "null", True: "true", False: "false"}
    return words.get(value, str(value)) if value is None or isinstance(value, bool) else str(value)


def format_bytes(value: float) -> str:
    """Bytes as text of 4 significant digits: in whichever of decimal and binary units is exact and shorter, else in binary ones."""
    decimal = _scaled(value, [(s, p + "B") for p, s in _DECIMAL.items()])
    binary = _scaled(value, [(1, "B")] + [(s, p + "B") for p, s in _BINARY.items()])
    exact = [text for text in (binary, decimal) if parse(text, "bytes") == value]
    return min(exact, key=len, default=binary)


def format_memory(value: float) -> str:
    """Bytes as text of 4 significant digits in decimal units, "80 GB": one scale for everything that is compared with a capacity."""
    return _scaled(value, [(1, "B")] + [(s, p + "B") for p, s in _DECIMAL.items() if p])


def format_bandwidth(value: float) -> str:
    """Bytes/s as text of 4 significant digits in decimal units, "50 GB/s"."""
    return _scaled(value, [(s, p + "B/s") for p, s in _DECIMAL.items()])


def format_flops(value: float) -> str:
    """FLOP/s as text of 4 significant digits, "989 TFLOP/s"."""
    return _scaled(value, [(s, p + "FLOP/s") for p, s in _DECIMAL.items()])


def format_seconds(value: float) -> str:
    """Seconds as text of 4 significant digits, "3 us", "1.25 s", "2.5 h"."""
    if value == 0:
        return "0 s"
    return _scaled(value, [(float(f), u) for u, f in _TIMES.items()])


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """`value` in the largest unit in which it is 1 or more, after rounding to 4 significant digits."""
    best = ""
    for factor, unit in units:
        scaled = float(f"{value / factor:.4g}")
        if best and abs(scaled) < 1:
            break
        best = f"{int(scaled) if scaled.is_integer() and abs(scaled) < 10**15 else f'{scaled:.4g}'} {unit}"
    return best
