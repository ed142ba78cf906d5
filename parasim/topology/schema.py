"""The form of cluster and accelerator files, checked by pydantic: every key with its unit and meaning."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from ..errors import Malformed
from ..provenance import Number
from ..units import Dimension, parse

UNIT: Mapping[Dimension, str] = {"bytes": "bytes", "seconds": "s", "bandwidth": "bytes/s", "flops": "FLOP/s", "price": "USD/h"}
_STATUS = ("datasheet", "fitted", "assumed")
_KEYS = frozenset({"value", "direction", "source", "status"})
UNSOURCED = "written in the cluster file"


def quantity(dimension: Dimension) -> Callable[[object], Number]:
    """Reads "400 Gb/s", or {value: "400 Gb/s", direction: per direction, source: ..., status: ...}, as a Number in SI (USD per hour)."""

    def read(raw: object) -> Number:
        if isinstance(raw, Number):
            return raw
        if not isinstance(raw, Mapping):
            return Number(_parse(raw, dimension), UNIT[dimension], UNSOURCED, "assumed")
        unknown = sorted(set(map(str, raw)) - _KEYS)
        if unknown or "value" not in raw:
            raise ValueError(f"a number with provenance has the keys {', '.join(sorted(_KEYS))}, not {', '.join(map(str, raw)) or 'none'}")
        if raw.get("direction", "per direction") != "per direction":
            raise ValueError(f"direction is {raw['direction']!r}; bandwidths are written per direction")
        status = raw.get("status", "assumed")
        if status not in _STATUS:
            raise ValueError(f"status is {status!r}; one of {', '.join(_STATUS)}")
        return Number(_parse(raw["value"], dimension), UNIT[dimension], str(raw.get("source", UNSOURCED)), status)

    return read


def counted(raw: object) -> Number:
    """Reads a number without a unit, or {value: 132, source: ..., status: ...}."""
    if isinstance(raw, Number):
        return raw
    entry: dict[str, Any] = dict(raw) if isinstance(raw, Mapping) else {"value": raw}
    unknown = set(entry) - _KEYS
    value = entry.get("value")
    if unknown or isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{raw!r} is no number, and no mapping of value, source and status")
    status = entry.get("status", "assumed")
    if status not in _STATUS:
        raise ValueError(f"status is {status!r}; one of {', '.join(_STATUS)}")
    return Number(float(value), "1", str(entry.get("source", UNSOURCED)), status)


def _parse(raw: object, dimension: Dimension) -> float:
    if raw == "unlimited" and dimension in ("bandwidth", "flops"):
        return math.inf
    try:
        return parse(raw, dimension)
    except Malformed as error:
        raise ValueError(str(error)) from None


def _positive(number: Number) -> Number:
    if number.value <= 0:
        raise ValueError("must be above 0" + ("" if number.unit == "1" else f" {number.unit}"))
    return number


def _count(raw: object) -> object:
    if raw == "auto" or (isinstance(raw, int) and not isinstance(raw, bool) and raw >= 1):
        return raw
    raise ValueError(f"{raw!r} is no count; auto, or a whole number of 1 or more")


def _sizes(raw: object) -> object:
    if isinstance(raw, list) and raw and all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in raw):
        return tuple(raw)
    if isinstance(raw, list):
        raise ValueError(f"{raw!r} is no list of counts; one whole number of 1 or more for each server")
    return _count(raw)


def _shape(raw: object) -> object:
    parts = raw.split("x") if isinstance(raw, str) else raw
    if isinstance(parts, list) and parts and all(str(n).isdecimal() and int(n) >= 1 for n in parts):
        return tuple(int(n) for n in parts)
    raise ValueError(f"{raw!r} is no shape; chips along each axis, such as 4x4x8")


def _shapes(raw: object) -> object:
    return raw if isinstance(raw, list) and raw and all(isinstance(s, str | list) for s in raw) else [raw]


Count = Annotated[int | Literal["auto"], BeforeValidator(_count)]
Sizes = Annotated[int | Literal["auto"] | tuple[int, ...], BeforeValidator(_sizes)]
Shape = Annotated[tuple[int, ...], BeforeValidator(_shape)]
Bandwidth = Annotated[Number, BeforeValidator(lambda raw: _positive(quantity("bandwidth")(raw)))]
Seconds = Annotated[Number, BeforeValidator(quantity("seconds"))]
Multiprocessors = Annotated[Number, BeforeValidator(lambda raw: _positive(counted(raw)))]
Bytes = Annotated[Number, BeforeValidator(lambda raw: _positive(quantity("bytes")(raw)))]
Flops = Annotated[Number, BeforeValidator(lambda raw: _positive(quantity("flops")(raw)))]
Price = Annotated[Number, BeforeValidator(quantity("price"))]
ZERO_SECONDS = Number(0.0, "s", "not given: none", "assumed")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ScaleUp(_Strict):
    """The fast network inside a node."""

    kind: Literal["switch", "host"] = Field(
        "switch", description="switch: every device has one port to a non-blocking switch; host: CPU ranks that meet in the memory of their host"
    )
    bandwidth: Bandwidth = Field(description="bytes/s of one device's port, per direction, or unlimited")
    latency: Seconds = Field(ZERO_SECONDS, description="seconds one way, device to device")
    reduces: Literal["nvls"] | None = Field(None, description="nvls: the switch adds up and copies what its ports send; left out: it does not")


class MeshFile(_Strict):
    """A cable between every two devices of a node: AMD xGMI, or a few GPUs joined by NVLink without a switch."""

    kind: Literal["mesh"]
    bandwidth: Bandwidth = Field(description="bytes/s of one cable, per direction: what one device reaches to one other")
    latency: Seconds = Field(ZERO_SECONDS, description="seconds one way, device to device")


class CubeMeshFile(_Strict):
    """Eight GPUs in the hybrid cube mesh of the DGX-1."""

    kind: Literal["hybrid-cube-mesh"]
    bandwidth: Bandwidth = Field(description="bytes/s of one NVLink, per direction; a pair of GPUs has none, one or two")
    latency: Seconds = Field(ZERO_SECONDS, description="seconds one way, neighbour to neighbour")


class PcieFile(_Strict):
    """Devices in PCIe slots of one host, with or without NVLink bridges."""

    kind: Literal["pcie"]
    bandwidth: Bandwidth = Field(description="bytes/s of one slot, per direction")
    through_host: Bandwidth | None = Field(None, description="bytes/s of one device to others where all is copied through host memory; left out: the slot")
    per_switch: int = Field(1, ge=1, description="devices under one PCIe switch; 1: each at a root port of its CPU")
    uplink: Bandwidth | None = Field(None, description="bytes/s from a PCIe switch to its CPU, per direction; left out: as a slot")
    sockets: int = Field(1, ge=1, description="CPUs that the devices are spread over")
    between_sockets: Bandwidth | None = Field(None, description="bytes/s from one CPU to the other, per direction; left out: as a slot")
    bridge: Bandwidth | None = Field(None, description="bytes/s of an NVLink bridge between devices 0 and 1, 2 and 3, ..., per direction; left out: none")
    latency: Seconds = Field(ZERO_SECONDS, description="seconds one way, device to device through one CPU or switch; once more between sockets")


def _kind(raw: object) -> str:
    return str(raw.get("kind", "switch")) if isinstance(raw, Mapping) else str(getattr(raw, "kind", "switch"))


ScaleUpFile = Annotated[
    Annotated[ScaleUp, Tag("switch")]
    | Annotated[ScaleUp, Tag("host")]
    | Annotated[MeshFile, Tag("mesh")]
    | Annotated[CubeMeshFile, Tag("hybrid-cube-mesh")]
    | Annotated[PcieFile, Tag("pcie")],
    Discriminator(_kind),
]


class NodeFile(_Strict):
    """One server, repeated."""

    count: Count = Field("auto", description="servers; auto: as many as the devices asked for need")
    devices: Sizes = Field(description="devices per server; auto: all that are asked for on one; a list: those of each server")
    scale_up: ScaleUpFile | None = Field(None, description="network between the devices of one server; may be left out with one device")


class EcmpFile(_Strict):
    """Flows are hashed onto up-links and collide."""

    queue_pairs: int = Field(1, ge=1, description="parts that each flow is hashed in: QPs per connection")


class CoreFile(_Strict):
    """A third level: core switches join zones, each of some pods."""

    pods: int = Field(1, ge=1, description="pods whose leaves share their spines: one zone")
    oversubscription: float = Field(1, gt=0, description="bandwidth down over bandwidth up of a spine")
    latency: Seconds = Field(ZERO_SECONDS, description="more seconds one way for a route over a core switch")


class FatTreeFile(_Strict):
    """Leaf and spine switches, all NICs of a node on one leaf."""

    kind: Literal["fat-tree"]
    nic_per_device: float = Field(1, gt=0, description="NICs per device: 1, 2, ..., or 0.5 where two devices share one")
    bandwidth: Bandwidth = Field(description="bytes/s of one NIC, per direction")
    latency: Seconds = Field(ZERO_SECONDS, description="seconds one way, NIC to NIC under one leaf")
    spine_latency: Seconds = Field(ZERO_SECONDS, description="more seconds one way for a route over a spine")
    pod_nodes: int = Field(32, ge=1, description="nodes under one set of leaves")
    oversubscription: float = Field(1, gt=0, description="bandwidth down over bandwidth up of a leaf")
    ecmp: EcmpFile | None = Field(None, description="flows collide on up-links (RoCE); left out: they spread evenly (adaptive routing)")
    core: CoreFile | None = Field(None, description="a level above the spines; left out: the spines join all leaves")
    reduces: Literal["sharp"] | None = Field(None, description="sharp: the switches add up what their ports send; left out: they do not")


class RailFatTreeFile(FatTreeFile):
    """Leaf and spine switches, NIC i of every node of a pod on leaf i."""

    kind: Literal["rail-fat-tree"]  # type: ignore[assignment]


class HostFile(_Strict):
    """The CPU of a host, through which all that is sent by TCP passes."""

    bandwidth: Bandwidth = Field(description="bytes/s that the host copies and sends, per direction")
    device: Bandwidth = Field(description="bytes/s of one device to the CPU, per direction")


class EthernetFile(_Strict):
    """One NIC per host, all hosts under one switch."""

    kind: Literal["ethernet"]
    bandwidth: Bandwidth = Field(description="bytes/s of one host's NIC, per direction")
    latency: Seconds = Field(ZERO_SECONDS, description="seconds one way, NIC to NIC")
    host: HostFile | None = Field(None, description="all passes through the CPU of the host; left out: straight to the NIC")


class DcnFile(_Strict):
    """The data-centre network between slices."""

    bandwidth: Bandwidth = Field(description="bytes/s of one host's port, per direction")
    latency: Seconds = Field(ZERO_SECONDS, description="seconds one way, host to host")


class TorusFile(_Strict):
    """Slices of chips on a torus (TPU)."""

    shapes: Annotated[list[Shape], BeforeValidator(_shapes)] = Field(
        description="one shape, such as 4x4x8; or several: the smallest that holds the devices, beyond the largest more slices of it"
    )
    wrap: Literal["cubes", "sixteen", "all", "none"] = Field("cubes", description="axes that close: cubes, all if each is a multiple of 4; sixteen, axes of 16")
    bandwidth: Bandwidth = Field(description="bytes/s of one cable, per direction")
    latency: Seconds = Field(ZERO_SECONDS, description="seconds of one hop")
    slices: Count = Field("auto", description="slices; auto: as many as the devices asked for need")
    chips_per_host: int = Field(4, ge=1, description="chips of one host, which share its port to the data-centre network")
    dcn: DcnFile | None = Field(None, description="network between slices; may be left out with one slice")


class GraphNode(_Strict):
    """A node of a user's graph."""

    id: str = Field(description="unique name")
    kind: Literal["gpu", "chip", "nic", "pcie", "cpu", "switch"] = Field(description="gpu and chip are devices; cpu where there is no other")
    node: str | None = Field(None, description="server of a device; left out: devices joined by scale_up, ici or host links share one")


