"""One rank of a traced training, as torch.profiler writes it (Chrome JSON of Kineto, plain or gzip): what its device did in a step.

On a GPU: events of the categories kernel, gpu_memcpy and gpu_memset, each on its stream; `External id` leads to the op of torch that launched it.
Without a GPU: ops of torch on the threads of the processor, products, attention and transfers whole, of everything else the innermost. Steps are the
annotations ProfilerStep#n, of the GPU where it has them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..cost.kineto import complete, larger_bytes, load_trace
from ..errors import Refused
from .kinds import Timed, dtype_of, kind_of, transfer_op
from .torch_ops import flops_of

MICRO = 1e-6
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
STEP = "ProfilerStep#"
BACKWARD = "autograd::engine::evaluate_function"
OPTIMIZER = "Optimizer.step"
ENDINGS = (".json", ".gz")  # of what torch.profiler writes
Event = Mapping[str, Any]


@dataclass(frozen=True)
class Activity:
    """Something the device did: on a stream, of a kind (`transfer` with its op, bytes of the larger buffer and ranks), in phase F, B or S.

    `launcher` tells activities of one op of torch; `flops` are those of the whole op (0: not known). Seconds of the trace's clock.
    """

    name: str
    kind: str
    stream: str
    phase: str
    start: float
    end: float
    launcher: object = None
    flops: float = 0.0
    dtype: str = ""
    op: str = ""
    nbytes: int = 0
    ranks: int = 0

    @property
    def seconds(self) -> float:
        """From its start to its end."""
        return self.end - self.start


@dataclass(frozen=True)
class Traced:
    """Activities of one rank in order of start, the steps (start, end), and whether they are of a GPU."""

    name: str
    rank: int
    activities: tuple[Activity, ...]
    steps: tuple[tuple[float, float], ...]
    on_gpu: bool

    @property
    def step(self) -> tuple[float, float]:
        """The step of median length; all activities where the trace marks no step."""
        if not self.steps:
            return min(a.start for a in self.activities), max(a.end for a in self.activities)
        ordered = sorted(self.steps, key=lambda s: s[1] - s[0])
        return ordered[(len(ordered) - 1) // 2]

    def within(self, window: tuple[float, float]) -> list[Activity]:
        """Activities that start in the window."""
        return [a for a in self.activities if window[0] <= a.start < window[1]]

    @property
    def kernels(self) -> list[Timed]:
        """What computes, in all steps: kernels of one kind that one op of torch launched count as one call of it."""
        together: dict[object, list[Activity]] = {}
        for i, a in enumerate(self.activities):
            if a.kind != "transfer":
                together.setdefault((a.launcher, a.kind) if a.launcher is not None else i, []).append(a)
        return [Timed(m[0].kind, m[0].name, sum(a.seconds for a in m), m[0].flops, 0.0, m[0].dtype) for m in together.values()]


def is_trace(path: Path) -> bool:
    """Whether a file is meant to be a trace of torch.profiler."""
    return path.suffix in ENDINGS


def read_kineto(path: Path, *, needed: bool = True) -> Traced:
    """Read a trace. Raises Malformed for a missing file, Unparsable for one that is no trace, Refused where nothing that a device did is in it
    (unless that is not `needed`)."""
    tree = load_trace(path)
    events = sorted(complete(tree["traceEvents"]), key=lambda e: (float(e["ts"]), -float(e["dur"])))
    ops = {e["args"]["External id"]: e for e in events if e.get("cat") == "cpu_op" and isinstance(e.get("args"), Mapping) and "External id" in e["args"]}
    device = [e for e in events if str(e.get("cat", "")).lower() in DEVICE]
    phases = _Phases(events)
    if device:
        activities = [_of_device(e, ops, phases) for e in device]
    else:
        activities = [_activity(e, e, f"thread {e.get('tid')}", phases.of(e)) for e in _outermost(events)]
    if needed and not activities:
        raise Refused(f"{path}: holds no kernel of a GPU and no op of torch; profile with activities CPU and CUDA")
    info = tree.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, Mapping) else None
    return Traced(path.name, rank if isinstance(rank, int) else 0, tuple(activities), tuple(_steps(events)), bool(device))


def _steps(events: Sequence[Event]) -> list[tuple[float, float]]:
    """Annotations of steps: of the GPU where there are any, since it lags behind the host; of several streams the whole reach."""
    for category in ("gpu_user_annotation", "user_annotation"):
        found: dict[str, tuple[float, float]] = {}
        for e in events:
            if e.get("cat") == category and str(e.get("name", "")).startswith(STEP):
                start, end = _times(e)
                before = found.get(e["name"], (start, end))
                found[e["name"]] = min(before[0], start), max(before[1], end)
        if found:
            return sorted(found.values())
    return []


def _times(event: Event) -> tuple[float, float]:
    return float(event["ts"]) * MICRO, (float(event["ts"]) + float(event["dur"])) * MICRO


class _Phases:
    """In which phase an instant of a thread lies: B inside a function of the backward, S inside a step of the optimizer, else F."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.spans: dict[tuple[object, str], tuple[list[float], list[float]]] = {}
        for e in events:
            name = str(e.get("name", ""))
            phase = "B" if name.startswith(BACKWARD) else "S" if name.startswith(OPTIMIZER) else ""
            if phase:
                starts, ends = self.spans.setdefault((e.get("tid"), phase), ([], []))
                start, end = _times(e)
                if not ends or start >= ends[-1]:
                    starts.append(start)
                    ends.append(end)

    def of(self, event: Event) -> str:
        """The phase of an event of the host."""
        at = float(event["ts"]) * MICRO
        for phase in ("S", "B"):
            starts, ends = self.spans.get((event.get("tid"), phase), ([], []))
            k = bisect_right(starts, at) - 1
            if k >= 0 and at < ends[k]:
                return phase
        return "F"


