"""Models by catalog name, by file (a Hugging Face config.json or a model .yaml) or inline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..documents import Document, content, decoded, parse, read
from ..errors import Malformed, Unparsable
from ..words import nearest
from .hf import from_config
from .schema import read_model
from .spec import Model

SUFFIXES = (".json", ".yaml", ".yml")


def catalog() -> dict[str, Model]:
    """Every model that ships with parasim, by name, in order of name."""
    return {name: _shipped(name) for name in names()}


@cache
def names() -> tuple[str, ...]:
    """Names of the catalog, in order; no model is read for it."""
    entries = (e.name for e in files(__package__).joinpath("catalog").iterdir())
    return tuple(sorted(e.removesuffix(".yaml") for e in entries if e.endswith(".yaml")))


@cache
def _shipped(name: str) -> Model:
    file = f"{name}.yaml"
    return read_model(parse(files(__package__).joinpath("catalog", file).read_bytes(), file).mapping(), file, name)


def load_model(spec: str | Path | Mapping[str, object], where: Path = Path()) -> Model:
    """The model called, stored at or described by `spec`; paths are relative to the folder `where`.

    A name of the catalog comes first, then a path (a config.json, a .yaml, or a folder that holds a config.json). Raises `Malformed` for an
    unknown name (with the nearest ones), a missing file or a wrong value, `Unparsable` for a file that is empty, broken or lacks keys
    (each named), `Refused` for a model of a shape that parasim does not have.
    """
    if isinstance(spec, Mapping):
        return read_model(spec, "model")
    if not isinstance(spec, str | Path):
        raise Malformed(f"model={spec} must be a name of the catalog, a path or a mapping; names: {', '.join(names())}")
    if str(spec) in names():
        return _shipped(str(spec))
    path = where / Path(spec).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return _load_file(path)
    if isinstance(spec, Path) or path.suffix in SUFFIXES or "/" in spec:
        raise Malformed(f"model={spec}: no such file: {path}; {nearest(str(spec), names())}")
    raise Malformed(f"model={spec} is not in the catalog; {nearest(spec, names())}")


def _load_file(path: Path) -> Model:
    name = path.parent.name if path.name == "config.json" else path.stem
    if path.suffix == ".json":
        return from_config(_json(decoded(content(path), str(path)), path), str(path), name)
    return read_model(read(path).mapping(), str(path), name)


def _json(text: str, path: Path) -> Mapping[str, Any]:
    try:
        config: Any = json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, path))
    except json.JSONDecodeError as error:
        raise Unparsable(f"{path}:{error.lineno}:{error.colno}: is not JSON: {error.msg}") from None
    except RecursionError:
        raise Unparsable(f"{path}: is nested too deeply") from None
    return Document(config, str(path)).mapping()


def _unique(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    """A JSON object whose keys are written once."""
    seen = dict(pairs)
    twice = next((key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i])), None) if len(seen) < len(pairs) else None
    if twice is not None:
        raise Malformed(f"{path}: key '{twice}' is written twice")
    return seen
