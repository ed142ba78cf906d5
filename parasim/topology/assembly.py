"""From a checked cluster file to a Cluster: the numbers of its blocks handed to the builders."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import BaseModel

from ..errors import Refused, Violation
from ..provenance import Number
from .builders import DEVICE_KIND, SCALE_UP_LINK, uneven_servers, wired_servers
from .cluster import Accelerator, Cluster
from .draft import Draft, Wire
from .ecmp import slowest_link
from .fat_tree import Core, FatTree, Host, ethernet, fat_tree
from .inside import Inside, PcieHost, cube_mesh, direct, pcie
from .regular import SMALLEST, Shape, regular
from .schema import ClusterFile, CubeMeshFile, EthernetFile, FatTreeFile, MeshFile, NodeFile, PcieFile, RailFatTreeFile, ScaleUp, TorusFile
from .torus import torus


def from_servers(form: ClusterFile, accelerator: Accelerator, devices: int) -> Cluster:
    """Servers under a network, at least `devices` devices where the counts are auto. Raises `Refused` where a network is missing or does not fit."""
    node = form.node
    assert node is not None  # kept by ClusterFile
    sizes = _sizes(node, devices)
    if form.scale_out is None and len(sizes) > 1:
        rule = f"is missing: {devices} devices need more than one node of {sizes[0]}"
        raise Refused([Violation("scale_out", "null", rule, "give scale_out.kind: rail-fat-tree or ethernet, or fit the devices in one node")])
    if node.scale_up is None and max(sizes) > 1:
        raise Refused([Violation("node.scale_up", "null", f"is missing: {max(sizes)} devices of a node have no link", "give node.scale_up")])
    description = describe(form)
    net = form.scale_out
    price = form.price.value if form.price else None
    if isinstance(net, FatTreeFile):
        tree = _tree(net, sizes)
        if net.ecmp is not None:
            slowest = slowest_link(tree.uplinks(round(net.nic_per_device * max(sizes))), net.ecmp.queue_pairs)
            tree, description["scale_out.ecmp.slowest_link"] = tree._replace(slowest=slowest.value), slowest

        def whole() -> Cluster:
            return fat_tree(_nodes(node, sizes, accelerator), tree).finish(form.name, price, description)

        up = node.scale_up
        if sum(sizes) < SMALLEST or len(set(sizes)) > 1 or not isinstance(up, ScaleUp) or tree.core is not None:
            return whole()
        wire = Wire(SCALE_UP_LINK[up.kind], up.bandwidth.value, up.latency.value)
        return regular(Shape(len(sizes), sizes[0], wire, tree, DEVICE_KIND[accelerator.kind]), accelerator, whole, form.name, price, description)
    draft = _nodes(node, sizes, accelerator)
    if isinstance(net, EthernetFile):
        host = Host(net.host.bandwidth.value, net.host.device.value) if net.host else None
        ethernet(draft, Wire("nic", net.bandwidth.value, net.latency.value), host)
    return draft.finish(form.name, price, description)


def _sizes(node: NodeFile, devices: int) -> Sequence[int]:
    """Devices of each server."""
    if isinstance(node.devices, tuple):
        if node.count not in ("auto", len(node.devices)):
            rule = f"differs from the {len(node.devices)} servers of node.devices"
            raise Refused([Violation("node.count", str(node.count), rule, f"auto, or {len(node.devices)}")])
        return node.devices
    per_node = devices if node.devices == "auto" else node.devices
    return [per_node] * (-(-devices // per_node) if node.count == "auto" else node.count)


def _nodes(node: NodeFile, sizes: Sequence[int], accelerator: Accelerator) -> Draft:
    up = node.scale_up
    if up is None:
        return uneven_servers(sizes, accelerator, None)
    if isinstance(up, ScaleUp):
        return uneven_servers(sizes, accelerator, Wire(SCALE_UP_LINK[up.kind], up.bandwidth.value, up.latency.value))
    kinds = {"gpu": "gpu", "cpu": "cpu", "tpu": "chip"}
    known = {size: _inside(up, [f"{kinds[accelerator.kind]}{i}" for i in range(size)]) for size in dict.fromkeys(sizes)}
    return wired_servers([known[size] for size in sizes], accelerator)


def _inside(up: MeshFile | CubeMeshFile | PcieFile, devices: Sequence[str]) -> Inside:
    if isinstance(up, MeshFile):
        return direct(devices, up.bandwidth.value, up.latency.value)
    if isinstance(up, CubeMeshFile):
        return cube_mesh(devices, up.bandwidth.value, up.latency.value)
    slot = (up.through_host or up.bandwidth).value
    uplink, between = ((number or up.bandwidth).value for number in (up.uplink, up.between_sockets))
    return pcie(devices, PcieHost(slot, up.per_switch, uplink, up.sockets, between, up.bridge.value if up.bridge else 0.0, up.latency.value))


def _tree(net: FatTreeFile, sizes: Sequence[int]) -> FatTree:
    for size in dict.fromkeys(sizes):
        nics = net.nic_per_device * size
        if nics < 1 or not float(nics).is_integer():
            rule = f"times node.devices={size} must be a whole number of NICs, 1 or more"
            raise Refused([Violation("scale_out.nic_per_device", f"{net.nic_per_device:g}", rule, f"such as {1 / size:g} (one NIC per node) or 1")])
    core = Core(net.core.pods, net.core.oversubscription, net.core.latency.value) if net.core else None
    return FatTree(
        nic_per_device=net.nic_per_device,
        bandwidth=net.bandwidth.value,
        latency=net.latency.value,
        spine_latency=net.spine_latency.value,
        pod_nodes=net.pod_nodes,
        oversubscription=net.oversubscription,
        rails=isinstance(net, RailFatTreeFile),
        core=core,
    )


def from_torus(form: ClusterFile, accelerator: Accelerator, devices: int) -> Cluster:
    """Slices of a torus, at least `devices` chips where slices are auto. Raises `Refused` for several slices without a network."""
    block = form.torus
    assert block is not None  # kept by ClusterFile
    shape = _smallest(block, devices)
    slices = -(-devices // math.prod(shape)) if block.slices == "auto" else block.slices
    if slices > 1 and block.dcn is None:
        rule = f"is missing: {devices} devices need more than one slice of {'x'.join(map(str, shape))}"
        raise Refused([Violation("torus.dcn", "null", rule, f"give torus.dcn, or at most {math.prod(shape)} devices")])
    wire = Wire("ici", block.bandwidth.value, block.latency.value)
    dcn = Wire("dcn", block.dcn.bandwidth.value, block.dcn.latency.value) if block.dcn else None
    price = form.price.value if form.price else None
    return torus(
        form.name, accelerator, shape, wire, block.wrap, slices=slices, dcn=dcn, chips_per_host=block.chips_per_host, price=price, description=describe(form)
    )


def _smallest(block: TorusFile, devices: int) -> tuple[int, ...]:
    """The smallest shape that holds `devices` chips, else the largest."""
    shapes = sorted(block.shapes, key=math.prod)
    return next((shape for shape in shapes if math.prod(shape) >= devices), shapes[-1])


def describe(form: ClusterFile) -> dict[str, Number | str]:
    """Every number of the file under its dotted name, for reports."""
    out: dict[str, Number | str] = {}
    for block in ("node", "scale_out", "torus"):
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
