"""Where numbers and artifacts come from: a number with unit, source and status; versions and hashes on every output."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Literal

Status = Literal["datasheet", "fitted", "assumed"]

_LIBRARIES = ("networkx", "numpy", "pydantic", "pyyaml", "simpy")


@dataclass(frozen=True)
class Number:
    """A machine fact in SI (bytes, seconds, FLOP/s, or 1 for a ratio). `interval` is the fitted 95 % interval, where there is one."""

    value: float
    unit: str
    source: str
    status: Status
    interval: tuple[float, float] | None = None


def stamp(inputs: Mapping[str, bytes | str]) -> dict[str, object]:
    """What made an artifact: versions of parasim, Python and the libraries that compute, and the SHA-256 of every input by name.

    The same inputs on the same installation give the same stamp: it holds no time and no machine name.
    """
    from . import __version__

    return {
        "parasim": __version__,
        "python": platform.python_version(),
        "libraries": dict(_versions()),
        "inputs": {name: digest(content) for name, content in sorted(inputs.items())},
    }


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    return tuple((name, version(name)) for name in _LIBRARIES)


def digest(content: bytes | str) -> str:
    """SHA-256 of bytes, or of text as UTF-8, in hexadecimal."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()
