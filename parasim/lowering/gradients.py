"""The gradients pass: data parallelism, ZeRO-1 and the optimizer step.

Gradients accumulate over the microbatches of a step; the last backward of a stage becomes a variant body (`B3!`) that launches a bucket's
reduction as soon as its gradients are final (`bucketed`), or everything is reduced after the backward (`flat`). Gradients that need one
more sum (a tied embedding over its holders; replicated weights under sequence parallelism over tp) get it after the backward and are
reduced over dp then. ZeRO-1 (Rajbhandari et al. 2020, arXiv 1910.02054) reduce-scatters a bucket, steps the rank's shard and gathers the
updated parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ..model.spec import Fixed
from ..program.ops import COMPUTE, DTYPE_BYTES, Compute, DType, Kernel, Label, Op, Ref
from ..program.workload import Call
from .draft import Draft, collective

STREAM = "dp.reduce"
GATHER = "dp.gather"
STEP = "S"
LOW_PRECISION = ("bf16", "fp16")


@dataclass(frozen=True)
class Bucket:
    """Parameters whose gradients are reduced together."""

    number: int
    parameters: tuple[str, ...]


def gradients(draft: Draft) -> None:
    """Reduce over dp, then one optimizer call."""
    late = [n for n in draft.parameters if n in draft.shared]
    early = [n for n in draft.parameters if n not in draft.shared]
    buckets = _during_backward(draft, early) if draft.layout.data.mode == "bucketed" else []
    step = _shared_sums(draft, late)
    groups = [late] if draft.layout.data.mode == "bucketed" else [late, early]
    for names in groups:
        if names:
            buckets.append(Bucket(len(buckets), tuple(names)))
            step += _reduction(draft, buckets[-1])
    for bucket in buckets:
        step += _update(draft, bucket)
    step.append(_zero(draft))
    draft.bodies["step"] = step
    draft.calls.append(Call("step"))


def _during_backward(draft: Draft, names: list[str]) -> list[Bucket]:
    """Insert each bucket's reduction into the last backward call of its stage, after the op that completes it."""
    buckets: list[Bucket] = []
    remaining = set(names)
    for stage in draft.stages:
        keys = (f"B{stage.number}", f"W{stage.number}")
        last = max(i for i, c in enumerate(draft.calls) if c.body in keys)
        key = draft.calls[last].body
        body: list[Op] = []
        open_: list[str] = []
        final = {r: i for i, o in enumerate(draft.bodies[key]) for r in o.writes}
        for i, op in enumerate(draft.bodies[key]):
            body.append(op)
            complete = [n for n in (r.name.removesuffix(".grad") for r in op.writes if final[r] == i) if n in remaining]
            remaining.difference_update(complete)
            open_ += complete
            if complete and sum(_gradient_bytes(draft, n) for n in open_) >= draft.layout.data.bucket:
                body += _close(draft, buckets, open_)
        body += _close(draft, buckets, open_)
        draft.bodies[f"{key}!"] = body
        draft.calls[last] = draft.calls[last]._replace(body=f"{key}!")
    return buckets


def _close(draft: Draft, buckets: list[Bucket], names: list[str]) -> list[Op]:
    if not names:
        return []
    buckets.append(Bucket(len(buckets), tuple(names)))
    names.clear()
    return _reduction(draft, buckets[-1])


def _gradient_bytes(draft: Draft, name: str) -> int:
    buffer = draft.buffers[f"{name}.grad"]
    return _elements(draft, name) * DTYPE_BYTES[buffer.dtype]


def _elements(draft: Draft, name: str) -> int:
    return prod(int(n) for n in draft.buffers[name].shape)


def _shared_sums(draft: Draft, late: list[str]) -> list[Op]:
    """One all-reduce per extra group over the gradients that need it."""
    ops: list[Op] = []
    for group in dict.fromkeys(draft.shared[n] for n in late):
        refs = [Ref(f"{n}.grad") for n in late if draft.shared[n] == group]
        axis = group if group == "tp" else "pp"
        ops.append(collective(Label(STEP), "all_reduce", group, refs, refs, COMPUTE, axis=axis))
    return ops


