"""What a rank moves: its collectives and messages by axis and pass, in wire bytes, elements and seconds of each call alone on the network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..collectives.plan import seconds, send
from ..cost.pricing import PRICES
from ..cost.profile import Profile
from ..program.ops import DTYPE_BYTES, P2P, Collective, Compute, Op
from ..program.workload import Program, Workload
from ..sim.traffic import collective_size, planned
from ..topology.cluster import Cluster

PASSES = {"F": "forward", "R": "again", "S": "step", "B": "backward", "I": "backward", "W": "backward"}
COUNTED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
WORDS = {"forward": "forward", "backward": "backward", "again": "backward", "step": "optimizer step"}


@dataclass
class Row:
    """Sums over calls. `ops` counts them by name."""

    calls: int = 0
    wire_bytes: float = 0.0
    wire_elements: float = 0.0
    seconds: float = 0.0
    largest: float = 0.0
    ops: Counter[str] = field(default_factory=Counter)

    def add(self, other: Row, times: int) -> None:
        """Add `times` of another."""
        self.calls += times * other.calls
        self.wire_bytes += times * other.wire_bytes
        self.wire_elements += times * other.wire_elements
        self.seconds += times * other.seconds
        self.largest = max(self.largest, other.largest)
        for name, n in other.ops.items():
            self.ops[name] += times * n

    def to_json(self) -> dict[str, Any]:
        """Calls by op, bytes, elements, seconds."""
        each = self.wire_bytes / self.calls if self.calls else None
        return {
            "calls": self.calls,
            "wire_bytes_per_call": each,
            "wire_bytes_of_largest_call": self.largest,
            "ops": {**dict.fromkeys(COUNTED, 0), **self.ops},
            "wire_bytes": self.wire_bytes,
            "wire_elements": self.wire_elements,
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Moves:
    """The transfers of `rank`."""

    workload: Workload
    rank: int
    cluster: Cluster
    profile: Profile
    _known: dict[Any, Row] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        """The Program of the rank."""
        return self.workload.program_of(self.rank)

    def layer(self, layer: int) -> dict[str, dict[str, Any]]:
        """Of one layer and microbatch, by axis: the sum, and the parts by pass. `ops` without those of gradients, which share buckets."""
        bodies = dict.fromkeys(c.body for c in self.program.calls)
        ops: list[Op] = []
        for letter in "FBIW":
            body = next((b for b in bodies if b[0] == letter and any(op.label.layer == layer for op in self.program.bodies[b])), None)
            ops += [op for op in self.program.bodies[body] if op.label.layer == layer] if body else []
        return self._sums((op, 1) for op in ops)

    def step(self) -> dict[str, dict[str, Any]]:
        """Of the whole step, by axis."""
        times = Counter(c.body for c in self.program.calls)
        return self._sums((op, n) for body, n in times.items() for op in self.program.bodies[body])

    def recomputed(self, layer: int) -> float:
        """FLOPs of products and attention that are repeated for `layer` on this rank times tp x cp; attention in full, as model FLOPs count it."""
        body = next((b for name, b in self.program.bodies.items() if name[0] in "BI" and any(op.label.phase == "R" for op in b)), ())
        kernels = [k for op in body if isinstance(op, Compute) and op.label.phase == "R" and op.label.layer == layer for k in op.kernels]
        ranks = self.workload.groups["tp"].shape[1] if "tp" in self.workload.groups else 1
        return ranks * sum(PRICES[k.name].flops(k) * (2.0 if PRICES[k.name].kind == "attention" else 1.0) for k in kernels)

    def _sums(self, ops: Iterable[tuple[Op, int]]) -> dict[str, dict[str, Any]]:
        rows: dict[str, dict[str, Row]] = {}
        for op, times in ops:
            if isinstance(op, Compute):
                continue
            where = rows.setdefault(op.label.axis or "other", {})
            where.setdefault(PASSES.get(op.label.phase[0], "messages"), Row()).add(self._row(op), times)
        out = {}
        for axis, parts in rows.items():
            total = Row()
            for part in parts.values():
                total.add(part, 1)
            out[axis] = {**total.to_json(), **{name: part.to_json() for name, part in parts.items()}}
        return out

    def _row(self, op: Collective | P2P) -> Row:
        if op not in self._known:
            self._known[op] = self._collective(op) if isinstance(op, Collective) else self._messages(op)
        return self._known[op]

    def _collective(self, op: Collective) -> Row:
        size = collective_size(self.program, op)
        members = [self.cluster.devices[r] for r in self.workload.members(self.rank, op.group)]
        made = planned(op, size, members, self.workload, self.cluster, self.profile)
        width = DTYPE_BYTES[self.program.buffers[(op.writes or op.reads)[0].name].dtype] if op.writes or op.reads else 1
        sent = made.wire_bytes_per_rank
        return Row(1, sent, sent / width, seconds(made, self.cluster, self.profile), sent, Counter({op.op: 1}))

    def _messages(self, op: P2P) -> Row:
        row = Row()
        for m in op.sends:
            nbytes, peer = self.program.nbytes((m.buffer,)), int(self.workload.peers[m.peer][self.rank])
            made = send(float(nbytes), self.cluster.devices[self.rank], self.cluster.devices[peer], self.cluster, self.profile)
            width = DTYPE_BYTES[self.program.buffers[m.buffer.name].dtype]
            row.add(Row(1, float(nbytes), nbytes / width, seconds(made, self.cluster, self.profile), float(nbytes), Counter({"send": 1})), 1)
        for m in op.recvs:
            nbytes = self.program.nbytes((m.buffer,))
            row.ops["recv"] += 1
            row.ops["recv_bytes"] += nbytes
        return row


def between(program: Program, axis: str) -> str:
    """Between which work of the step the transfers of `axis` stand, in the order of the Program: `backward and optimizer step`, or `within` one."""
    order = [op for c in program.calls for op in program.bodies[c.body]]
    mine = [i for i, op in enumerate(order) if not isinstance(op, Compute) and op.label.axis == axis]
    work = {i: WORDS[PASSES.get(op.label.phase[0], "backward")] for i, op in enumerate(order) if isinstance(op, Compute)}
    before = [word for i, word in work.items() if i < mine[0]]
    after = [word for i, word in work.items() if i > mine[-1]]
    inside = {word for i, word in work.items() if mine[0] < i < mine[-1]}
    if inside or not before or not after:
        return f"within {' and '.join(sorted(inside or set(before[-1:] or after[:1])))}"
    return f"{before[-1]} and {after[0]}"
