"""Reference pages that are made from what parasim knows: `<!-- generated: NAME -->` on a page stands for a table or a list of `TABLES`."""

from __future__ import annotations

import re
from typing import Any

from parasim_tables import TABLES

MARK = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.MULTILINE)


def fill(text: str) -> str:
    """The page with every mark replaced. Raises KeyError for an unknown name."""
    return MARK.sub(lambda found: TABLES[found[1]](), text)


def _read(app: Any, page: str, source: list[str]) -> None:
    source[0] = fill(source[0])


def setup(app: Any) -> dict[str, Any]:
    """Sphinx's way in."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
