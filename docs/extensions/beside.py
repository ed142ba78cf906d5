"""A table of what lectures say beside what parasim answers. A number that does not come out is an error, so that the build is a test."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import isclose
from typing import Any


class Mismatch(AssertionError):
    """A number of a page is not what the page says it should be."""


class Table:
    """Rows of cells under a head; HTML on the page."""

    def __init__(self, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self.head, self.rows = list(head), [[shown(cell) for cell in row] for row in rows]

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(cell)}</th>" for cell in self.head)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows)
        return f'<table class="beside"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'

    def __str__(self) -> str:
        return "\n".join("  ".join(row) for row in [self.head, *self.rows])


def shown(value: Any) -> str:
    """A cell: numbers with four digits, thousands apart."""
    if isinstance(value, list | tuple):
        return ", ".join(shown(v) for v in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (value == int(value) and abs(value) >= 1000):
        return f"{int(value):,}"
    return f"{value:.4g}"


def beside(*rows: tuple[Any, ...], rel: float = 1e-3, head: Sequence[str] = ("", "should be", "parasim")) -> Table:
    """Rows of (what, what it should be, what parasim says); a pair (low, high) is a range. Raises Mismatch where a number is off by more than `rel`."""
    wrong = [row for row in rows if not _agrees(row[1], row[2], rel)]
    if wrong:
        raise Mismatch("; ".join(f"{what}: {value} instead of {due}" for what, due, value, *_ in wrong))
    return Table(head, [[what, _range(due), value, *more] for what, due, value, *more in rows])


def _agrees(due: Any, value: Any, rel: float) -> bool:
    if isinstance(due, tuple) and len(due) == 2:
        return bool(due[0] <= value <= due[1])
    if isinstance(due, list):
        return len(due) == len(value) and all(_agrees(d, v, rel) for d, v in zip(due, value, strict=True))
    if isinstance(due, int | float) and not isinstance(due, bool):
        return isclose(due, value, rel_tol=rel, abs_tol=1e-12)
    return bool(due == value)


def _range(due: Any) -> Any:
    return f"{shown(due[0])} to {shown(due[1])}" if isinstance(due, tuple) and len(due) == 2 else due