class GraphLink(_Strict):
    """A cable of a user's graph: two directed links."""

    a: str = Field(description="id of one end")
    b: str = Field(description="id of the other end")
    kind: Literal["scale_up", "nic", "leaf", "spine", "pcie", "ici", "dcn", "host"] = Field("scale_up", description="what it is made of")
    bandwidth: Bandwidth = Field(description="bytes/s, per direction")
    latency: Seconds = Field(ZERO_SECONDS, description="seconds one way")


class AcceleratorFile(_Strict):
    """What one device computes with."""

    name: str = Field(description="catalog name")
    kind: Literal["gpu", "cpu", "tpu"] = Field(description="sort of device")
    peak_flops: dict[str, Flops] = Field(description="dense peak per dtype, FLOP/s")
    memory: Bytes = Field(description="capacity, bytes")
    memory_bandwidth: Bandwidth = Field(description="reads plus writes, bytes/s")
    host_link: Bandwidth | None = Field(None, description="to or from the host's memory, per direction, bytes/s; left out: nothing can be offloaded")
    host_memory_bandwidth: Bandwidth | None = Field(None, description="the host's memory, one device's share, reads plus writes, bytes/s")
    multiprocessors: Multiprocessors | None = Field(None, description="how many compute tiles of a matrix product at a time; left out: tiles are not counted")
    matrix_unit: Multiprocessors | None = Field(
        None, description="width of its systolic arrays, elements; narrower products fill a part; left out: not counted"
    )
    shared_memory_bandwidth: Bandwidth | None = Field(None, description="shared memory or L1 of all multiprocessors together, bytes/s; only told")
    l2_bandwidth: Bandwidth | None = Field(None, description="L2 cache, reads, bytes/s; only told")


