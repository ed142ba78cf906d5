"""What a command writes for others to read, and what it says where it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from parasim.errors import Malformed


def write_json(path: Path, tree: Any) -> None:
    """Write `--json`. Raises Malformed where the file cannot be written."""
    write_text(path, json.dumps(tree, indent=1) + "\n", "--json ")


def write_text(path: Path, text: str, flag: str = "") -> None:
    """Write a text; `flag` is what named the file. Raises Malformed where it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Malformed(f"{flag}{path}: cannot be written: {error.strerror}") from None
