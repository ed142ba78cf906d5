"""Names that a Workload must resolve: classes of ranks, groups, peers. Everything else in `checks` relies on them."""

from __future__ import annotations

import numpy as np

from ..errors import Violation
from .ops import P2P, Collective
from .text import describe
from .workload import IntArray, Workload


def unresolved(workload: Workload) -> list[Violation]:
    """A violation per class without a Program, per group, peers array or load table that is missing, and per rank that is in no group or has no peer."""
    found: list[Violation] = []
    classes, first = np.unique(workload.class_of_rank, return_index=True)
    for c in classes[np.argsort(first)].tolist():
        members = np.flatnonzero(workload.class_of_rank == c)
        if not 0 <= c < len(workload.programs):
            found.append(Violation(f"rank {members[0]}", f"class {c}", f"has no Program; there are {len(workload.programs)}"))
            continue
        asked: dict[tuple[str, str], str] = {}
        for body in workload.programs[c].bodies.values():
            for op in body:
                names = [("group", op.group)] if isinstance(op, Collective) else []
                found += _wrong_load(workload, c, op) if isinstance(op, Collective) and op.load else []
                names += [("peers", m.peer) for m in (*op.sends, *op.recvs)] if isinstance(op, P2P) else []
                asked |= {name: describe(op) for name in names if name not in asked}
        for (kind, name), text in asked.items():
            missing = _outside_group(workload, name, members) if kind == "group" else _without_peer(workload, name, members)
            found += [Violation(f"class {c}", text, f"names {kind} {name}, {missing}")] if missing else []
    return found


def _outside_group(workload: Workload, name: str, ranks: IntArray) -> str:
    if name not in workload.groups:
        return f"which the Workload does not have; known: {', '.join(workload.groups) or 'none'}"
    left = ranks[~np.isin(ranks, workload.groups[name])]
    return f"which does not hold rank {left[0]}" if len(left) else ""


def _without_peer(workload: Workload, name: str, ranks: IntArray) -> str:
    if name not in workload.peers:
        return f"which the Workload does not have; known: {', '.join(workload.peers) or 'none'}"
    peers = workload.peers[name]
    left = ranks[(peers[ranks] < 0) | (peers[ranks] >= workload.world)]
    return f"where the peer of rank {left[0]} is {peers[left[0]]}: none of 0 to {workload.world - 1}" if len(left) else ""


def _wrong_load(workload: Workload, c: int, op: Collective) -> list[Violation]:
    """A load table is n x n for a group of n, of parts that are not negative."""
    table = workload.loads.get(op.load)
    if table is None:
        fault = f"which the Workload does not have; known: {', '.join(workload.loads) or 'none'}"
    elif table.ndim != 2:
        fault = "which holds rows and not parts of an exchange"
    elif op.group in workload.groups and table.shape != (workload.groups[op.group].shape[1],) * 2:
        n = workload.groups[op.group].shape[1]
        fault = f"which is {' x '.join(map(str, table.shape))}; group {op.group} needs {n} x {n}"
    elif not (table >= 0).all():
        fault = "which has negative parts"
    else:
        return []
    return [Violation(f"class {c}", describe(op), f"names load table {op.load}, {fault}")]


def lost_rows(workload: Workload) -> list[Violation]:
    """Routed exchanges move what their buffers hold: over the receivers the parts of a sender sum to its read buffer, over the senders to the written."""
    found: list[Violation] = []
    if not any(t.ndim == 2 for t in workload.loads.values()):
        return found
    classes, ranks = np.unique(workload.bound.class_of_rank, return_index=True)
    for c, rank in zip(classes.tolist(), ranks.tolist(), strict=True):
        program = workload.bound.programs[c]
        for op in (o for body in program.bodies.values() for o in body if isinstance(o, Collective) and o.load and o.splits):
            table, at = workload.loads[op.load], workload.members(rank, op.group).tolist().index(rank)
            whole = max(program.largest_nbytes(op.reads), program.largest_nbytes(op.writes))
            for way, parts, refs in (("sends", table[at], op.reads), ("gets", table[:, at], op.writes)):
                if abs(parts.sum() * whole - program.nbytes(refs)) > 1e-6 * whole:
                    text = f"{way} {parts.sum() * whole:.0f} bytes by load table {op.load}, but its buffer has {program.nbytes(refs)}"
                    found.append(Violation(f"rank {rank}", describe(op), text))
    return found
