"""The inside of a server whose devices do not all have one port to one switch: direct links, the hybrid cube mesh, a PCIe host.

Names are those inside the server, without its own; each function makes one server, which is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise

from ..errors import Refused, Violation
from .cluster import Link
from .shortest import ShortestPaths

Cable = tuple[str, str, str, float, float]
# NVLinks between the eight GPUs of a DGX-1 with V100: two faces of four, each pair of a face joined, and one edge between the faces per GPU.
# (NVIDIA, "NVIDIA DGX-1 With Tesla V100 System Architecture", 2017; `nvidia-smi topo -m` prints the same as NV1 and NV2.)
CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
    (0, 4): 2, (1, 5): 2, (2, 6): 1, (3, 7): 1,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Inside:
    """One server: `devices`, `others` (name -> kind), `cables` (a, b, link kind, bytes/s per direction, seconds).

    `attach[device]` are the nodes from a device to where its NIC is plugged in.
    """

    devices: tuple[str, ...]
    others: Mapping[str, str]
    cables: tuple[Cable, ...]
    attach: Mapping[str, tuple[str, ...]]

    @cached_property
    def paths(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """Node names from each device to each other one: fewest hops, then lowest latency, then the widest."""
        return {(a, b): path for a in self.devices for b in self.devices if a != b and (path := self._router.path(a, b))}

    @cached_property
    def to_cpu(self) -> dict[str, tuple[str, ...]]:
        """Node names from each device to the first CPU; empty where there is none."""
        return {d: path for d in self.devices if (path := self._router.path(d, "cpu0"))}

    @cached_property
    def _router(self) -> ShortestPaths:
        return ShortestPaths([link for cable in self.cables for link in (Link(*cable), Link(cable[1], cable[0], *cable[2:]))])


def direct(devices: Sequence[str], bandwidth: float, latency: float) -> Inside:
    """Every device has one cable to every other one (AMD xGMI, or four GPUs joined by NVLink): only that cable to any one peer."""
    cables = tuple((a, b, "scale_up", bandwidth, latency) for a, b in combinations(devices, 2))
    return Inside(tuple(devices), {}, cables, {d: (d,) for d in devices})


def cube_mesh(devices: Sequence[str], bandwidth: float, latency: float) -> Inside:
    """Eight GPUs in the hybrid cube mesh of the DGX-1; `bandwidth` of one NVLink per direction. Pairs without one go through a third GPU."""
    if len(devices) != 8:
        raise Refused([Violation("node.devices", str(len(devices)), "is no hybrid cube mesh", "8 devices, or scale_up.kind: mesh")])
    cables = tuple((devices[a], devices[b], "scale_up", n * bandwidth, latency) for (a, b), n in CUBE_MESH.items())
    return Inside(tuple(devices), {}, cables, {d: (d,) for d in devices})


@dataclass(frozen=True)
class PcieHost:
    """`slot` bytes/s of a device's PCIe slot; `per_switch` devices under one PCIe switch (1: each at a root port of its CPU), `uplink` from there
    to the CPU; `between_sockets` from one CPU to the next; `bridge` the NVLink bridge of two neighbours (0: none). All per direction.

    `latency` in seconds from one device to another through one CPU or switch, and once more between sockets.
    """

    slot: float
    per_switch: int
    uplink: float
    sockets: int
    between_sockets: float
    bridge: float
    latency: float


def pcie(devices: Sequence[str], host: PcieHost) -> Inside:
    """Devices in PCIe slots: neighbours under one switch, others through their CPU or both CPUs; bridges join pairs 0-1, 2-3, ..."""
    size, hop = len(devices), host.latency / 2
    if size % host.sockets:
        rule = f"must divide node.devices={size}"
        raise Refused([Violation("node.scale_up.sockets", str(host.sockets), rule, f"such as {max(s for s in (1, 2, 4) if size % s == 0)}")])
    others = {f"cpu{s}": "cpu" for s in range(host.sockets)}
    cables: list[Cable] = [(a, b, "host", host.between_sockets, host.latency) for a, b in pairwise(others)]
    attach = {}
    for i, device in enumerate(devices):
        socket, place = divmod(i, size // host.sockets)
        above = f"cpu{socket}"
        if host.per_switch > 1:
            above = f"pcie{socket}{place // host.per_switch}"
            if above not in others:
                others[above] = "pcie"
                cables.append((above, f"cpu{socket}", "pcie", host.uplink, 0.0))
        cables.append((device, above, "pcie", host.slot, hop))
        attach[device] = (device, above)
    if host.bridge:
        cables += [(a, b, "scale_up", host.bridge, hop) for a, b in zip(devices[::2], devices[1::2], strict=False)]
    return Inside(tuple(devices), others, tuple(cables), attach)
