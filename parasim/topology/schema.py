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


def _parse(raw: object, dimension: Dimension) -> float:
    if raw == "unlimited" and dimension in ("bandwidth", "flops"):
        return math.inf
    try:
        return parse(raw, dimension)
    except Malformed as error:
        raise ValueError(str(error)) from None


def _positive(number: Number) -> Number:
    if number.value <= 0:
        raise ValueError(f"must be above 0 {number.unit}")
    return number


def _count(raw: object) -> object:
    if raw == "auto" or (isinstance(raw, int) and not isinstance(raw, bool) and raw >= 1):
        return raw
    raise ValueError(f"{raw!r} is no count; auto, or a whole number of 1 or more")


Count = Annotated[int | Literal["auto"], BeforeValidator(_count)]
Bandwidth = Annotated[Number, BeforeValidator(lambda raw: _positive(quantity("bandwidth")(raw)))]
Seconds = Annotated[Number, BeforeValidator(quantity("seconds"))]
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


class NodeFile(_Strict):
    """One server, repeated."""

    count: Count = Field("auto", description="servers; auto: as many as the devices asked for need")
    devices: Count = Field(description="devices per server; auto: all that are asked for on one")
    scale_up: ScaleUp | None = Field(None, description="network between the devices of one server; may be left out with one device")


class RailFatTreeFile(_Strict):
    """Leaf and spine switches, NIC i of every node of a pod on leaf i."""

    kind: Literal["rail-fat-tree"]
    nic_per_device: float = Field(1, gt=0, description="NICs per device: 1, 2, ..., or 0.5 where two devices share one")
    bandwidth: Bandwidth = Field(description="bytes/s of one NIC, per direction")
    latency: Seconds = Field(ZERO_SECONDS, description="seconds one way, NIC to NIC under one leaf")
    spine_latency: Seconds = Field(ZERO_SECONDS, description="more seconds one way for a route over a spine")
    pod_nodes: int = Field(32, ge=1, description="nodes under one set of leaves")
    oversubscription: float = Field(1, gt=0, description="bandwidth down over bandwidth up of a leaf")
    reduces: Literal["sharp"] | None = Field(None, description="sharp: the switches add up what their ports send; left out: they do not")


class EthernetFile(_Strict):
    """One NIC per host, all hosts under one switch."""

    kind: Literal["ethernet"]
    bandwidth: Bandwidth = Field(description="bytes/s of one host's NIC, per direction")
    latency: Seconds = Field(ZERO_SECONDS, description="seconds one way, NIC to NIC")


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


class ClusterFile(_Strict):
    """cluster.yaml: servers under a network (`node`, `scale_out`), or any graph (`nodes`, `links`)."""

    name: str = Field("inline", description="name of the cluster")
    accelerator: Annotated[
        Annotated[str, Tag("name")] | Annotated[AcceleratorFile, Tag("numbers")],
        Discriminator(lambda raw: "name" if isinstance(raw, str) else "numbers"),
    ] = Field(description="catalog name, or its numbers")
    node: NodeFile | None = Field(None, description="the servers")
    scale_out: Annotated[RailFatTreeFile | EthernetFile, Field(discriminator="kind")] | None = Field(None, description="network between servers")
    nodes: list[GraphNode] | None = Field(None, description="a graph's nodes, devices in rank order")
    links: list[GraphLink] | None = Field(None, description="a graph's cables")
    price: Price | None = Field(None, description="USD per device and hour")

    @model_validator(mode="after")
    def _one_form(self) -> ClusterFile:
        if (self.node is None) == (self.nodes is None):
            raise ValueError("needs either node (servers) or nodes and links (a graph), and not both")
        if self.nodes is None and self.links is not None:
            raise ValueError("links belong to a graph: give nodes too")
        if self.nodes is not None and self.scale_out is not None:
            raise ValueError("a graph holds all its links in links: leave scale_out out")
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
