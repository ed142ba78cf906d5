"""What must hold of gradients and of shared parameters: every sum is whole before it is used and is taken once; no parameter is stale.

Walked in list order, which the edges keep. Only ops that touch gradients, shards or gathered parameters are looked at, once per call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ..errors import Violation
from .ops import Collective, Compute, Op, Ref
from .partial import MIRROR, sums_due
from .text import describe
from .workload import Call, Program

WHOLE, PART, REPLICAS = (
    ("dp.cp", "dp"),
    "dp.shard",
    "dp.replica",
)  # groups: all replicas (the first that there is); those that share, and those that hold the same share
LIST = ".slices"  # ends the name of a buffer that holds another one as a list of slices
EXPERTS = "edp"  # the replicas of experts that are spread over ep
Touch = tuple[Op, tuple[Ref, ...], tuple[Ref, ...], bool]  # op, reads, writes (of one kernel or collective), is it a kernel


def wrong_sums(program: Program, replicated: Collection[str], shared: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    """(op or buffer, what is wrong). `replicated`: the groups over which gradients are summed; `shared`: those that another pipeline rank has a part of."""
    walk = _Walk(program, replicated, shared)
    for call in program.calls:
        walk.call(call)
    return walk.end()


@dataclass
class _Sum:
    """One generation of a gradient of a microbatch, or of the part a reduce-scatter made: how often it was reduced and whether it was used."""

    reduced: int = 0
    due: int = 1
    used: bool = False


class _Walk:
    def __init__(self, program: Program, replicated: Collection[str], shared: frozenset[str]) -> None:
        self.program, self.replicated = program, replicated
        self.whole = next((g for g in WHOLE if g in replicated), WHOLE[-1])
        buffers = program.buffers
        self.lists = {n: b.of[0] for n, b in buffers.items() if n.endswith(LIST)}
        self.total = {n for n, b in buffers.items() if b.category == "gradients" and b.persistent}
        self.parts = {
            r.name for o in self._ops() if isinstance(o, Collective) and o.op == "reduce_scatter" and o.group in (*WHOLE, PART, EXPERTS) for r in o.writes
        }
        self.shards = {n: b.of for n, b in buffers.items() if b.of and b.category in ("buffers", "parameters") and n not in self.parts}
        parameters = {p for names in self.shards.values() for p in names}
        self.single = {n for b in buffers.values() for n in b.of if n in buffers and buffers[n].category == "gathered"} - parameters
        self.watched = interesting = self.total | self.single | self.parts | set(self.shards) | parameters
        self.touches = {
            name: [t for op in body for t in _touches(op, self.lists) if not interesting.isdisjoint([r.name for r in t[1] + t[2]])]
            for name, body in program.bodies.items()
        }
        self.adds = {body: self._added(touches) for body, touches in self.touches.items()}
        self.plain = {body for body, touches in self.touches.items() if all(self._plain(t) for t in touches)}
        self.passed: Counter[tuple[str, int]] = Counter()  # calls of plain bodies, by body and step
        self.expected = self._accumulations()
        self.done: Counter[tuple[str, int]] = Counter()
        self.reduced: Counter[tuple[str, int]] = Counter()
        self.further = sums_due(program, self.total, shared, MIRROR in replicated)
        self.taken: Counter[tuple[str, int, str]] = Counter()  # sums over further groups, by gradient, step and group
        self.sums: dict[tuple[str, int], _Sum] = {}
        self.stale: dict[str, str] = {}
        self.found: list[tuple[str, str]] = []

    def _ops(self) -> Iterable[Op]:
        return (op for body in self.program.bodies.values() for op in body)

    def _added(self, touches: list[Touch]) -> Counter[str]:
        """How often a body adds to each gradient."""
        return Counter(r.name for _, reads, writes, kernel in touches if kernel for r in writes if r.name in self.total and r in reads)

    def _plain(self, touch: Touch) -> bool:
        """Does it nothing but read parameters and add to gradients?"""
        _, reads, writes, kernel = touch
        summed = self.single | self.parts | set(self.shards)
        added = all(r in writes for r in reads if r.name in self.total) and all(r in reads and r.name in self.total for r in writes if r.name in self.watched)
        return kernel and added and not any(r.name in summed for r in (*reads, *writes))

    def _accumulations(self) -> Counter[tuple[str, int]]:
        total: Counter[tuple[str, int]] = Counter()
        for (body, step), times in Counter((c.body, c.step) for c in self.program.calls).items():
            for name, n in self.adds[body].items():
                total[name, step] += n * times
        return total

    def call(self, call: Call) -> None:
        """One call; of a plain body only the number of its calls matters, unless a parameter is stale."""
        if call.body in self.plain and not self.stale:
            self.passed[call.body, call.step] += 1
            return
        for touch in self.touches[call.body]:
            self.visit(call, touch)

    def _done(self, name: str, step: int) -> int:
        """Accumulations into a gradient so far."""
        return self.done[name, step] + sum(self.adds[body][name] * n for (body, s), n in self.passed.items() if s == step)

    def visit(self, call: Call, touch: Touch) -> None:
        op, reads, writes, kernel = touch
        reduces = isinstance(op, Collective) and op.op in ("all_reduce", "reduce_scatter") and op.group in (*WHOLE, PART, EXPERTS, REPLICAS)
        for ref in reads:
            name, key = ref.name, (ref.name, call.microbatches[ref.slot] if ref.slot >= 0 else -1)
            if name in self.total and not (kernel and ref in writes):
                self._read_total(call, op, name)
            if key in self.sums and not (kernel and ref in writes):
                self._read_sum(call, op, key, reduces)
            if name in self.stale and kernel:
                self.found.append(
                    (describe(op, call.microbatches), f"reads {name} before it is gathered from {self.stale[name]}, which the optimizer has stepped")
                )
        for ref in writes:
            self._written(call, op, ref, ref in reads, kernel)

    def _group(self, gradient: str) -> str:
        """The group of ranks that hold the same: experts that are spread over ep have fewer replicas."""
        return EXPERTS if any(axis == "ep" for _, axis in self.program.buffers[gradient].shard) else self.whole

    def _read_total(self, call: Call, op: Op, name: str) -> None:
        key = (name, call.step)
        self.reduced[key] += isinstance(op, Collective) and op.group in ((EXPERTS,) if self._group(name) == EXPERTS else (self.whole, PART))
        if isinstance(op, Collective):
            self.taken[name, call.step, op.group] += 1
        done = self._done(*key)
        if done != self.expected[key]:
            self.found.append((describe(op, call.microbatches), f"reads {name} after {done} of {self.expected[key]} accumulations"))

    def _read_sum(self, call: Call, op: Op, key: tuple[str, int], reduces: bool) -> None:
        state = self.sums[key]
        state.reduced += reduces
        state.used |= not reduces or key[0] in self.single
        if not reduces and state.reduced < state.due:
            self.found.append((describe(op, call.microbatches), f"reads {key[0]} before it is summed over {REPLICAS}"))

    def _written(self, call: Call, op: Op, ref: Ref, updated: bool, kernel: bool) -> None:
        name, key = ref.name, (ref.name, call.microbatches[ref.slot] if ref.slot >= 0 else -1)
        if name in self.total and kernel and updated:
            self.done[name, call.step] += 1
        if name in self.single and kernel and not updated:
            self._begin(key, 1 if self.whole in self.replicated else 0)
        elif name in self.single and key in self.sums and self.sums[key].reduced:
            self.found.append((describe(op, call.microbatches), f"adds to {name} after it was reduced"))
        if name in self.parts and isinstance(op, Collective) and op.op == "reduce_scatter":
            self._begin(key, int(op.group == PART))
        if name in self.shards and kernel:
            self.stale |= dict.fromkeys(self.shards[name], name)
        if isinstance(op, Collective) and op.op == "all_gather":
            self.stale.pop(name, None)

    def _begin(self, key: tuple[str, int], due: int) -> None:
        self._close(key)
        self.sums[key] = _Sum(due=due)

    def _close(self, key: tuple[str, int]) -> None:
        state = self.sums.pop(key, None)
        if state and state.reduced != state.due:
            group = self.whole if key[0] in self.single else REPLICAS
            self.found.append((f"{key[0]}[{key[1]}]", f"is reduced over {group} {state.reduced} times, due {'once' if state.due else 'never'}"))
        elif state and not state.used:
            self.found.append((f"{key[0]}[{key[1]}]", "is reduced and never used"))

    def end(self) -> list[tuple[str, str]]:
        """Everything found."""
        due = [k for k in self.expected if not self.program.buffers[k[0]].of and self._group(k[0]) in self.replicated]
        once = sorted(k for k in due if self.reduced[k] != 1)
        self.found += [(name, f"is reduced over {self._group(name)} {self.reduced[name, step]} times in step {step}, due once") for name, step in once]
        alone = sorted((*k, group) for k in self.expected for group in self.further.get(k[0], ()) if self.taken[*k, group] != 1)
        self.found += [(name, f"is reduced over {group} {self.taken[name, step, group]} times in step {step}, due once") for name, step, group in alone]
        for key in list(self.sums):
            self._close(key)
        kept = [(p, shard) for p, shard in self.stale.items() if self.program.buffers[p].persistent]
        self.found += [(p, f"is not gathered from {shard} after the optimizer stepped that") for p, shard in kept]
        return self.found


def _touches(op: Op, lists: Mapping[str, str]) -> list[Touch]:
    """What an op touches; a list of slices stands for what is copied from or to it, in the transfer that moves it."""
    if isinstance(op, Compute):
        return [(op, k.reads, k.writes, True) for k in op.kernels if not any(r.name in lists for r in (*k.reads, *k.writes))]
    reads, writes = (tuple(Ref(lists.get(r.name, r.name), r.slot) for r in refs) for refs in (op.reads, op.writes))
    return [(op, reads, writes, False)]


def gradient_violations(c: int, program: Program, replicated: Collection[str], shared: frozenset[str] = frozenset()) -> list[Violation]:
    """`wrong_sums` of class `c`."""
    return [Violation(f"class {c}", what, text) for what, text in dict.fromkeys(wrong_sums(program, replicated, shared))]
