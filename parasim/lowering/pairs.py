"""The pairs pass: an overlapped forward and backward ({F&B} of DualPipe) become one body of two slots, woven so that the collectives which one
of them waits for run beside the compute of the other.

A pair runs as a block: it starts when both inputs are there and its outputs leave at its end (the transfers pass sees to that).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache

from ..program.ops import COMPUTE, P2P, Collective, Compute, Kernel, Label, Msg, Op, Ref, replace
from ..program.workload import Call
from .draft import Draft

JOINT = "&"  # between the names of the two bodies


def pairs(draft: Draft) -> None:
    """Join each overlapped backward to the forward before it."""
    calls: list[Call] = []
    for call in draft.calls:
        if call.microbatches and call.body[0] == "B" and (parts(call.body)[0][1], call.microbatches[0]) in draft.paired:
            forward = calls.pop()
            name = f"{forward.body}{JOINT}{call.body}"
            if name not in draft.bodies:
                draft.bodies[name] = list(woven(draft.bodies[forward.body], draft.bodies[call.body]))
            calls.append(Call(name, forward.microbatches + call.microbatches, call.step))
        else:
            calls.append(call)
    draft.calls = calls


@lru_cache(maxsize=1024)  # asked for by every call
def parts(body: str) -> list[tuple[str, int]]:
    """(kind, stage) of each slot of a body of the schedule (`F0`, `B3!`, `F0&B3`); of another body nothing."""
    found = [(name[:1], name[1:].rstrip("!")) for name in body.split(JOINT)]
    return [(kind, int(stage)) for kind, stage in found] if all(kind in ("F", "I", "W", "B") and stage.isdigit() for kind, stage in found) else []


def woven(forward: Iterable[Op], backward: Iterable[Op]) -> Iterator[Op]:
    """The ops of both, each in its order: one goes on until it has to wait for a collective, then the other has its turn.

    While both have ops left such a collective leaves the compute stream for `<axis>.overlap`.
    """
    mine, other = deque(forward), deque(in_second_slot(op) for op in backward)
    while mine:
        op = mine.popleft()
        if isinstance(op, Collective) and other and _awaited(op, mine):
            yield replace(op, stream=f"{op.label.axis}.overlap") if op.stream == COMPUTE else op
            mine, other = other, mine
        else:
            yield op
        if not mine:
            mine, other = other, mine


def _awaited(op: Collective, later: Iterable[Op]) -> bool:
    written = set(op.writes)
    return any(not written.isdisjoint(o.reads) for o in later)


def in_second_slot(op: Op) -> Op:
    """The same op for the second microbatch of a call."""
    label = _label(op.label)
    match op:
        case Compute():
            kernels = tuple(Kernel(k.name, _refs(k.reads), _refs(k.writes), k.dims, k.dtype, k.role) for k in op.kernels)
            return replace(op, label=label, kernels=kernels)
        case Collective():
            splits = None if op.splits is None else (_ref(op.splits[0]), _ref(op.splits[1]))
            return replace(op, label=label, reads=_refs(op.reads), writes=_refs(op.writes), splits=splits)
        case P2P():
            return replace(op, label=label, sends=second_messages(op.sends), recvs=second_messages(op.recvs))


def second_messages(messages: tuple[Msg, ...]) -> tuple[Msg, ...]:
    """The same messages of the second microbatch of a call."""
    return tuple(replace(m, buffer=_ref(m.buffer)) for m in messages)


def _label(label: Label) -> Label:
    return label._replace(slot=1) if label.slot == 0 else label


def _refs(refs: tuple[Ref, ...]) -> tuple[Ref, ...]:
    return tuple(map(_ref, refs))


def _ref(ref: Ref) -> Ref:
    return Ref(ref.name, 1) if ref.slot == 0 else ref
