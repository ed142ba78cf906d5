"""The gradients pass: where gradients are reduced over dp, then the optimizer step.

Below ZeRO-2 gradients accumulate over the microbatches and are reduced once: in the call where they become final (a variant body, `B3!`), as
soon as a bucket is complete, or after the backward (`flat`, `naive`). Gradients that need one more sum (a tied embedding over its holders;
replicated weights under sequence parallelism over tp) get it after the backward and are reduced over dp then. From ZeRO-2 on a gradient lives
for one microbatch: every body that completes a bucket reduces it and adds to the shard; the one more sum is taken of shards.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..program.ops import COMPUTE, Compute, Kernel, Label, Op, Ref, replace
from ..program.workload import Call
from .buckets import Filling, finals, last_calls, spread
from .draft import Draft, Gathered, collective
from .optimizer import shared_axis, update
from .shards import STEP, Bucket, flat_shard, reduction, shared_out, sharing, stage, stays_whole, unshared

OVERLAPPED = ("bucketed", "per-parameter")


def gradients(draft: Draft) -> None:
    """Reduce over dp, then one optimizer call."""
    filling = Filling(draft)
    if stage(draft.layout) >= 2:
        _every_microbatch(draft, filling)
        ops = update(draft, filling.buckets)
        if stage(draft.layout) == 3:
            _scatter(draft, filling.buckets)
    else:
        ops = _once(draft, filling) + update(draft, filling.buckets)
    draft.bodies["step"] = ops
    draft.calls.append(Call("step"))


# ---- once per step


def _once(draft: Draft, filling: Filling) -> list[Op]:
    """Reductions inside the last calls, where they overlap; returns those after the backward."""
    late = [n for n in draft.parameters if n in draft.shared]
    if draft.layout.data.mode in OVERLAPPED:
        for number, final in last_calls(draft).items():
            final = [(at, n) for at, n in final if n not in draft.shared]
            key = draft.calls[number].body
            filling.fill(n for _, n in final)
            draft.bodies[f"{key}!"] = _with_reductions(draft, key, {n: at for at, n in final}, filling)
            draft.calls[number] = draft.calls[number]._replace(body=f"{key}!")
    ops = _shared_sums(draft, late)
    early = [n for n in draft.parameters if n not in draft.shared]
    for names in (late, [n for n in early if not spread(draft, n)], [n for n in early if spread(draft, n)]):
        rest = [n for n in names if n not in filling.of]
        parts = [[n] for n in rest] if draft.layout.data.mode == "naive" else [rest] if rest else []
        ops += [op for part in parts for op in reduction(draft, filling.add(part))]
    return ops


def _shared_sums(draft: Draft, late: list[str]) -> list[Op]:
    """One all-reduce per extra group over the gradients that need it."""
    ops: list[Op] = []
    for group in dict.fromkeys(draft.shared[n] for n in late):
        refs = [Ref(f"{n}.grad") for n in late if draft.shared[n] == group]
        ops.append(collective(Label(STEP), "all_reduce", group, refs, refs, COMPUTE, axis=shared_axis(group)))
    return ops


def _with_reductions(draft: Draft, key: str, final: dict[str, int], filling: Filling, *, late: bool = False) -> list[Op]:
    """Body `key` with the reduction of each bucket after the op that completes it, or `late` at its end; strictly in the buckets' order."""
    body = draft.bodies[key]
    due: dict[int, list[Bucket]] = {}
    at = 0
    for bucket in sorted({filling.of[n] for n in final}, key=lambda b: b.number):
        at = len(body) - 1 if late else max(at, *(final[n] for n in bucket.parameters))
        due.setdefault(at, []).append(bucket)
    return [new for i, op in enumerate(body) for new in (op, *(r for b in due.get(i, ()) for r in reduction(draft, b)))]


# ---- once per microbatch


def _every_microbatch(draft: Draft, filling: Filling) -> None:
    """Gradients of one microbatch, reduced in the body that completes them."""
    shared = [n for n in draft.parameters if not unshared(draft, n)]
    keys = [k for k in dict.fromkeys(c.body for c in draft.calls) if finals(draft, k)]
    late = draft.layout.data.mode not in OVERLAPPED
    found = {key: {n: at for at, n in finals(draft, key) if n in shared} for key in keys}
    for key in keys:
        draft.bodies[key] = _fresh(draft.bodies[key], {f"{n}.grad" for n in shared})
        filling.fill(found[key])
        draft.bodies[key] = _with_reductions(draft, key, found[key], filling, late=late)
    for name in shared:
        buffer = draft.buffers[f"{name}.grad"]
        draft.buffers[buffer.name] = replace(buffer, persistent=False, category="gathered")
    for name in draft.parameters:
        if name not in shared:
            filling.add([name])


def _fresh(body: list[Op], names: set[str]) -> list[Op]:
    """The body writing the gradients `names` of its microbatch: the first write of each does not add to what was there."""
    begun, out = set[str](), list[Op]()
    for op in body:
        if isinstance(op, Compute) and names.intersection(r.name for r in op.writes):
            op = replace(op, kernels=tuple(_of_microbatch(k, names, begun) for k in op.kernels))
        out.append(op)
    return out


def _of_microbatch(kernel: Kernel, names: set[str], begun: set[str]) -> Kernel:
    def own(refs: Iterable[Ref]) -> tuple[Ref, ...]:
        return tuple(Ref(r.name, 0) if r.name in names else r for r in refs)

    reads = own(r for r in kernel.reads if r.name not in names or r.name in begun)
    begun |= {r.name for r in kernel.writes if r.name in names}
    return replace(kernel, reads=reads, writes=own(kernel.writes))


def _scatter(draft: Draft, buckets: list[Bucket]) -> None:
    """ZeRO-3: a rank holds flat shards; the whole parameters live where they are gathered, but for those that stay whole."""
    for bucket in (b for b in buckets if shared_out(draft.layout, b) and not stays_whole(draft, b)):
        shard = flat_shard(draft, bucket, "parameters", draft.layout.precision, "parameters")
        for name in bucket.parameters:
            draft.buffers[name] = replace(draft.buffers[name], persistent=False, category="gathered")
            draft.shards[name] = Gathered(shard, tuple(Ref(n) for n in bucket.parameters), bucket.kind, sharing(draft.layout, bucket)[0])
