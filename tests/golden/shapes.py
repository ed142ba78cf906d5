"""What is pinned, and how each shape is written as text."""

from __future__ import annotations

import io
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from pydantic import BaseModel

from parasim import timeline
from parasim.cli import main
from parasim.config.schema import RunKeys
from parasim.program import ops, workload
from parasim.topology.schema import ClusterFile

HERE = Path(__file__).parent
COMMANDS = {
    "run": ("run",),
    "check": ("check", str(HERE.parents[1] / "docs" / "examples" / "llama3-70b-64xh100.yaml")),
    "schedule": ("schedule", "--name", "1f1b", "--ranks", "2", "--microbatches", "3"),
    "collective": ("collective", "--cluster", "h100-hgx-ib400", "--op", "all_reduce", "--ranks", "8", "--bytes", "1MB"),
}


def members(cls: Any) -> str:
    """Name of a class, then its fields in order with type and default; inherited ones first."""
    return "\n".join([cls.__name__, *(f"  {line}" for line in (_dataclass(cls) if is_dataclass(cls) else _named_tuple(cls)))])


def _dataclass(cls: Any) -> Iterator[str]:
    for f in fields(cls):
        default = f" = {f.default!r}" if f.default is not MISSING else f" = {f.default_factory.__name__}()" if f.default_factory is not MISSING else ""
        yield f"{f.name}: {f.type}{default}"


def _named_tuple(cls: Any) -> Iterator[str]:
    for name in cls._fields:
        annotation = cls.__annotations__[name]
        default = f" = {cls._field_defaults[name]!r}" if name in cls._field_defaults else ""
        yield f"{name}: {getattr(annotation, '__forward_arg__', annotation)}{default}"


def columns(name: str, dtype: np.dtype[Any]) -> str:
    """Columns of a structured dtype with their types and offsets as numpy writes them to a file."""
    return "\n".join([name, *(f"  {column}: {dtype[column].str}" for column in dtype.names or ())])


def schema(model: type[BaseModel]) -> str:
    """JSON schema of a file that users write."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Pydantic serializer warnings")  # defaults that are tuples become lists
        return json.dumps(model.model_json_schema(), indent=1, sort_keys=True)


def keys_of(command: tuple[str, ...]) -> str:
    """Every path of the JSON object that a command prints, with its type; [] is any entry of a list."""
    out = io.StringIO()
    with redirect_stdout(out), patch.object(sys, "argv", ["parasim", *command, "--json"]):
        try:
            main()
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"parasim {' '.join(command)} ended with exit code {ended.code}") from None
    return "\n".join(sorted(set(_paths(json.loads(out.getvalue()), ""))))


def _paths(value: object, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        yield f"{path or '.'}: object"
        for key, inner in value.items():
            yield from _paths(inner, f"{path}.{key}")
    elif isinstance(value, list):
        yield f"{path}: list"
        for inner in value:
            yield from _paths(inner, f"{path}[]")
    else:
        words = {str: "text", bool: "true or false", type(None): "null"}
        yield f"{path}: {words.get(type(value), 'number')}"


def _op_union() -> str:
    classes = (ops.Buffer, ops.Ref, ops.Kernel, ops.Label, ops.Compute, ops.Collective, ops.Msg, ops.P2P)
    words = [f"{name} = {getattr(ops, name)}" for name in ("Op", "DType", "CollectiveOp", "CATEGORIES", "AXES")]
    return "\n\n".join([*map(members, classes), *words])


def _timeline() -> str:
    tables = {name: getattr(timeline, name) for name in ("OPS", "FLOWS", "MEMORY", "EDGES")}
    return "\n\n".join([f"VERSION = {timeline.VERSION!r}", members(timeline.Timeline), *(columns(name, dtype) for name, dtype in tables.items())])


GOLDEN: Mapping[str, Callable[[], str]] = {
    "ops.txt": _op_union,
    "workload.txt": lambda: "\n\n".join(map(members, (workload.Call, workload.Program, workload.Workload))),
    "timeline.txt": _timeline,
    "run-file.json": lambda: schema(RunKeys),
    "cluster-file.json": lambda: schema(ClusterFile),
    **{f"{name}-output.txt": lambda command=command: keys_of(command) for name, command in COMMANDS.items()},
}
