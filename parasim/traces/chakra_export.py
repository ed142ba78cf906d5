"""A simulated run as Chakra execution traces, one file per rank: kernels, collectives and messages, each with its seconds and what it waits for.

Attributes are those that Chakra's converters write and ASTRA-sim reads: `num_ops` and `tensor_size` of kernels, `comm_type`, `comm_size` (the bytes
that this rank puts in) and `pg_name` of collectives, `comm_src`, `comm_dst`, `comm_tag` and `comm_size` of messages, `is_cpu_op` of all. Durations are
whole microseconds there; the attribute `seconds` holds them exactly. A METADATA node lists the groups of the rank, as in execution traces of torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..cost.pricing import PRICES, bytes_moved, flops
from ..errors import Malformed, Refused
from ..files import whole
from ..program.ops import P2P, Collective, Compute, Kernel
from ..program.workload import IntArray, Program
from .chakra_files import write_nodes
from .chakra_schema import COLLECTIVE, COLLECTIVES, COMPUTE, METADATA, RECEIVE, SEND, Node
from .shares import Simulated

VERSION = "0.0.4"  # of the schema
MOST_NODES = 1_000_000  # of all files together


@dataclass(frozen=True)
class Written:
    """The files and how many nodes they hold in all."""

    paths: tuple[Path, ...]
    nodes: int
    groups: Path


def write_chakra(run: Simulated, prefix: Path, ranks: Sequence[int] | None = None) -> Written:
    """Write `<prefix>.<rank>.et` for every rank (or `ranks`), and `<prefix>.groups.json`: the ranks of each process group.

    Raises Malformed for a rank that is not there or a file that cannot be written, Refused for more nodes than MOST_NODES.
    """
    world = run.workload.world
    chosen = list(range(world)) if ranks is None else list(ranks)
    wrong = next((r for r in chosen if not 0 <= r < world), None)
    if wrong is not None:
        raise Malformed(f"--rank {wrong} is not a rank of this run; legal: 0 to {world - 1}")
    sizes = [_size(run, p) for p in run.workload.programs]
    total = sum(sizes[int(run.workload.class_of_rank[r])] for r in chosen)
    if total > MOST_NODES:
        raise Refused(f"{total:,} nodes of {len(chosen):,} ranks are more than the {MOST_NODES:,} that are written at once; give --rank for one file")
    names = _Names(run)
    paths = [prefix.with_name(f"{prefix.name}.{rank}.et") for rank in chosen]
    count = sum(write_nodes(path, VERSION, _Rank(run, rank, names).nodes()) for path, rank in zip(paths, chosen, strict=True))
    groups = prefix.with_name(f"{prefix.name}.groups.json")
    with whole(groups) as draft:
        draft.write_text(json.dumps({str(i): list(members) for members, i in names.groups.items()}) + "\n", encoding="utf-8")
    return Written(tuple(paths), count, groups)


def _size(run: Simulated, program: Program) -> int:
    """Nodes of a rank."""
    per_body = {name: sum(_count(run, op) for op in body) for name, body in program.bodies.items()}
    return 1 + sum(per_body[call.body] for call in program.calls)


def _count(run: Simulated, op: Compute | Collective | P2P) -> int:
    match op:
        case Compute():
            return len(run.kernels(op))
        case Collective():
            return 1
        case P2P():
            return len(op.sends) + len(op.recvs)


class _Names:
    """Numbers that all ranks share: of process groups by their members, of channels of messages."""

    def __init__(self, run: Simulated) -> None:
        self.groups: dict[tuple[int, ...], int] = {}
        self.channels: dict[str, int] = {}
        for program in run.workload.programs:
            for op in (op for body in program.bodies.values() for op in body):
                if isinstance(op, Collective):
                    for members in run.workload.groups[op.group].tolist():
                        self.groups.setdefault(tuple(members), len(self.groups))
                elif isinstance(op, P2P):
                    for message in (*op.sends, *op.recvs):
                        self.channels.setdefault(message.channel, len(self.channels))

    def tag(self, channel: str, microbatch: int) -> int:
        """The same at both ends; messages of one channel and microbatch follow each other in order."""
        return (microbatch + 1) * max(len(self.channels), 1) + self.channels[channel]


class _Rank:
    """The nodes of one rank."""

    def __init__(self, run: Simulated, rank: int, names: _Names) -> None:
        self.run, self.rank, self.names = run, rank, names
        self.program = run.workload.program_of(rank)
        self.shares = {id(op): run.kernels(op) for body in self.program.bodies.values() for op in body if isinstance(op, Compute)}
        self.count = 0

    def nodes(self) -> Iterator[Any]:
        resolved, part = self.program.resolved, self.run.part(self.rank)
        yield self._metadata()
        last: dict[int, list[int]] = {}  # of each stream: the nodes of its latest op
        of_op: list[list[int]] = []
        edges: IntArray = resolved.edges
        for i in range(len(resolved)):
            stream = int(resolved.stream[i])
            awaited = [*last.get(stream, ()), *(n for j in edges[resolved.edge_start[i] : resolved.edge_start[i + 1]].tolist() for n in of_op[j])]
            made = list(self._op(i, float(part.start[i]), float(part.end[i]), list(dict.fromkeys(awaited))))
            ends = [made[-1].id] if isinstance(resolved.op(i), Compute) else [node.id for node in made]
            of_op.append(ends or awaited)
            last[stream] = of_op[-1]
            yield from made

    def _metadata(self) -> Any:
        mine = [{"pg_name": str(i), "ranks": list(m), "group_size": len(m)} for m, i in self.names.groups.items() if self.rank in m]
        node = self._node("## process_group:init ##", METADATA, [], 0.0, 0.0)
        node.inputs.values = f"['{json.dumps(mine)}']"
        return node

    def _op(self, i: int, start: float, end: float, awaited: list[int]) -> Iterator[Any]:
        resolved = self.program.resolved
        op = resolved.op(i)
        match op:
            case Compute():
                at = start
                for kernel, share in self.shares[id(op)]:
                    node = self._kernel(kernel, awaited, at, share * (end - start))
                    at, awaited = at + share * (end - start), [node.id]
                    yield node
            case Collective():
                node = self._node(op.op, COLLECTIVE, awaited, start, end - start)
                group = self.names.groups[tuple(self.run.workload.members(self.rank, op.group).tolist())]
                node.attr.add(name="comm_type", int64_val=COLLECTIVES.index(op.op))
                node.attr.add(name="comm_size", uint64_val=self.program.nbytes(op.reads))
                node.attr.add(name="pg_name", string_val=str(group))
                yield node
            case P2P():
                calls = resolved.microbatches(i)
                for message, sends in (*((m, True) for m in op.sends), *((m, False) for m in op.recvs)):
                    slot = message.buffer.slot
                    tag = self.names.tag(message.channel, calls[slot] if 0 <= slot < len(calls) else -1)
                    yield self._message(message.channel, message.peer, self.program.nbytes((message.buffer,)), tag, sends, (awaited, start, end - start))

    def _kernel(self, kernel: Kernel, awaited: list[int], start: float, seconds: float) -> Any:
        node = self._node(kernel.name, COMPUTE, awaited, start, seconds, on_host=PRICES[kernel.name].kind == "host")
        node.inputs.shapes, node.inputs.types = json.dumps(list(kernel.dims)), kernel.dtype
        node.attr.add(name="num_ops", uint64_val=round(flops(kernel)))
        node.attr.add(name="tensor_size", uint64_val=round(bytes_moved(kernel)))
        node.attr.add(name="dtype", string_val=kernel.dtype)
        return node

    def _message(self, channel: str, peer: str, nbytes: int, tag: int, sends: bool, when: tuple[list[int], float, float]) -> Any:
        other = int(self.run.workload.peers[peer][self.rank])
        node = self._node(f"{'send' if sends else 'receive'} {channel}", SEND if sends else RECEIVE, *when)
        source, target = (self.rank, other) if sends else (other, self.rank)
        node.attr.add(name="comm_src", int32_val=source)
        node.attr.add(name="comm_dst", int32_val=target)
        node.attr.add(name="comm_tag", int32_val=tag)
        node.attr.add(name="comm_size", uint64_val=nbytes)
        return node

    def _node(self, name: str, kind: int, awaited: list[int], start: float, seconds: float, *, on_host: bool = False) -> Any:
        node = Node(id=self.count, name=name, type=kind, data_deps=awaited, start_time_micros=round(start * 1e6), duration_micros=round(seconds * 1e6))
        node.attr.add(name="is_cpu_op", bool_val=on_host)
        node.attr.add(name="seconds", double_val=max(seconds, 0.0))
        self.count += 1
        return node
