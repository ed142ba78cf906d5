"""A slow, obvious twin of `program.edges.resolve`: for every op instance it looks at all earlier ones, straight from the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parasim.program.ops import Compute, Op
from parasim.program.workload import Program

Key = tuple[str, int]  # buffer, microbatch (-1: one per step)


@dataclass(frozen=True)
class Instance:
    """One op of one call, with what it touches."""

    op: Op
    reads: frozenset[Key]
    writes: frozenset[Key]


@dataclass
class Generation:
    """A buffer from one fresh write to its last use; `birth` -1: resident."""

    key: Key
    birth: int
    users: list[int]


class ReadBeforeWrite(Exception):
    """`instance` reads `key`, which nothing wrote."""

    def __init__(self, instance: int, key: Key) -> None:
        super().__init__(f"{instance} reads {key}")
        self.instance, self.key = instance, key


def instances(program: Program) -> list[Instance]:
    """Every op of every call, in list order."""
    out = []
    for call in program.calls:
        for op in program.bodies[call.body]:

            def key(ref, microbatches=call.microbatches) -> Key:  # type: ignore[no-untyped-def]
                shared = program.buffers[ref.name].persistent or ref.slot < 0
                return ref.name, -1 if shared else microbatches[ref.slot]

            if isinstance(op, Compute):
                reads, writes = set(), set()
                for kernel in op.kernels:
                    afresh = writes - reads  # what this op itself made before: no read from outside
                    reads |= {key(r) for r in kernel.reads} - afresh
                    writes |= {key(r) for r in kernel.writes}
            else:
                reads, writes = {key(r) for r in op.reads}, {key(r) for r in op.writes}
            out.append(Instance(op, frozenset(reads), frozenset(writes)))
    return out


def generations(program: Program) -> list[Generation]:
    """All generations. Raises ReadBeforeWrite."""
    out = [Generation((n, -1), -1, []) for n, b in program.buffers.items() if b.persistent]
    current = {g.key: g for g in out}
    for i, instance in enumerate(instances(program)):
        for key in instance.reads:
            if key not in current:
                raise ReadBeforeWrite(i, key)
            current[key].users.append(i)
        for key in instance.writes - instance.reads:
            if program.buffers[key[0]].persistent:
                current[key].users.append(i)
            else:
                current[key] = Generation(key, i, [i])
                out.append(current[key])
    return out


def waits(program: Program) -> list[set[int]]:
    """What every instance waits for, the op before it on its stream included."""
    every = instances(program)
    born: dict[int, list[Generation]] = {}
    for g in generations(program):
        born.setdefault(g.birth, []).append(g)
    out = []
    for i, it in enumerate(every):
        earlier = range(i)
        found = {max((j for j in earlier if every[j].op.stream == it.op.stream), default=-1)}
        found |= {max((j for j in earlier if every[j].op.stream == fence), default=-1) for fence in it.op.after}
        for key in it.reads:
            found.add(max((j for j in earlier if key in every[j].writes), default=-1))
        found |= {j for j in earlier if it.writes & (every[j].reads | every[j].writes)}
        if it.op.window:
            peers = [j for j in earlier if every[j].op.window == it.op.window]
            k = program.windows[it.op.window]
            if len(peers) >= k:
                found |= {u for g in born.get(peers[-k], ()) for u in g.users if u < i}
        out.append(found - {-1})
    return out


def closure(direct: Sequence[set[int]]) -> list[set[int]]:
    """Everything that has ended before an instance starts."""
    out: list[set[int]] = []
    for found in direct:
        out.append(found.union(*(out[j] for j in found)))
    return out
