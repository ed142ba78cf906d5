"""The transfers pass: pipeline messages. The communication model is a choice of streams: one per channel (`async`), one for all (`stream`), or
the compute stream (`blocking`). Under the last two, messages stand in an order that all ranks share; schedules in which each rank can place its
own do so and batch neighbours, receives first.
"""

from __future__ import annotations

from collections import deque

from ..program.ops import COMPUTE, P2P, Compute, Label, Msg, Op, Ref, replace
from ..program.workload import Call
from ..schedules import Pair, singles
from ..schedules.table import Transfer
from .draft import Draft, compute
from .loss import APART
from .messages import ends
from .pairs import parts, second_messages
from .recompute import AGAIN

GATE = "&"  # phase of the op that an overlapped pair starts with, and a backward that begins with recomputation
STREAMS = {"async": "pp.{way}.{channel}", "stream": "pp", "blocking": COMPUTE}


def transfers(draft: Draft) -> None:
    """Messages where `messages.placed` has them: received before a call that needs them, sent after the call that made them."""
    steps, home = draft.route.steps[draft.rank], draft.route.home
    calls, left = list[Call](), deque(draft.calls)
    while left:
        number = left[0].step
        for step in steps if parts(left[0].body) else ():
            if isinstance(step, Transfer):
                calls.append(_message(draft, step, number))
                continue
            while not parts(left[0].body):
                calls.append(left.popleft())
            body = draft.bodies[left[0].body]  # W of a stage without layers has no op
            if isinstance(step, Pair) or (body and body[0].label.phase == AGAIN):
                _gate(draft, left[0].body, [(end, slot) for slot, a in enumerate(singles([step])) for end in ends(a, home, "RECV")])
            calls.append(left.popleft())
        calls += [left.popleft()] if left and not parts(left[0].body) else []
    draft.calls = batched(draft.bodies, calls) if draft.layout.pipeline.comm != "async" and draft.route.plain else calls


def _gate(draft: Draft, body: str, awaited: list[tuple[Transfer, int]]) -> None:
    """An overlapped pair, and a backward that begins with forwards run again, starts when all its inputs are there, as frameworks receive before they
    run either: an op of no time that reads what comes from other ranks stands before it."""
    op = draft.bodies[body][0]
    if op.label.phase == GATE or not awaited:
        return
    reads = tuple(Ref(_boundary(draft, end), slot) for end, slot in awaited)
    draft.bodies[body].insert(0, compute(Label(GATE, op.label.stage), "delay", reads, (), draft.layout.precision, dims=(0.0,)))


def _boundary(draft: Draft, end: Transfer) -> str:
    """The buffer that one end of a message holds: what passes the boundary of its stage above (towards the loss) or below."""
    mine = next(s for s in draft.stages if s.number == end.stage)
    layer = mine.last if (end.kind == "F") == (end.way == "SEND") else mine.first
    return f"L{layer}.input" if end.kind == "F" else f"L{layer}.input.grad"


def _message(draft: Draft, end: Transfer, step: int) -> Call:
    """The call for one end of a message, whose channel has the name of what its source stage makes."""
    sending, channel, microbatch = end.way == "SEND", f"{end.kind}{end.source}", end.microbatch
    name = f"{end.way.lower()}.{channel}"
    if name not in draft.bodies:
        offset = draft.rank_of(end.target, microbatch) - draft.rank_of(end.source, microbatch)
        messages = (Msg(Ref(_boundary(draft, end), 0), f"pp{offset if sending else -offset:+d}", channel),)
        stream = STREAMS[draft.layout.pipeline.comm].format(way=end.way.lower(), channel=channel)
        label = Label(end.way.lower(), end.stage, 0, -1, "pp")
        after = (COMPUTE,) if sending else ()
        draft.bodies[name] = [P2P(label=label, stream=stream, after=after, sends=messages if sending else (), recvs=() if sending else messages)]
    return Call(name, (microbatch,), step)


def batched(bodies: dict[str, list[Op]], given: list[Call]) -> list[Call]:
    """Neighbouring transfers become one batch of two, receives first; adds the bodies it needs."""
    calls: list[Call] = []
    for call in given:
        previous = calls[-1] if calls else None
        if previous and len(previous.microbatches) == 1 and _is_transfer(bodies[previous.body]) and _is_transfer(bodies[call.body]):
            a, b = bodies[previous.body][0], bodies[call.body][0]
            assert isinstance(a, P2P) and isinstance(b, P2P)
            name = f"{previous.body}+{call.body}"
            after = tuple(dict.fromkeys((*a.after, *b.after)))
            bodies[name] = [replace(a, after=after, sends=a.sends + second_messages(b.sends), recvs=a.recvs + second_messages(b.recvs))]
            calls[-1] = Call(name, previous.microbatches + call.microbatches, call.step)
        else:
            calls.append(call)
    return calls


def _is_transfer(body: list[Op]) -> bool:
    return len(body) == 1 and isinstance(body[0], P2P)


def merge(draft: Draft) -> None:
    """Neighbouring Computes with one label and stream become one op, unless that would make the first wait for another stream too."""
    for key, body in draft.bodies.items():
        groups: list[list[Op]] = []
        elsewhere: dict[Ref, tuple[str, int]] = {}  # last written on another stream, and nothing has waited for it yet -> that stream, when
        for i, op in enumerate(body):
            awaited = dict(sorted([at for r in (*op.reads, *op.writes) if (at := elsewhere.get(r)) and at[0] != op.stream])) if elsewhere else {}
            if groups and not awaited and _alike(groups[-1][-1], op):
                groups[-1].append(op)
            else:
                groups.append([op])
            if awaited:
                elsewhere = {r: (s, at) for r, (s, at) in elsewhere.items() if at > awaited.get(s, -1)}
            if op.stream != COMPUTE:
                elsewhere |= dict.fromkeys(op.writes, (op.stream, i))
        draft.bodies[key] = list(map(_merged, groups))


def _alike(last: Op, op: Op) -> bool:
    """May two neighbours be one op?"""
    if not (isinstance(op, Compute) and isinstance(last, Compute) and last.label == op.label and last.stream == op.stream) or op.after:
        return False
    return APART.isdisjoint([k.name for k in (*last.kernels, *op.kernels)])


def _merged(ops: list[Op]) -> Op:
    """One op of the kernels of several Computes."""
    first = ops[0]
    return replace(first, kernels=tuple(k for op in ops if isinstance(op, Compute) for k in op.kernels)) if isinstance(first, Compute) and ops[1:] else first
