"""The tensor pass in pieces: under sequence parallelism the gather before a product and the scatter after it overlap with the product itself.

As user buffers of Transformer Engine or the asynchronous tensor parallelism of torch have it (Wang et al. 2022, "Overlap Communication with
Dependent Computation via Decomposition", ASPLOS 2023): rows are gathered, multiplied and reduced in `tensor.pieces` parts, each on the tensor
stream while the product of its neighbour runs. What is exposed is about one part of it. The parts of a product are launched side by side, so that
the last waves of one are filled by the next: each takes its share of the whole product's time.

A rank's rows are the rank's share of every part, one after the other, so that the gathered parts below each other are the rows in their order.
Splitting and joining rows takes no time: a real kernel reads and writes the parts in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from ..program.ops import COMPUTE, CollectiveOp, Compute, Kernel, Label, Op, Ref, replace
from .draft import Draft, collective

AXIS, STREAM = "tp", "tp.async"
PRODUCTS = ("linear", "linear_input_grad")
VIEWS = frozenset({"split_rows", "join_rows"})


def all_of(draft: Draft, ref: Ref, suffix: str) -> Ref:
    """A buffer like `ref` with what all ranks of tp have of it."""
    buffer = draft.buffers[ref.name]
    shape = tuple(int(n) * (draft.layout.degrees.tp if (d, AXIS) in buffer.shard else 1) for d, n in enumerate(buffer.shape))
    draft.buffer(f"{ref.name}.{suffix}", shape, buffer.category, dtype=buffer.dtype)
    return Ref(f"{ref.name}.{suffix}", ref.slot)


@dataclass
class Pieces:
    """Writes the ops of one body; `parts` are the gathered parts of a buffer, `whole` those of them that are joined."""

    draft: Draft
    count: int
    copied: bool = False
    parts: dict[Ref, tuple[Ref, ...]] = field(default_factory=dict)
    whole: dict[Ref, Ref] = field(default_factory=dict)

    def rewrite(self, op: Compute, kernel: Kernel, opens: int | None, closes: bool) -> Iterator[Op]:
        """The op of `kernel`, whose read number `opens` is gathered, and whose first write is reduced and scattered if it `closes`."""
        source = None if opens is None else kernel.reads[opens]
        if kernel.name in PRODUCTS:
            yield from self._product(op, kernel, opens, closes)
            return
        if source is not None:
            if source not in self.parts:
                yield from self.gather(op.label, source)
            yield from self._join(op.label, source)
            kernel = replace(kernel, reads=tuple(self.whole[r] if r == source else r for r in kernel.reads))
        if not closes:
            yield replace(op, kernels=(kernel,))
            return
        partial = all_of(self.draft, kernel.writes[0], "partial")
        yield replace(op, kernels=(replace(kernel, writes=(partial, *kernel.writes[1:])),))
        parts = self._split(partial)
        yield self._view(op.label, "split_rows", (partial,), parts)
        yield from self._scatter(op.label, parts, kernel.writes[0])

    def gather(self, label: Label, source: Ref) -> Iterator[Op]:
        """The split of `source`, and the gathers of its parts, one after the other on the tensor stream."""
        local, full = self._pieces(source), self._split(all_of(self.draft, source, "full"))
        self.parts[source] = full
        yield self._view(label, "split_rows", (source,), local)
        for i, (mine, part) in enumerate(zip(local, full, strict=True)):
            yield self._move(label, "all_gather", mine, part, () if i else (COMPUTE,))

    def forget(self, written: tuple[Ref, ...]) -> None:
        """What is written anew is no longer gathered."""
        for ref in written:
            self.parts.pop(ref, None)
            self.whole.pop(ref, None)

    def _product(self, op: Compute, kernel: Kernel, opens: int | None, closes: bool) -> Iterator[Op]:
        """A product in parts: of what is gathered, or of all rows that are there; its parts are scattered, or joined."""
        source, target = kernel.reads[opens or 0], kernel.writes[0]
        gathers = iter(()) if opens is None or source in self.parts else self.gather(op.label, source)
        if opens is None:
            parts = self._split(source)
            yield self._view(op.label, "split_rows", (source,), parts)
        else:
            yield from islice(gathers, 2)  # the split and the first gather
            parts = self.parts[source]
        made = self._split(all_of(self.draft, target, "partial") if closes else target)
        ends = self._pieces(target) if closes else made
        for part, out, end in zip(parts, made, ends, strict=True):
            yield from islice(gathers, 1)
            reads = tuple(part if r == source else r for r in kernel.reads)
            yield replace(op, kernels=(replace(kernel, reads=reads, writes=(out, *kernel.writes[1:]), parts=self.count),))
            if closes:
                yield self._move(op.label, "reduce_scatter", out, end)
        yield self._view(op.label, "join_rows", ends, (target,))

    def _join(self, label: Label, source: Ref) -> Iterator[Op]:
        if source not in self.whole:
            self.whole[source] = all_of(self.draft, source, "full")
            yield self._view(label, "join_rows", self.parts[source], (self.whole[source],))

    def _scatter(self, label: Label, parts: tuple[Ref, ...], target: Ref) -> Iterator[Op]:
        ends = self._pieces(target)
        yield from (self._move(label, "reduce_scatter", part, end) for part, end in zip(parts, ends, strict=True))
        yield self._view(label, "join_rows", ends, (target,))

    def _move(self, label: Label, op: CollectiveOp, source: Ref, target: Ref, after: tuple[str, ...] = ()) -> Op:
        return collective(label, op, AXIS, (source,), (target,), STREAM, dim=0, after=after, copied=self.copied)

    def _view(self, label: Label, name: str, reads: tuple[Ref, ...], writes: tuple[Ref, ...]) -> Op:
        return Compute(label=label, stream=COMPUTE, kernels=(Kernel(name, reads, writes, (), self.draft.buffers[reads[0].name].dtype),))

    def _split(self, ref: Ref) -> tuple[Ref, ...]:
        """Parts of a buffer that holds all rows."""
        return self._cut(ref, ())

    def _pieces(self, ref: Ref) -> tuple[Ref, ...]:
        """This rank's share of every part of a buffer that is cut along its rows."""
        return self._cut(ref, ((0, AXIS),))

    def _cut(self, ref: Ref, shard: tuple[tuple[int, str], ...]) -> tuple[Ref, ...]:
        buffer = self.draft.buffers[ref.name]
        kept = tuple(cut for cut in buffer.shard if cut[0] != 0)
        shape = (int(buffer.shape[0]) // self.count, *buffer.shape[1:])
        names = [f"{ref.name}.part{i}" for i in range(self.count)]
        for name in names:
            self.draft.buffer(name, shape, buffer.category, dtype=buffer.dtype, shard=(*shard, *kept))
        return tuple(Ref(name, ref.slot) for name in names)
