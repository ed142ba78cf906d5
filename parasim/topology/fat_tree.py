"""Networks between servers: fat trees of two or three levels, rail-optimised or not, and one Ethernet switch.

Link kinds: `nic` device to NIC, `leaf` NIC to leaf, `spine` leaf to spine, `dcn` spine to core. A device whose NICs are several has one of
their sum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .cluster import Link
from .draft import Draft, Wire


class Core(NamedTuple):
    """A third level: `pods` sets of leaves share their spines (one zone), cores join the zones.

    `oversubscription` = bandwidth down over bandwidth up of a spine; `latency` more for a route over the cores (s).
    """

    pods: int
    oversubscription: float
    latency: float


class FatTree(NamedTuple):
    """`nic_per_device` NICs of `bandwidth` (bytes/s per direction); `pod_nodes` nodes share leaves; spines join the leaves.

    `rails`: NIC i of the nodes of a pod on leaf i; else one leaf for all of them. `latency` NIC to NIC under one leaf, `spine_latency` more
    over a spine (s). `oversubscription` = down-links over up-links of a leaf. `slowest`: ideal over slowest link of the hashed tiers, 1 where
    flows spread evenly: the spine and core links have 1/slowest of their line rate.
    """

    nic_per_device: float
    bandwidth: float
    latency: float
    spine_latency: float
    pod_nodes: int
    oversubscription: float
    rails: bool = True
    slowest: float = 1.0
    core: Core | None = None

    def uplinks(self, nics: int) -> int:
        """Up-links of one leaf above nodes of `nics` NICs: its ports down over the oversubscription, 1 or more."""
        ports = self.pod_nodes * (1 if self.rails else nics)
        return max(1, math.floor(ports / self.oversubscription + 1e-9))


def fat_tree(draft: Draft, net: FatTree) -> Draft:
    """Put the servers of `draft` under `net`. A NIC is plugged in wherever its devices have theirs: at both CPUs where it serves both."""
    most, port = 1, 0.0
    plugged: set[tuple[str, str]] = set()
    for n, names in enumerate(draft.servers):
        pod, place = divmod(n, net.pod_nodes)
        nics = round(net.nic_per_device * len(names))
        rails = min(nics, len(names))
        port, most = net.bandwidth * nics / rails, max(most, rails)
        for i, name in enumerate(names):
            rail = i * rails // len(names)
            nic, leaf = f"node{n}.nic{rail}", f"pod{pod}.leaf{rail if net.rails else 0}"
            if nic not in draft.kinds:
                draft.kinds[nic] = "nic"
                draft.kinds.setdefault(leaf, "switch")
                draft.cable(nic, leaf, "leaf", port, net.latency / 2)
            plug = draft.attach[name]
            if (plug[-1], nic) not in plugged:
                plugged.add((plug[-1], nic))
                draft.cable(plug[-1], nic, "nic", port, 0.0)
            draft.chains[name] = (*draft.chains[name], (*plug, nic, leaf))
            draft.slot[name] = place if net.rails else place * rails + rail
    pods = -(-len(draft.servers) // net.pod_nodes)
    leaves = [[f"pod{p}.leaf{i}" for i in range(most) if f"pod{p}.leaf{i}" in draft.kinds] for p in range(pods)]
    if sum(map(len, leaves)) > 1:
        _spines(draft, net, leaves, port, most)
    return draft


def _spines(draft: Draft, net: FatTree, leaves: list[list[str]], port: float, nics: int) -> None:
    """Join the leaves of each zone: a leaf has 1/oversubscription of its bandwidth upwards, one up-link per spine; cores join the zones.

    Routes pick a spine by the receiver's port, so that spines beyond the ports in use stay idle and are left out.
    """
    pods = net.core.pods if net.core else len(leaves)
    ports = net.pod_nodes * (1 if net.rails else nics)
    uplinks = net.uplinks(nics)
    bandwidth = ports * port / net.oversubscription / uplinks / net.slowest
    used = min(uplinks, 1 + max(draft.slot.values()))
    zones = [leaves[i : i + pods] for i in range(0, len(leaves), pods)]
    prefix = [f"zone{z}." for z in range(len(zones))] if len(zones) > 1 else [""]
    draft.spines = tuple(tuple(f"{zone}spine{s}" for s in range(used)) for zone in prefix)
    for z, zone in enumerate(zones):
        draft.kinds.update(dict.fromkeys(draft.spines[z], "switch"))
        for leaf in (leaf for pod in zone for leaf in pod):
            draft.zone[leaf] = z
            half = net.spine_latency / 2
            draft.links += [link for s in draft.spines[z] for link in (Link(leaf, s, "spine", bandwidth, half), Link(s, leaf, "spine", bandwidth, half))]
    if net.core is not None and len(zones) > 1:
        draft.cores = tuple(f"core{s}" for s in range(used))
        draft.kinds.update(dict.fromkeys(draft.cores, "switch"))
        down = pods * (nics if net.rails else 1) * bandwidth
        for s, core in enumerate(draft.cores):
            for z in range(len(zones)):
                draft.cable(draft.spines[z][s], core, "dcn", down / net.core.oversubscription, net.core.latency / 2)


class Host(NamedTuple):
    """The CPU that copies what its server sends by TCP: bytes/s per direction of the host, and of one device to it."""

    bandwidth: float
    device: float


def ethernet(draft: Draft, net: Wire, host: Host | None = None) -> Draft:
    """Put the servers under one switch, each with one NIC that its devices share. Link kinds: `pcie` server to NIC, `nic` NIC to switch.

    With `host` everything goes through the CPU: `pcie` device to CPU, `host` CPU to NIC.
    """
    draft.kinds["ethernet"] = "switch"
    for n, names in enumerate(draft.servers):
        nic = f"node{n}.nic0"
        draft.kinds[nic] = "nic"
        draft.cable(nic, "ethernet", net.kind, net.bandwidth, net.latency / 2)
        if host is not None or names[0] in draft.place:
            _through_cpu(draft, n, names, host or Host(net.bandwidth, net.bandwidth))
            continue
        top = draft.chains[names[0]][0][-1]  # the switch of the node, or its only device
        draft.cable(top, nic, "pcie", net.bandwidth, 0.0)
        for name in names:
            draft.chains[name] = ((*draft.chains[name][0], nic, "ethernet"),)
    return draft


def _through_cpu(draft: Draft, n: int, names: list[str], host: Host) -> None:
    """Devices to the CPU of their server, and on to its NIC; a PCIe host has its CPUs and slots already: the first holds the NIC."""
    nic, wired = f"node{n}.nic0", names[0] in draft.to_cpu
    cpu = draft.to_cpu[names[0]][-1] if wired else f"node{n}.host"
    draft.kinds[cpu] = "cpu"
    draft.cable(cpu, nic, "host", host.bandwidth, 0.0)
    for name in names:
        if not wired:
            draft.cable(name, cpu, "pcie", host.device, 0.0)
        draft.chains[name] = (*draft.chains[name], (*draft.to_cpu.get(name, (name, cpu)), nic, "ethernet"))
