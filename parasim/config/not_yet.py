"""What the run file can say and parasim cannot do yet: one row each, refused as an answer (exit code 1) that names what is supported.

A row goes when its feature comes; nothing else has to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..errors import Violation
from .schema import RunKeys


class NotYet(NamedTuple):
    """`field` with a value for which `asked(value, dp)` holds is refused; `supported` says what may be written instead."""

    field: str
    asked: Callable[[Any, int], bool]
    feature: str
    supported: str


NOT_YET: tuple[NotYet, ...] = ()


def refusals(keys: RunKeys, dp: int) -> Iterator[Violation]:
    """A violation for every row of NOT_YET that `keys` asks for; `dp` is the resolved degree."""
    for row in NOT_YET:
        value: Any = keys
        for name in row.field.split("."):
            value = getattr(value, name)
        if row.asked(value, dp):
            field = row.field.replace("asynchronous", "async")
            yield Violation(field, _text(value), f"asks for {row.feature}, which is not supported yet", row.supported)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_text, value))}]" if all(isinstance(v, str) for v in value) else f"({len(value)} entries)"
    return str(value)
