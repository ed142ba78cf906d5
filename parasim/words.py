"""Names that were probably meant, for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from .errors import Malformed


def closest(word: str, known: Iterable[str], most: int = 3, cutoff: float = 0.5) -> list[str]:
    """Up to `most` of `known` that resemble `word`, whatever the case, best first."""
    folded = {name.casefold(): name for name in known}
    return [folded[name] for name in difflib.get_close_matches(word.casefold(), list(folded), n=most, cutoff=cutoff)]


def nearest(word: str, known: Iterable[str], listed: int = 40) -> str:
    """ "nearest: a, b; known: a, b, c, d"; the second part only when there are at most `listed`."""
    names = sorted(known)
    near = closest(word, names)
    parts = [f"nearest: {', '.join(near)}"] if near else []
    return "; ".join([*parts, f"known: {', '.join(names)}"] if len(names) <= listed or not near else parts)


def known(value: str, names: Iterable[str], what: str) -> str:
    """`value` if it is one of `names`. Raises Malformed naming the nearest."""
    names = list(names)
    if value in names:
        return value
    raise Malformed(f"{what} {value!r} is unknown; {nearest(value, names)}")
