"""Small tables for notebooks: HTML without script, every text escaped and kept from turning what stands around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def text(value: object) -> str:
    """A value as HTML text."""
    return f"<bdi>{escape(str(value))}</bdi>"


def table(title: str, rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """A table; the first column is at the left, the others at the right."""
    top = f"<thead><tr>{''.join(_cell('th', h, i) for i, h in enumerate(head))}</tr></thead>" if head else ""
    body = "".join(f"<tr>{''.join(_cell('td', v, i) for i, v in enumerate(row))}</tr>" for row in rows)
    return f"<table><caption style='text-align:left;font-weight:bold'>{text(title)}</caption>{top}<tbody>{body}</tbody></table>"


def _cell(tag: str, value: object, column: int) -> str:
    return f"<{tag} style='text-align:{'right' if column else 'left'}'>{text(value)}</{tag}>"
