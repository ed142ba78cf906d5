"""Schedule studies: a pipeline schedule with given times as a Workload, without a model. What `parasim schedule` simulates.

Times are one microbatch over 1/ranks of the depth; a chunk costs that over the chunks, times the scale of its stage. A message is one byte;
its price is the network's (an ideal network of the wanted latency). A message may leave when the action that made it has ended. Under `async`
every message has a stream of its own: transfers take no stream time and never queue. Under `stream` a rank has one queue for all its
transfers, under `blocking` they stand in the queue of its computation; both ends of a message must have reached the head of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..program.ops import COMPUTE, P2P, Buffer, Compute, Kernel, Label, Msg, Op, Ref
from ..program.workload import Call, Program, Workload
from ..schedules import Action, Orders, Pair, singles
from ..schedules.table import Transfer
from .messages import Step, home_of, placed, plain
from .transfers import batched

COSTS: Mapping[str, tuple[int, ...]] = {"F": (0,), "I": (1,), "W": (2,), "B": (1, 2)}
STREAMS = {"async": "pp.{way}.{channel}.{microbatch}", "stream": "pp", "blocking": COMPUTE}


@dataclass(frozen=True)
class Study:
    """A schedule to be timed: orders per rank, seconds (F, I, W), a scale per stage, the communication model.

    `chunks` divides the times. `table` holds the orders with their transfers where those are given; otherwise the study places them.
    """

    orders: Orders
    chunks: int = 1
    times: tuple[float, ...] = (1.0, 1.0, 1.0)
    scale: Sequence[float] = ()
    comm: str = "async"
    table: Mapping[int, Sequence[Step]] | None = None

    def seconds(self, action: Action) -> float:
        """Duration of one action."""
        scale = self.scale[action.stage] if self.scale else 1.0
        return scale * sum(self.times[i] for i in COSTS[action.kind]) / self.chunks

    @cached_property
    def home(self) -> dict[tuple[int, int], int]:
        """The rank that runs every (stage, microbatch)."""
        return home_of(self.orders)

    @cached_property
    def last(self) -> int:
        """The last stage."""
        return max(stage for stage, _ in self.home)

    @cached_property
    def steps(self) -> Mapping[int, Sequence[Step]]:
        """Actions and transfers of every rank, in order."""
        return placed(self.orders, self.comm) if self.table is None else self.table


def lower_study(study: Study) -> Workload:
    """One Program per rank; not verified, so that a deadlock shows in the simulation and is named there."""
    ranks = len(study.orders)
    pairs = {(study.home[s, i], study.home[s + 1, i]) for s, i in study.home if s < study.last}
    offsets = {d for a, b in pairs for d in (b - a, a - b) if d}
    return Workload(
        programs=tuple(_program(study, rank) for rank in range(ranks)),
        class_of_rank=np.arange(ranks),
        groups={},
        peers={f"pp{d:+d}": (np.arange(ranks) + d) % ranks for d in sorted(offsets)},
        coordinates={"pp": np.arange(ranks)},
    )


def _program(study: Study, rank: int) -> Program:
    bodies: dict[str, list[Op]] = {}
    calls: list[Call] = []
    for step in study.steps[rank]:
        call = _transfer(study, bodies, step) if isinstance(step, Transfer) else _compute(study, bodies, step)
        calls.append(call)
    if study.comm != "async" and study.table is None and plain(study.orders):
        calls = batched(bodies, calls)
    names = {r.name for body in bodies.values() for op in body for r in (*op.reads, *op.writes)}
    buffers = {n: Buffer(n, (1,), "uint8", "activations") for n in sorted(names)}
    return Program(buffers, {n: tuple(b) for n, b in bodies.items()}, tuple(calls))


def _compute(study: Study, bodies: dict[str, list[Op]], step: Action | Pair) -> Call:
    """A pair is one op of two kernels: both outputs are there at its end."""
    actions = tuple(singles([step]))
    body = "&".join(f"{a.kind}{a.stage}" for a in actions)
    if body not in bodies:
        label = Label("&".join(a.kind for a in actions), actions[0].stage, 0)
        bodies[body] = [Compute(label=label, stream=COMPUTE, kernels=tuple(_kernel(study, a, slot) for slot, a in enumerate(actions)))]
    return Call(body, tuple(a.microbatch for a in actions))


def _kernel(study: Study, action: Action, slot: int) -> Kernel:
    """F makes F{s}; I and B read it and the gradient from above and make B{s}; W reads both."""
    s = action.stage
    below = (Ref(f"F{s - 1}", slot),) if s else ()
    above = (Ref(f"B{s + 1}", slot),) if s < study.last else ()
    reads, writes = {
        "F": (below, (Ref(f"F{s}", slot),)),
        "W": ((Ref(f"F{s}", slot), Ref(f"B{s}", slot)), ()),
    }.get(action.kind, ((Ref(f"F{s}", slot), *above), (Ref(f"B{s}", slot),)))
    return Kernel("delay", reads, writes, (study.seconds(action),), "fp32")


def _transfer(study: Study, bodies: dict[str, list[Op]], t: Transfer) -> Call:
    """One end of a message; the buffer and the channel have the name of what its source stage made."""
    offset = study.home[t.target, t.microbatch] - study.home[t.source, t.microbatch]
    channel, sending = f"{t.kind}{t.source}", t.way == "SEND"
    body = f"{t.way.lower()}.{channel}{offset:+d}" + (f".{t.microbatch}" if study.comm == "async" else "")
    if body not in bodies:
        messages = (Msg(Ref(channel, 0), f"pp{offset if sending else -offset:+d}", channel),)
        stream = STREAMS[study.comm].format(way=t.way.lower(), channel=channel, microbatch=t.microbatch)
        label = Label(f"{t.way}_{t.kind}", t.stage, 0, -1, "pp")
        bodies[body] = [P2P(label=label, stream=stream, sends=messages if sending else (), recvs=() if sending else messages)]
    return Call(body, (t.microbatch,))
