"""Several Workloads that run at once on one network as one Workload: jobs that know nothing of each other share its links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from parasim.program.ops import P2P, Collective, Msg, Op
from parasim.program.workload import IntArray, Program, Workload


def beside(jobs: Sequence[tuple[Workload, Sequence[int]]]) -> Workload:
    """Each job on its own ranks of the whole; names of groups, peers, loads and channels get the job's number in front.

    Ranks must be ascending in each job and together be 0 to world - 1. Loads are put in first, for rows depend on the ranks of a job.
    """
    world = sum(len(ranks) for _, ranks in jobs)
    class_of_rank = np.zeros(world, dtype=np.int64)
    programs: list[Program] = []
    groups: dict[str, IntArray] = {}
    peers: dict[str, IntArray] = {}
    coordinates: dict[str, IntArray] = {}
    loads: dict[str, NDArray[np.float64]] = {}
    for k, (job, ranks) in enumerate(jobs):
        bound, place = job.bound, np.asarray(ranks, dtype=np.int64)
        class_of_rank[place] = bound.class_of_rank + len(programs)
        programs += [_named(program, k) for program in bound.programs]
        groups |= {f"job{k}.{name}": place[table] for name, table in bound.groups.items()}
        peers |= {f"job{k}.{name}": _spread(np.where(peer < 0, -1, place[peer]), place, world) for name, peer in bound.peers.items()}
        loads |= {f"job{k}.{name}": table for name, table in bound.loads.items() if table.ndim == 2}
        for axis, values in bound.coordinates.items():
            coordinates.setdefault(axis, np.zeros(world, dtype=np.int64))[place] = values
    return Workload(tuple(programs), class_of_rank, groups, peers, coordinates, loads)


def _spread(values: IntArray, place: IntArray, world: int) -> IntArray:
    out = np.full(world, -1, dtype=np.int64)
    out[place] = values
    return out


def _named(program: Program, k: int) -> Program:
    def renamed(op: Op) -> Op:
        if isinstance(op, Collective):
            return replace(op, group=f"job{k}.{op.group}", load=f"job{k}.{op.load}" if op.load else "")
        if isinstance(op, P2P):
            sends, recvs = (tuple(Msg(m.buffer, f"job{k}.{m.peer}", f"job{k}.{m.channel}") for m in ends) for ends in (op.sends, op.recvs))
            return replace(op, sends=sends, recvs=recvs)
        return op

    return replace(program, bodies={name: tuple(map(renamed, body)) for name, body in program.bodies.items()})
