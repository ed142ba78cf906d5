"""Vocabulary parallelism over the pipeline (Yeung et al. 2024, arXiv 2411.05288): embedding, head and loss cut by tokens over all ranks of pp.

Four passes of every microbatch that all ranks run together, beside the stages of the schedule:

    look up    rows of this part of the embedding, summed on the first rank               before the first stage's forward
    logits     the last hidden states from the last rank, times this part of the head     after the last stage's forward
    loss       with the row statistics of all parts; the input gradient summed on the     before the last stage's backward
               last rank; the gradient of this part of the head
    scatter    the gradient of the first input from the first rank, into this part        after the first stage's backward

This is their Algorithm 1: two meetings of all ranks between the last forward and its backward, for which two more microbatches are in flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ..model.layers import head_flops, layer_attention_flops, layer_matmul_flops
from ..model.spec import Transformer
from ..parallel.placement import PASSES_AHEAD
from ..program.ops import Collective, CollectiveOp, Compute, Kernel, Label, Op, Ref, replace
from ..program.workload import Call
from ..schedules import ScheduleInput, singles
from ..schedules.one_f_one_b import one_f_one_b
from .draft import PIPELINE, Draft, Stage, collective, grad, relabel
from .loss import READS_STATISTICS
from .transformer import TransformerWriter

LOOK_UP, LOGITS, LOSS, SCATTER = "vocabulary.look_up", "vocabulary.logits", "vocabulary.loss", "vocabulary.scatter"
STREAM = "pp.{}"  # of each pass, by what it moves: their orders among each other may differ between ranks
ALL_STATISTICS = "loss.stats.all"


def apart(draft: Draft, model: Transformer) -> None:
    """The bodies of the four passes on this rank, whole over tp and without what passes between the ranks."""
    first, last = (TransformerWriter(draft, model, Stage(number, 0, 0)) for number in (0, draft.total_stages - 1))
    part, dpart = _embedded(draft, first)
    backward = first.lookup(part, dpart, model.positions == "learned" and draft.rank == 0)
    draft.bodies[LOOK_UP], draft.bodies[SCATTER] = first.forward, [relabel(o, "B") for o in backward]
    x, at_end = last.hidden("head.input"), draft.rank == draft.layout.degrees.pp - 1
    backward = last.output(Ref("final_norm.out", 0) if at_end else x, grad(x))
    told = next(i for i, o in enumerate(last.forward) if _kernel(o).name == "cross_entropy_stats") + 1
    rest = [o for o in last.forward[told:] if at_end or _kernel(o).name != "cross_entropy"]
    draft.bodies[LOGITS], draft.bodies[LOSS] = last.forward[:told], [relabel(o, "B") for o in (*rest, *backward)]


def _embedded(draft: Draft, writer: TransformerWriter) -> tuple[Ref, Ref]:
    """This rank's part of the sum that is the embedding's output, and the gradient of that output."""
    part = writer.hidden("embedding.part")
    return part, grad(_input(draft) if draft.rank == 0 else part)


def _input(draft: Draft) -> Ref:
    """What the first stage begins with."""
    return Ref("embedding.out" if draft.layout.kernels.dropout else "L0.input", 0)


def _kernel(op: Op) -> Kernel:
    assert isinstance(op, Compute)
    return op.kernels[0]


def vocabulary(draft: Draft) -> None:
    """What the ranks of pp tell each other before and after the ops of the passes."""
    if LOGITS not in draft.bodies:
        return
    last = draft.layout.degrees.pp - 1
    x, part = Ref("head.input", 0), Ref("embedding.part", 0)
    source, target = (Ref("final_norm.out", 0), grad(Ref("final_norm.out", 0))) if draft.rank == last else (None, None)
    bodies = draft.bodies
    bodies[LOOK_UP].append(_summed(bodies[LOOK_UP], part, _input(draft) if draft.rank == 0 else None, 0, "embedding"))
    bodies[SCATTER].insert(0, _spread(bodies[SCATTER], grad(_input(draft)) if draft.rank == 0 else None, grad(part), 0, "embedding.grad"))
    bodies[LOGITS].insert(0, _spread(bodies[LOGITS], source, x, last, "head"))
    bodies[LOGITS].append(_statistics(draft))
    bodies[LOSS] = list(_with_sum(draft, grad(x), target, last))


def _spread(body: list[Op], source: Ref | None, copy: Ref, root: int, stream: str) -> Op:
    """A broadcast of `source`, which the root alone has, to `copy` on the other ranks."""
    return _over_pipeline(body[0].label, "broadcast", (source,) if source else (), () if source else (copy,), stream, root=root)


def _summed(body: list[Op], part: Ref, total: Ref | None, root: int, stream: str) -> Op:
    """The sum of all `part`s as `total`, which the root alone has."""
    return _over_pipeline(body[-1].label, "reduce", (part,), (total,) if total else (), stream, root=root)


def _statistics(draft: Draft) -> Op:
    """Row statistics of every part of the vocabulary, from those over tp."""
    body = draft.bodies[LOGITS]
    mine = body[-1].writes[0]
    buffer = draft.buffers[mine.name]
    shape = (int(buffer.shape[0]) * draft.layout.degrees.pp, *map(int, buffer.shape[1:]))
    everyone = draft.buffer(ALL_STATISTICS, shape, "buffers", dtype=buffer.dtype)
    return _over_pipeline(body[-1].label, "all_gather", (mine,), (everyone,), "stats", dim=0)


def _with_sum(draft: Draft, part: Ref, total: Ref | None, root: int) -> Iterator[Op]:
    """The body of the loss on the statistics of all parts; its input gradient is summed as soon as it is there."""
    body = draft.bodies[LOSS]
    made = max(i for i, op in enumerate(body) if part in op.writes)
    for i, op in enumerate(body):
        yield _informed(op)
        if i == made:
            yield _summed(body[: i + 1], part, total, root, "head.grad")


def _informed(op: Op) -> Op:
    if not isinstance(op, Compute):
        return op
    everyone = Ref(ALL_STATISTICS, 0)
    return replace(op, kernels=tuple(replace(k, reads=(*k.reads[:-1], everyone)) if k.name in READS_STATISTICS else k for k in op.kernels))


def _over_pipeline(
    label: Label, op: CollectiveOp, reads: tuple[Ref, ...], writes: tuple[Ref, ...], stream: str, *, root: int = 0, dim: int | None = None
) -> Collective:
    return replace(collective(label, op, PIPELINE, reads, writes, STREAM.format(stream), dim=dim), root=root)


def vocabulary_calls(draft: Draft) -> None:
    """The passes among the calls of the schedule."""
    if LOGITS in draft.bodies:
        model, layout = draft.plan.model, draft.layout
        tokens, stages = layout.batch.micro * layout.batch.sequence, layout.pipeline.layers
        layer = layer_matmul_flops(model, tokens) + layer_attention_flops(model, tokens, layout.batch.sequence, causal=True)
        forwards = tuple(n * layer for n in stages)
        rows = planned(forwards, head_flops(model, tokens) / len(stages), layout.batch.microbatches)
        draft.calls = [Call(f"{name}{draft.rank}" if name in "FB" else name, (i,)) for name, i in rows[draft.rank]]


@lru_cache(maxsize=4)
def planned(forwards: tuple[float, ...], logits: float, microbatches: int) -> tuple[tuple[tuple[str, int], ...], ...]:
    """(F, B or body of a pass, microbatch) of every rank, in order: what a run makes of them in which each rank does whatever it can do first.

    `forwards`: work of a forward on each rank, a backward is twice that; `logits` of one pass, its loss twice that; messages and look-ups cost nothing.
    At one time passes come first, the later ones before the earlier. Each rank alternates F and B as 1F1B does. A look-up runs once the forward of the
    microbatch before it has begun. Since it is the record of a run, no ranks wait in a circle.
    """
    run = _Run(forwards, logits, microbatches)
    while run.step():
        pass
    return tuple(tuple(done) for done in run.done)


class _Run:
    """Of planned: per rank when it is free, what it has done, and how far its list and each pass are."""

    def __init__(self, forwards: tuple[float, ...], logits: float, microbatches: int) -> None:
        self.ranks, self.m = len(forwards), microbatches
        given = ScheduleInput(self.ranks, microbatches)
        self.lists = [list(singles(order)) for order in one_f_one_b(given, ahead=PASSES_AHEAD).values()]
        self.cost = [{"F": f, "B": 2 * f, LOOK_UP: 0.0, SCATTER: 0.0, LOGITS: logits, LOSS: 2 * logits} for f in forwards]
        self.free = [0.0] * self.ranks
        self.done: list[list[tuple[str, int]]] = [[] for _ in forwards]
        self.at = [dict.fromkeys((SCATTER, LOOK_UP, LOSS, LOGITS, "FB"), 0) for _ in forwards]
        self.ended: dict[tuple[str, int, int], float] = {}  # kind, microbatch, rank; of a pass also with rank -1 when all ranks have done it
        self.left: dict[tuple[str, int], int] = {}
        self.next = [min(self._candidates(rank), default=None) for rank in range(self.ranks)]

    def step(self) -> bool:
        """The next thing that any rank can do, if there is one."""
        best = min((c for c in self.next if c is not None), default=None)
        if best is None:
            return False
        start, _, rank, kind, i, name = best
        self.free[rank] = self.ended[name, i, rank] = start + self.cost[rank][name]
        self.done[rank].append((name, i))
        self.at[rank][kind] += 1
        left = self.left[name, i] = self.left.get((name, i), self.ranks) - 1
        if not left:
            self.ended[name, i, -1] = max(self.ended[name, i, r] for r in range(self.ranks))
        if name == "F" and rank == 0:
            self.ended["begun", i, 0] = start
        alone = left and (name, rank) not in (("F", 0), ("F", self.ranks - 1), ("B", 0))  # else all ranks may have something new to do
        for other in range(max(rank - 1, 0), min(rank + 2, self.ranks)) if alone else range(self.ranks):
            self.next[other] = min(self._candidates(other), default=None)
        return True

    def _candidates(self, rank: int) -> Iterator[tuple[float, int, int, str, int, str]]:
        for order, (kind, at) in enumerate(self.at[rank].items()):
            if at < (len(self.lists[rank]) if kind == "FB" else self.m):
                name, _, i = self.lists[rank][at] if kind == "FB" else (kind, 0, at)
                ready = self._ready(name, i, rank)
                if ready is not None:
                    yield max(ready, self.free[rank]), order, rank, kind, i, name

    def _ready(self, name: str, i: int, rank: int) -> float | None:
        last = self.ranks - 1
        needs = {
            "F": ("F", i, rank - 1) if rank else (LOOK_UP, i, -1),
            "B": ("B", i, rank + 1) if rank < last else (LOSS, i, -1),
            LOOK_UP: ("begun", i - 1, 0),
            LOGITS: ("F", i, last),
            LOSS: (LOGITS, i, -1),
            SCATTER: ("B", i, 0),
        }
        return self.ended.get(needs[name]) if needs[name][1] >= 0 else 0.0
