"""What every importer of a training's arguments gives: keys of a run file, and what became of the rest."""

from __future__ import annotations

from typing import Any, NamedTuple


class Imported(NamedTuple):
    """Keys of a run file, the arguments that did not become any, and what was taken where they are silent."""

    keys: dict[str, Any]
    left_out: tuple[str, ...]
    assumed: tuple[str, ...]


def put(keys: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set a key of a run file by its path."""
    for part in path[:-1]:
        keys = keys.setdefault(part, {})
    keys[path[-1]] = value
