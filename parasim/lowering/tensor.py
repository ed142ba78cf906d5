"""The tensor pass: Megatron's f and g around column- and row-parallel linear layers (Shoeybi et al. 2019, arXiv 1909.08053), or, with sequence
parallelism, all-gather and reduce-scatter in their place (Korthikanti et al. 2022, arXiv 2205.05198).

It cuts the buffers that the compute pass marked and inserts collectives at kernel roles; it knows no layer and no buffer name. The
collectives are waited for at once, so they sit on the compute stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..program.ops import COMPUTE, Collective, Compute, Kernel, Label, Op, Ref
from .draft import Draft, collective

AXIS = "tp"
# (kernel family, role) -> what opens (reads gathered, by position) and what closes (writes reduced)
OPENS = {
    ("linear", "column"): 0,
    ("head", "column"): 0,
    ("linear_input_grad", "row"): 0,
    ("linear_weight_grad", "column"): 0,
    ("linear_weight_grad", "row"): 1,
    ("head_weight_grad", "column"): 0,
    ("embedding_weight_grad", "row"): 1,
    ("latent_rotary", "column"): 2,
}
CLOSES = {("linear", "row"), ("embedding", "row"), ("linear_input_grad", "column"), ("head_input_grad", "column"), ("latent_rotary_grad", "column")}


def tensor(draft: Draft) -> None:
    """Cut and communicate over tp."""
    degree = draft.layout.degrees.tp
    if degree == 1:
        return
    sequence_parallel = draft.layout.tensor.sequence_parallel
    for name, dim in draft.columns.items():
        _cut(draft, name, dim, degree)
    if sequence_parallel:
        for name in sorted(draft.rows):
            _cut(draft, name, 0, degree)
    for key, body in draft.bodies.items():
        draft.bodies[key] = list(_rewrite(draft, body, sequence_parallel))


def _cut(draft: Draft, name: str, dim: int, degree: int) -> None:
    buffer = draft.buffers[name]
    shape = (*buffer.shape[:dim], int(buffer.shape[dim]) // degree, *buffer.shape[dim + 1 :])
    draft.buffers[name] = replace(buffer, shape=shape, shard=(*buffer.shard, (dim, AXIS)))


def _rewrite(draft: Draft, body: list[Op], sequence_parallel: bool) -> Iterator[Op]:
    gathered: dict[Ref, Ref] = {}
    for op in body:
        assert isinstance(op, Compute)
        kernel = op.kernels[0]
        opens, closes = OPENS.get((kernel.name, kernel.role)), (kernel.name, kernel.role) in CLOSES
        if opens is not None and sequence_parallel:
            source = kernel.reads[opens]
            if source not in gathered:
                gathered[source] = _whole(draft, source, "full")
                yield _communicate(op.label, "all_gather", source, gathered[source], 0)
            kernel = replace(kernel, reads=tuple(gathered[r] if r == source else r for r in kernel.reads))
        for written in kernel.writes:
            gathered.pop(written, None)
        if closes:
            yield from _close(draft, op, kernel, sequence_parallel)
        elif kernel.name == "cross_entropy_stats":
            yield from _exchange_stats(draft, op, kernel)
        elif kernel.name in ("cross_entropy", "cross_entropy_grad"):
            yield replace(op, kernels=(replace(kernel, reads=(*kernel.reads[:-1], Ref("loss.stats.full", 0))),))
        else:
            yield op if kernel is op.kernels[0] else replace(op, kernels=(kernel,))


def _close(draft: Draft, op: Compute, kernel: Kernel, sequence_parallel: bool) -> Iterator[Op]:
    """The partial sums of a row-parallel product become the whole (all-reduce) or the rows of this rank (reduce-scatter)."""
    target = kernel.writes[0]
    partial = _whole(draft, target, "partial")
    yield replace(op, kernels=(replace(kernel, writes=(partial, *kernel.writes[1:])),))
    yield _communicate(op.label, "reduce_scatter" if sequence_parallel else "all_reduce", partial, target, 0 if sequence_parallel else None)


def _exchange_stats(draft: Draft, op: Compute, kernel: Kernel) -> Iterator[Op]:
    """Vocabulary-parallel loss: every rank gets the row statistics of every vocabulary shard."""
    stats = kernel.writes[0]
    buffer = draft.buffers[stats.name]
    full = draft.buffer("loss.stats.full", (draft.layout.degrees.tp, *map(int, buffer.shape[1:])), "buffers", dtype=buffer.dtype)
    yield op
    yield _communicate(op.label, "all_gather", stats, full, 0)


def _whole(draft: Draft, ref: Ref, suffix: str) -> Ref:
    """A buffer like `ref` with all its rows."""
    buffer = draft.buffers[ref.name]
    shape = tuple(int(n) * (draft.layout.degrees.tp if (d, AXIS) in buffer.shard else 1) for d, n in enumerate(buffer.shape))
    draft.buffer(f"{ref.name}.{suffix}", shape, buffer.category, dtype=buffer.dtype)
    return Ref(f"{ref.name}.{suffix}", ref.slot)


def _communicate(label: Label, op: str, source: Ref, target: Ref, dim: int | None) -> Collective:
    return collective(label, op, AXIS, (source,), (target,), COMPUTE, dim=dim)  # type: ignore[arg-type]
