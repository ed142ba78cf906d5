"""From a catalog name, a file or a mapping to a Cluster of enough devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..documents import Document, Problem, dotted, read, refusal
from ..errors import Malformed, Refused, Violation
from ..provenance import Number
from ..units import format_bandwidth
from ..words import nearest
from .builders import SCALE_UP_LINK, Draft, RailFatTree, Wire, ethernet, from_graph, rail_fat_tree, servers
from .cluster import Accelerator, Cluster, Link
from .schema import AcceleratorFile, ClusterFile, EthernetFile, NodeFile, RailFatTreeFile, fields_at

_M = TypeVar("_M", bound=BaseModel)


def load_cluster(spec: str | Path | Mapping[str, Any], devices: int) -> Cluster:
    """The cluster `spec` (catalog name, path of a cluster.yaml, or an inline mapping) with at least `devices` devices.

    Raises `Malformed` (unknown name or key, wrong unit, missing file), `Unparsable` (not YAML, empty), `Refused` (too few devices).
    """
    if devices < 1:
        raise Malformed(f"devices={devices} must be 1 or more")
    document = _document(spec)
    form = _checked(ClusterFile, document)
    accelerator = _accelerator(form.accelerator, document)
    cluster = _graph(form, accelerator, document) if form.nodes is not None else _servers(form, accelerator, devices)
    if devices > len(cluster.devices):
        rule = f"is more than cluster {cluster.name} has"
        raise Refused([Violation("devices", str(devices), rule, f"at most {len(cluster.devices)}, or give it more nodes (node.count: auto)")])
    return cluster


def catalog() -> dict[str, str]:
    """Every cluster that ships with parasim: name -> one line about it."""
    return {path.stem: _summary(_checked(ClusterFile, read(path))) for path in _files("clusters")}


def accelerators() -> dict[str, Accelerator]:
    """Every accelerator that ships with parasim, by name."""
    return {path.stem: _shipped(path) for path in _files("accelerators")}


@cache
def _shipped(path: Path) -> Accelerator:
    return _freeze(_checked(AcceleratorFile, read(path)))


def _freeze(form: AcceleratorFile) -> Accelerator:
    return Accelerator(form.name, form.kind, form.peak_flops, form.memory, form.memory_bandwidth)


@cache
def data_root() -> Path:
    """The folder `topologies`: inside the installed package, or at the root of a checkout."""
    package = Path(__file__).resolve().parents[1]
    places = (package / "_data" / "topologies", package.parent / "topologies")
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        raise Malformed(f"the data folder topologies is missing: looked in {' and '.join(map(str, places))}; reinstall parasim")
    return found


def _files(kind: str) -> list[Path]:
    return sorted((data_root() / kind).glob("*.yaml"))


def _document(spec: str | Path | Mapping[str, Any]) -> Document:
    if isinstance(spec, Mapping):
        return Document(spec, "cluster")
    if isinstance(spec, Path) or spec.endswith((".yaml", ".yml")) or "/" in spec:
        return read(Path(spec))
    names = {path.stem: path for path in _files("clusters")}
    if spec not in names:
        raise Malformed(f"cluster={spec!r} is no catalog name and no path; {nearest(spec, names)}")
    return read(names[spec])


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
        kinds = error["ctx"].get("expected_tags", "'rail-fat-tree', 'ethernet'").replace("'", "")
        return f"kind {error['ctx'].get('tag', 'is missing')!s}: one of {kinds}"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{message}; got {error['input']!r}" if error["type"] != "value_error" else message


def _accelerator(spec: str | AcceleratorFile, document: Document) -> Accelerator:
    if isinstance(spec, AcceleratorFile):
        return _freeze(spec)
    if spec.endswith((".yaml", ".yml")):
        return _freeze(_checked(AcceleratorFile, read(Path(spec))))
    known = {path.stem: path for path in _files("accelerators")}
    if spec not in known:
        raise refusal([_problem(document, ("accelerator",), f"{spec!r} is no catalog name and no path; {nearest(spec, known)}")])
    return _shipped(known[spec])


def _servers(form: ClusterFile, accelerator: Accelerator, devices: int) -> Cluster:
    node = form.node
    assert node is not None  # kept by ClusterFile
    per_node = devices if node.devices == "auto" else node.devices
    count = -(-devices // per_node) if node.count == "auto" else node.count
    if form.scale_out is None and devices > per_node:
        rule = f"is missing: {devices} devices need more than one node of {per_node}"
        raise Refused([Violation("scale_out", "null", rule, "give scale_out.kind: rail-fat-tree or ethernet, or fit the devices in one node")])
    if node.scale_up is None and per_node > 1:
        raise Refused([Violation("node.scale_up", "null", f"is missing: {per_node} devices of a node have no link", "give node.scale_up")])
    draft = servers(count, per_node, accelerator, _wire(node))
    if isinstance(form.scale_out, RailFatTreeFile):
        rail_fat_tree(draft, _rails(form.scale_out, per_node))
    elif isinstance(form.scale_out, EthernetFile):
        ethernet(draft, Wire("nic", form.scale_out.bandwidth.value, form.scale_out.latency.value))
    return _finish(draft, form)


def _wire(node: NodeFile) -> Wire | None:
    up = node.scale_up
    return Wire(SCALE_UP_LINK[up.kind], up.bandwidth.value, up.latency.value) if up else None


def _rails(net: RailFatTreeFile, per_node: int) -> RailFatTree:
    nics = net.nic_per_device * per_node
    if nics < 1 or not float(nics).is_integer():
        rule = f"times node.devices={per_node} must be a whole number of NICs, 1 or more"
        raise Refused([Violation("scale_out.nic_per_device", f"{net.nic_per_device:g}", rule, f"such as {1 / per_node:g} (one NIC per node) or 1")])
    latency, spine = net.latency.value, net.spine_latency.value
    return RailFatTree(int(nics), net.bandwidth.value, latency, spine, net.pod_nodes, net.oversubscription)


def _finish(draft: Draft, form: ClusterFile) -> Cluster:
    return draft.finish(form.name, form.price.value if form.price else None, _description(form))


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
    return from_graph(form.name, accelerator, {node.id: node.kind for node in nodes}, links, placed, price, _description(form))


def _description(form: ClusterFile) -> dict[str, Number | str]:
    """Every number of the file under its dotted name, for reports."""
    out: dict[str, Number | str] = {}
    for block in ("node", "scale_out"):
        part = getattr(form, block)
        out |= _numbers(part, block) if part is not None else {}
    if form.nodes is not None:
        out["graph"] = f"{len(form.nodes)} nodes, {len(form.links or [])} links"
    if form.price is not None:
        out["price"] = form.price
    return out


def _numbers(part: BaseModel, prefix: str) -> dict[str, Number | str]:
    out: dict[str, Number | str] = {}
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, BaseModel):
            out |= _numbers(value, f"{prefix}.{name}")
        elif value is not None:
            out[f"{prefix}.{name}"] = value if isinstance(value, Number) else str(value)
    return out


def _summary(form: ClusterFile) -> str:
    """One line for `parasim catalog clusters`."""
    name = form.accelerator if isinstance(form.accelerator, str) else form.accelerator.name
    if form.node is None:
        return f"{name}, a graph of {len(form.nodes or [])} nodes"
    parts = [f"{form.node.devices} x {name} per node"]
    if form.node.scale_up:
        parts.append(f"{form.node.scale_up.kind} {format_bandwidth(form.node.scale_up.bandwidth.value)} per direction")
    if isinstance(form.scale_out, RailFatTreeFile):
        parts.append(f"rail-fat-tree, {form.scale_out.nic_per_device:g} NIC of {format_bandwidth(form.scale_out.bandwidth.value)} per device")
    elif form.scale_out is not None:
        parts.append(f"ethernet, one NIC of {format_bandwidth(form.scale_out.bandwidth.value)} per host")
    return ", ".join(parts)
