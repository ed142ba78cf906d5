"""Schedule studies: a pipeline schedule with given times as a Workload, without a model. What `parasim schedule` simulates.

Times are one microbatch over 1/ranks of the depth; a chunk costs that over the chunks, times the scale of its stage. A message is one byte;
its price is the network's (an ideal network of the wanted latency). Under `async` every message has a stream of its own: transfers take no
stream time and never queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..program.ops import COMPUTE, P2P, Buffer, Compute, Kernel, Label, Msg, Op, Ref
from ..program.workload import Call, Program, Workload
from ..schedules import Action, Orders
from .transfers import batched

COSTS: Mapping[str, tuple[int, ...]] = {"F": (0,), "I": (1,), "W": (2,), "B": (1, 2)}


@dataclass(frozen=True)
class Study:
    """A schedule to be timed: orders per rank, the rank of each stage, seconds (F, I, W), a scale per stage, the communication model."""

    orders: Orders
    rank_of_stage: Sequence[int]
    chunks: int = 1
    times: tuple[float, ...] = (1.0, 1.0, 1.0)
    scale: Sequence[float] = ()
    comm: str = "async"

    def seconds(self, action: Action) -> float:
        """Duration of one action."""
        scale = self.scale[action.stage] if self.scale else 1.0
        return scale * sum(self.times[i] for i in COSTS[action.kind]) / self.chunks


def lower_study(study: Study) -> Workload:
    """One Program per rank; not verified, so that a deadlock shows in the simulation and is named there."""
    ranks = len(study.orders)
    offsets = {b - a for a, b in _neighbours(study.rank_of_stage)} | {a - b for a, b in _neighbours(study.rank_of_stage)}
    return Workload(
        programs=tuple(_program(study, rank) for rank in range(ranks)),
        class_of_rank=np.arange(ranks),
        groups={},
        peers={f"pp{d:+d}": (np.arange(ranks) + d) % ranks for d in sorted(offsets)},
        coordinates={"pp": np.arange(ranks)},
    )


def _neighbours(rank_of_stage: Sequence[int]) -> list[tuple[int, int]]:
    return [(a, b) for a, b in pairwise(rank_of_stage) if a != b]


def _program(study: Study, rank: int) -> Program:
    bodies: dict[str, list[Op]] = {}
    calls: list[Call] = []
    for action in study.orders[rank]:
        key = f"{action.kind}{action.stage}"
        bodies.setdefault(key, [_compute(study, action)])
        calls += [*_received(study, bodies, action), Call(key, (action.microbatch,)), *_sent(study, bodies, action)]
    if study.comm != "async":
        calls = batched(bodies, calls)
    names = {r.name for body in bodies.values() for op in body for r in (*op.reads, *op.writes)}
    buffers = {n: Buffer(n, (1,), "uint8", "activations") for n in sorted(names)}
    return Program(buffers, {n: tuple(b) for n, b in bodies.items()}, tuple(calls))


def _compute(study: Study, action: Action) -> Compute:
    """F makes F{s}; I and B read it and the gradient from above and make B{s}; W reads both."""
    s, last = action.stage, len(study.rank_of_stage) - 1
    below = (Ref(f"F{s - 1}", 0),) if s else ()
    above = (Ref(f"B{s + 1}", 0),) if s < last else ()
    reads, writes = {
        "F": (below, (Ref(f"F{s}", 0),)),
        "W": ((Ref(f"F{s}", 0), Ref(f"B{s}", 0)), ()),
    }.get(action.kind, ((Ref(f"F{s}", 0), *above), (Ref(f"B{s}", 0),)))
    kernel = Kernel("delay", reads, writes, (study.seconds(action),), "fp32")
    return Compute(label=Label(action.kind, s, 0), stream=COMPUTE, kernels=(kernel,))


def _received(study: Study, bodies: dict[str, list[Op]], action: Action) -> list[Call]:
    if action.kind == "W":
        return []
    forward = action.kind == "F"
    return _transfer(study, bodies, "F" if forward else "B", action.stage - 1 if forward else action.stage + 1, action.microbatch, sending=False)


def _sent(study: Study, bodies: dict[str, list[Op]], action: Action) -> list[Call]:
    if action.kind == "W":
        return []
    return _transfer(study, bodies, "F" if action.kind == "F" else "B", action.stage, action.microbatch, sending=True)


def _transfer(study: Study, bodies: dict[str, list[Op]], kind: str, source: int, microbatch: int, *, sending: bool) -> list[Call]:
    """The call that sends or receives what `source` makes; none at the ends of the model or between stages of one rank."""
    target, stages = source + (1 if kind == "F" else -1), len(study.rank_of_stage)
    if not (0 <= source < stages and 0 <= target < stages) or study.rank_of_stage[source] == study.rank_of_stage[target]:
        return []
    offset = study.rank_of_stage[target] - study.rank_of_stage[source]
    way, channel = ("send" if sending else "recv"), f"{kind}{source}"
    stream = {"async": f"pp.{way}.{channel}.{microbatch}", "stream": "pp", "blocking": COMPUTE}[study.comm]
    body = f"{way}.{channel}" + (f".{microbatch}" if study.comm == "async" else "")
    messages = (Msg(Ref(channel, 0), f"pp{offset if sending else -offset:+d}", channel),)
    label = Label(way, source if sending else target, 0, -1, "pp")
    after = (COMPUTE,) if sending else ()
    bodies.setdefault(body, [P2P(label=label, stream=stream, after=after, sends=messages if sending else (), recvs=() if sending else messages)])
    return [Call(body, (microbatch,))]
