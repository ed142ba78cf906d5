"""Collectives and messages on torch.distributed: packing tensors into one buffer, moving it with a bounded wait, unpacking what arrived."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import InvalidProgram
from ..program.ops import P2P, Collective
from ..program.workload import Program, Workload

# torch 2.13 renamed both; the old names warn there
ALL_GATHER: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

MAX_TAG_MICROBATCHES = 1 << 16  # microbatch part of a gloo tag; the channel's number is above it


@dataclass(frozen=True)
class Communicator:
    """A process group of torch with its members in axis order. `timeout` bounds every wait, in seconds."""

    handle: Any
    members: tuple[int, ...]
    rank: int
    timeout: float

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.members)

    def wait(self, work: Any) -> None:
        """Wait for a handle; a time-out raises RuntimeError."""
        if work is not None:
            work.wait(datetime.timedelta(seconds=self.timeout))


@dataclass(frozen=True)
class Communicators:
    """This rank's communicators: one per (group, stream) for collectives, one per channel and pair of ranks for messages."""

    collective: dict[tuple[str, str], Communicator]
    message: dict[tuple[str, int, int], Communicator]
    channels: dict[str, int]

    def tag(self, channel: str, microbatch: int) -> int:
        """The gloo tag of a message; microbatch -1 is a per-step buffer."""
        return self.channels[channel] * MAX_TAG_MICROBATCHES + microbatch + 1


def connect(workload: Workload, rank: int, timeout: float) -> Communicators:
    """Make every communicator, in the same order on all ranks (a collective call of the whole world)."""
    collective, message = {}, {}
    limit = datetime.timedelta(seconds=timeout)
    for group, stream in sorted(_collective_keys(workload)):
        for row in workload.groups[group]:
            members = tuple(int(r) for r in row)
            if list(members) != sorted(members):
                raise InvalidProgram(f"group {group} lists ranks {list(members)}; the executor needs ascending ranks")
            handle = dist.new_group(list(members), timeout=limit) if len(members) > 1 else None
            if rank in members:
                collective[group, stream] = Communicator(handle, members, rank, timeout)
    links = sorted(_message_keys(workload))
    for channel, source, target in links:
        handle = dist.new_group([source, target], timeout=limit)
        if rank in (source, target):
            message[channel, source, target] = Communicator(handle, (source, target), rank, timeout)
    channels = {c: i for i, c in enumerate(sorted({c for c, _, _ in links}))}
    return Communicators(collective, message, channels)


def _ops(program: Program) -> list[Any]:
    used = {call.body for call in program.calls}
    return [op for name, body in program.bodies.items() if name in used for op in body]


def _collective_keys(workload: Workload) -> set[tuple[str, str]]:
    return {(op.group, op.stream) for p in workload.programs for op in _ops(p) if isinstance(op, Collective)}


def _message_keys(workload: Workload) -> set[tuple[str, int, int]]:
    keys = set()
    for rank in range(workload.world):
        for op in _ops(workload.program_of(rank)):
            for m in op.sends if isinstance(op, P2P) else ():
                peer = int(workload.peers[m.peer][rank])
                if peer in (-1, rank):
                    raise InvalidProgram(f"rank {rank} sends {m.buffer.name} on {m.channel} to {m.peer}, which is {'nobody' if peer < 0 else 'itself'}")
                keys.add((m.channel, rank, peer))
    return keys


# ---- collectives: pack, transfer, unpack


def pack(op: Collective, tensors: Sequence[Tensor], size: int) -> Tensor:
    """What a rank puts in: the flat concatenation of `tensors`; for a reduce-scatter in the order of the receiving members, padded."""
    if op.op == "reduce_scatter" and op.dim is not None:
        dim = op.dim
        return torch.cat([t.chunk(size, dim)[i].reshape(-1) for i in range(size) for t in tensors])
    if op.op == "all_to_all":
        return torch.cat([t.reshape(t.shape[0], -1) for t in tensors], dim=1)
    flat = torch.cat([t.reshape(-1) for t in tensors]) if tensors else torch.zeros(0)
    if op.op == "reduce_scatter":
        flat = torch.cat([flat, flat.new_zeros(-flat.numel() % size)])
    return flat


