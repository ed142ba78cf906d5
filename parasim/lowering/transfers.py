"""The transfers pass: pipeline messages. The communication model is a choice of streams: one per channel (`async`), one for all (`stream`), or
the compute stream (`blocking`); the last two batch neighbouring messages, receives first.
"""

from __future__ import annotations

from dataclasses import replace

from ..program.ops import COMPUTE, P2P, Compute, Label, Msg, Op, Ref
from ..program.workload import Call
from .draft import Draft

STREAMS = {"async": "pp.{way}.{channel}", "stream": "pp", "blocking": COMPUTE}


def transfers(draft: Draft) -> None:
    """Receive right before a call that needs it, send right after the call that made it."""
    calls: list[Call] = []
    for call in draft.calls:
        kind, stage = call.body[0], call.body[1:].rstrip("!")
        if kind not in "FIB" or not stage.isdigit():
            calls.append(call)
            continue
        s, forward = int(stage), kind == "F"
        received = _message(draft, "F" if forward else "B", s - 1 if forward else s + 1, sending=False)
        sent = _message(draft, "F" if forward else "B", s, sending=True)
        calls += [Call(received, call.microbatches)] if received else []
        calls.append(call)
        calls += [Call(sent, call.microbatches)] if sent else []
    draft.calls = calls if draft.layout.pipeline.comm == "async" else batched(draft.bodies, calls)


def _message(draft: Draft, kind: str, source: int, *, sending: bool) -> str | None:
    """The body that sends (or receives) what stage `source` makes, or None where no message is due."""
    target = source + 1 if kind == "F" else source - 1
    if not (0 <= source < draft.total_stages and 0 <= target < draft.total_stages):
        return None
    a, b = draft.ranks_of_stage[source], draft.ranks_of_stage[target]
    if a == b:
        return None
    offset = b - a if sending else a - b
    way, channel = ("send" if sending else "recv"), f"{kind}{source}"
    name = f"{way}.{channel}"
    if name not in draft.bodies:
        mine = next(s for s in draft.stages if s.number == (source if sending else target))
        upper = (kind == "F") == sending  # the boundary above (towards the loss) or below this stage
        layer = mine.last if upper else mine.first
        message = Msg(Ref(f"L{layer}.input" if kind == "F" else f"L{layer}.input.grad", 0), f"pp{offset:+d}", channel)
        stream = STREAMS[draft.layout.pipeline.comm].format(way=way, channel=channel)
        label = Label(way, mine.number, 0, -1, "pp")
        after = (COMPUTE,) if sending else ()
        draft.bodies[name] = [P2P(label=label, stream=stream, after=after, sends=(message,) if sending else (), recvs=() if sending else (message,))]
    return name


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
            bodies[name] = [replace(a, after=after, sends=a.sends + _second(b.sends), recvs=a.recvs + _second(b.recvs))]
            calls[-1] = Call(name, previous.microbatches + call.microbatches, call.step)
        else:
            calls.append(call)
    return calls


def _second(messages: tuple[Msg, ...]) -> tuple[Msg, ...]:
    return tuple(replace(m, buffer=Ref(m.buffer.name, 1)) for m in messages)


def _is_transfer(body: list[Op]) -> bool:
    return len(body) == 1 and isinstance(body[0], P2P)


def merge(draft: Draft) -> None:
    """Neighbouring Computes with one label and stream become one op."""
    for key, body in draft.bodies.items():
        out: list[Op] = []
        for op in body:
            last = out[-1] if out else None
            if isinstance(op, Compute) and isinstance(last, Compute) and (last.label, last.stream) == (op.label, op.stream) and not op.after:
                out[-1] = replace(last, kernels=last.kernels + op.kernels)
            else:
                out.append(op)
        draft.bodies[key] = out