def _args(event: Event) -> Mapping[str, Any]:
    found = event.get("args")
    return found if isinstance(found, Mapping) else {}


def _of_device(event: Event, ops: Mapping[object, Event], phases: _Phases) -> Activity:
    args = _args(event)
    host = ops.get(args.get("External id"))
    stream = args.get("stream", event.get("tid"))
    return _activity(event, host, f"stream {stream}", phases.of(host) if host is not None else "F")


def _activity(event: Event, host: Event | None, stream: str, phase: str) -> Activity:
    name, args, of_op = str(event.get("name", "")), _args(event), _args(host) if host is not None else {}
    start, end = _times(event)
    both = {**of_op, **args}
    kind = kind_of(name)
    if kind == "transfer":
        size = both.get("Group size")
        op = transfer_op(name, both.get("Collective name"))
        return Activity(name, kind, stream, phase, start, end, op=op, nbytes=larger_bytes(both) or 0, ranks=size if isinstance(size, int) else 0)
    flops = flops_of(str(host.get("name", "")), of_op) if host is not None else 0.0
    if flops and kind == "memory":  # what else such an op launches: copies of operands, reductions over splits
        flops = 0.0
    types = of_op.get("Input type")
    dtype = next((d for d in map(dtype_of, types) if d), "") if isinstance(types, Sequence) and not isinstance(types, str) else ""
    return Activity(name, kind, stream, phase, start, end, args.get("External id"), flops, dtype)


def _outermost(events: Sequence[Event]) -> Iterator[Event]:
    """Ops of torch that do not overlap on their thread: whole products, attention and transfers, and of the rest those that hold no other op."""
    by_thread: dict[object, list[Event]] = {}
    for e in events:
        if e.get("cat") == "cpu_op" or re.match(r"(gloo|nccl):", str(e.get("name", ""))):
            by_thread.setdefault(e.get("tid"), []).append(e)
    chosen: list[Event] = []
    for mine in by_thread.values():
        until = -np.inf  # the end of what was taken whole
        for e, after in zip(mine, [*mine[1:], None], strict=True):
            start, end = _times(e)
            if start < until:
                continue
            name = str(e.get("name", ""))
            kind, innermost = kind_of(name), after is None or _times(after)[0] >= end
            if kind == "transfer" or (name.startswith("aten::") and (kind != "memory" or innermost)):
                chosen.append(e)
                until = end
    return iter(sorted(chosen, key=lambda e: float(e["ts"])))
