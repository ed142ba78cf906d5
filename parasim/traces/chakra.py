"""What Chakra execution traces of a job tell: seconds of kernels, and bytes and groups of collectives and messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ..cost.kineto import Kernel, Traces, calls_of
from ..errors import Refused
from ..report.folding import ranges
from .chakra_files import TraceNode, groups_of, read_nodes
from .chakra_schema import COLLECTIVE, COLLECTIVES, COMPUTE, NODE_TYPES, SEND
from .kinds import Timed, kind_of

KNOWN = ("all_reduce", "reduce", "all_gather", "broadcast", "all_to_all", "reduce_scatter")
MESSAGE = "message"
MOST_GROUPS = 3  # named in a row of the table


@dataclass(frozen=True)
class Transfers:
    """Calls of one op and size: groups of so many ranks, the calls of all files, bytes of the larger buffer, median seconds of one."""

    op: str
    nbytes: int
    ranks: int
    groups: tuple[tuple[int, ...], ...]
    calls: int
    seconds: float


@dataclass(frozen=True)
class Chakra:
    """Nodes by rank."""

    nodes: dict[int, list[TraceNode]]

    @property
    def counts(self) -> dict[str, int]:
        """Nodes of each type."""
        found: dict[str, int] = {}
        for node in (n for nodes in self.nodes.values() for n in nodes):
            word = NODE_TYPES[node.type]
            found[word] = found.get(word, 0) + 1
        return found

    @property
    def kernels(self) -> list[Timed]:
        """Every compute node that took time and is no op of the host."""
        return [
            Timed(kind_of(n.name), n.name, n.seconds, _number(n, "num_ops"), _number(n, "tensor_size"), str(n.attributes.get("dtype", "")))
            for nodes in self.nodes.values()
            for n in nodes
            if n.type == COMPUTE and n.seconds > 0 and not n.attributes.get("is_cpu_op")
        ]

    @property
    def traces(self) -> Traces:
        """The collectives, matched over ranks by group, op, size and order."""
        unknown: dict[str, int] = {}
        kernels = [k for rank in self.nodes for k in self._collectives(rank, unknown)]
        return Traces(tuple(calls_of(kernels)), unknown)

    def _collectives(self, rank: int, unknown: dict[str, int]) -> list[Kernel]:
        groups = groups_of(self.nodes[rank])
        order: dict[tuple[object, ...], int] = {}
        out = []
        for node in self.nodes[rank]:
            if node.type != COLLECTIVE:
                continue
            op, nbytes, members = self._call(node, groups)
            if op not in KNOWN or nbytes <= 0 or len(members) < 2:
                unknown[op] = unknown.get(op, 0) + 1
                continue
            key = (members, op, nbytes)
            order[key] = order.get(key, 0) + 1
            out.append(Kernel(rank, op, nbytes, len(members), ranges(list(members)), f"call {order[key]}", 0.0, node.seconds, members))
        return out

    def _call(self, node: TraceNode, groups: dict[str, tuple[int, ...]]) -> tuple[str, int, tuple[int, ...]]:
        """Op, bytes of the larger buffer, members; all ranks where no group is named."""
        number = node.attributes.get("comm_type", 0)
        op = COLLECTIVES[number] if isinstance(number, int) and 0 <= number < len(COLLECTIVES) else f"type {number}"
        members = groups.get(str(node.attributes.get("pg_name", "")), tuple(sorted(self.nodes)))
        return op, round(_number(node, "comm_size")) * (len(members) if op == "all_gather" else 1), members

    @property
    def transfers(self) -> list[Transfers]:
        """Collectives and sends by op, size and ranks, longest in all first."""
        found: dict[tuple[str, int, int], list[tuple[float, tuple[int, ...]]]] = {}
        for rank, nodes in self.nodes.items():
            groups = groups_of(nodes)
            for node in nodes:
                if node.type == COLLECTIVE:
                    op, nbytes, members = self._call(node, groups)
                    found.setdefault((op, nbytes, len(members)), []).append((node.seconds, members))
                elif node.type == SEND:
                    pair = (rank, round(_number(node, "comm_dst")))
                    found.setdefault((MESSAGE, round(_number(node, "comm_size")), 2), []).append((node.seconds, pair))
        rows = [
            Transfers(op, nbytes, ranks, tuple(dict.fromkeys(m for _, m in calls)), len(calls), median(s for s, _ in calls))
            for (op, nbytes, ranks), calls in found.items()
        ]
        return sorted(rows, key=lambda r: -r.calls * r.seconds)

    def __str__(self) -> str:
        """Counts, then the transfers."""
        said = ", ".join(f"{count:,} {word}" for word, count in self.counts.items())
        lines = [f"{len(self.nodes):,} ranks, {sum(map(len, self.nodes.values())):,} nodes: {said}", ""]
        lines.append(f"{'op':16} {'bytes':>14} {'ranks':>6} {'nodes':>8} {'median':>10}  groups")
        for row in self.transfers:
            joined = [f"{g[0]}>{g[1]}" if row.op == MESSAGE else ranges(sorted(g)) for g in row.groups[:MOST_GROUPS]]
            named = "; ".join(joined) + (f"; {len(row.groups) - MOST_GROUPS} more" * (len(row.groups) > MOST_GROUPS))
            lines.append(f"{row.op:16} {row.nbytes:14} {row.ranks:6} {row.calls:8} {row.seconds * 1e6:8.1f}us  {named}")
        return "\n".join(lines)


def _number(node: TraceNode, name: str) -> float:
    value = node.attributes.get(name, 0)
    return float(value) if isinstance(value, int | float) else 0.0


def read_chakra(paths: Sequence[Path]) -> Chakra:
    """Traces of several ranks; a file called `<name>.<rank>.et` is of that rank, any other of its place among the files.

    Raises as `read_nodes` does, and Refused where two files are of one rank.
    """
    nodes: dict[int, list[TraceNode]] = {}
    where: dict[int, Path] = {}
    for number, path in enumerate(paths):
        named = re.search(r"\.(\d+)\.[^.]+$", path.name)
        rank = int(named[1]) if named else number
        if rank in nodes:
            raise Refused(f"{path}: is a trace of rank {rank}, and so is {where[rank]}; give one file per rank")
        nodes[rank], where[rank] = read_nodes(path), path
    return Chakra(nodes)
