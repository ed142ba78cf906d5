"""verify: what must hold of a Workload before anything is simulated or started. Violations are data; an empty tuple means sound.

Every name resolves. Each class is resolved (reads after writes), its gradients counted (every accumulation before the reduction and before
the optimizer, every replicated gradient reduced once), its flat shards followed (each is read by something), its channels and collectives
compared with those of its partners, and the whole is dry-run with zero prices: whatever would deadlock on one in-order queue per stream is
found here and named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from ..errors import InvalidProgram, Violation
from .digest import Body, Form, check_names
from .edges import Resolved
from .names import lost_rows, unresolved
from .ops import P2P, Collective, Compute, Op
from .partial import MIRROR, over_pipeline
from .sums import EXPERTS, WHOLE, gradient_violations
from .workload import Program, Workload


def _unread_shards(c: int, program: Program) -> list[Violation]:
    """A flat shard that is written is read by something that does not write it: by the optimizer, or by the gather of parameters."""
    shards = {n for n, b in program.buffers.items() if b.of and not b.persistent}
    read: set[str] = set()
    written: dict[str, None] = {}
    for op in (op for body in program.bodies.values() for op in body) if shards else ():
        for part in op.kernels if isinstance(op, Compute) else (op,):
            if not shards.isdisjoint([name for name, _ in part.reads + part.writes]):
                read.update([r.name for r in part.reads if r.name in shards and r not in part.writes])
                written.update([(r.name, None) for r in part.writes if r.name in shards])
    return [Violation(f"class {c}", n, f"is written and never read, a shard of {', '.join(program.buffers[n].of)}") for n in written if n not in read]


def _channels(workload: Workload, first: dict[int, int]) -> list[Violation]:
    """What one end sends on a channel, in order and with its size, is what the other end receives."""
    sent: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    received: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    for c, rank in first.items():
        program = workload.programs[c]
        peers = {name: int(workload.class_of_rank[table[rank]]) for name, table in workload.peers.items()}
        ends = {name: [end for op in body if isinstance(op, P2P) for end in _ends_of(program, op, c, peers)] for name, body in program.bodies.items()}
        for call in program.calls:
            for sends, key, slot, nbytes in ends[call.body]:
                (sent if sends else received).setdefault(key, []).append((call.microbatches[slot] if slot >= 0 else -1, nbytes))
    found = []
    for key in sorted({*sent, *received}):
        text = _difference(sent.get(key, []), received.get(key, []), key[2])
        if text:
            found.append(Violation(f"channel {key[0]}", f"class {key[1]}", text))
    return found


def _ends_of(program: Program, op: P2P, c: int, peers: Mapping[str, int]) -> Iterator[tuple[bool, tuple[str, int, int], int, int]]:
    """Of every message of a batch: is it sent, its channel with both classes, its slot, its bytes."""
    for m in op.sends:
        yield True, (m.channel, c, peers[m.peer]), m.buffer.slot, program.sizes[m.buffer.name]
    for m in op.recvs:
        yield False, (m.channel, peers[m.peer], c), m.buffer.slot, program.sizes[m.buffer.name]


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
    met = {group: sorted((a, b) for a, b in _partners(workload, group) if a in first and b in first) for group in workload.groups}
    mixed = {group for group, pairs in met.items() if pairs}
    orders = {c: _orders(workload.programs[c], mixed) for c in first}
    for group, pairs in met.items():
        for a, b in pairs:
            for stream in sorted({s for c in (a, b) for g, s in orders[c] if g == group}):
                mine, theirs = orders[a].get((group, stream), []), orders[b].get((group, stream), [])
                if mine != theirs:
                    text = f"issues {len(mine)} collectives where class {b} of the same group issues {len(theirs)}, or others, or in another order or size"
                    found.append(Violation(f"group {group} stream {stream}", f"class {a}", text))
    return found


def _orders(program: Program, groups: Collection[str]) -> dict[tuple[str, str], list[tuple[str | int | None, ...]]]:
    """(op, bytes, reduce, dim, root) of the collectives of a Program over some groups, in order, by group and stream."""
    forms = {name: [_form(program, op) for op in body if isinstance(op, Collective) and op.group in groups] for name, body in program.bodies.items()}
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
    mixed = classes[(classes != classes[:, :1]).any(axis=1)]
    return {(int(row[0]), int(x)) for row in {tuple(r) for r in mixed.tolist()} for x in row[1:] if x != row[0]}


class _Dry:
    """A run without prices: one actor per class, each stream a queue; what cannot proceed is stuck."""

    def __init__(self, workload: Workload, resolved: dict[int, Resolved], first: dict[int, int]) -> None:
        self.workload, self.resolved, self.first = workload, resolved, first
        self.queue = {(c, s): [] for c, r in resolved.items() for s in range(len(r.streams))}  # type: dict[tuple[int, int], list[int]]
        self.edges: dict[int, dict[int, list[int]]] = {}
        self.meetings: dict[int, dict[int, list[object]]] = {}
        self.missing: dict[object, int] = {}  # how many ends of a meeting have not come
        self.members: dict[tuple[int, str], tuple[int, ...]] = {}
        self.numbers: dict[object, int] = {}  # of the names of meetings
        self.spanning = {g for g in workload.groups if _partners(workload, g)}
        for c, r in resolved.items():
            self._queue(c, r)
        self.at = dict.fromkeys(self.queue, 0)
        self.done = {c: bytearray(len(r)) for c, r in resolved.items()}
        self.blocked: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.posted: dict[int, set[int]] = {c: set() for c in resolved}
        self.waiting: dict[object, list[tuple[int, int]]] = {}

    def _queue(self, c: int, r: Resolved) -> None:
        """Queue the instances that can hold something up: transfers, collectives that span classes, both ends of an edge."""
        meets = {name: np.array([self._spans(op) for op in body], dtype=bool) for name, body in r.program.bodies.items()}
        meet = np.concatenate([meets[call.body] for call in r.program.calls]) if r.program.calls else np.zeros(0, dtype=bool)
        waits = np.diff(r.edge_start) > 0
        some = meet | waits
        some[r.edges] = True
        for i, stream in zip(np.nonzero(some)[0].tolist(), r.stream[some].tolist(), strict=True):
            self.queue[c, stream].append(i)
        edges, start = r.edges.tolist(), r.edge_start.tolist()
        self.edges[c] = {i: edges[start[i] : start[i + 1]] for i in np.nonzero(waits)[0].tolist()}
        ordinals: dict[object, int] = {}
        partners: dict[tuple[str, int], list[tuple[int, int, int, int]]] = {}
        places = zip(np.nonzero(meet)[0].tolist(), r.call[meet].tolist(), r.position[meet].tolist(), strict=True)
        calls, bodies, found = r.program.calls, r.program.bodies, dict[int, list[object]]()
        for i, number, position in places:
            call = calls[number]
            at = call.body, position
            if at not in partners:
                partners[at] = self._partners_of(c, bodies[call.body][position])
            found[i] = self._ends(partners[at], call.microbatches, ordinals)
        self.meetings[c] = found

    def _spans(self, op: Op) -> bool:
        return isinstance(op, P2P) or (isinstance(op, Collective) and op.group in self.spanning)

    def _ends(self, partners: list[tuple[int, int, int, int]], microbatches: tuple[int, ...], ordinals: dict[object, int]) -> list[object]:
        """The meetings that an op takes part in; `ordinals` of its class."""
        keys: list[object] = []
        for name, ends, slot, size in partners:
            meeting = name, microbatches[slot] if slot >= 0 else -1
            mine = *meeting, ends
            turn = ordinals.get(mine, 0)
            ordinals[mine] = turn + 1
            key = *meeting, turn
            self.missing.setdefault(key, size)
            keys.append(key)
        return keys

    def _partners_of(self, c: int, op: Op) -> list[tuple[int, int, int, int]]:
        """Per meeting of an op the number of its name, which is the same for all who meet, which end of a message this is, the slot of the microbatch,
        and how many meet."""
        rank, classes = self.first[c], self.workload.class_of_rank
        if isinstance(op, Collective):
            members = self._classes(c, op.group)
            return [(self._number((members, op.group, op.stream)), 0, -1, len(members))]
        assert isinstance(op, P2P)
        found: list[tuple[int, int, int, int]] = []
        for m, end in [(m, 1) for m in op.sends] + [(m, 2) for m in op.recvs]:
            peer = int(classes[self.workload.peers[m.peer][rank]])
            found.append((self._number((m.channel, (c, peer) if end == 1 else (peer, c))), end, m.buffer.slot, 2))
        return found

    def _number(self, name: object) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def _classes(self, c: int, group: str) -> tuple[int, ...]:
        if (c, group) not in self.members:
            self.members[c, group] = tuple(sorted({int(x) for x in self.workload.class_of_rank[self.workload.members(self.first[c], group)]}))
        return self.members[c, group]

    def run(self) -> list[tuple[int, int]]:
        """Stuck instances as (class, instance)."""
        todo = list(self.queue)
        while todo:
            self._advance(todo.pop(), todo)
        return [(c, q[self.at[c, s]]) for (c, s), q in sorted(self.queue.items()) if self.at[c, s] < len(q)]

    def _advance(self, key: tuple[int, int], todo: list[tuple[int, int]]) -> None:
        c, queue = key[0], self.queue[key]
        edges, done, meetings, at = self.edges[c], self.done[c], self.meetings[c], self.at[key]
        while at < len(queue):
            i = queue[at]
            unmet = next((e for e in edges.get(i, ()) if not done[e]), None)
            if unmet is not None:
                self.blocked.setdefault((c, unmet), []).append(key)
                break
            if i in meetings and not self._meet(c, i, key, todo):
                break
            done[i] = 1
            at += 1
            todo += self.blocked.pop((c, i), ())
        self.at[key] = at

    def _meet(self, c: int, i: int, key: tuple[int, int], todo: list[tuple[int, int]]) -> bool:
        """Has every partner of instance i come? Counts this one and wakes the others when it completes the meeting."""
        keys = self.meetings[c][i]
        if i not in self.posted[c]:
            self.posted[c].add(i)
            for k in keys:
                self.missing[k] -= 1
                if not self.missing[k]:
                    todo += self.waiting.pop(k, ())
        unmet = next((k for k in keys if self.missing[k]), None)
        if unmet is not None:
            self.waiting.setdefault(unmet, []).append(key)
        return unmet is None


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
    classes, ranks = np.unique(workload.class_of_rank, return_index=True)
    first = {int(classes[i]): int(ranks[i]) for i in np.argsort(ranks)}
    resolved: dict[int, Resolved] = {}
    known: dict[Form, tuple[Body, ...]] = {}
    replicated = [g for g in (*WHOLE, EXPERTS, MIRROR) if g in workload.groups and workload.groups[g].shape[1] > 1]
    for c in first:
        try:
            resolved[c] = workload.programs[c].resolve(known)
        except InvalidProgram as e:
            found.append(Violation(f"class {c}", "program", str(e)))
    named = {c: rank for c, rank in first.items() if c in resolved or _named(workload.programs[c])}
    shared = over_pipeline(workload)
    for c in named:
        found += gradient_violations(c, workload.programs[c], replicated, shared.get(c, frozenset())) + _unread_shards(c, workload.programs[c])
    if len(named) == len(first):
        found += _channels(workload, first) + _collectives(workload, first)
    if len(resolved) == len(first):
        found += lost_rows(workload)
        stuck = _Dry(workload, resolved, first).run()
        found += [Violation(f"rank {first[c]}", resolved[c].text(i), "can never start or end (deadlock in a dry run)") for c, i in stuck]
    return tuple(found)


def require_sound(workload: Workload) -> None:
    """Raise InvalidProgram where `verify` objects."""
    violations = verify(workload)
    if violations:
        raise InvalidProgram(violations)
