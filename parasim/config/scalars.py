"""Types of single values in a run file: each says in one line what is wrong and what is legal."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

from .. import units
from ..errors import Malformed
from ..units import Dimension
from ..words import closest

CODE = "parasim"
MOST = 2**53  # what a float holds exactly
MOST_THINGS = 2**20  # devices or layers: beyond that a typo is likelier than a machine, and the answer would take for ever


def wrong(message: str) -> PydanticCustomError:
    """The error that carries `message` through pydantic unchanged."""
    return PydanticCustomError(CODE, "{text}", {"text": message})


def shown(value: object) -> str:
    """A value as it stands in the file, cut to a readable length; what cannot be printed as Python writes it."""
    words: dict[object, str] = {None: "null (nothing)", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return words[value]
    written = "".join(c if c.isprintable() else repr(c)[1:-1] for c in value) if isinstance(value, str) else ""
    text = f"'{written}'" if isinstance(value, str) else "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def hint(word: str, legal: Iterable[str]) -> str:
    """ ", did you mean 'x'?" for a close name, else "; legal: a, b, c"."""
    names = list(legal)
    close = closest(word, names, 1, cutoff=0.6)
    return f", did you mean '{close[0]}'?" if close else f"; legal: {', '.join(names)}"


def _whole(value: object, minimum: int, also: str = "", maximum: int = MOST) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value == int(value):
        if minimum <= value <= maximum:
            return int(value)
        size, legal = ("small", f"{minimum} or more") if value < minimum else ("large", f"at most {maximum}")
        raise wrong(f"{value} is too {size}; write a whole number, {legal}")
    quoted = isinstance(value, str) and value.strip().isdecimal()
    raise wrong(f"{shown(value)} is not a whole number{also}; write {str(value).strip() + ' without quotes' if quoted else f'{minimum} or more'}")


def _read_count(value: object) -> int:
    return _whole(value, 1)


def _read_things(value: object) -> int:
    return _whole(value, 1, maximum=MOST_THINGS)


def _read_natural(value: object) -> int:
    return _whole(value, 0)


def _read_auto(value: object) -> int | str:
    return "auto" if value == "auto" else _whole(value, 1, " and not auto")


def _read_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise wrong(f"{shown(value)} is not true or false; write true or false without quotes")
    return value


def _read_positive(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise wrong(f"{shown(value)} is not a number above 0")
    return float(value)


def _read_word(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise wrong(f"{shown(value)} is not a name; write a word{', in quotes' if value is not None else ''}")
    return value


def _read_name(value: object) -> str:
    name = _read_word(value)
    if set(name) & set("/\\\0") or name.strip(".") == "":
        raise wrong(f"{shown(value)} cannot name a folder; write letters, digits, - and _")
    return name


def _quantity(dimension: Dimension, whole: bool = False) -> PlainValidator:
    def read(value: object) -> float:
        try:
            parsed = units.parse(value, dimension)
        except Malformed as error:
            raise wrong(str(error)) from None
        if whole and not parsed.is_integer():
            raise wrong(f"{value} is {parsed:g} bytes; write a whole number of bytes, such as {units.format_bytes(math.ceil(parsed))}")
        return int(parsed) if whole else parsed

    return PlainValidator(read)


Count = Annotated[int, PlainValidator(_read_count)]
Things = Annotated[int, PlainValidator(_read_things)]
Natural = Annotated[int, PlainValidator(_read_natural)]
Auto = Annotated[int | Literal["auto"], PlainValidator(_read_auto)]
Flag = Annotated[bool, PlainValidator(_read_flag)]
Positive = Annotated[float, PlainValidator(_read_positive)]
Word = Annotated[str, PlainValidator(_read_word)]
Name = Annotated[str, PlainValidator(_read_name)]
Size = Annotated[int, _quantity("bytes", whole=True)]
Duration = Annotated[float, _quantity("seconds")]

_WORDS: tuple[tuple[Any, str], ...] = (
    (Count, "whole number, 1 or more"),
    (Things, f"whole number, 1 to {MOST_THINGS}"),
    (Natural, "whole number, 0 or more"),
    (Auto, "`auto` or a whole number, 1 or more"),
    (Flag, "`true` or `false`"),
    (Positive, "number above 0"),
    (Word, "word"),
    (Name, "word"),
    (Size, "size, such as 25 MiB"),
    (Duration, "time, such as 10 ms"),
)
TYPE_NAMES: dict[Any, str] = {get_args(type_)[1]: words for type_, words in _WORDS}  # by the validator that makes the type