def _reduction(draft: Draft, bucket: Bucket) -> list[Op]:
    """All-reduce in place, or reduce-scatter to this rank's shard under ZeRO-1."""
    degree = draft.layout.degrees.dp
    if degree == 1:
        return []
    refs = [Ref(f"{n}.grad") for n in bucket.parameters]
    label, fence = Label(STEP), (COMPUTE,)
    if not _sharded(draft):
        return [collective(label, "all_reduce", "dp", refs, refs, STREAM, after=fence)]
    shard = _shard(draft, bucket, "grad", draft.layout.optimizer.gradient)
    return [collective(label, "reduce_scatter", "dp", refs, (shard,), STREAM, after=fence)]


def _sharded(draft: Draft) -> bool:
    return draft.layout.zero.stage >= 1 and draft.layout.degrees.dp > 1


def _shard(draft: Draft, bucket: Bucket, what: str, dtype: DType) -> Ref:
    """A flat shard of the padded concatenation of the bucket; only optimizer state lives through the step."""
    size = -(-sum(_elements(draft, n) for n in bucket.parameters) // draft.layout.degrees.dp)
    name = f"dp.bucket{bucket.number}.{what}"
    of = tuple(f"{n}.grad" if what == "grad" else n for n in bucket.parameters)
    state = what in ("master", "m", "v")
    category = "optimizer" if state else "buffers"
    draft.buffer(name, (size,), category, dtype=dtype, persistent=state, of=of, shard=((0, "dp"),))  # type: ignore[arg-type]
    return Ref(name)


def _update(draft: Draft, bucket: Bucket) -> list[Op]:
    return _sharded_update(draft, bucket) if _sharded(draft) else [_whole_update(draft, n) for n in bucket.parameters]


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
    dtype = _state_dtype(draft)
    m, v = _shard(draft, bucket, "m", dtype), _shard(draft, bucket, "v", dtype)
    g = Ref(f"dp.bucket{bucket.number}.grad")
    low = _shard(draft, bucket, "low", draft.layout.precision)
    parameters = tuple(Ref(n) for n in bucket.parameters)
    ops: list[Op] = []
    if _master(draft):
        ops.append(_adam(draft, g, _shard(draft, bucket, "master", dtype), m, v, low))
    else:
        ops.append(_step_op(Kernel("flat_slice", parameters, (low,), (), draft.layout.precision)))
        ops.append(_adam(draft, g, low, m, v, None))
    return [*ops, collective(Label(STEP), "all_gather", "dp", (low,), parameters, GATHER)]


def _step_op(kernel: Kernel) -> Compute:
    return Compute(label=Label(STEP), stream=COMPUTE, kernels=(kernel,))


def _adam(draft: Draft, g: Ref, p: Ref, m: Ref, v: Ref, low: Ref | None) -> Compute:
    writes = (p, m, v, *((low,) if low else ()))
    model = draft.plan.model
    if isinstance(model, Fixed):
        return _step_op(Kernel("delay", (p, g, m, v), writes, (model.optimizer * _share(draft, p),), draft.layout.precision))
    return _step_op(Kernel("adam", (p, g, m, v), writes, (), _state_dtype(draft)))


def _share(draft: Draft, p: Ref) -> float:
    """The part of the rank's parameters that updating `p` covers, by elements, or by number where none has any."""
    updated = draft.buffers[p.name].of or (p.name,)
    held = sum(_elements(draft, n) for n in draft.parameters)
    return sum(_elements(draft, n) for n in updated) / held if held else len(updated) / len(draft.parameters)


def _zero(draft: Draft) -> Compute:
    """Gradients start the next step at zero."""
    refs = tuple(Ref(f"{n}.grad") for n in draft.parameters)
    if isinstance(draft.plan.model, Fixed):
        return _step_op(Kernel("delay", (), refs, (0.0,), draft.layout.precision))
    return _step_op(Kernel("zero", (), refs, (), draft.layout.optimizer.gradient))
