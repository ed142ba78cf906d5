"""Gradients of which a rank has a part only, beyond data parallelism: found from how buffers are cut and who holds them, not from how they are summed."""

from __future__ import annotations

from collections.abc import Mapping

from .ops import Buffer, Compute
from .workload import KV_COPIES, KV_HEAD, Program, Workload

TENSOR, PIPELINE, TIED, MIRROR = "tp", "pp", "embedding", "pp.mirror"  # the last: the two pipeline ranks that hold the same stages for different microbatches


def over_tensor(program: Program) -> dict[str, str]:
    """Gradient -> the group over which it is a part: tp for one that is whole on every rank and made of operands that are cut over tp (norms and
    row-parallel biases under sequence parallelism, norms of heads); the ranks with copies for one that is cut by key-value heads."""
    buffers, out = program.buffers, dict[str, str]()
    gradients = {n for n, b in buffers.items() if b.category == "gradients"} | {n for b in buffers.values() if b.category == "gradients" for n in b.of}
    for op in (op for body in program.bodies.values() for op in body if isinstance(op, Compute)):
        for kernel in op.kernels:
            made = [r.name for r in kernel.writes if r.name in gradients and r.name in buffers and not _axes(buffers, r.name) & {TENSOR}]
            if made and any(TENSOR in _axes(buffers, r.name) for r in kernel.reads if r not in kernel.writes):
                out |= {n: KV_COPIES if KV_HEAD in _axes(buffers, n) else TENSOR for n in made}
    return out


def _axes(buffers: Mapping[str, Buffer], name: str) -> set[str]:
    return {axis for _, axis in buffers[name].shard}


def over_pipeline(workload: Workload) -> dict[int, frozenset[str]]:
    """Class -> the gradients of parameters that another pipeline rank holds, too: those of a tied embedding."""
    lines = workload.groups["pp"].tolist() if "pp" in workload.groups else []
    together = {tuple(sorted({int(workload.class_of_rank[rank]) for rank in line})) for line in lines}
    held = [{n for n, b in p.buffers.items() if n.endswith(".grad") and b.category in ("gradients", "gathered") and not _cut(b)} for p in workload.programs]
    out: dict[int, frozenset[str]] = {}
    for row in together:
        for c in row:
            others = set[str]().union(*(held[other] for other in row if other != c))
            out[c] = out.get(c, frozenset()) | (held[c] & others)
    return out


def _cut(buffer: Buffer) -> bool:
    """Has every rank of a pipeline a part of its own?"""
    return any(axis == PIPELINE for _, axis in buffer.shard)


def sums_due(program: Program, total: set[str], shared: frozenset[str], mirrored: bool) -> dict[str, tuple[str, ...]]:
    """Of the gradients `total` that are kept over the step, or their flat shards, those that are summed over further groups, and these; `shared`: by name
    those that another pipeline rank makes a part of, `mirrored`: the rank has a partner that holds all the same."""
    parts = over_tensor(program)
    out: dict[str, tuple[str, ...]] = {}
    for name in total:
        made = program.buffers[name].of or (name,)
        groups = {parts[n] for n in made if n in parts} | ({MIRROR} if mirrored else {TIED} if shared.intersection(made) else set())
        if groups:
            out[name] = tuple(sorted(groups))
    return out
