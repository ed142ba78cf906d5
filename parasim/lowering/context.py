"""The context pass: attention over a sequence that is cut over cp. It rewrites the attention kernels of the bodies; everything else works on rows.

`ring` (Liu et al. 2023, arXiv 2310.01889): keys and values travel round the ring under the attention of the block before, partial outputs are merged
by their log-sum-exp; in the backward the gradients of keys and values travel with them. Every rank has two chunks of the sequence, r and 2 cp - 1 - r,
so that each step of each rank computes half of its pairs (as Megatron-LM and Transformer Engine have it). `all-to-all` (DeepSpeed-Ulysses, Jacobs
et al. 2023, arXiv 2309.14509): ranks exchange heads for tokens before attention and back after it, and each attends over whole sequences.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..parallel.layout import Layout
from ..program.ops import COMPUTE, P2P, Buffer, Compute, DType, Kernel, Msg, Op, Ref, replace
from ..program.workload import ZIGZAG
from .draft import Draft, collective

AXIS, STREAM = "cp", "cp.ring"
NEXT, PREVIOUS = "cp+1", "cp-1"  # peers
KEYS, GRADIENTS = "cp.kv", "cp.dkv"  # channels


def sequence_cut(layout: Layout) -> tuple[tuple[int, str], ...]:
    """How dimension 1 of (batch, sequence) is cut."""
    return () if layout.degrees.cp == 1 else ((1, ZIGZAG if layout.context.style == "ring" else AXIS),)


def context(draft: Draft) -> None:
    """Rewrite attention and its gradient in every body."""
    if draft.layout.degrees.cp == 1:
        return
    write = _Ring if draft.layout.context.style == "ring" else _Exchange
    for key, body in draft.bodies.items():
        draft.bodies[key] = [new for op in body for new in _rewritten(draft, op, write)]


def _rewritten(draft: Draft, op: Op, write: type[_Ring | _Exchange]) -> Iterator[Op]:
    kernel = op.kernels[0] if isinstance(op, Compute) else None
    if isinstance(op, Compute) and kernel is not None and kernel.name == "attention":
        yield from write(draft, op, kernel).forward()
    elif isinstance(op, Compute) and kernel is not None and kernel.name == "attention_grad":
        yield from write(draft, op, kernel).backward()
    else:
        yield op


class _Core:
    """One attention kernel being rewritten; `dims` are those of the rank's rows with all heads."""

    def __init__(self, draft: Draft, op: Compute, kernel: Kernel) -> None:
        self.draft, self.op, self.kernel, self.cp = draft, op, kernel, draft.layout.degrees.cp
        self.prefix = f"L{op.label.layer}.attention"
        self.label = op.label._replace(axis=AXIS)

    def compute(self, name: str, reads: tuple[Ref, ...], writes: tuple[Ref, ...], dims: tuple[int | float | str, ...], dtype: DType | None = None) -> Op:
        """One kernel in place of the one that is rewritten, of the same role."""
        return replace(self.op, kernels=(Kernel(name, reads, writes, dims, dtype or self.kernel.dtype, self.kernel.role),))

    def declare(self, what: str, shape: tuple[int | str, ...], like: Ref, shard: tuple[tuple[int, str], ...] = ()) -> Ref:
        """A buffer of the microbatch that lives as long as it is used."""
        name = f"{self.prefix}.{what}"
        buffer = self.draft.buffers[like.name]
        self.draft.buffers.setdefault(name, Buffer(name, shape, buffer.dtype, "activations", shard=shard))
        return Ref(name, like.slot)

    def shape(self, ref: Ref) -> tuple[int, ...]:
        """Rows and columns on this rank."""
        return tuple(map(int, self.draft.buffers[ref.name].shape))


