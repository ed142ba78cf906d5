"""From a document to a `RunKeys`: pydantic's errors become problems with a place, a rule and the nearest legal values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import ValidationError

from ..documents import Document, Keys, Problem, dotted
from ..errors import Malformed, Unparsable
from .keys import Block, unit_of
from .scalars import hint, shown
from .schema import RunKeys


def validate(document: Document) -> tuple[RunKeys | None, list[Problem]]:
    """The run file in `document` and every problem of its form; the first is None when there are any.

    Raises `Malformed` for a list where the mapping of keys is due, `Unparsable` for a lone word (what a file cut short leaves).
    """
    if not isinstance(document.data, Mapping):
        kind = Malformed if isinstance(document.data, list) else Unparsable
        message = f"{shown(document.data)} is not a run file; write keys and values, such as model: llama3-8b"
        raise kind(str(Problem(document.place(()), "", message)))
    try:
        keys = RunKeys.model_validate(document.data)
    except ValidationError as error:
        return None, [*document.problems, *(_problem(document, e) for e in error.errors(include_url=False))]
    return (None if document.problems else keys), list(document.problems)


def _problem(document: Document, error: Any) -> Problem:
    """One error of pydantic in our words."""
    keys = document.path(error["loc"])
    block = _holder(document.data, keys)
    if error["type"] == "missing":
        return Problem(document.place(keys[:-1]), dotted(keys), f"is missing; it holds {_meaning(block, keys[-1])}", "missing")
    if error["type"] == "extra_forbidden":
        message = f"unknown key '{keys[-1]}'{hint(str(keys[-1]), _names(block))}"
        return Problem(document.place(keys, of_key=True), dotted(keys), message, "unknown")
    message = _message(error, block, keys[-1])
    if message.startswith("kind: "):  # a model of an unknown kind: the place is that of the kind
        keys, message = (*keys, "kind"), message.removeprefix("kind: ")
    return Problem(document.place(keys), dotted(keys), message)


def _message(error: Any, block: type[Block] | None, key: str | int) -> str:
    kind, value = error["type"], error["input"]
    if kind == "literal_error":
        legal = re.findall("'([^']*)'", error["ctx"]["expected"])
        return f"{shown(value)} is not legal{hint(str(value), legal)}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{shown(value)} is not a mapping; write {{key: value, ...}} with keys of {', '.join(_names(_inner(block, key, None)))}"
    if kind in ("tuple_type", "list_type"):
        return f"{shown(value)} is not a list; write [...]"
    return str(error["msg"])


def _holder(data: Any, path: Keys) -> type[Block] | None:
    """The block that the last key of `path` belongs to."""
    block: type[Block] | None = RunKeys
    for key in path[:-1]:
        data = data[key]
        block = _inner(block, key, data)
    return block


def _inner(block: type[Block] | None, key: str | int, data: object) -> type[Block] | None:
    """The block that `key` of `block` holds; where several could be, the one of the kind that `data` names."""
    if block is None or isinstance(key, int):
        return block
    info = block.model_fields.get(_field(block, key))
    found = list(_blocks(info.annotation)) if info else []
    kind = data.get("kind", "transformer") if isinstance(data, Mapping) else None
    return found[0] if len(found) == 1 else next((b for b in found if _kind(b) == kind), None)


def _names(block: type[Block] | None) -> list[str]:
    """The keys of a block as they are written."""
    return [info.alias or name for name, info in block.model_fields.items()] if block else []


def _field(block: type[Block], key: str) -> str:
    """Name of the attribute that holds `key`."""
    return next((field for field, info in block.model_fields.items() if info.alias == key), key)


def _kind(block: type[Block]) -> str | None:
    info = block.model_fields.get("kind")
    return str(get_args(info.annotation)[0]) if info else None


def _blocks(annotation: object) -> Iterator[type[Block]]:
    """Every block that an annotation names, at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, Block):
        yield annotation
    for part in get_args(annotation):
        yield from _blocks(part)


def _meaning(block: type[Block] | None, key: str | int) -> str:
    """What a key holds, in the words of the schema."""
    info = block.model_fields.get(_field(block, str(key))) if block else None
    if info is None:
        return "a value"
    return f"{info.description}" + (f" ({unit_of(info)})" if unit_of(info) else "")
