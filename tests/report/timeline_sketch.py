"""Timelines written by hand, with answers that can be read off the drawing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parasim.program.ops import AXES, CATEGORIES
from parasim.timeline import COLLECTIVE, COMPUTE, EDGES, FLOWS, MEMORY, OPS, P2P, Timeline


@dataclass
class Sketch:
    """Draws a Timeline op by op; an op is known by what `add` returns, its (rank, number)."""

    ops: list[dict[str, Any]] = field(default_factory=list)
    waits: list[tuple[tuple[int, int], tuple[int, int]]] = field(default_factory=list)
    births: list[tuple[int, float, str, str, float]] = field(default_factory=list)
    moved: list[tuple[tuple[int, int], int, float]] = field(default_factory=list)
    streams: list[str] = field(default_factory=lambda: ["compute"])
    phases: list[str] = field(default_factory=list)

    def add(
        self,
        rank: int,
        phase: str,
        start: float,
        end: float,
        *,
        stream: str = "compute",
        kind: int | None = None,
        axis: str = "",
        waits: tuple[tuple[int, int], ...] = (),
        ready: float | None = None,
        **labels: float,
    ) -> tuple[int, int]:
        """One op; off the compute stream it is a collective, or a message where its stream is of pp."""
        for names, name in ((self.streams, stream), (self.phases, phase)):
            if name not in names:
                names.append(name)
        if kind is None:
            kind = COMPUTE if stream == "compute" else P2P if stream.startswith("pp") else COLLECTIVE
        number = sum(1 for o in self.ops if o["rank"] == rank)
        row = {"stage": -1, "layer": -1, "microbatch": -1, "step": 0, "bytes": 0.0} | labels
        row |= {"rank": rank, "op": number, "kind": kind, "stream": self.streams.index(stream), "phase": self.phases.index(phase)}
        row |= {"axis": AXES.index(axis) if axis else -1, "ready": start if ready is None else ready, "start": start, "end": end}
        self.ops.append(row)
        self.waits += [((rank, number), w) for w in waits]
        return rank, number

    def hold(self, rank: int, buffer: str, category: str, nbytes: float, birth: float = -np.inf, death: float | None = None) -> None:
        """A buffer's life; a death of None is never."""
        self.births.append((rank, birth, buffer, category, nbytes))
        if death is not None:
            self.births.append((rank, death, buffer, category, -nbytes))

    def move(self, op: tuple[int, int], link: int, nbytes: float) -> None:
        """A flow of the op over a link."""
        self.moved.append((op, link, nbytes))

    def timeline(self, representative: list[int] | None = None, links: tuple[tuple[str, str, float, int], ...] = (), **meta: object) -> Timeline:
        """The drawing as a Timeline."""
        ops = np.zeros(len(self.ops), dtype=OPS)
        rows = sorted(self.ops, key=lambda o: (o["rank"], o["op"]))
        for i, row in enumerate(rows):
            ops[i] = tuple(row[name] for name in OPS.names or ())
        at = {(o["rank"], o["op"]): i for i, o in enumerate(rows)}
        buffers = list(dict.fromkeys(b[2] for b in self.births))
        memory = [(r, t, buffers.index(b), CATEGORIES.index(c) if c in CATEGORIES else -1, d) for r, t, b, c, d in self.births]
        flows = [(at[op], link, nbytes, ops[at[op]]["start"], ops[at[op]]["end"]) for op, link, nbytes in self.moved]
        ranks = sorted({o["rank"] for o in self.ops})
        return Timeline(
            ops=ops,
            flows=np.array(flows, dtype=FLOWS),
            memory=np.array(memory, dtype=MEMORY),
            edges=np.array([(at[a], at[b]) for a, b in self.waits], dtype=EDGES),
            representative=np.array(ranks if representative is None else representative, dtype=np.int64),
            streams=tuple(self.streams),
            phases=tuple(self.phases),
            buffers=tuple(buffers),
            links=links,
            meta={"source": "simulated", **meta},
        )


def two_stages() -> Sketch:
    """Two ranks, one microbatch, a visible send each way; step 8 s.

    rank 0   F [0,2]  .  .  .  recv [5,6]  B [6,8]        send [2,3]
    rank 1   .  .  recv [2,3]  F [3,4]  B [4,5]  .  .  .  send [5,6]
    """
    s = Sketch()
    f0 = s.add(0, "F", 0, 2, stage=0, microbatch=0)
    s.add(0, "send", 2, 3, stream="pp.send.F0", axis="pp", waits=(f0,), bytes=100.0, stage=0, microbatch=0)
    r0 = s.add(0, "recv", 5, 6, stream="pp.recv.B0", axis="pp", stage=0, microbatch=0)
    s.add(0, "B", 6, 8, waits=(r0,), stage=0, microbatch=0)
    r1 = s.add(1, "recv", 2, 3, stream="pp.recv.F1", axis="pp", stage=1, microbatch=0)
    s.add(1, "F", 3, 4, waits=(r1,), stage=1, microbatch=0)
    b1 = s.add(1, "B", 4, 5, stage=1, microbatch=0)
    s.add(1, "send", 5, 6, stream="pp.send.B1", axis="pp", waits=(b1,), bytes=60.0, stage=1, microbatch=0)
    return s