class _Ring(_Core):
    """cp - 1 steps with keys and values of other ranks after the one with this rank's own, which is plain causal attention over its rows."""

    @property
    def dims(self) -> tuple[int | float | str, ...]:
        """batch sequence heads kv_heads head_dim value_dim."""
        return self.kernel.dims if len(self.kernel.dims) > 5 else (*self.kernel.dims, self.kernel.dims[4])

    def keys(self, qkv: Ref, what: str, step: int) -> Ref:
        """Keys and values, or their gradients, of the rank `step` places before: (rows, kv_heads (head_dim + value_dim))."""
        rows, columns = self.shape(qkv)
        _, _, heads, kv_heads, head_dim, value_dim = map(int, self.dims)
        held = columns // ((heads // kv_heads + 1) * head_dim + value_dim)
        return self.declare(f"{what}.{step}", (rows, held * (head_dim + value_dim)), qkv)

    def message(self, sends: tuple[Msg, ...], recvs: tuple[Msg, ...]) -> Op:
        """What travels at once: posted when the step before it has been computed."""
        return P2P(label=self.label, stream=STREAM, after=(COMPUTE,), sends=sends, recvs=recvs)

    def exchange(self, qkv: Ref, step: int) -> tuple[tuple[Msg, ...], tuple[Msg, ...]]:
        """Keys and values of a step, sent on, and those of the next."""
        return (Msg(self.keys(qkv, "kv", step), NEXT, KEYS),), (Msg(self.keys(qkv, "kv", step + 1), PREVIOUS, KEYS),)

    def forward(self) -> Iterator[Op]:
        (qkv,), (out, lse) = self.kernel.reads, self.kernel.writes
        yield self.compute("kv_slice", (qkv,), (self.keys(qkv, "kv", 0),), self.dims)
        for step in range(self.cp):
            if step < self.cp - 1:
                yield self.message(*self.exchange(qkv, step))
            if step == 0:
                yield self.op
            else:
                yield self.compute("attention_block", (qkv, self.keys(qkv, "kv", step), out, lse), (out, lse), (*self.dims, step))

    def backward(self) -> Iterator[Op]:
        (do, qkv, out, lse), (dqkv,) = self.kernel.reads, self.kernel.writes
        yield self.compute("kv_slice", (qkv,), (self.keys(qkv, "kv", 0),), self.dims)
        for step in range(self.cp):
            sends, recvs = self.exchange(qkv, step) if step < self.cp - 1 else ((), ())
            if step > 1:  # the gradients of a block travel with it, one step behind
                sends += (Msg(self.keys(qkv, "dkv", step - 1), NEXT, GRADIENTS),)
                recvs += (Msg(self.keys(qkv, "dkv.arrived", step), PREVIOUS, GRADIENTS),)
            if sends:
                yield self.message(sends, recvs)
            if step == 0:
                yield self.op
                continue
            mine = self.keys(qkv, "dkv", step)
            yield self.compute("attention_block_grad", (do, qkv, self.keys(qkv, "kv", step), out, lse, dqkv), (dqkv, mine), (*self.dims, step))
            if step > 1:
                yield self.compute("accumulate", (mine, self.keys(qkv, "dkv.arrived", step)), (mine,), ())
        home = self.keys(qkv, "dkv.arrived", self.cp)
        yield self.message((Msg(self.keys(qkv, "dkv", self.cp - 1), NEXT, GRADIENTS),), (Msg(home, PREVIOUS, GRADIENTS),))
        yield self.compute("kv_slice_grad", (home, dqkv), (dqkv,), self.dims)


class _Exchange(_Core):
    """Heads of a part of the sequence against parts of the sequence of some heads."""

    @property
    def dims(self) -> tuple[int | float | str, ...]:
        """Those of the kernel for whole sequences."""
        batch, sequence, *others = self.kernel.dims
        return (batch, int(sequence) * self.cp, *others)

    def to_heads(self, x: Ref, what: str) -> Iterator[Op]:
        """All heads of this rank's rows -> `whole(what)`: this rank's heads of all rows."""
        rows, columns = self.shape(x)
        shape = (rows * self.cp, columns // self.cp)
        sent, arrived, whole = self.declare(f"{what}.sent", shape, x), self.declare(f"{what}.arrived", shape, x), self.whole(x, what)
        yield self.compute("columns_to_blocks", (x,), (sent,), (self.cp,))
        one = self.draft.layout.batch.micro == 1  # blocks of rows, by rank, are the sequence
        yield collective(self.label, "all_to_all", AXIS, (sent,), (whole if one else arrived,), COMPUTE, dim=0)
        if not one:
            yield self.compute("blocks_to_sequence", (arrived,), (whole,), (self.draft.layout.batch.micro, self.cp))

    def to_rows(self, whole: Ref, x: Ref, what: str) -> Iterator[Op]:
        """The reverse, into `x`."""
        shape = self.shape(whole)
        sent, arrived = self.declare(f"{what}.sent", shape, whole), self.declare(f"{what}.arrived", shape, whole)
        one = self.draft.layout.batch.micro == 1
        if not one:
            yield self.compute("sequence_to_blocks", (whole,), (sent,), (self.draft.layout.batch.micro, self.cp))
        yield collective(self.label, "all_to_all", AXIS, (whole if one else sent,), (arrived,), COMPUTE, dim=0)
        yield self.compute("blocks_to_columns", (arrived,), (x,), (self.cp,))

    def whole(self, x: Ref, what: str) -> Ref:
        """This rank's heads of all rows of `x`."""
        rows, columns = self.shape(x)
        shard = (*(cut for cut in self.draft.buffers[x.name].shard if cut[0] == 1), (1, AXIS))
        return self.declare(f"{what}.whole", (rows * self.cp, columns // self.cp), x, shard)

    def forward(self) -> Iterator[Op]:
        (qkv,), (out, lse) = self.kernel.reads, self.kernel.writes
        heads, rows = self.shape(lse)
        buffer = self.draft.buffers[lse.name]
        if rows == self.shape(out)[0]:
            self.draft.buffers[lse.name] = replace(buffer, shape=(heads // self.cp, rows * self.cp), shard=(*buffer.shard, (0, AXIS)))
        yield from self.to_heads(qkv, "qkv")
        yield self.compute("attention", (self.whole(qkv, "qkv"),), (self.whole(out, "o"), lse), self.dims)
        yield from self.to_rows(self.whole(out, "o"), out, "o")

    def backward(self) -> Iterator[Op]:
        (do, qkv, out, lse), (dqkv,) = self.kernel.reads, self.kernel.writes
        yield from self.to_heads(do, "do")
        reads = (self.whole(do, "do"), self.whole(qkv, "qkv"), self.whole(out, "o"), lse)
        yield self.compute("attention_grad", reads, (self.whole(dqkv, "dqkv"),), self.dims)
        yield from self.to_rows(self.whole(dqkv, "dqkv"), dqkv, "dqkv")
