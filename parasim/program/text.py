"""The text form of ops and Programs: what messages name and what `parasim program` prints."""

from __future__ import annotations

from collections.abc import Sequence

from .ops import P2P, Collective, Compute, Op, Ref
from .workload import Call, Program, buffer_bytes

SLOT_NAMES = ("i", "j")


def describe(op: Op, microbatches: Sequence[int] = ()) -> str:
    """One op in a few words, e.g. `2F3 layer 7 all_reduce tp [compute]`."""
    label = op.label
    microbatch = str(microbatches[label.slot]) if 0 <= label.slot < len(microbatches) else ""
    head = (str(label.stage) if label.stage >= 0 else "") + label.phase + microbatch
    layer = f" layer {label.layer}" if label.layer >= 0 else ""
    return f"{head}{layer} {what(op)} [{op.stream}]"


def what(op: Op) -> str:
    """What an op does, without where and when: its kernels, `all_reduce tp`, its messages."""
    match op:
        case Compute():
            names = list(dict.fromkeys(k.name for k in op.kernels))
            return "+".join(names[:3]) + (f"+{len(names) - 3} more" if len(names) > 3 else "")
        case Collective():
            return f"{op.op} {op.group}"
        case P2P():
            sent = [f"send {m.buffer.name} to {m.peer} on {m.channel}" for m in op.sends]
            return " ".join(sent + [f"recv {m.buffer.name} from {m.peer} on {m.channel}" for m in op.recvs])


def _refs(refs: Sequence[Ref]) -> str:
    return " ".join(r.name + (f"[{SLOT_NAMES[r.slot]}]" if r.slot >= 0 else "") for r in refs) or "-"


def _body_line(op: Op) -> str:
    label = op.label
    tags = [f"layer {label.layer}" if label.layer >= 0 else "", f"after {','.join(op.after)}" if op.after else ""]
    tags.append(f"window {op.window}" if op.window else "")
    if isinstance(op, Collective):
        tags += [f"dim {op.dim}" if op.dim is not None else "", f"root {op.root}" if op.root else "", op.reduce if op.reduce != "sum" else ""]
    tail = "  " + " ".join(t for t in tags if t) if any(tags) else ""
    if isinstance(op, Compute):
        kernels = "; ".join(f"{k.name}({', '.join(map(str, k.dims))})" for k in op.kernels)
        return f"  {label.phase:<4} [{op.stream}] {kernels}: {_refs(op.reads)} -> {_refs(op.writes)}{tail}"
    return f"  {label.phase:<4} [{op.stream}] {what(op)}: {_refs(op.reads)} -> {_refs(op.writes)}{tail}"


def _call(call: Call) -> str:
    """A call, with its step unless it is the first."""
    slots = f"({','.join(map(str, call.microbatches))})" if call.microbatches else ""
    return f"{call.body}{slots}" + (f"@{call.step}" if call.step else "")


def render(program: Program) -> str:
    """The whole Program: its calls in order, every body once, its buffers with shape, dtype, category and bytes."""
    lines = ["calls: " + " ".join(map(_call, program.calls))]
    for name, body in program.bodies.items():
        lines += ["", f"{name}:", *map(_body_line, body)]
    lines += ["", "buffers:"]
    for buffer in program.buffers.values():
        shape = "x".join(map(str, buffer.shape))
        shard = f" shard {','.join(f'dim {d} over {a}' for d, a in buffer.shard)}" if buffer.shard else ""
        shard += f" of {','.join(buffer.of)}" if buffer.of else ""
        shard += f" padded by {buffer.padding}" if buffer.padding else ""
        kept = " persistent" if buffer.persistent else ""
        lines.append(f"  {buffer.name}: {shape} {buffer.dtype} {buffer.category}{kept}{shard} {buffer_bytes(buffer)} B")
    if program.windows:
        lines += ["", "windows: " + ", ".join(f"{n} {k}" for n, k in program.windows.items())]
    return "\n".join(lines)
