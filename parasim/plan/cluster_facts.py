"""The answer of `parasim cluster`: facts of a cluster, and over those of another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import Malformed
from ..topology.facts import facts
from ..topology.loader import load_cluster
from ..units import format_bandwidth, format_seconds
from .account import ratios


@dataclass(frozen=True)
class ClusterFacts:
    """What `topology.facts` says of a cluster; `over`: the same over those of another."""

    tree: Mapping[str, Any]
    over: Any

    def to_json(self) -> dict[str, Any]:
        """The contract `parasim.cluster/1`."""
        return {"schema": "parasim.cluster/1", **self.tree, "over": self.over}

    def __str__(self) -> str:
        t = self.tree
        way = t["route"]
        lines = [f"{t['name']}: {t['devices']} devices in {t['servers']} servers of {' or '.join(map(str, t['devices_per_server']))}"]
        lines += [f"  {rung['name']:<26}{format_bandwidth(rung['bandwidth_Bps'])}" for rung in t["rungs"]]
        lines.append(f"{way['from']} to {way['to']}: {' - '.join(way['kinds'])}, {format_seconds(way['latency_s'])}")
        return "\n".join(lines)


def cluster_facts(name: str, devices: int, source: int, target: int | None, versus: str | None) -> ClusterFacts:
    """Facts of a cluster of `devices`, and over those of another. Raises Malformed for a device that it does not have."""
    cluster, other = load_cluster(name, devices), load_cluster(versus, devices) if versus else None
    for flag, place in (("--from", source), ("--to", target)):
        if place is not None and place >= len(cluster.devices):
            raise Malformed(f"{flag} {place} is no device of {cluster.name}; legal: 0 to {len(cluster.devices) - 1}")
    tree = facts(cluster, other, source, target)
    return ClusterFacts(tree, ratios(tree, facts(other)) if other else None)