def output_elements(op: Collective, elements: int, size: int) -> int:
    """Elements a rank holds afterwards, from those it puts in."""
    return {"all_gather": elements * size, "reduce_scatter": elements // size}.get(op.op, elements)


def transfer(op: Collective, x: Tensor, communicator: Communicator, out: Tensor | None = None, splits: tuple[list[int], list[int]] | None = None) -> Tensor:
    """Move packed data; reductions happen in place in `x`. `out` is written where the op needs one. Bounded by the time-out."""
    c, size = communicator, communicator.size
    if size == 1:
        return x
    group, root = c.handle, c.members[op.root]
    reduction = dist.ReduceOp.MAX if op.reduce == "max" else dist.ReduceOp.SUM
    if op.op == "all_to_all":
        return _all_to_all(x, c, out, splits)
    if splits:
        return _uneven(op, x, c, splits)
    if out is None and op.op in ("all_gather", "reduce_scatter"):
        out = x.new_empty(output_elements(op, x.numel(), size))
    match op.op:
        case "all_reduce":
            c.wait(dist.all_reduce(x, reduction, group=group, async_op=True))
        case "all_gather":
            c.wait(ALL_GATHER(out, x, group=group, async_op=True))
        case "reduce_scatter":
            c.wait(REDUCE_SCATTER(out, x, reduction, group=group, async_op=True))
        case "broadcast":
            c.wait(dist.broadcast(x, root, group=group, async_op=True))
        case "reduce":
            c.wait(dist.reduce(x, root, reduction, group=group, async_op=True))
        case "barrier":
            c.wait(dist.barrier(group=group, async_op=True))
    y = x if out is None else out
    return y / size if op.reduce == "avg" and op.op in ("all_reduce", "reduce_scatter", "reduce") else y


def _uneven(op: Collective, x: Tensor, c: Communicator, splits: tuple[list[int], list[int]]) -> Tensor:
    """An all-gather of members' own numbers of rows, or its reverse, a reduce-scatter, as exchanges of rows."""
    theirs = splits[1] if op.op == "all_gather" else splits[0]
    mine = theirs[c.members.index(c.rank)]
    if op.op == "all_gather":
        return _all_to_all(x.repeat(c.size, *(1,) * (x.dim() - 1)), c, None, ([mine] * c.size, theirs))
    parts = _all_to_all(x, c, None, (theirs, [mine] * c.size))
    return parts.reshape(c.size, mine, *x.shape[1:]).sum(0)


def _all_to_all(x: Tensor, c: Communicator, out: Tensor | None, splits: tuple[list[int], list[int]] | None) -> Tensor:
    """Along dimension 0, pairwise, receives posted first: gloo's own all_to_all sends first and takes up to 1.7 times as long."""
    rows = x.shape[0] // c.size
    sent, received = splits or ([rows] * c.size, [rows] * c.size)
    y = x.new_empty((sum(received), *x.shape[1:])) if out is None else out
    if x.is_cuda:
        c.wait(dist.all_to_all_single(y, x, received, sent, group=c.handle, async_op=True))
        return y
    incoming, outgoing, here = _split(y, received), _split(x, sent), c.members.index(c.rank)
    incoming[here].copy_(outgoing[here])
    others = [i for i in range(c.size) if i != here]
    works = [dist.irecv(incoming[i], c.members[i], group=c.handle) for i in others if received[i]]
    works += [dist.isend(outgoing[i].contiguous(), c.members[i], group=c.handle) for i in others if sent[i]]
    for work in works:
        c.wait(work)
    return y


def _split(x: Tensor, sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    at, out = 0, []
    for size in sizes:
        out.append(x.narrow(dim, at, size))
        at += size
    return out


def unpack(op: Collective, y: Tensor, read_shapes: Sequence[tuple[int, ...]], write_shapes: Sequence[tuple[int, ...]], size: int) -> list[Tensor]:
    """Cut what arrived into the written buffers; an all-gather along `dim` puts the members' parts side by side."""
    if op.op == "all_to_all":
        widths = [prod(s[1:]) for s in write_shapes]
        return [part.reshape(-1, *shape[1:]) for part, shape in zip(_split(y, widths, 1), write_shapes, strict=True)]
    if op.op == "all_gather" and op.dim is not None:
        columns = _split(y.reshape(size, -1), [prod(s) for s in read_shapes], 1)
        return [torch.cat([part.reshape(s) for part in column], op.dim) for column, s in zip(columns, read_shapes, strict=True)]
    lengths = [prod(s) for s in write_shapes]
    pieces = _split(y[: sum(lengths)], lengths)
    return [piece.reshape(shape).clone() for piece, shape in zip(pieces, write_shapes, strict=True)]


# ---- messages


def exchange(
    op: P2P,
    rank: int,
    workload: Workload,
    communicators: Communicators,
    microbatch: Callable[[Any], int],
    outgoing: Callable[[Any], Tensor],
    incoming: Callable[[Any], Tensor],
) -> list[tuple[Any, Tensor]]:
    """Run a batch: all receives are posted, then all sends, then every handle is waited for. Returns (Msg, tensor) of what arrived."""
    works, arrived = [], []
    for m in op.recvs:
        peer = int(workload.peers[m.peer][rank])
        c, tensor = communicators.message[m.channel, peer, rank], incoming(m.buffer)
        works.append((c, dist.irecv(tensor, peer, group=c.handle, tag=_tag(tensor, communicators, m.channel, microbatch(m.buffer)))))
        arrived.append((m, tensor))
    for m in op.sends:
        peer = int(workload.peers[m.peer][rank])
        c, tensor = communicators.message[m.channel, rank, peer], outgoing(m.buffer).contiguous()
        works.append((c, dist.isend(tensor, peer, group=c.handle, tag=_tag(tensor, communicators, m.channel, microbatch(m.buffer)))))
    for c, work in works:
        c.wait(work)
    return arrived


def _tag(tensor: Tensor, communicators: Communicators, channel: str, microbatch: int) -> int:
    return 0 if tensor.is_cuda else communicators.tag(channel, microbatch)  # NCCL has no tags: a channel's communicator is FIFO
