"""The tensor pass: Megatron's f and g around column- and row-parallel linear layers (Shoeybi et al. 2019, arXiv 1909.08053), or, with sequence
parallelism, all-gather and reduce-scatter in their place (Korthikanti et al. 2022, arXiv 2205.05198).

It cuts the buffers that the compute pass marked and inserts collectives at kernel roles; it knows no layer and no buffer name. The
collectives are waited for at once, so they sit on the compute stream. Asynchronous, as Megatron-LM has it, those of the backward of a
column-parallel layer run on a stream of their own: the sum of the input gradient beside the weight gradient, and under sequence parallelism
the second gather of the layer's input beside the input gradient. In `pieces` they overlap with the products themselves (pieces.py).
`all-gather` is the column-parallel form: every layer is cut along columns.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..parallel.heads import kv_copies
from ..program.ops import COMPUTE, Collective, CollectiveOp, Compute, Kernel, Label, Op, Ref, replace
from ..program.workload import KV_HEAD
from .draft import Draft, collective
from .loss import READS_STATISTICS
from .pieces import AXIS, STREAM, Pieces, all_of

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


OTHERS = {"linear": "linear_others", "linear_input_grad": "linear_input_grad_others"}  # products whose input is gathered -> what own rows leave of them


def tensor(draft: Draft) -> None:
    """Cut and communicate over tp."""
    degree = draft.layout.degrees.tp
    if degree == 1:
        return
    how = draft.layout.tensor
    rewrite = _gather_outputs if how.style == "all-gather" else _rewrite if how.pieces == 1 else _in_pieces
    if how.style == "all-gather":
        _recut_rows(draft)
    copies = kv_copies(draft.plan.model, draft.layout)
    for name, dim in draft.columns.items():
        _cut(draft, name, dim, *((degree // copies, KV_HEAD) if name in draft.copied else (degree, AXIS)))
    if how.sequence_parallel:
        for name in sorted(draft.rows):
            _cut(draft, name, 0, degree, AXIS)
    for key, body in draft.bodies.items():
        draft.bodies[key] = list(rewrite(draft, body))


def _recut_rows(draft: Draft) -> None:
    """In the column-parallel form the weights that would be cut along rows are cut along columns too."""
    for kernel in (k for body in draft.bodies.values() for op in body if isinstance(op, Compute) for k in op.kernels):
        if (kernel.name, kernel.role) == ("linear", "row"):
            draft.columns |= dict.fromkeys((kernel.reads[1].name, f"{kernel.reads[1].name}.grad"), 1)


def _cut(draft: Draft, name: str, dim: int, degree: int, axis: str) -> None:
    buffer = draft.buffers[name]
    shape = (*buffer.shape[:dim], int(buffer.shape[dim]) // degree, *buffer.shape[dim + 1 :])
    draft.buffers[name] = replace(buffer, shape=shape, shard=(*buffer.shard, (dim, axis)))


def _rewrite(draft: Draft, body: list[Op]) -> Iterator[Op]:
    sequence_parallel, overlapped = draft.layout.tensor.sequence_parallel, draft.layout.tensor.asynchronous
    gathered: dict[Ref, Ref] = {}
    for i, op in enumerate(body):
        assert isinstance(op, Compute)
        kernel = op.kernels[0]
        opens = OPENS.get((kernel.name, kernel.role))
        if opens is not None and sequence_parallel:
            source = kernel.reads[opens]
            if source not in gathered:
                gathered[source] = all_of(draft, source, "full")
                beside = draft.layout.tensor.own_first and kernel.name in OTHERS
                yield _communicate(op.label, "all_gather", source, gathered[source], 0, STREAM if beside else COMPUTE)
                if beside:
                    own = _own_rows(draft, kernel.writes[0])
                    yield replace(op, kernels=(replace(kernel, writes=(own,)),))
                    kernel = replace(kernel, name=OTHERS[kernel.name], reads=(source, own, *kernel.reads[1:]))
            kernel = replace(kernel, reads=tuple(gathered[r] if r == source else r for r in kernel.reads))
        if overlapped and sequence_parallel and (source_ := _input_of_pair(kernel, body[i + 1 :])) and source_ not in gathered:
            gathered[source_] = all_of(draft, source_, "full")
            yield _communicate(op.label, "all_gather", source_, gathered[source_], 0, STREAM)
        for written in kernel.writes:
            gathered.pop(written, None)
        if (kernel.name, kernel.role) in CLOSES:
            yield from _close(draft, op, kernel)
        else:
            yield from _loss(draft, op, kernel)


def _in_pieces(draft: Draft, body: list[Op]) -> Iterator[Op]:
    """Gathers and scatters in parts, beside the products that need and make them."""
    pieces = Pieces(draft, draft.layout.tensor.pieces, draft.layout.tensor.user_buffers)
    for i, op in enumerate(body):
        assert isinstance(op, Compute)
        kernel = op.kernels[0]
        opens, closes = OPENS.get((kernel.name, kernel.role)), (kernel.name, kernel.role) in CLOSES
        if (source := _input_of_pair(kernel, body[i + 1 :])) and source not in pieces.parts:
            yield from pieces.gather(op.label, source)
        if opens is None and not closes:
            yield from _loss(draft, op, kernel)
        else:
            yield from pieces.rewrite(op, kernel, opens, closes)
        pieces.forget(kernel.writes)


def _input_of_pair(kernel: Kernel, following: list[Op]) -> Ref | None:
    """The input of the layer whose input gradient `kernel` computes, where the weight gradient that reads it comes next."""
    if kernel.name in ("linear_input_grad", "head_input_grad") and kernel.role == "column" and following:
        assert isinstance(following[0], Compute)
        paired = following[0].kernels[0]
        if paired.name == kernel.name.replace("input", "weight") and paired.role == "column":
            return paired.reads[0]
    return None


def _loss(draft: Draft, op: Compute, kernel: Kernel) -> Iterator[Op]:
    """Vocabulary-parallel loss around its kernels; any other op as it is."""
    if kernel.name == "cross_entropy_stats":
        yield from _exchange_stats(draft, op, kernel)
    elif kernel.name in READS_STATISTICS:
        yield replace(op, kernels=(replace(kernel, reads=(*kernel.reads[:-1], Ref("loss.stats.full", 0))),))
    else:
        yield op if kernel is op.kernels[0] else replace(op, kernels=(kernel,))


def _close(draft: Draft, op: Compute, kernel: Kernel) -> Iterator[Op]:
    """The partial sums of a row-parallel product become the whole (all-reduce) or the rows of this rank (reduce-scatter)."""
    sequence_parallel = draft.layout.tensor.sequence_parallel
    target = kernel.writes[0]
    partial = all_of(draft, target, "partial")
    stream = STREAM if draft.layout.tensor.asynchronous and kernel.name.endswith("_input_grad") else COMPUTE
    yield replace(op, kernels=(replace(kernel, writes=(partial, *kernel.writes[1:])),))
    yield _communicate(op.label, "reduce_scatter" if sequence_parallel else "all_reduce", partial, target, 0 if sequence_parallel else None, stream)


def _gather_outputs(draft: Draft, body: list[Op]) -> Iterator[Op]:
    """The column-parallel form: the input of every second layer and its output are gathered along columns, its input gradient is
    reduce-scattered along them; the first layer's input gradient is all-reduced."""
    sliced: dict[Ref, Ref] = {}
    for op in body:
        assert isinstance(op, Compute)
        kernel = op.kernels[0]
        if (kernel.name, kernel.role) == ("linear", "row"):
            whole, part = all_of(draft, kernel.reads[0], "full"), _columns(draft, kernel.writes[0])
            yield _communicate(op.label, "all_gather", kernel.reads[0], whole, 1)
            yield replace(op, kernels=(replace(kernel, reads=(whole, *kernel.reads[1:]), writes=(part,)),))
            yield _communicate(op.label, "all_gather", part, kernel.writes[0], 1)
        elif kernel.name in ("linear_input_grad", "linear_weight_grad") and kernel.role == "row":
            at = 0 if kernel.name == "linear_input_grad" else 1
            dy = kernel.reads[at]
            if dy not in sliced:
                sliced[dy] = _columns(draft, dy)
                yield replace(op, kernels=(Kernel("column_slice", (dy,), (sliced[dy],), (), kernel.dtype),))
            if at:
                whole = all_of(draft, kernel.reads[0], "full")
                yield replace(op, kernels=(replace(kernel, reads=(whole, sliced[dy], *kernel.reads[2:])),))
                continue
            partial = all_of(draft, kernel.writes[0], "partial")
            yield replace(op, kernels=(replace(kernel, reads=(sliced[dy], *kernel.reads[1:]), writes=(partial,)),))
            stream = STREAM if draft.layout.tensor.asynchronous else COMPUTE
            yield _communicate(op.label, "reduce_scatter", partial, kernel.writes[0], 1, stream)
        elif (kernel.name, kernel.role) in CLOSES:
            yield from _close(draft, op, kernel)
        else:
            yield from _loss(draft, op, kernel)


