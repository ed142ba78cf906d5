"""The cluster as the run file changes it: ranks on other devices, slow ranks, weak and failed links, failed nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

from ..documents import Document, Keys, Problem, refusal
from ..errors import Malformed, Refused, Violation
from ..topology.changes import place, remove, round_robin, scale, slow
from ..topology.cluster import Cluster
from .schema import PerturbKeys, RunKeys


def needed(keys: RunKeys) -> int:
    """How many devices the cluster must have: `devices`, or up to the last one that `placement` lists."""
    return max(keys.devices, *(i + 1 for i in keys.placement)) if isinstance(keys.placement, tuple) else keys.devices


def changed(cluster: Cluster, keys: RunKeys, document: Document) -> Cluster:
    """`cluster` with the `placement` and every row of `perturb`; links and nodes are those of the cluster, ranks those of the placement.

    Raises `Malformed` for a rank, link or node that does not exist, naming the nearest, `Refused` where a failed node holds ranks.
    """
    cluster = _placed(cluster, keys, document)
    for i, row in enumerate(keys.perturb):
        cluster = _perturbed(cluster, row, ("perturb", i), keys.devices, document)
    return cluster


def _placed(cluster: Cluster, keys: RunKeys, document: Document) -> Cluster:
    if keys.placement == "round-robin":
        return place(cluster, round_robin(cluster))
    order = keys.placement
    if isinstance(order, tuple):
        if len(keys.placement) != keys.devices:
            message = f"lists {len(keys.placement)} devices; devices={keys.devices} ranks need {keys.devices}, one each"
            raise refusal([Problem(document.place(("placement",)), "placement", message)])
        return _told(lambda: place(cluster, order), document, ("placement",))
    return cluster


def _perturbed(cluster: Cluster, row: PerturbKeys, at: Keys, devices: int, document: Document) -> Cluster:
    if row.rank is not None and row.slowdown is not None:
        rank, factor = row.rank, row.slowdown
        if rank >= devices:
            raise refusal([Problem(document.place((*at, "rank")), f"{at[0]}[{at[1]}].rank", f"{rank} is no rank of this run; legal: 0 to {devices - 1}")])
        return slow(cluster, rank, factor)
    if row.link is not None:
        name, bandwidth = row.link, row.bandwidth
        return _told(lambda: remove(cluster, name) if bandwidth is None else scale(cluster, name, bandwidth), document, (*at, "link"))
    return _without(cluster, f"node{row.node}", (*at, "node"), devices, document)


def _without(cluster: Cluster, name: str, at: Keys, devices: int, document: Document) -> Cluster:
    """The cluster without a server that holds no rank of the run."""
    servers = list(dict.fromkeys(cluster.node_of.values()))
    if name not in servers:
        message = f"{name.removeprefix('node')} is no node of cluster {cluster.name}; known: {', '.join(servers[:8])}{', ...' if len(servers) > 8 else ''}"
        raise refusal([Problem(document.place(at), f"{at[0]}[{at[1]}].node", message)])
    lost = [r for r, device in enumerate(cluster.devices[:devices]) if cluster.node_of[device] == name]
    if lost:
        rule = f"failed and holds ranks {spans(lost)}: every group with one of them is partitioned"
        raise Refused([Violation(f"perturb[{at[1]}].node", name.removeprefix("node"), rule, "give the cluster a spare node and a placement without this one")])
    return remove(cluster, name)


def _told(change: Callable[[], Cluster], document: Document, at: Keys) -> Cluster:
    """What `change` makes; what it finds malformed is told at the place of the key `at`."""
    try:
        return change()
    except Malformed as error:
        path = f"{at[0]}[{at[1]}].{at[2]}" if len(at) > 1 else str(at[0])
        raise refusal([Problem(document.place(at), path, str(error).removeprefix(f"{at[-1]}: ").removeprefix(f"{at[-1]}="))]) from error


def spans(ranks: Iterable[int]) -> str:
    """Ranks in ascending order as ranges: "0-7, 16"."""
    runs = [list(g) for _, g in groupby(enumerate(sorted(ranks)), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0][1]) if len(run) == 1 else f"{run[0][1]}-{run[-1][1]}" for run in runs)
