"""What a run file names: its model, cluster and profile, loaded; faults are told at the place of the key that names them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..cost.profile import Profile, load_profile
from ..documents import Document, Keys, Problem
from ..errors import Malformed, ParasimError, Refused, Unparsable
from ..model.catalog import load_model
from ..model.spec import Model
from ..topology.cluster import Cluster
from ..topology.loader import load_cluster

LOADERS: dict[str, Callable[[Any, int], object]] = {
    "model": lambda spec, devices: load_model(spec),
    "cluster": lambda spec, devices: load_cluster(spec, devices),
    "profile": lambda spec, devices: load_profile(spec),
}
_PATH = re.compile(r"[\w.\[\]-]+")
_STEP = re.compile(r"[\w-]+|\[\d+\]")


class Named(NamedTuple):
    """The three things a run file names."""

    model: Model
    cluster: Cluster
    profile: Profile


class Fault(NamedTuple):
    """A problem and the kind of error it is."""

    problem: Problem
    kind: type[ParasimError]


def specs(document: Document) -> dict[str, Any]:
    """What is written under model, cluster and profile; a path becomes an absolute Path, from the folder of the run file."""
    data: Any = document.data
    return {key: _located(data.get(key), document.base) for key in LOADERS}


def _located(spec: Any, base: Path) -> Any:
    if isinstance(spec, str) and (spec.endswith((".yaml", ".yml", ".json")) or "/" in spec):
        return (base / Path(spec).expanduser()).absolute()
    return spec


def load_named(document: Document, devices: int, known: Mapping[str, object]) -> Named:
    """Model, cluster (for `devices`) and profile; those in `known` are taken as they are.

    Raises `Malformed` or `Unparsable` with every fault, a line each, or what a loader refuses as an answer.
    """
    found, faults = dict(known), list[Fault]()
    for key, spec in specs(document).items():
        if key not in known:
            found[key], more = _load(document, key, spec, devices)
            faults += more
    if faults:
        kind = next((f.kind for f in faults if f.kind is Malformed), faults[0].kind)
        raise kind("\n".join(str(f.problem) for f in sorted(faults, key=lambda f: f.problem.place)))
    return Named(**found)  # type: ignore[arg-type]


def wrong_names(document: Document, skip: Collection[str]) -> list[Problem]:
    """Problems with names and paths in a document whose form is wrong elsewhere, so that all are told at once."""
    names = {key: spec for key, spec in specs(document).items() if isinstance(spec, str | Path) and spec and key not in skip}
    problems = []
    for key, spec in names.items():
        with suppress(Refused):  # an answer, which can wait until the form is right
            problems += [fault.problem for fault in _load(document, key, spec, 1)[1]]
    return problems


def _load(document: Document, key: str, spec: Any, devices: int) -> tuple[object, list[Fault]]:
    try:
        return LOADERS[key](spec, devices), []
    except (Malformed, Unparsable) as error:
        return None, [Fault(_problem(document, key, spec, line), type(error)) for line in str(error).splitlines()]


def _problem(document: Document, key: str, spec: Any, line: str) -> Problem:
    """A line of a loader's message at the place of the key it speaks of: for an inline mapping, of the inner key it names."""
    message = line.removeprefix(f"{key}: ").removeprefix(f"{key}=")
    head, colon, rest = message.partition(": ")
    if isinstance(spec, Mapping) and colon and _PATH.fullmatch(head):
        return Problem(document.place((key, *_steps(head, spec))), f"{key}.{head}", rest)
    return Problem(document.place((key,)), key, message)


def _steps(text: str, data: Any) -> Keys:
    """The part of the dotted path `text` that exists in `data`."""
    out: Keys = ()
    for word in _STEP.findall(text):
        step = int(word.strip("[]")) if word.strip("[]").isdecimal() else word
        inside = step in data if isinstance(data, Mapping) else isinstance(step, int) and isinstance(data, list) and step < len(data)
        if not inside:
            break
        out, data = (*out, step), data[step]
    return out


def inputs(document: Document) -> dict[str, bytes]:
    """The content of every file that the document names, for its hash."""
    files = {f"{key} {spec.name}": spec for key, spec in specs(document).items() if isinstance(spec, Path) and spec.is_file()}
    return {name: path.read_bytes() for name, path in files.items()}