def _own_rows(draft: Draft, ref: Ref) -> Ref:
    """The rows of this rank of a buffer that holds those of all."""
    buffer = draft.buffers[ref.name]
    rows, *columns = buffer.shape
    draft.buffer(f"{ref.name}.own", (int(rows) // draft.layout.degrees.tp, *columns), buffer.category, dtype=buffer.dtype, shard=((0, AXIS), *buffer.shard))
    return Ref(f"{ref.name}.own", ref.slot)


def _columns(draft: Draft, ref: Ref) -> Ref:
    """This rank's columns of a buffer that all ranks hold whole."""
    buffer = draft.buffers[ref.name]
    rows, columns = map(int, buffer.shape)
    draft.buffer(f"{ref.name}.part", (rows, columns // draft.layout.degrees.tp), buffer.category, dtype=buffer.dtype, shard=((1, AXIS),))
    return Ref(f"{ref.name}.part", ref.slot)


def _exchange_stats(draft: Draft, op: Compute, kernel: Kernel) -> Iterator[Op]:
    """Vocabulary-parallel loss: every rank gets the row statistics of every vocabulary shard."""
    stats = kernel.writes[0]
    buffer = draft.buffers[stats.name]
    full = draft.buffer("loss.stats.full", (draft.layout.degrees.tp, *map(int, buffer.shape[1:])), "buffers", dtype=buffer.dtype)
    yield op
    yield _communicate(op.label, "all_gather", stats, full, 0)


def _communicate(label: Label, op: CollectiveOp, source: Ref, target: Ref, dim: int | None, stream: str = COMPUTE) -> Collective:
    """A collective over tp; one on its own stream is launched after what compute has queued so far."""
    after = () if stream == COMPUTE else (COMPUTE,)
    return collective(label, op, AXIS, (source,), (target,), stream, dim=dim, after=after)
