"""Lowering: a Plan becomes a Workload. An ordered table of small passes over a Draft; each reads one block of the Layout."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ..collecting import uncollected
from ..config.plan import Plan
from ..model.spec import Transformer
from ..parallel.heads import copies_groups, head_coordinate, kv_copies
from ..parallel.mesh import Mesh
from ..parallel.placement import orders_of, placement_of, stage_bounds
from ..parallel.routing import loads
from ..program.checks import require_sound
from ..program.workload import KV_COPIES, KV_HEAD, ZIGZAG, IntArray, Workload
from .compute import compute
from .context import NEXT, PREVIOUS, context
from .dims import dims
from .draft import MIRROR, TIED, Draft, Stage
from .experts import experts
from .gather import gather
from .gradients import gradients
from .messages import route
from .offload import offload
from .pairs import pairs
from .post_validation import post_validation
from .precision import precision, weight_casts
from .recompute import recompute
from .repeat import twice
from .schedule import schedule
from .shards import replicas, stage
from .tensor import tensor
from .transfers import merge, transfers
from .vocabulary import vocabulary, vocabulary_calls

PASSES = (
    schedule,  # pipeline.schedule: actions become calls
    compute,  # model, stages: bodies of kernels, whole shapes
    tensor,  # tensor: cuts, collectives at kernel roles
    vocabulary,  # pipeline.vocabulary: what passes between the ranks of pp that share it
    experts,  # experts: over ep, with rows that routing decides
    context,  # context: what attention needs of other parts of the sequence
    precision,  # linear: scaled copies for the products of linear layers
    recompute,  # recompute: the forward again in the backward
    vocabulary_calls,  # pipeline.vocabulary: when its passes run
    weight_casts,  # linear: once a step
    gradients,  # data, zero: buckets in the last backward, the optimizer step
    pairs,  # pipeline.schedule: overlapped forwards and backwards become one body
    post_validation,  # pipeline.optimizer: a second step, the norm along the pipeline
    offload,  # offload: copies to and from the host, its optimizer steps
    transfers,  # pipeline.comm: messages
    gather,  # zero 3: whole layers before their use
    twice,  # zero: two steps where the parameter gather lies under the next forward
    merge,  # neighbours with one label become one op
    dims,  # kernel dims from local shapes
)


@uncollected()
def lower(plan: Plan, *, check: bool = True) -> Workload:
    """The Workload of a Plan: one Program per rank class (here a pipeline rank), verified. Raises InvalidProgram when `verify` objects."""
    layout = plan.layout
    mesh = Mesh(layout.degrees)
    pp, m = layout.degrees.pp, layout.batch.microbatches
    bounds = stage_bounds(layout.pipeline.layers)
    placement = placement_of(layout)
    homes = [tuple(placement.rank(s, i, pp, m) for s in range(len(bounds))) for i in (0, m - 1)]  # of the first and the last microbatch
    way = route(orders_of(layout), layout.pipeline.comm)
    programs = []
    for rank in range(pp):
        held = [Stage(s, *b) for s, b in enumerate(bounds) if rank in (home[s] for home in homes)]
        draft = Draft(plan, rank, held, homes[0], placement, way)
        for work in PASSES:
            work(draft)
        programs.append(draft.program())
    groups = {axis: mesh.groups(axis) for axis in ("tp", "cp", "pp") if getattr(layout.degrees, axis) > 1}
    groups |= {replicas(layout): mesh.replicas} if layout.degrees.replicas > 1 else {}
    if stage(layout) and layout.zero.shard < layout.degrees.replicas:
        groups |= mesh.halves(layout.zero.shard)
    sparse = plan.model.experts if isinstance(plan.model, Transformer) else None
    groups |= {name: table for name, table in mesh.experts.items() if table.shape[1] > 1} if sparse and layout.degrees.ep > 1 else {}
    groups |= shared_groups(mesh, homes)
    copies = kv_copies(plan.model, layout)
    groups |= {KV_COPIES: copies_groups(mesh, copies)} if copies > 1 else {}
    hops = {b - a for home in homes for a, b in pairwise(home)} - {0}
    peers = {f"pp{offset:+d}": mesh.peer("pp", offset) for offset in sorted({*hops, *(-h for h in hops)})}
    ring = layout.degrees.cp > 1 and layout.context.style == "ring"
    peers |= {name: mesh.peer("cp", offset) for name, offset in ((NEXT, 1), (PREVIOUS, -1))} if ring else {}
    workload = Workload(
        programs=tuple(programs),
        class_of_rank=np.asarray(mesh.coordinates["pp"]),
        groups=groups,
        peers=peers,
        coordinates={
            **mesh.coordinates,
            **({"ep": mesh.expert_coordinate} if sparse else {}),
            **({KV_HEAD: head_coordinate(mesh, copies)} if copies > 1 else {}),
            **({ZIGZAG: mesh.coordinates["cp"]} if ring else {}),
        },
        loads=loads(layout, sparse) if sparse else {},
        steps=1 + max(call.step for program in programs for call in program.calls),
    )
    if check:
        require_sound(workload)
    return workload


def shared_groups(mesh: Mesh, homes: Sequence[Sequence[int]]) -> dict[str, IntArray]:
    """Groups of pipeline ranks that hold the same parameters: both ends for a tied embedding, and where every stage is on two ranks those two.

    `homes` are the ranks of the stages for the first and for the last microbatch.
    """
    ranks, (down, up) = mesh.groups("pp"), homes
    if down == up:
        return {TIED: ranks[:, [down[0], down[-1]]]} if down[0] != down[-1] else {}
    holders = sorted({tuple(sorted(two)) for two in zip(down, up, strict=True)})
    return {MIRROR: np.concatenate([ranks[:, list(two)] for two in holders])}


__all__ = ["lower"]
