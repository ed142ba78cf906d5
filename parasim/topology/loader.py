"""From a catalog name, a file or a mapping to a Cluster of enough devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..collecting import uncollected
from ..documents import Document, Problem, dotted, read, refusal
from ..errors import Malformed, Refused, Violation
from ..units import format_bandwidth
from ..words import nearest
from .assembly import describe, from_servers, from_torus
from .builders import from_graph
from .cluster import Accelerator, Cluster, Link
from .data import data_files
from .schema import AcceleratorFile, ClusterFile, EthernetFile, fields_at

_M = TypeVar("_M", bound=BaseModel)


@uncollected()
def load_cluster(spec: str | Path | Mapping[str, Any], devices: int) -> Cluster:
    """The cluster `spec` (catalog name, path of a cluster.yaml, or an inline mapping) with at least `devices` devices.

    Raises `Malformed` (unknown name or key, wrong unit, missing file), `Unparsable` (not YAML, empty), `Refused` (too few devices).
    """
    if devices < 1:
        raise Malformed(f"devices={devices} must be 1 or more")
    document = _document(spec)
    form = _checked(ClusterFile, document)
    accelerator = _accelerator(form.accelerator, document)
    cluster = _built(form, accelerator, document, devices)
    if devices > len(cluster.devices):
        rule = f"is more than cluster {cluster.name} has"
        raise Refused([Violation("devices", str(devices), rule, f"at most {len(cluster.devices)}, or give it more nodes (node.count: auto)")])
    return cluster


def _built(form: ClusterFile, accelerator: Accelerator, document: Document, devices: int) -> Cluster:
    if form.nodes is not None:
        return _graph(form, accelerator, document)
    return from_torus(form, accelerator, devices) if form.torus is not None else from_servers(form, accelerator, devices)


def catalog() -> dict[str, str]:
    """Every cluster that ships with parasim: name -> one line about it."""
    return {path.stem: _summary(_checked(ClusterFile, _whole(read(path)))) for path in data_files("clusters")}


def accelerators() -> dict[str, Accelerator]:
    """Every accelerator that ships with parasim, by name."""
    return {path.stem: _shipped(path) for path in data_files("accelerators")}


@cache
def _shipped(path: Path) -> Accelerator:
    return _freeze(_checked(AcceleratorFile, read(path)))


def _freeze(form: AcceleratorFile) -> Accelerator:
    numbers = (
        form.memory,
        form.memory_bandwidth,
        form.host_link,
        form.host_memory_bandwidth,
        form.multiprocessors,
        form.matrix_unit,
        form.shared_memory_bandwidth,
        form.l2_bandwidth,
    )
    return Accelerator(form.name, form.kind, form.peak_flops, *numbers)


def _document(spec: str | Path | Mapping[str, Any]) -> Document:
    return _whole(Document(spec, "cluster") if isinstance(spec, Mapping) else _named(spec, "cluster="))


def _named(spec: str | Path, key: str) -> Document:
    """The document of a catalog name or a path."""
    if isinstance(spec, Path) or spec.endswith((".yaml", ".yml")) or "/" in spec:
        return read(Path(spec))
    names = {path.stem: path for path in data_files("clusters")}
    if spec not in names:
        raise Malformed(f"{key}{spec!r} is no catalog name and no path; {nearest(spec, names)}")
    return read(names[spec])


def _whole(document: Document, above: tuple[str, ...] = ()) -> Document:
    """`document` over the one that its key `base` names, and so on."""
    data = document.data
    if not isinstance(data, Mapping) or not isinstance(data.get("base"), str):
        return document
    name = data["base"]
    path = document.base / name
    if name in above:
        raise refusal([_problem(document, ("base",), f"{name!r} is its own base: {' -> '.join((*above, name))}")])
    try:
        found = _named(path if "/" in name or name.endswith((".yaml", ".yml")) else name, "")
    except Malformed as error:
        raise refusal([_problem(document, ("base",), str(error))]) from None
    base = _whole(found, (*above, name))
    changed = _over(base.data, data)
    places = [{k: v for k, v in old.items() if k} | dict(own) for old, own in ((base.keys, document.keys), (base.values, document.values))]
    return replace(document, data=changed, keys=places[0], values=places[1], inputs={**base.inputs, **document.inputs})


def _over(old: Any, new: Any) -> Any:
    """Mappings merge, null drops a key, a block of another kind replaces the old one, everything else is replaced."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping) or new.get("kind", old.get("kind")) != old.get("kind"):
        return new
    merged = {key: _over(old.get(key), value) for key, value in new.items()}
    return {key: value for key, value in (dict(old) | merged).items() if value is not None}


