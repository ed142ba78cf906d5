"""ladder: the rungs between the memory of a device and the far end of its cluster."""

from __future__ import annotations

from typing import NamedTuple

from .cluster import Cluster


class Rung(NamedTuple):
    """One level: its name, the kind of its slowest link (or `memory`, `host`), bytes/s of that per direction, seconds one way of the whole route."""

    name: str
    kind: str
    bandwidth: float
    latency: float


def ladder(cluster: Cluster) -> tuple[Rung, ...]:
    """Memory of the first device, memory of its host where that is known, and the nearest device over every set of kinds of links; fastest first."""
    chip = cluster.accelerator
    rungs = [Rung("memory of the device", "memory", chip.memory_bandwidth.value, 0.0)]
    if chip.host_link is not None:
        rungs.append(Rung("memory of the host", "host", chip.host_link.value, 0.0))
    seen: dict[frozenset[str], Rung] = {}
    for device in cluster.devices[1:]:
        links = [cluster.links[i] for i in cluster.route(cluster.devices[0], device)]
        kinds = frozenset(link.kind for link in links)
        latency = sum(link.latency for link in links)
        if links and (kinds not in seen or latency < seen[kinds].latency):
            slowest = min(links, key=lambda link: link.bandwidth)
            names = ", ".join(dict.fromkeys(link.kind for link in links))
            seen[kinds] = Rung(f"device over {names}", slowest.kind, slowest.bandwidth, latency)
    return tuple(sorted([*rungs, *seen.values()], key=lambda rung: (-rung.bandwidth, rung.latency)))
