"""The reference page of the run file, made from the schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import PlainValidator
from pydantic.fields import FieldInfo

from ..units import DIMENSIONS, format_bytes, format_seconds
from .keys import QUANTITIES, Block, unit_of
from .scalars import TYPE_NAMES
from .schema import PerturbKeys, RunKeys
from .schema_model import MODEL_KINDS, LatentKeys, MixtureKeys

HEADER = ("key", "type", "unit", "default", "meaning")


def reference() -> str:
    """A Markdown table of every key of the run file (type, unit, default, meaning), then one for each kind of inline model."""
    parts = ["## Run file\n", _table(_rows(RunKeys, ""))]
    for kind, block in MODEL_KINDS.items():
        parts += [f"\n## Inline model of kind {kind}\n", _table(_rows(block, "model."))]
    parts += ["\n## Experts of a transformer\n", _table(_rows(MixtureKeys, "model.experts."))]
    parts += ["\n## Latent attention of a transformer\n", _table(_rows(LatentKeys, "model.latent."))]
    return "\n".join([*parts, "\n## An entry of perturb\n", _table(_rows(PerturbKeys, "perturb[0]."))]) + "\n"


def _table(rows: Iterator[tuple[str, ...]]) -> str:
    lines = [HEADER, tuple("---" for _ in HEADER), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _rows(block: type[Block], prefix: str) -> Iterator[tuple[str, ...]]:
    for name, info in block.model_fields.items():
        key = prefix + (info.alias or name)
        if isinstance(info.annotation, type) and issubclass(info.annotation, Block):
            yield from _rows(info.annotation, f"{key}.")
        else:
            yield f"`{key}`", _type(info), _unit(info), _default(info), str(info.description)


def _unit(info: FieldInfo) -> str:
    dimension = QUANTITIES.get(unit_of(info))
    return ", ".join(DIMENSIONS[dimension].examples) if dimension else unit_of(info)


def _type(info: FieldInfo) -> str:
    """The type in words: what the schema says of the key, else the words of its type, else the legal values."""
    extra = info.json_schema_extra
    said = extra.get("type") if isinstance(extra, dict) else ""
    parts = [*info.metadata, *_leaves(info.annotation)]
    named = [TYPE_NAMES[part] for part in parts if isinstance(part, PlainValidator) and part in TYPE_NAMES]
    return str(said or (named[0] if named else ", ".join(f"`{part}`" for part in parts if isinstance(part, str))))


def _leaves(annotation: Any) -> Iterator[Any]:
    """Everything an annotation is made of: types, literal values, validators."""
    inner = get_args(annotation)
    if not inner:
        yield annotation
    for part in inner:
        yield from _leaves(part)


def _default(info: FieldInfo) -> str:
    value = info.default
    if info.is_required():
        return "must be written"
    dimension = QUANTITIES.get(unit_of(info))
    if dimension:
        return f"`{format_bytes(value) if dimension == 'bytes' else format_seconds(value)}`"
    if value is None:
        return "omitted"
    if isinstance(value, tuple):
        return f"`[{', '.join(value)}]`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
