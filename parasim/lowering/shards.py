"""Who shares a gradient, and the flat shards they hold: the groups over dp (and cp), the padded shards of a bucket, one bucket's reduction.

Stages as in ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054): optimizer state (1), gradients too (2), parameters too (3). With a shard group
smaller than dp (HSDP; Zhao et al. 2023, arXiv 2304.11277, section 3.2.2) shards are summed over the replicas of the group as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from ..model.spec import Fixed
from ..parallel.layout import Layout
from ..parallel.mesh import EXPERT_REPLICAS, REPLICA, REPLICAS, SHARD
from ..program.ops import COMPUTE, Category, Compute, DType, Kernel, Label, Op, Ref, replace
from ..program.sums import LIST
from .draft import MIRROR, Draft, collective

STEP = "S"
REDUCE, SUMS, GATHER, MIRRORS = "dp.reduce", "dp.replica", "dp.gather", "pp.reduce"  # streams


@dataclass(frozen=True)
class Bucket:
    """Parameters whose gradients are reduced together; `shared` names the group of one more sum that they need, if any. `experts`: they are spread
    over ep, and replicas are only the ranks at the same place of theirs."""

    number: int
    parameters: tuple[str, ...]
    shared: str = ""
    experts: bool = False

    @property
    def kind(self) -> str:
        """What it is gathered with at the same time as others at most `limit` times under ZeRO-3: windows are per kind."""
        return "experts" if self.experts else self.shared

    @property
    def gradients(self) -> tuple[str, ...]:
        """The buffers of their gradients."""
        return tuple(f"{n}.grad" for n in self.parameters)


def stage(layout: Layout) -> int:
    """The ZeRO stage that is in effect: 0 where nobody shares."""
    return layout.zero.stage if layout.degrees.replicas > 1 and layout.zero.shard > 1 else 0


def steps(layout: Layout) -> int:
    """Steps of the Workload: two where parameters are gathered under the next forward."""
    return 2 if stage(layout) in (1, 2) and layout.zero.overlap_gather else 1


def shard_group(layout: Layout) -> str:
    """The group that shares: all replicas, or a part of them."""
    return replicas(layout) if layout.zero.shard == layout.degrees.replicas else SHARD


def replicas(layout: Layout) -> str:
    """The group of ranks that hold the same dense parameters: along dp, and along cp where there is one."""
    return REPLICAS if layout.degrees.cp > 1 else "dp"


def sharing(layout: Layout, bucket: Bucket) -> tuple[str, int]:
    """The group that shares a bucket, and its size."""
    degrees = layout.degrees
    return (EXPERT_REPLICAS, degrees.replicas // degrees.ep) if bucket.experts else (shard_group(layout), layout.zero.shard)


def shared_out(layout: Layout, bucket: Bucket) -> bool:
    """Does ZeRO share out this bucket?"""
    return stage(layout) > 0 and sharing(layout, bucket)[1] > 1


def by_parameter(layout: Layout) -> bool:
    """Is every parameter gathered by itself, and its gradient reduced so, in a list of slices?"""
    return stage(layout) == 3 and layout.zero.gather == "parameter"


def stays_whole(draft: Draft, bucket: Bucket) -> bool:
    """Are the parameters of a bucket kept whole, and gathered after the optimizer? Below stage 3, and small ones that are gathered by themselves."""
    return stage(draft.layout) < 3 or (by_parameter(draft.layout) and sum(elements(draft, n) for n in bucket.parameters) < draft.layout.zero.keep_below)


def listed(draft: Draft, ref: Ref) -> Ref:
    """A buffer as large as `ref` that torch's collectives of lists move; its slices are copied from or to `ref` one by one."""
    name = ref.name + LIST
    draft.buffers.setdefault(name, replace(draft.buffers[ref.name], name=name, persistent=False, category="gathered", of=(ref.name,)))
    return Ref(name, 0)


def list_slices(draft: Draft) -> Compute:
    """The host makes a list of one slice per rank, or launches one copy per slice; it has waited for the device, which gets no other work meanwhile."""
    if isinstance(draft.plan.model, Fixed):
        return Compute(label=Label("G"), stream=COMPUTE, kernels=(Kernel("delay", (), (), (0.0,), draft.layout.precision),))
    return Compute(label=Label("G"), stream=COMPUTE, kernels=(Kernel("list_slices", (), (), (draft.layout.zero.shard,), draft.layout.precision),))


