"""The recompute pass: forward ops run again before the backward that needs what they made, under phase R, with their collectives.

A *unit* is a run of forward ops that is repeated together: a module of a layer, or whole layers. A unit that is checkpointed whole keeps
what it hands on wherever its reader's backward needs that (Megatron-LM's CheckpointFunction); the others hand on what is made again
(its CheckpointWithoutOutput, torch's selective policies). Lifetimes do the rest: what is written again starts a new generation, so the
first one ends in the forward, and the second lives until the last backward op that reads it (under zero-bubble schedules in W).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..parallel.layout import FULL, PARTS, SPARSE, Recompute
from ..program.ops import P2P, Collective, Msg, Op, Ref, replace
from .draft import Draft, Stage, relabel

AGAIN = "R"  # phase of what runs again
WHOLE = (FULL, "core_attn", "mlp", "moe", "shared_experts")  # modules that are checkpointed whole
DENSE = ("mlp", "act")  # modules of layers without experts


@dataclass(frozen=True)
class Unit:
    """Forward ops that run again together; `layers` is not empty where these are whole layers, repeated before the first backward op of those."""

    module: str
    ops: tuple[Op, ...]
    layers: frozenset[int] = frozenset()

    @property
    def made(self) -> set[Ref]:
        """Everything that its ops write."""
        return {r for o in self.ops for r in o.writes}


def recompute(draft: Draft) -> None:
    """Repeat the units of every stage in its backward bodies."""
    what = draft.layout.recompute
    if not what.modules:
        return
    for stage in draft.stages:
        s = stage.number
        forward = draft.bodies[f"F{s}"]
        units = list(_layers(forward, what, stage) if FULL in what.modules else _modules(forward, what.modules))
        for keys in ([f"B{s}"], [f"I{s}", f"W{s}"]):
            keys = [key for key in keys if key in draft.bodies]
            backward = [(key, op) for key in keys for op in draft.bodies[key]]
            again = _again(draft, units, forward, [op for _, op in backward], what.early_stop)
            placed = list(_placed(again, backward))
            for key in keys:
                draft.bodies[key] = [op for k, op in placed if k == key]


def _layers(forward: list[Op], what: Recompute, stage: Stage) -> Iterator[Unit]:
    """Whole layers: of each stage the first `layers` one by one (block), or all of them in groups of `layers` (uniform)."""
    count = stage.last - stage.first
    size, number = (1, what.layers or count) if what.method == "block" else (what.layers or 1, count)
    chosen = range(stage.first, stage.first + min(number, count))
    for at in range(0, len(chosen), size):
        layers = frozenset(chosen[at : at + size])
        yield Unit(FULL, tuple(o for o in forward if o.label.layer in layers), layers)


def _modules(forward: list[Op], modules: tuple[str, ...]) -> Iterator[Unit]:
    """Runs of neighbouring ops of one module and layer."""
    run: list[Op] = []
    before = ("", -1)
    parts = _parts(forward)
    sparse = {op.label.layer for op, part in zip(forward, parts, strict=True) if part == "router"}
    for op, part in zip(forward, parts, strict=True):
        absent = DENSE if op.label.layer in sparse else SPARSE
        here = (next((m for m in modules if m not in absent and _within(part, PARTS[m])), ""), op.label.layer)
        if here != before and run:
            yield Unit(before[0], tuple(run))
            run = []
        before = here
        run += [op] if here[0] else []
    if run:
        yield Unit(before[0], tuple(run))


def _parts(forward: list[Op]) -> list[str]:
    """The part of its layer that each op belongs to, by what it writes ("L3.experts.act.out" -> experts.act); a gather belongs to the op it gathers for."""
    out: list[str] = []
    for op in reversed(forward):
        layer, _, rest = op.writes[0].name.partition(".") if op.writes else ("", "", "")
        gathers = isinstance(op, Collective) and op.op == "all_gather"
        part = (rest.rpartition(".")[0] or rest) if layer == f"L{op.label.layer}" else ""
        out.append(out[-1] if gathers and out else part)
    return out[::-1]


def _within(part: str, names: tuple[str, ...]) -> bool:
    return any(part == name or part.startswith(f"{name}.") for name in names)


def _again(draft: Draft, units: list[Unit], forward: list[Op], backward: list[Op], early_stop: bool) -> list[Unit]:
    """What of each unit runs again, under phase R: last units first, because they may need what earlier ones make."""
    needed = _live_in(backward)
    out: list[Unit] = []
    for unit in reversed(units):
        if unit.module in WHOLE:
            handed_on = unit.made & needed & _handed_on(unit, forward)  # kept by its readers
            wanted = (unit.made & needed) - handed_on
            kept = {r: _again_ref(draft, r) for r in sorted(handed_on)}  # an order of its own: sets have another in every process
            last = max((i for i, o in enumerate(unit.ops) if wanted.intersection(o.writes)), default=-1)
            ops = [_renamed(o, kept) for o in (unit.ops[: last + 1] if early_stop else unit.ops)] if wanted else []
        else:
            ops = _slice(unit.ops, needed)
        needed = needed | _live_in(ops)
        if ops:
            out.append(dataclasses.replace(unit, ops=tuple(relabel(o, AGAIN) for o in ops)))
    return out[::-1]


def _slice(ops: tuple[Op, ...], needed: set[Ref]) -> list[Op]:
    """The ops that `needed` depends on."""
    out: list[Op] = []
    for op in reversed(ops):
        if needed.intersection(op.writes):
            needed = needed | set(op.needs)
            out.insert(0, op)
    return out


def _live_in(ops: list[Op]) -> set[Ref]:
    """What is read before it is written."""
    out, written = set[Ref](), set[Ref]()
    for op in ops:
        out.update(r for r in op.needs if r not in written)
        written.update(op.writes)
    return out


def _handed_on(unit: Unit, forward: list[Op]) -> set[Ref]:
    """What forward ops outside the unit read."""
    inside = set(map(id, unit.ops))
    return {r for o in forward if id(o) not in inside for r in o.needs} & unit.made


def _again_ref(draft: Draft, ref: Ref) -> Ref:
    """A second buffer for what is kept and made again all the same."""
    name = f"{ref.name}.again"
    draft.buffers.setdefault(name, replace(draft.buffers[ref.name], name=name))
    return Ref(name, ref.slot)


def _renamed(op: Op, names: Mapping[Ref, Ref]) -> Op:
    def new(refs: tuple[Ref, ...]) -> tuple[Ref, ...]:
        return tuple(names.get(r, r) for r in refs)

    def ends(messages: tuple[Msg, ...]) -> tuple[Msg, ...]:
        return tuple(replace(m, buffer=names.get(m.buffer, m.buffer)) for m in messages)

    if not names:
        return op
    if isinstance(op, P2P):
        return replace(op, sends=ends(op.sends), recvs=ends(op.recvs))
    if isinstance(op, Collective):
        return replace(op, reads=new(op.reads), writes=new(op.writes))
    return replace(op, kernels=tuple(replace(k, reads=new(k.reads), writes=new(k.writes)) for k in op.kernels))


def _placed(units: list[Unit], backward: list[tuple[str, Op]]) -> Iterator[tuple[str, Op]]:
    """The backward with every unit before the first op that needs it; what a unit needs of another comes before it."""
    waiting = list(units)

    def due(op: Op) -> Iterator[Op]:
        reads = set(op.needs)
        for unit in [u for u in waiting if op.label.layer in u.layers or reads & u.made]:
            if unit in waiting:
                waiting.remove(unit)
                for again in unit.ops:
                    yield from due(again)
                    yield again

    for key, op in backward:
        yield from ((key, again) for again in due(op))
        yield key, op
