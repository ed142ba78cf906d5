"""verify: what must hold of a Workload before anything is simulated or started. Violations are data; an empty tuple means sound.

Every name resolves. Each class is resolved (reads after writes), its gradients counted (every accumulation before the reduction and before
the optimizer, every replicated gradient reduced once), its flat shards followed (each is read by something), its channels and collectives
compared with those of its partners, and the whole is dry-run with zero prices: whatever would deadlock on one in-order queue per stream is
found here and named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ..errors import InvalidProgram, Violation
from .digest import check_names
from .edges import Resolved
from .names import lost_rows, unresolved
from .ops import P2P, Collective, Compute, Op, Ref
from .sums import EXPERTS, MIRROR, WHOLE, gradient_violations
from .workload import Program, Workload


def _communications(program: Program) -> Iterator[tuple[Collective | P2P, tuple[int, ...]]]:
    """Every collective and batch of messages of a Program, in list order, with its microbatches."""
    bodies = {name: [op for op in body if not isinstance(op, Compute)] for name, body in program.bodies.items()}
    for call in program.calls:
        for op in bodies[call.body]:
            yield op, call.microbatches


def _unread_shards(c: int, program: Program) -> list[Violation]:
    """A flat shard that is written is read by something that does not write it: by the optimizer, or by the gather of parameters."""
    shards = {n for n, b in program.buffers.items() if b.of and not b.persistent}
    read: set[str] = set()
    written: dict[str, None] = {}
    for op in (op for body in program.bodies.values() for op in body):
        for part in op.kernels if isinstance(op, Compute) else (op,):
            read.update(r.name for r in part.reads if r not in part.writes)
            written.update((r.name, None) for r in part.writes if r.name in shards)
    return [Violation(f"class {c}", n, f"is written and never read, a shard of {', '.join(program.buffers[n].of)}") for n in written if n not in read]


def _microbatch(ref: Ref, microbatches: tuple[int, ...]) -> int:
    return microbatches[ref.slot] if ref.slot >= 0 else -1


def _channels(workload: Workload, first: dict[int, int]) -> list[Violation]:
    """What one end sends on a channel, in order and with its size, is what the other end receives."""
    sent: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    received: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    for c, rank in first.items():
        sizes = workload.programs[c].sizes
        for op, microbatches in _communications(workload.programs[c]):
            if isinstance(op, P2P):
                for m in op.sends:
                    peer = int(workload.class_of_rank[workload.peers[m.peer][rank]])
                    sent.setdefault((m.channel, c, peer), []).append((_microbatch(m.buffer, microbatches), sizes[m.buffer.name]))
                for m in op.recvs:
                    peer = int(workload.class_of_rank[workload.peers[m.peer][rank]])
                    received.setdefault((m.channel, peer, c), []).append((_microbatch(m.buffer, microbatches), sizes[m.buffer.name]))
    found = []
    for key in sorted({*sent, *received}):
        text = _difference(sent.get(key, []), received.get(key, []), key[2])
        if text:
            found.append(Violation(f"channel {key[0]}", f"class {key[1]}", text))
    return found


def _difference(sent: list[tuple[int, int]], received: list[tuple[int, int]], receiver: int) -> str:
    """How two ends of a channel differ, as lists of (microbatch, bytes); empty when they do not."""
    a, b = [m for m, _ in sent], [m for m, _ in received]
    if a != b:
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        where = f"first difference at message {at}: {a[at : at + 3]} against {b[at : at + 3]}"
        return f"sends {len(a)} messages to class {receiver}, which receives {len(b)}; {where}"
    other = next(((x, y) for x, y in zip(sent, received, strict=True) if x != y), None)
    return f"sends {other[0][1]} bytes of microbatch {other[0][0]} to class {receiver}, which receives {other[1][1]}" if other else ""


def _collectives(workload: Workload, first: dict[int, int]) -> list[Violation]:
    """All classes of a group issue the same collectives, of the same size and form, in the same order on each (group, stream)."""
    found = []
    orders = {c: _orders(workload.programs[c]) for c in first}
    for group in workload.groups:
        for a, b in sorted((a, b) for a, b in _partners(workload, group) if a in first and b in first):
            for stream in sorted({s for c in (a, b) for g, s in orders[c] if g == group}):
                mine, theirs = orders[a].get((group, stream), []), orders[b].get((group, stream), [])
                if mine != theirs:
                    text = f"issues {len(mine)} collectives where class {b} of the same group issues {len(theirs)}, or others, or in another order or size"
                    found.append(Violation(f"group {group} stream {stream}", f"class {a}", text))
    return found


def _orders(program: Program) -> dict[tuple[str, str], list[tuple[str | int | None, ...]]]:
    """(op, bytes, reduce, dim, root) of the collectives of a Program, in order, by group and stream."""
    forms = {name: [_form(program, op) for op in body if isinstance(op, Collective)] for name, body in program.bodies.items()}
    orders: dict[tuple[str, str], list[tuple[str | int | None, ...]]] = {}
    for call in program.calls:
        for key, form in forms[call.body]:
            orders.setdefault(key, []).append(form)
    return orders


def _form(program: Program, op: Collective) -> tuple[tuple[str, str], tuple[str | int | None, ...]]:
    return (op.group, op.stream), (op.op, max(program.nbytes(op.reads), program.nbytes(op.writes)), op.reduce, op.dim, op.root)


def _partners(workload: Workload, group: str) -> set[tuple[int, int]]:
    """Pairs of different classes that share a group (the first member against the others)."""
    classes = workload.class_of_rank[workload.groups[group]]
    return {(int(row[0]), int(x)) for row in {tuple(r) for r in classes.tolist()} for x in row[1:] if x != row[0]}


class _Dry:
    """A run without prices: one actor per class, each stream a queue; what cannot proceed is stuck."""

    def __init__(self, workload: Workload, resolved: dict[int, Resolved], first: dict[int, int]) -> None:
        self.workload, self.resolved, self.first = workload, resolved, first
        self.queue = {(c, s): [] for c, r in resolved.items() for s in range(len(r.streams))}  # type: dict[tuple[int, int], list[int]]
        for c, r in resolved.items():
            for i in self._blocking(r):
                self.queue[c, int(r.stream[i])].append(i)
        self.at = dict.fromkeys(self.queue, 0)
        self.done = {c: bytearray(len(r)) for c, r in resolved.items()}
        self.blocked: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.arrived: dict[object, set[int]] = {}
        self.passed: dict[object, int] = {}
        self.ordinal: Counter[object] = Counter()
        self.posted: dict[object, set[str]] = {}
        self.waiting: dict[object, list[tuple[int, int]]] = {}
        self.keys: dict[tuple[int, int], list[object]] = {}
        self.members: dict[tuple[int, str], tuple[int, ...]] = {}

    def _blocking(self, r: Resolved) -> list[int]:
        """Instances that can hold something up: transfers, collectives that span classes, both ends of an edge."""
        spanning = {g for g in self.workload.groups if _partners(self.workload, g)}
        meets = {
            name: np.array([isinstance(o, P2P) or (isinstance(o, Collective) and o.group in spanning) for o in body], dtype=bool)
            for name, body in r.program.bodies.items()
        }
        some = np.concatenate([meets[call.body] for call in r.program.calls]) if r.program.calls else np.zeros(0, dtype=bool)
        some |= np.diff(r.edge_start) > 0
        some[r.edges] = True
        return [int(i) for i in np.nonzero(some)[0]]

    def run(self) -> list[tuple[int, int]]:
        """Stuck instances as (class, instance)."""
        todo = list(self.queue)
        while todo:
            self._advance(todo.pop(), todo)
        return [(c, q[self.at[c, s]]) for (c, s), q in sorted(self.queue.items()) if self.at[c, s] < len(q)]

    def _advance(self, key: tuple[int, int], todo: list[tuple[int, int]]) -> None:
        c, queue = key[0], self.queue[key]
        resolved, done = self.resolved[c], self.done[c]
        while self.at[key] < len(queue):
            i = queue[self.at[key]]
            unmet = next((e for e in resolved.waits(i) if not done[e]), None)
            if unmet is not None:
                self.blocked.setdefault((c, unmet), []).append(key)
                return
            if not self._meet(c, i, key, todo):
                return
            done[i] = 1
            self.at[key] += 1
            todo += self.blocked.pop((c, i), ())

    def _meet(self, c: int, i: int, key: tuple[int, int], todo: list[tuple[int, int]]) -> bool:
        """Has every partner of instance i arrived? Registers this one and wakes the others when it completes the meeting."""
        op = self.resolved[c].op(i)
        if isinstance(op, Compute):
            return True
        if (c, i) not in self.keys:
            self.keys[c, i] = self._register(c, op, self.resolved[c].microbatches(i))
            for k in self.keys[c, i]:
                if self._complete(k):
                    todo += self.waiting.pop(k, ())
        open_ = next((k for k in self.keys[c, i] if not self._complete(k)), None)
        if open_ is None:
            return True
        self.waiting.setdefault(open_, []).append(key)
        return False

    def _register(self, c: int, op: Op, microbatches: tuple[int, ...]) -> list[object]:
        rank, classes = self.first[c], self.workload.class_of_rank
        if isinstance(op, Collective):
            if (c, op.group) not in self.members:
                self.members[c, op.group] = tuple(sorted({int(x) for x in classes[self.workload.members(rank, op.group)]}))
            members = self.members[c, op.group]
            ordinal = self.ordinal[c, op.group, op.stream]
            self.ordinal[c, op.group, op.stream] += 1
            key: object = ("collective", members, op.group, op.stream, ordinal)
            self.arrived.setdefault(key, set()).add(c)
            return [key]
        keys: list[object] = []
        assert isinstance(op, P2P)
        for m, sending in [(m, True) for m in op.sends] + [(m, False) for m in op.recvs]:
            peer = int(classes[self.workload.peers[m.peer][rank]])
            ends = (c, peer) if sending else (peer, c)
            count = ("message", m.channel, ends, _microbatch(m.buffer, microbatches))
            ordinal = self.ordinal[count, sending]
            self.ordinal[count, sending] += 1
            key = (*count, ordinal)
            self.posted.setdefault(key, set()).add("send" if sending else "recv")
            keys.append(key)
        return keys

    def _complete(self, key: object) -> bool:
        assert isinstance(key, tuple)
        return len(self.arrived[key]) == len(key[1]) if key[0] == "collective" else len(self.posted[key]) == 2


def _named(program: Program) -> bool:
    """Do its calls and ops name bodies, buffers and slots that exist?"""
    try:
        check_names(program)
    except InvalidProgram:
        return False
    return True


def verify(workload: Workload) -> tuple[Violation, ...]:
    """All violations of a Workload, empty when it may be simulated and started. Never raises for an unsound Workload."""
    found = unresolved(workload)
    if found:
        return tuple(found)
    first: dict[int, int] = {}
    for rank, c in enumerate(workload.class_of_rank.tolist()):
        first.setdefault(c, rank)
    resolved: dict[int, Resolved] = {}
    replicated = [g for g in (WHOLE, EXPERTS, MIRROR) if g in workload.groups and workload.groups[g].shape[1] > 1]
    for c in first:
        try:
            resolved[c] = workload.programs[c].resolved
        except InvalidProgram as e:
            found.append(Violation(f"class {c}", "program", str(e)))
    named = {c: rank for c, rank in first.items() if c in resolved or _named(workload.programs[c])}
    for c in named:
        found += gradient_violations(c, workload.programs[c], replicated) + _unread_shards(c, workload.programs[c])
    if len(named) == len(first):
        found += _channels(workload, first) + _collectives(workload, first)
    if len(resolved) == len(first):
        found += lost_rows(workload)
        stuck = _Dry(workload, resolved, first).run()
        found += [Violation(f"rank {first[c]}", resolved[c].text(i), "can never start or end (deadlock in a dry run)") for c, i in stuck]
    return tuple(found)
