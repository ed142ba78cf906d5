"""The optimizer step: Adam on whole parameters or on flat shards, and what makes the parameters whole again."""

from __future__ import annotations

from ..model.spec import Fixed
from ..program.ops import COMPUTE, Compute, DType, Kernel, Label, Op, Ref
from ..program.workload import KV_COPIES
from .draft import MIRROR, Draft, collective
from .shards import GATHER, STEP, Bucket, elements, flat_shard, shared_out, sharing, stage, stays_whole, step_op, stream

LOW_PRECISION = ("bf16", "fp16")


def update(draft: Draft, buckets: list[Bucket]) -> list[Op]:
    """Adam for every bucket, then zeros for the next step's gradients. Shards are stepped and gathered in the order of the forward."""
    if not stage(draft.layout):
        return [*(_whole_update(draft, n) for b in buckets for n in b.parameters), _zero(draft, [f"{n}.grad" for n in draft.parameters])]
    order = {n: i for i, n in enumerate(draft.parameters)}
    ops = [op for b in sorted(buckets, key=lambda b: order[b.parameters[0]]) for op in _update(draft, b)]
    kept = [f"{n}.grad" for n in draft.parameters]
    if stage(draft.layout) >= 2:
        kept = [name for b in buckets for name in ([f"dp.bucket{b.number}.grad"] if shared_out(draft.layout, b) else b.gradients)]
    return [*ops, _zero(draft, kept)]


def _update(draft: Draft, bucket: Bucket) -> list[Op]:
    """Shards, or whole parameters where nobody else has the same."""
    if shared_out(draft.layout, bucket):
        return _sharded_update(draft, bucket)
    refs = tuple(Ref(n) for n in bucket.gradients)
    both = [collective(Label(STEP), "all_reduce", MIRROR, refs, refs, COMPUTE, axis="pp")] if stage(draft.layout) >= 2 and draft.mirrored else []
    return [*both, *(_whole_update(draft, n) for n in bucket.parameters)]


def _state_dtype(draft: Draft) -> DType:
    precision = draft.layout.precision
    return "fp32" if precision in LOW_PRECISION else precision


def _master(draft: Draft) -> bool:
    return draft.layout.optimizer.master and draft.layout.precision in LOW_PRECISION


def _whole_update(draft: Draft, name: str) -> Op:
    """Adam on a whole parameter: on its fp32 master copy with a rounded copy back, or in place."""
    buffer, dtype = draft.buffers[name], _state_dtype(draft)
    shape, shard = tuple(map(int, buffer.shape)), buffer.shard

    def state(what: str) -> Ref:
        return draft.buffer(f"{name}.{what}", shape, "optimizer", dtype=dtype, persistent=True, of=(name,) if what == "master" else (), shard=shard)

    p, m, v = state("master") if _master(draft) else Ref(name), state("m"), state("v")
    return _adam(draft, Ref(f"{name}.grad"), p, m, v, Ref(name) if _master(draft) else None)


def _sharded_update(draft: Draft, bucket: Bucket) -> list[Op]:
    """Adam on this rank's shard. Below stage 3 the rounded shard is gathered into the parameters; at stage 3 it is what the rank holds."""
    layout, dtype, ops = draft.layout, _state_dtype(draft), list[Op]()
    whole = stays_whole(draft, bucket)
    m, v = (flat_shard(draft, bucket, what, dtype, "optimizer") for what in ("m", "v"))
    g = Ref(f"dp.bucket{bucket.number}.grad")
    low = flat_shard(draft, bucket, "low", layout.precision) if whole else flat_shard(draft, bucket, "parameters", layout.precision, "parameters")
    parameters = tuple(Ref(n) for n in bucket.parameters)
    if stage(layout) >= 2 and bucket.shared:
        ops.append(collective(Label(STEP), "all_reduce", bucket.shared, (g,), (g,), COMPUTE, axis=shared_axis(bucket.shared)))
    if stage(layout) >= 2 and draft.mirrored:
        ops.append(collective(Label(STEP), "all_reduce", MIRROR, (g,), (g,), COMPUTE, axis="pp"))
    if _master(draft):
        ops.append(_adam(draft, g, flat_shard(draft, bucket, "master", dtype, "optimizer"), m, v, low))
    else:
        ops += [step_op(Kernel("flat_slice", parameters, (low,), (), layout.precision))] if whole else []
        ops.append(_adam(draft, g, low, m, v, None))
    return [*ops, collective(Label(STEP), "all_gather", sharing(layout, bucket)[0], (low,), parameters, stream(layout, GATHER), axis="dp")] if whole else ops


def shared_axis(group: str) -> str:
    """The axis that the time of an extra sum counts for."""
    return "tp" if group in ("tp", KV_COPIES) else "pp"


def _adam(draft: Draft, g: Ref, p: Ref, m: Ref, v: Ref, low: Ref | None) -> Compute:
    writes = (p, m, v, *((low,) if low else ()))
    model = draft.plan.model
    if isinstance(model, Fixed):
        return step_op(Kernel("delay", (p, g, m, v), writes, (model.optimizer * _share(draft, p),), draft.layout.precision))
    return step_op(Kernel("adam", (p, g, m, v), writes, (), _state_dtype(draft), _passes(draft)))


def _passes(draft: Draft) -> str:
    """The role of an Adam of several passes: the dtype of its gradients, "scaled" before it where the loss is scaled; none for one pass."""
    layout = draft.layout
    if layout.optimizer.step == "fused" or not _master(draft):
        return ""
    return f"scaled {layout.optimizer.gradient}" if layout.precision == "fp16" else layout.optimizer.gradient


def _share(draft: Draft, p: Ref) -> float:
    """The part of the rank's parameters that updating `p` covers, by elements, or by number where none has any."""
    updated = draft.buffers[p.name].of or (p.name,)
    held = sum(elements(draft, n) for n in draft.parameters)
    return sum(elements(draft, n) for n in updated) / held if held else len(updated) / len(draft.parameters)


def _zero(draft: Draft, names: list[str]) -> Compute:
    """Gradients start the next step at zero."""
    refs = tuple(Ref(n) for n in names)
    if isinstance(draft.plan.model, Fixed):
        return step_op(Kernel("delay", (), refs, (0.0,), draft.layout.precision))
    return step_op(Kernel("zero", (), refs, (), draft.layout.optimizer.gradient))
