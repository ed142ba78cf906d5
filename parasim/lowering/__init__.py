"""Lowering: a Plan becomes a Workload. An ordered table of small passes over a Draft; each reads one block of the Layout."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ..config.plan import Plan
from ..errors import InvalidProgram
from ..model.spec import Transformer
from ..parallel.mesh import Mesh
from ..parallel.placement import stage_bounds
from ..parallel.routing import loads
from ..program.checks import verify
from ..program.workload import Workload
from ..schedules import SCHEDULES
from .compute import compute
from .dims import dims
from .draft import Draft, Stage
from .experts import experts
from .gather import gather
from .gradients import gradients
from .offload import offload
from .precision import precision, weight_casts
from .recompute import recompute
from .repeat import twice
from .schedule import schedule
from .shards import stage, steps
from .tensor import tensor
from .transfers import merge, transfers

PASSES = (
    compute,  # model, stages: bodies of kernels, whole shapes
    tensor,  # tensor: cuts, collectives at kernel roles
    experts,  # experts: over ep, with rows that routing decides
    precision,  # linear: scaled copies for the products of linear layers
    recompute,  # recompute: the forward again in the backward
    schedule,  # pipeline.schedule: actions become calls
    weight_casts,  # linear: once a step
    gradients,  # data, zero: buckets in the last backward, the optimizer step
    offload,  # offload: copies to and from the host, its optimizer steps
    transfers,  # pipeline.comm: messages
    gather,  # zero 3: whole layers before their use
    twice,  # zero: two steps where the parameter gather lies under the next forward
    merge,  # neighbours with one label become one op
    dims,  # kernel dims from local shapes
)


def lower(plan: Plan, *, check: bool = True) -> Workload:
    """The Workload of a Plan: one Program per rank class (here a pipeline rank), verified. Raises InvalidProgram when `verify` objects."""
    layout = plan.layout
    mesh = Mesh(layout.degrees)
    pp, m = layout.degrees.pp, layout.batch.microbatches
    bounds = stage_bounds(layout.pipeline.layers)
    placement = SCHEDULES[layout.pipeline.schedule].placement
    ranks_of_stage = tuple(placement.rank(s, 0, pp, m) for s in range(len(bounds)))
    programs = []
    for rank in range(pp):
        draft = Draft(plan, rank, [Stage(s, *b) for s, b in enumerate(bounds) if ranks_of_stage[s] == rank], ranks_of_stage)
        for work in PASSES:
            work(draft)
        programs.append(draft.program())
    groups = {axis: mesh.groups(axis) for axis in ("tp", "dp", "pp") if getattr(layout.degrees, axis) > 1}
    if stage(layout) and layout.zero.shard < layout.degrees.dp:
        groups |= mesh.halves(layout.zero.shard)
    sparse = plan.model.experts if isinstance(plan.model, Transformer) else None
    groups |= {name: table for name, table in mesh.experts.items() if table.shape[1] > 1} if sparse and layout.degrees.ep > 1 else {}
    if ranks_of_stage[0] != ranks_of_stage[-1]:
        groups["embedding"] = mesh.groups("pp")[:, [ranks_of_stage[0], ranks_of_stage[-1]]]
    hops = {b - a for a, b in pairwise(ranks_of_stage)} - {0}
    peers = {f"pp{offset:+d}": mesh.peer("pp", offset) for offset in sorted({*hops, *(-h for h in hops)})}
    workload = Workload(
        programs=tuple(programs),
        class_of_rank=np.asarray(mesh.coordinates["pp"]),
        groups=groups,
        peers=peers,
        coordinates={**mesh.coordinates, "ep": mesh.expert_coordinate} if sparse else mesh.coordinates,
        loads=loads(layout, sparse) if sparse else {},
        steps=steps(layout),
    )
    violations = verify(workload) if check else ()
    if violations:
        raise InvalidProgram(violations)
    return workload


__all__ = ["lower"]