class ClusterFile(_Strict):
    """cluster.yaml: servers under a network (`node`, `scale_out`), slices of a torus (`torus`), or any graph (`nodes`, `links`)."""

    base: str | None = Field(None, description="catalog name or path of the cluster that this one changes: keys given here replace its own, null drops one")
    name: str = Field("inline", description="name of the cluster")
    accelerator: Annotated[
        Annotated[str, Tag("name")] | Annotated[AcceleratorFile, Tag("numbers")],
        Discriminator(lambda raw: "name" if isinstance(raw, str) else "numbers"),
    ] = Field(description="catalog name, or its numbers")
    node: NodeFile | None = Field(None, description="the servers")
    scale_out: Annotated[RailFatTreeFile | FatTreeFile | EthernetFile, Field(discriminator="kind")] | None = Field(None, description="network between servers")
    torus: TorusFile | None = Field(None, description="slices of chips on a torus, instead of servers")
    nodes: list[GraphNode] | None = Field(None, description="a graph's nodes, devices in rank order")
    links: list[GraphLink] | None = Field(None, description="a graph's cables")
    price: Price | None = Field(None, description="USD per device and hour")

    @model_validator(mode="after")
    def _one_form(self) -> ClusterFile:
        forms = [name for name in ("node", "torus", "nodes") if getattr(self, name) is not None]
        if len(forms) != 1:
            raise ValueError("needs either node (servers), torus (slices), or nodes and links (a graph), and not several of them")
        if self.nodes is None and self.links is not None:
            raise ValueError("links belong to a graph: give nodes too")
        if self.node is None and self.scale_out is not None:
            raise ValueError(f"{'a graph holds all its links in links' if self.nodes else 'a torus has its network in torus.dcn'}: leave scale_out out")
        return self


def fields_at(model: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    """The legal keys of the mapping at `loc` (list indices and union tags are passed over)."""
    found = model
    for key in loc:
        info = found.model_fields.get(key) if isinstance(key, str) else None
        found = next(iter(_models(info.annotation if info else None, loc)), found)
    return list(found.model_fields)


def _models(annotation: Any, loc: tuple[Any, ...]) -> list[type[BaseModel]]:
    """The pydantic models an annotation is made of; of several the one whose `kind` is in `loc`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    inner = [model for part in getattr(annotation, "__args__", ()) for model in _models(part, loc)]
    tagged = [m for m in inner if "kind" in m.model_fields and set(getattr(m.model_fields["kind"].annotation, "__args__", ())) & set(loc)]
    return tagged or inner
