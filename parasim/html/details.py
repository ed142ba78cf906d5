"""What a bar says when it is pointed at: kernels, links, partners."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..program.ops import Collective, Op
from ..program.text import what
from ..program.workload import Program, Workload
from ..timeline import P2P, Timeline
from .columns import Table
from .side import Side

MOST_LINKS = 8  # of one op


def op_details(side: Side) -> tuple[list[str], NDArray[np.int64]]:
    """Distinct texts (kernels, or the collective and the size of its group), and the text of each row of the timeline; one empty text without a Workload."""
    texts: Table[str] = Table()
    texts[""]
    out = np.zeros(len(side.timeline.ops), dtype=np.int64)
    if side.workload is None:
        return texts.values, out
    workload = side.workload.bound
    ops = side.timeline.ops
    low, high = (np.searchsorted(ops["rank"], side.shown, edge) for edge in ("left", "right"))
    for rank, a, b in zip(side.shown, low.tolist(), high.tolist(), strict=True):
        of_op = _texts(workload.program_of(rank), workload, texts)
        numbers = ops["op"][a:b]
        if len(of_op) and int(numbers.max()) < len(of_op):
            out[a:b] = of_op[numbers]
    return texts.values, out


def _texts(program: Program, workload: Workload, texts: Table[str]) -> NDArray[np.int64]:
    """The text of every op of a Program, in its order."""
    of_body = {name: np.array([texts[_text(op, workload)] for op in body], dtype=np.int64) for name, body in program.bodies.items()}
    return np.concatenate([of_body[call.body] for call in program.calls]) if program.calls else np.zeros(0, dtype=np.int64)


def _text(op: Op, workload: Workload) -> str:
    if isinstance(op, Collective) and op.group in workload.groups:
        return f"{what(op)}, {workload.groups[op.group].shape[1]} ranks"
    return what(op)


def op_links(timeline: Timeline) -> tuple[list[list[list[float]]], NDArray[np.int64]]:
    """Distinct lists of [link, bytes], most bytes first, and the list of each row; list 0 is empty."""
    lists: list[list[list[float]]] = [[]]
    out = np.zeros(len(timeline.ops), dtype=np.int64)
    flows = timeline.flows
    if not len(flows):
        return lists, out
    flows = flows[np.lexsort((flows["link"], -flows["bytes"], flows["op"]))]
    pairs, pair = np.unique(np.stack((flows["link"].astype(np.float64), flows["bytes"]), axis=1), axis=0, return_inverse=True)
    pair = pair.ravel().astype(np.int64)
    bounds = np.flatnonzero(np.append(True, flows["op"][1:] != flows["op"][:-1]))
    index: dict[bytes, int] = {}
    for a, b in zip(bounds.tolist(), [*bounds[1:].tolist(), len(flows)], strict=True):
        key = pair[a:b].tobytes()
        if key not in index:
            index[key] = len(lists)
            lists.append([[int(link), nbytes] for link, nbytes in pairs[pair[a : min(b, a + MOST_LINKS)]].tolist()])
        out[int(flows["op"][a])] = index[key]
    return lists, out


def partners(ops: NDArray[Any]) -> NDArray[np.int64]:
    """(sender, receiver) rows of messages, int[n, 2]: ends of equal microbatch, step and times on different ranks, paired in order of rank."""
    rows = np.flatnonzero(ops["kind"] == P2P)
    p2p = ops[rows]
    key = np.stack([p2p["step"].astype(np.int64), p2p["microbatch"].astype(np.int64), _ticks(p2p["start"]), _ticks(p2p["end"])])
    _, group = np.unique(key, axis=1, return_inverse=True)
    group = group.ravel()
    sends, receives = p2p["bytes"] > 0, p2p["bytes"] == 0
    a, b = rows[sends], rows[receives]
    place_a, place_b = _places(group[sends]), _places(group[receives])
    where = {k: i for i, k in enumerate(place_b)}
    found = [(int(a[i]), int(b[where[k]])) for i, k in enumerate(place_a) if k in where]
    pairs = np.array(found, dtype=np.int64).reshape(-1, 2)
    return np.asarray(pairs[ops["rank"][pairs[:, 0]] != ops["rank"][pairs[:, 1]]])


def _ticks(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(seconds * 1e9).astype(np.int64)


def _places(group: NDArray[np.int64]) -> list[tuple[int, int]]:
    """(group, how manieth of it) of each entry."""
    seen: dict[int, int] = {}
    out = []
    for g in group.tolist():
        seen[g] = seen.get(g, -1) + 1
        out.append((g, seen[g]))
    return out