def copy_slices(draft: Draft, pairs: Iterable[tuple[Ref, Ref]], where: str, *, after: tuple[str, ...] = (), window: str = "") -> Compute:
    """Copies from the first to the second of each pair, slice by slice."""
    if isinstance(draft.plan.model, Fixed):
        kernels = tuple(Kernel("delay", (a,), (b,), (0.0,), draft.layout.precision) for a, b in pairs)
    else:
        kernels = tuple(Kernel("copy_slices", (a,), (b,), (draft.layout.zero.shard,), draft.buffers[a.name].dtype) for a, b in pairs)
    return Compute(label=Label("G"), stream=where, after=after, window=window, kernels=kernels)


def unshared(draft: Draft, name: str) -> bool:
    """Does no other rank hold this parameter, so that ZeRO leaves it whole? Experts where ep takes all replicas."""
    layout = draft.layout
    return name in draft.experts and stage(layout) > 0 and layout.degrees.ep > 1 and layout.degrees.ep == layout.degrees.replicas


def stream(layout: Layout, name: str) -> str:
    """`name`, or the compute stream where collectives of ZeRO do not overlap. A parameter by itself is gathered `prefetch` ahead all the same, as
    DeepSpeed's overlap_comm is about its reductions."""
    return COMPUTE if stage(layout) and not layout.zero.overlap and not (by_parameter(layout) and name == GATHER) else name


def elements(draft: Draft, name: str) -> int:
    """Elements of a buffer on this rank."""
    return prod(int(n) for n in draft.buffers[name].shape)


def flat_shard(draft: Draft, bucket: Bucket, what: str, dtype: DType, category: Category = "buffers") -> Ref:
    """A flat shard of the padded concatenation of the bucket's parameters or gradients; `buffers` are transient, anything else is persistent."""
    group, degree = sharing(draft.layout, bucket)
    size = -(-sum(elements(draft, n) for n in bucket.parameters) // degree)
    name = f"dp.bucket{bucket.number}.{what}"
    of = bucket.gradients if what in ("grad", "part") else bucket.parameters
    draft.buffer(name, (size,), category, dtype=dtype, persistent=category != "buffers", of=of, shard=((0, group),))
    return Ref(name, 0 if what == "part" else -1)


def step_op(kernel: Kernel, where: str = COMPUTE) -> Compute:
    """One kernel of the optimizer phase."""
    return Compute(label=Label(STEP), stream=where, kernels=(kernel,))


def reduction(draft: Draft, bucket: Bucket) -> list[Op]:
    """Sum the gradients of a bucket over dp: in place, or into this rank's shard; from stage 2 on each microbatch adds to the shard.

    Where every stage is on two ranks, the sum over both comes first; from stage 2 on it is taken of the shard, once, before Adam.
    """
    layout, at = draft.layout, stage(draft.layout)
    slot = 0 if at >= 2 else -1
    refs = tuple(Ref(n, slot) for n in bucket.gradients)
    where, label = stream(layout, REDUCE), Label(STEP)
    after = () if where == COMPUTE else (COMPUTE,)
    both: list[Op] = [collective(label, "all_reduce", MIRROR, refs, refs, MIRRORS, after=(COMPUTE,), axis="pp")] if draft.mirrored and at < 2 else []
    if layout.degrees.replicas == 1 or (bucket.experts and sharing(layout, bucket)[1] == 1):
        return both
    if not at:
        return [*both, collective(label, "all_reduce", EXPERT_REPLICAS if bucket.experts else replicas(layout), refs, refs, where, after=after, axis="dp")]
    dtype = layout.optimizer.gradient
    shard = flat_shard(draft, bucket, "part" if at >= 2 else "grad", dtype)
    ops = [*both]
    if by_parameter(layout):
        slices = tuple(listed(draft, ref) for ref in refs)
        ops += [list_slices(draft), copy_slices(draft, zip(refs, slices, strict=True), where, after=after)]
        refs = slices
    ops.append(collective(label, "reduce_scatter", sharing(layout, bucket)[0], refs, (shard,), where, after=after, axis="dp"))
    if layout.zero.shard < layout.degrees.replicas and not bucket.experts:
        where = stream(layout, SUMS)
        ops.append(collective(label, "all_reduce", REPLICA, (shard,), (shard,), where, axis="dp"))
    if at >= 2:
        total = flat_shard(draft, bucket, "grad", dtype, "gradients")
        ops.append(step_op(_sum(draft, total, shard), where))
    return ops


def _sum(draft: Draft, total: Ref, part: Ref) -> Kernel:
    if isinstance(draft.plan.model, Fixed):
        return Kernel("delay", (total, part), (total,), (0.0,), draft.layout.precision)
    return Kernel("accumulate", (total, part), (total,), (), draft.layout.optimizer.gradient)
