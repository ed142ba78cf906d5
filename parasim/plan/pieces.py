"""What one microbatch costs on one rank, by part of the model (see `parts`): read off the Program of a few layers and one stage.

Lowering, pricing and lifetimes are those of the engine; only the depth is cut. All numbers bound from below what a stage of many layers takes: what
its compute stream takes from one op to the next, with every collective, and the messages of context parallelism, as if nothing else were on the network.
Of schedules of OVERLAPPED only compute counts, apart from pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import numpy as np

from ..collectives.plan import CollectivePlan, capacity, send
from ..collectives.plan import seconds as collective_seconds
from ..config import Plan, Run
from ..cost.timing import seconds as kernel_seconds
from ..lowering import lower
from ..model.spec import Model
from ..parallel.layout import Batch, Degrees, Layout, Pipeline
from ..parallel.mesh import Mesh
from ..program.ops import P2P, Collective, Compute, Kernel, Msg, Op
from ..program.workload import Workload, buffer_bytes
from ..sim.traffic import collective_size, planned
from .parts import FIRST, LAST, Beats, Price, by_part, kind, part_of, shallow, shortest, stage, templates, together
from .parts_memory import rise, stored
from .space import OVERLAPPED

Groups = dict[str, tuple[tuple[int, ...], ...]]  # by name: sets of ranks


@dataclass(frozen=True)
class Part:
    """Seconds of a pass by its letter, and bytes of a rank: parameters, gradients, optimizer state, and `kept` from forward to backward."""

    seconds: dict[str, float]
    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    kept: float = 0.0
    update: float = 0.0  # seconds of the optimizer's kernels


NOTHING = Part({})


@dataclass(frozen=True)
class Body:
    """The parts of a microbatch; `message` bytes of a boundary."""

    parts: dict[int, Part]
    message: float


def fresh(layout: Layout) -> bool:
    """Are gradients of a microbatch written anew, and not added to what is there?"""
    return layout.zero.stage >= 2 and layout.degrees.replicas > 1


def whole(layout: Layout) -> bool:
    """Are parameters gathered layer by layer?"""
    return layout.zero.stage == 3 and layout.degrees.replicas > 1


class Pieces:
    """Bodies by what determines them; the cluster and profile are those of `run`, the model too."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._lowered: dict[object, Workload] = {}
        self._plans: dict[object, CollectivePlan] = {}
        self._bodies: dict[object, Body] = {}
        self._rises: dict[object, float] = {}
        self._passes: dict[object, dict[int, dict[str, float]]] = {}
        self._sets: dict[Degrees, Groups] = {}
        self._pairs: dict[object, float] = {}
        self._beats: dict[object, Beats] = {}
        self._numbers: dict[Any, int] = {}
        self._meshes: dict[Degrees, Mesh] = {}
        sizes = np.unique([run.cluster.node_of[d] for d in run.cluster.devices], return_counts=True)[1]
        self.server = int(sizes[0]) if (sizes == sizes[0]).all() and run.cluster.alike is not None else 0  # devices of each; 0: they differ

    def mesh(self, degrees: Degrees) -> Mesh:
        """The mesh, kept."""
        if degrees not in self._meshes:
            self._meshes[degrees] = Mesh(degrees)
        return self._meshes[degrees]

    def held(self, layout: Layout) -> Body:
        """Bytes and the optimizer's seconds by part (no seconds of passes)."""
        key = self._body_key(layout)
        if key not in self._bodies:
            plain = self._plain(layout, least=True)
            program, price = plain.program_of(0), self._pricer(plain, {})
            parts = {part: Part({}, **row) for part, row in stored(shallow(self.run.plan.model), program, price).items()}
            self._bodies[key] = Body(parts, float(buffer_bytes(program.buffers["L1.input"])) if "L1.input" in program.buffers else 0.0)
        return self._bodies[key]

    def rise(self, layout: Layout) -> float:
        """Bytes that the backward of a last stage needs beyond what is kept."""
        key = (*self._body_key(layout), layout.degrees.replicas > 1)
        if key not in self._rises:
            model = shallow(self.run.plan.model)
            self._rises[key] = rise(model, self._lower(layout, model, "1f1b", cut=True).program_of(0).resolved)
        return self._rises[key]

    def passes(self, layout: Layout, *, alone: bool = False) -> dict[int, dict[str, float]]:
        """Seconds of the passes by part and letter; `alone`: of OVERLAPPED outside of pairs, else what counts in them too."""
        moving = alone or layout.pipeline.schedule not in OVERLAPPED
        key = (*self._body_key(layout), fresh(layout), moving, self._alike(layout))
        if key not in self._passes:
            self._passes[key] = self._timed(layout, moving=moving)
        return self._passes[key]

    def least(self, layout: Layout, *, new: bool) -> dict[int, dict[str, float]]:
        """Seconds of a forward and its whole backward by part and letter (F, B, R), at least, whatever the schedule (one of OVERLAPPED, or any other).

        `new`: some stage of ZeRO writes gradients anew. Input and weight gradients apart are the kernels of both together. Of OVERLAPPED, F and B are
        kernels; L the seconds in which the messages of both move over one link of the rank, C those of both outside a pair, where nothing hides them.
        """
        paired = layout.pipeline.schedule in OVERLAPPED
        key = ("least", *self._body_key(layout), new, paired, self._alike(layout))
        if key not in self._passes:
            ops = {letter: self._ops(layout, letter, new=new) for letter in "FB"}
            found = {letter: by_part(ops[letter], moving=not paired) for letter in "FB"}
            rest = by_part(ops["B"], moving=not paired, again=False)
            found["R"] = {part: s - rest[part] for part, s in found["B"].items()}
            if paired:
                alone = {letter: by_part(ops[letter]) for letter in "FB"}
                found["C"] = {part: sum(alone[x].get(part, 0.0) - found[x].get(part, 0.0) for x in "FB") for part in {*alone["F"], *alone["B"]}}
                found["L"] = self._moved(layout, self._plain(layout))
            self._passes[key] = {part: {x: row.get(part, 0.0) for x, row in found.items()} for part in {*found["F"], *found["B"]}}
        return self._passes[key]

    def _moved(self, layout: Layout, plain: Workload) -> dict[int, float]:
        """Seconds by part in which the collectives of a forward and its backward keep a link of the rank busy: one that carries most of the layers'."""
        model, groups, program = shallow(self.run.plan.model), self._groups(layout.degrees), plain.program_of(0)
        each: dict[int, list[float]] = {}
        for ranks in range(max(map(len, groups.values()), default=0)):
            moves: dict[int, tuple[CollectivePlan, Counter[int]]] = {}
            for letter in "FB":
                ops = program.bodies[f"{letter}0"]
                for op, part in zip(ops, part_of(model, [o.label.layer for o in ops], letter), strict=True):
                    name = op.group if isinstance(op, Collective) else "cp" if isinstance(op, P2P) else ""
                    if part is not None and name in groups:
                        for made in self._of(plain, op, groups[name][min(ranks, len(groups[name]) - 1)]):
                            moves.setdefault(id(made), (made, Counter()))[1][part] += 1
            busiest = self._busiest(moves.values())
            for part in (0, 1, FIRST, LAST):
                each.setdefault(part, []).append(busiest.get(part, 0.0))
        layers = Counter(kind(model, n) for n in range(model.layers))
        return {part: min(row) / layers.get(part, 1) for part, row in each.items()}

    def _busiest(self, moves: Iterable[tuple[CollectivePlan, Counter[int]]]) -> dict[int, float]:
        """Seconds by part of the link that is busiest with layers, from transfers and how often each part has them."""
        sums: dict[int, dict[int, float]] = {}
        for made, times in moves:
            for link, seconds in self._links([made]).items():
                row = sums.setdefault(link, {})
                for part, n in times.items():
                    row[part] = row.get(part, 0.0) + n * seconds
        return max(sums.values(), key=lambda row: row.get(0, 0.0) + row.get(1, 0.0), default={})

    def _links(self, plans: Sequence[CollectivePlan]) -> dict[int, float]:
        """Seconds that transfers keep each link busy."""
        free, out = capacity(self.run.cluster, self.run.profile), dict[int, float]()
        for phase in (phase for made in plans for phase in made.phases):
            for link, weight in phase.weights:
                out[link] = out.get(link, 0.0) + phase.bytes * weight / float(free[link])
        return out

    def _ring(self, workload: Workload, op: P2P, ranks: tuple[int, ...]) -> float:
        """Seconds of a step of a ring for the first of `ranks`: of its messages to the next one, and of those from the last one."""
        ways = [self._messages(workload, op.sends, ranks[0], ranks[1]), self._messages(workload, op.recvs, ranks[-1], ranks[0])]
        return max((way[0].phases[0].latency + max(self._links(way).values(), default=0.0) for way in ways if way), default=0.0)

    def _messages(self, workload: Workload, messages: Sequence[Msg], source: int, target: int) -> list[CollectivePlan]:
        """The plans of messages between two ranks, kept."""
        cluster, profile = self.run.cluster, self.run.profile
        ends = cluster.devices[source], cluster.devices[target]
        made: list[CollectivePlan] = []
        for m in messages:
            key = (workload.program_of(0).nbytes((m.buffer,)), *ends)
            if key not in self._plans:
                self._plans[key] = send(float(key[0]), *ends, cluster, profile)
            made.append(self._plans[key])
        return [plan for plan in made if plan.phases]

    def _of(self, workload: Workload, op: Op, ranks: tuple[int, ...]) -> list[CollectivePlan]:
        """What of `op` goes over links of the first of `ranks`."""
        if isinstance(op, P2P):
            return self._messages(workload, op.sends, ranks[0], ranks[1])
        return [self._planned(workload, op, ranks)] if isinstance(op, Collective) else []

    def _planned(self, workload: Workload, op: Collective, ranks: tuple[int, ...]) -> CollectivePlan:
        """The plan of `op` among `ranks`, kept."""
        size, shares = collective_size(workload.program_of(0), op), workload.loads[op.load] if op.load else None
        key = (op.op, op.algorithm, size.nbytes, size.copies, op.root, ranks, None if shares is None else shares.tobytes())
        if key not in self._plans:
            cluster, profile = self.run.cluster, self.run.profile
            members = [cluster.devices[r] for r in ranks]
            self._plans[key] = planned(op, size, members, workload, cluster, profile)
        return self._plans[key]

    def pair(self, layout: Layout, forward: tuple[int, int], backward: tuple[int, int]) -> float:
        """Seconds of an overlapped pair of a forward of layers a to b and a backward of others."""
        model = self.run.plan.model
        steps: list[list[tuple[int, int]]] = []
        for a, b in (forward, backward):
            first, last = [(FIRST, 0)] * (a == 0), [(LAST, model.layers)] * (b == model.layers)
            steps.append([*first, *((kind(model, n), n) for n in range(a, b)), *last])
        new = fresh(layout)
        key = (*self._body_key(layout), new, self._alike(layout), *(tuple(part for part, _ in way) for way in steps))
        if key not in self._pairs:
            there, back = (shortest(self._ops(layout, letter, new=new)) for letter in "FB")
            self._pairs[key] = together(stage(there, steps[0], 0), stage(back, reversed(steps[1]), 1))
        return self._pairs[key]

    def _ops(self, layout: Layout, letter: str, *, new: bool) -> Beats:
        """The ops of a pass by part and layer, kept."""
        key = (letter, new, *self._body_key(layout), self._alike(layout))
        if key not in self._beats:
            plain = self._plain(layout, "zb-h1" if letter in "IW" else "1f1b")
            body = plain.program_of(0).bodies[f"{letter}0"]
            price = self._pricer(plain, self._groups(layout.degrees))
            self._beats[key] = templates(shallow(self.run.plan.model), _anew(body) if new else body, letter, price)
        return self._beats[key]

    def _alike(self, layout: Layout) -> int:
        """The same number for layouts with the same groups."""
        d = layout.degrees
        if d not in self._numbers:
            self._numbers[d] = self._numbers.setdefault(tuple(self._groups(d).items()), len(self._numbers))
        return self._numbers[d]

    def _body_key(self, layout: Layout) -> tuple[object, ...]:
        d = layout.degrees
        return (d.tp, d.cp, d.ep, layout.batch.micro, layout.tensor.sequence_parallel, layout.recompute)

    def _plain(self, layout: Layout, schedule: str = "1f1b", *, least: bool = False) -> Workload:
        """Without replicas that share anything out: what most numbers are read off. Where only some layers are repeated, as if none were; for the
        `least` that is kept, as if all were."""
        if layout.recompute.layers is not None:
            layout = replace(layout, recompute=replace(layout.recompute, modules=layout.recompute.modules if least else (), layers=None))
        key = (schedule, *self._body_key(layout))
        if key not in self._lowered:
            self._lowered[key] = self._lower(layout, shallow(self.run.plan.model), schedule)
        return self._lowered[key]

    def _groups(self, d: Degrees) -> Groups:
        """By name of a group the sets of ranks among which those of replica 0 are: one where all stages look alike, else one per stage."""
        if d not in self._sets:
            self._sets[d] = self._find(d)
        return self._sets[d]

    def _find(self, d: Degrees) -> Groups:
        mesh, block = self.mesh(d), d.tp * d.cp * d.ep
        together = d.order[:2] == ("tp", "cp") and (d.ep == 1 or d.order[-1] == "pp")  # the groups of a rank are a block of neighbours
        aligned = self.server and together and (self.server % block == 0 or block % self.server == 0)
        ranks = [mesh.rank(pp=s) for s in (range(1) if aligned else range(d.pp))]
        tables = {axis: mesh.groups(axis) for axis in ("tp", "cp") if getattr(d, axis) > 1}
        tables |= {"ep": mesh.experts["ep"]} if d.ep > 1 else {}
        return {name: tuple(tuple(t[np.nonzero((t == r).any(axis=1))[0][0]].tolist()) for r in ranks) for name, t in tables.items()}

    def _timed(self, layout: Layout, *, moving: bool) -> dict[int, dict[str, float]]:
        seconds: dict[int, dict[str, float]] = {}
        for letter in "FBIW":
            ops = self._ops(layout, letter, new=fresh(layout))
            rest = by_part(ops, moving=moving, again=False)
            for part, s in by_part(ops, moving=moving).items():
                row = seconds.setdefault(part, {})
                row[letter] = s
                row["R"] = max(row.get("R", 0.0), s - rest[part] if letter in "BI" else 0.0)  # what need not wait for the message
        return seconds

    def _lower(self, layout: Layout, model: Model, schedule: str, *, cut: bool = False) -> Workload:
        """Two microbatches of one stage of few layers, with as few replicas as expert parallelism allows.

        `cut`: one microbatch, whose backward is cut wherever a reduction might stand, so that memory is let go of as early as can be.
        """
        d, m = layout.degrees, 1 if cut else 2
        degrees = replace(d, dp=(2 if cut and d.replicas > 1 else 1) * (d.ep // gcd(d.ep, d.cp)), pp=1)
        small = replace(
            layout,
            degrees=degrees,
            batch=Batch(m * layout.batch.micro * degrees.dp, layout.batch.micro, layout.batch.sequence, m),
            data=replace(layout.data, mode="per-parameter"),
            zero=replace(layout.zero, stage=0, shard=degrees.replicas, overlap=True, overlap_gather=False),
            pipeline=Pipeline(schedule, 1, "async", (model.layers,)),
            recompute=replace(layout.recompute, layers=None),
        )
        return lower(Plan(model, small), check=False).bound

    def _pricer(self, workload: Workload, groups: Groups) -> Price:
        cluster, profile = self.run.cluster, self.run.profile
        overhead = profile.get("compute.op_overhead", 0.0)
        slowest = min([1.0, *cluster.slowdown.values()])

        def price(op: Op) -> float:
            if isinstance(op, Compute):
                return slowest * (overhead + sum(kernel_seconds(k, cluster.accelerator, profile) for k in op.kernels))
            if isinstance(op, P2P):
                return min((self._ring(workload, op, ranks) for ranks in dict.fromkeys(groups.get("cp", ()))), default=0.0)
            if not isinstance(op, Collective) or op.group not in groups:
                return 0.0
            plans = (self._planned(workload, op, ranks) for ranks in dict.fromkeys(groups[op.group]))
            return min(collective_seconds(p, cluster, profile) for p in plans)

        return price


def _anew(body: Sequence[Op]) -> list[Op]:
    """A backward as it would be if no gradient of a parameter were added to what is there."""

    def own(kernel: Kernel) -> Kernel:
        written = {r.name for r in kernel.writes if r.name.endswith(".grad")}
        return replace(kernel, reads=tuple(r for r in kernel.reads if r.name not in written)) if written else kernel

    return [replace(op, kernels=tuple(map(own, op.kernels))) if isinstance(op, Compute) else op for op in body]
