"""What a key of the run file is made of: its type, default, unit and meaning, and the mapping that holds it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from ..units import Dimension


def key(default: Any, description: str, unit: str = "", type_: str = "", alias: str | None = None) -> Any:
    """A key of the run file; `...` marks one that must be written. `type_` words the type where the annotation alone would not."""
    return Field(default, description=description, alias=alias, json_schema_extra={"unit": unit, "type": type_})


QUANTITIES: dict[str, Dimension] = {"size": "bytes", "time": "seconds"}


def unit_of(info: FieldInfo) -> str:
    """Unit of a key: a plain word, or "size" and "time" for a quantity that is written with its unit."""
    extra = info.json_schema_extra
    return str(extra.get("unit", "")) if isinstance(extra, dict) else ""


class Block(BaseModel):
    """A mapping whose keys are all known."""

    model_config = ConfigDict(frozen=True, extra="forbid")
