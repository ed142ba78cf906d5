"""Why nothing moves: which stuck op waits for which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import Deadlock, Waiting
from ..program.ops import P2P, Collective, Msg
from ..program.workload import IntArray, Workload

if TYPE_CHECKING:
    from .ranks import Rank

Head = tuple[int, int]  # index into the ranks, op instance
End = tuple[int, str, int, bool]  # index into the ranks, channel, microbatch, sending
SHOWN = 12


def explain(workload: Workload, ranks: Sequence[Rank], heads: Sequence[Head], representative: IntArray) -> Deadlock:
    """The Deadlock of `heads`, the first op of every stream that has not ended, each with the heads that it waits for."""
    number = {(at, int(ranks[at].resolved.stream[i])): k for k, (at, i) in enumerate(heads)}
    held = [[e for e in ranks[at].resolved.waits(i) if _open(ranks[at], e)] for at, i in heads]
    posted = {head for head, edges in zip(heads, held, strict=True) if not edges}
    ends = {end: (at, j) for at, rank in enumerate(ranks) for end, j in reversed(_open_ends(rank, at))}
    place = {rank.rank: at for at, rank in enumerate(ranks)}
    stuck = []
    for (at, i), edges in zip(heads, held, strict=True):
        rank, op = ranks[at], ranks[at].resolved.op(i)
        needed = [(at, e) for e in edges]
        if isinstance(op, P2P) and not edges:
            for m, sending in [*((m, True) for m in op.sends), *((m, False) for m in op.recvs)]:
                other = place[int(representative[int(workload.peers[m.peer][rank.rank])])]
                end = ends.get((other, m.channel, _microbatch(m, rank.resolved.microbatches(i)), not sending))
                needed += [end] if end is not None and end not in posted else []
        elif isinstance(op, Collective) and not edges:
            members = {place[int(representative[int(r)])] for r in workload.members(rank.rank, op.group)}
            needed += [head for head in heads if head[0] in members - {at} and head not in posted]
        waits = dict.fromkeys(number[a, int(ranks[a].resolved.stream[j])] for a, j in needed)
        stuck.append(Waiting(rank.rank, rank.resolved.text(i), op.stream, tuple(waits)))
    named = "; ".join(f"rank {w.rank} is stuck at {w.text}" for w in stuck[:SHOWN])
    return Deadlock(f"deadlock: {named}", tuple((w.rank, w.text) for w in stuck), tuple(stuck))


def _open(rank: Rank, i: int) -> bool:
    """Whether op i has not ended; only the last op of a fused run is marked."""
    return not rank.done[rank.cut.tails[int(rank.runs.run[i])]]


def _open_ends(rank: Rank, at: int) -> list[tuple[End, int]]:
    """The ends of messages that have not been passed, in list order."""
    found = []
    for j in range(len(rank.resolved)):
        op = rank.resolved.op(j)
        if isinstance(op, P2P) and _open(rank, j):
            microbatches = rank.resolved.microbatches(j)
            found += [((at, m.channel, _microbatch(m, microbatches), sending), j) for ms, sending in ((op.sends, True), (op.recvs, False)) for m in ms]
    return found


def _microbatch(m: Msg, microbatches: tuple[int, ...]) -> int:
    return microbatches[m.buffer.slot] if m.buffer.slot >= 0 else -1
