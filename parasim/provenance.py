"""Where numbers and artifacts come from: a number with unit, source and status; versions and hashes on every output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["datasheet", "fitted", "assumed"]


@dataclass(frozen=True)
class Number:
    """A machine fact in SI (bytes, seconds, FLOP/s, or 1 for a ratio). `interval` is the fitted 95 % interval, where there is one."""

    value: float
    unit: str
    source: str
    status: Status
    interval: tuple[float, float] | None = None
