"""What a report says of its input: the run file with defaults and `auto` written out, and how every quantity was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .. import units
from .keys import QUANTITIES, Block, unit_of
from .plan import Plan
from .schema import RunKeys
from .schema_model import MODEL_KINDS


def expanded(keys: RunKeys, written: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """The run file as plain data with every default written out and every `auto` resolved; `written` gives model, cluster and profile."""
    layout = plan.layout
    out: dict[str, Any] = {}
    for name, info in RunKeys.model_fields.items():
        value = getattr(keys, name)
        out[info.alias or name] = _plain(value) if not isinstance(value, Block) or name == "model" else _block(value)
    out |= {key: written[key] for key in ("model", "cluster", "profile") if key in written}
    out["batch"]["sequence"] = layout.batch.sequence
    out["parallel"]["dp"] = layout.degrees.dp
    out["zero"]["shard"] = layout.zero.shard
    out["pipeline"]["layers"] = list(layout.pipeline.layers)
    out["optimizer"] |= {"gradient_dtype": layout.optimizer.gradient, "master": layout.optimizer.master}
    return {name: value for name, value in out.items() if value is not None}


def _block(block: Block) -> dict[str, Any]:
    out = {}
    for name, info in type(block).model_fields.items():
        dimension = QUANTITIES.get(unit_of(info))
        value = getattr(block, name)
        out[info.alias or name] = f"{value:.17g} {'B' if dimension == 'bytes' else 's'}" if dimension else _plain(value)
    return out


def _plain(value: Any) -> Any:
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def echo(written: Mapping[str, Any]) -> dict[str, str]:
    """Path of every quantity in the file -> its text and what it was read as, "25 MiB = 26214400 bytes"."""
    return dict(_echo(written, RunKeys, ""))


def _echo(written: Mapping[str, Any], block: type[Block], prefix: str) -> Iterator[tuple[str, str]]:
    for name, info in block.model_fields.items():
        key = info.alias or name
        value, dimension = written.get(key), QUANTITIES.get(unit_of(info))
        if dimension and value is not None:
            yield prefix + key, f"{value} = {units.parse(value, dimension):.17g} {units.DIMENSIONS[dimension].si}"
        elif isinstance(value, Mapping) and key == "model":
            yield from _echo(value, MODEL_KINDS[value.get("kind", "transformer")], f"{prefix}{key}.")
        elif isinstance(value, Mapping) and isinstance(info.annotation, type) and issubclass(info.annotation, Block):
            yield from _echo(value, info.annotation, f"{prefix}{key}.")