def _checked(model: type[_M], document: Document) -> _M:
    """`document` as `model`; raises `Malformed` with every fault, one a line, as place: path: message."""
    try:
        return model.model_validate(document.mapping())
    except ValidationError as error:
        raise refusal([_problem(document, e["loc"], _words(model, e)) for e in error.errors(include_url=False)]) from None


def _problem(document: Document, loc: Sequence[str | int], message: str) -> Problem:
    keys = document.path(loc)
    return Problem(document.place(keys, of_key=True), dotted(keys), message)


def _words(model: type[BaseModel], error: Any) -> str:
    """One pydantic fault in our words: what is there, the rule, the nearest legal values."""
    loc = error["loc"]
    if error["type"] == "extra_forbidden":
        return f"unknown key; {nearest(str(loc[-1]), fields_at(model, loc[:-1]))}"
    if error["type"] == "missing":
        return f"is missing; due here: {', '.join(fields_at(model, loc[:-1]))}"
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        kinds = error["ctx"].get("expected_tags", "'rail-fat-tree', 'fat-tree', 'ethernet'").replace("'", "")
        return f"kind {error['ctx'].get('tag', 'is missing')!s}: one of {kinds}"
    if error["type"] in ("list_type", "model_type", "dict_type"):
        due = "a list" if error["type"] == "list_type" else "a mapping, {key: value, ...}"
        form = " of {id, kind} (a network written out; servers that are alike go under node: {count, devices, scale_up})" if loc[-1] == "nodes" else ""
        return f"{error['input']!r} is not {due}{form}"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{message}; got {error['input']!r}" if error["type"] != "value_error" else message


def _accelerator(spec: str | AcceleratorFile, document: Document) -> Accelerator:
    if isinstance(spec, AcceleratorFile):
        return _freeze(spec)
    if spec.endswith((".yaml", ".yml")):
        return _freeze(_checked(AcceleratorFile, read(Path(spec))))
    known = {path.stem: path for path in data_files("accelerators")}
    if spec not in known:
        raise refusal([_problem(document, ("accelerator",), f"{spec!r} is no catalog name and no path; {nearest(spec, known)}")])
    return _shipped(known[spec])


def _graph(form: ClusterFile, accelerator: Accelerator, document: Document) -> Cluster:
    nodes = form.nodes or []
    seen: set[str] = set()
    for i, node in enumerate(nodes):
        if node.id in seen:
            raise refusal([_problem(document, ("nodes", i, "id"), f"{node.id!r} is there twice; ids are unique")])
        seen.add(node.id)
    links = [Link(link.a, link.b, link.kind, link.bandwidth.value, link.latency.value) for link in form.links or []]
    placed = {node.id: node.node for node in nodes if node.node is not None}
    price = form.price.value if form.price else None
    return from_graph(form.name, accelerator, {node.id: node.kind for node in nodes}, links, placed, price, describe(form))


def _summary(form: ClusterFile) -> str:
    """One line for `parasim catalog clusters`."""
    name = form.accelerator if isinstance(form.accelerator, str) else form.accelerator.name
    if form.torus is not None:
        shapes = ["x".join(map(str, shape)) for shape in form.torus.shapes]
        cable = format_bandwidth(form.torus.bandwidth.value)
        return f"{name}, torus of {shapes[0]}{f' to {shapes[-1]}' if shapes[1:] else ''}, {cable} per cable and direction"
    if form.node is None:
        return f"{name}, a graph of {len(form.nodes or [])} nodes"
    sizes = form.node.devices
    parts = [f"{' + '.join(map(str, sizes)) if isinstance(sizes, tuple) else sizes} x {name} per node"]
    if form.node.scale_up:
        parts.append(f"{form.node.scale_up.kind} {format_bandwidth(form.node.scale_up.bandwidth.value)} per direction")
    net = form.scale_out
    if isinstance(net, EthernetFile):
        parts.append(f"ethernet, one NIC of {format_bandwidth(net.bandwidth.value)} per host")
    elif net is not None:
        parts.append(f"{net.kind}, {net.nic_per_device:g} NIC of {format_bandwidth(net.bandwidth.value)} per device")
    return ", ".join(parts)
