"""What one microbatch costs on one rank, by part of the model: read off the Program of a few layers and one stage.

Lowering, pricing and lifetimes are those of the engine; only the depth is cut. A *part* is what stands before the layers (embedding), a layer of
each kind (dense, with experts), and what stands behind them (head, loss). All numbers bound from below what a stage of many layers takes: sums
over its compute stream, with every collective on it as if nothing else were on the network.
Of schedules of OVERLAPPED only compute counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from ..collectives.plan import CollectivePlan, capacity
from ..collectives.plan import plan as collective_plan
from ..collectives.plan import seconds as collective_seconds
from ..config import Plan, Run
from ..cost.timing import seconds as kernel_seconds
from ..lowering import lower
from ..model.spec import Fixed, Model, Transformer
from ..parallel.layout import Batch, Degrees, Layout, Pipeline
from ..parallel.mesh import Mesh
from ..program.edges import Resolved
from ..program.ops import CATEGORIES, COMPUTE, Collective, Compute, Kernel, Op
from ..program.workload import Program, Workload, buffer_bytes
from ..sim.traffic import collective_size
from .space import OVERLAPPED

Groups = dict[str, tuple[tuple[int, ...], ...]]  # by name: sets of ranks
FIRST, LAST = -1, -2  # parts before and behind the layers; the others are 0 (dense) and 1 (experts)
# R among the passes: the part of a backward that repeats the forward; that of a stage's last layer does not wait for the message


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


def kind(model: Model, layer: int) -> int:
    """Which part a layer is."""
    return int(isinstance(model, Transformer) and model.sparse(layer))


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
        self._meshes: dict[Degrees, Mesh] = {}
        sizes = np.unique([run.cluster.node_of[d] for d in run.cluster.devices], return_counts=True)[1]
        self._server = int(sizes[0]) if (sizes == sizes[0]).all() and run.cluster.alike is not None else 0

    def mesh(self, degrees: Degrees) -> Mesh:
        """The mesh, kept."""
        if degrees not in self._meshes:
            self._meshes[degrees] = Mesh(degrees)
        return self._meshes[degrees]

    def held(self, layout: Layout) -> Body:
        """Bytes and the optimizer's seconds by part (no seconds of passes)."""
        key = self._body_key(layout)
        if key not in self._bodies:
            plain = self._plain(layout)
            program, price = plain.program_of(0), self._pricer(plain, {})
            parts = {part: Part({}, **row) for part, row in _stored(shallow(self.run.plan.model), program, price).items()}
            self._bodies[key] = Body(parts, float(buffer_bytes(program.buffers["L1.input"])) if "L1.input" in program.buffers else 0.0)
        return self._bodies[key]

    def rise(self, layout: Layout) -> float:
        """Bytes that the backward of a last stage needs beyond what is kept."""
        key = (*self._body_key(layout), layout.degrees.replicas > 1)
        if key not in self._rises:
            model = shallow(self.run.plan.model)
            self._rises[key] = _rise(model, self._lower(layout, model, "1f1b", cut=True).program_of(0).resolved)
        return self._rises[key]

    def passes(self, layout: Layout) -> dict[int, dict[str, float]]:
        """Seconds of the passes by part and letter."""
        groups = self._groups(layout.degrees) if layout.pipeline.schedule not in OVERLAPPED else {}
        key = (*self._body_key(layout), fresh(layout), tuple(groups.items()))
        if key not in self._passes:
            self._passes[key] = self._timed(layout, groups)
        return self._passes[key]

    def least(self, layout: Layout, *, new: bool) -> dict[int, dict[str, float]]:
        """Seconds of a forward and its whole backward by part and letter (F, B, R), at least, whatever the schedule (one of OVERLAPPED, or any other).

        `new`: some stage of ZeRO writes gradients anew. Input and weight gradients apart are the kernels of both together. Of OVERLAPPED, F and B are
        kernels; L the seconds in which the messages of both move over one link of the rank, C those of both outside a pair, where nothing hides them.
        """
        paired = layout.pipeline.schedule in OVERLAPPED
        groups = self._groups(layout.degrees)
        key = ("least", *self._body_key(layout), new, paired, tuple(groups.items()))
        if key not in self._passes:
            model, plain = shallow(self.run.plan.model), self._plain(layout)
            price, bodies = self._pricer(plain, {} if paired else groups), plain.program_of(0).bodies
            backward = _anew(bodies["B0"]) if new else bodies["B0"]
            ways = {"F": (bodies["F0"], price), "B": (backward, price), "R": (backward, lambda op: price(op) if op.label.phase == "R" else 0.0)}
            found = {letter: _by_part(model, body, letter, cost) for letter, (body, cost) in ways.items()}
            if paired:
                full = self._pricer(plain, groups)
                there, back = (_by_part(model, bodies[f"{letter}0"], letter, lambda op: full(op) if isinstance(op, Collective) else 0.0) for letter in "FB")
                found |= {"L": self._moved(layout, plain), "C": {part: there.get(part, 0.0) + back.get(part, 0.0) for part in {*there, *back}}}
            self._passes[key] = {part: {x: row.get(part, 0.0) for x, row in found.items()} for part in {*found["F"], *found["B"]}}
        return self._passes[key]

    def _moved(self, layout: Layout, plain: Workload) -> dict[int, float]:
        """Seconds by part in which the collectives of a forward and its backward keep a link of the rank busy: one that carries most of the layers'."""
        model, groups, program = shallow(self.run.plan.model), self._groups(layout.degrees), plain.program_of(0)
        each: dict[int, list[float]] = {}
        for ranks in range(max(map(len, groups.values()), default=0)):
            sums: dict[int, dict[int, float]] = {}
            for letter in "FB":
                ops = program.bodies[f"{letter}0"]
                for op, part in zip(ops, _part_of(model, [o.label.layer for o in ops], letter), strict=True):
                    if part is not None and isinstance(op, Collective) and op.group in groups:
                        for link, s in self._links(plain, op, groups[op.group][min(ranks, len(groups[op.group]) - 1)]).items():
                            sums.setdefault(link, {})[part] = sums.get(link, {}).get(part, 0.0) + s
            busiest = max(sums.values(), key=lambda row: row.get(0, 0.0) + row.get(1, 0.0), default={})
            for part in (0, 1, FIRST, LAST):
                each.setdefault(part, []).append(busiest.get(part, 0.0))
        layers = Counter(kind(model, n) for n in range(model.layers))
        return {part: min(row) / layers.get(part, 1) for part, row in each.items()}

    def _links(self, workload: Workload, op: Collective, ranks: tuple[int, ...]) -> dict[int, float]:
        """Seconds that `op` among `ranks` keeps each link busy."""
        cluster, profile = self.run.cluster, self.run.profile
        made, free, out = self._planned(workload, op, ranks), capacity(cluster, profile), dict[int, float]()
        for phase in made.phases:
            for link, weight in phase.weights:
                out[link] = out.get(link, 0.0) + phase.bytes * weight / float(free[link])
        return out

    def _planned(self, workload: Workload, op: Collective, ranks: tuple[int, ...]) -> CollectivePlan:
        """The plan of `op` among `ranks`, kept."""
        size, shares = collective_size(workload.program_of(0), op), workload.loads[op.load] if op.load else None
        key = (op.op, size.nbytes, size.copies, op.root, ranks, None if shares is None else shares.tobytes())
        if key not in self._plans:
            cluster, profile = self.run.cluster, self.run.profile
            members = [cluster.devices[r] for r in ranks]
            self._plans[key] = collective_plan(op.op, float(size.nbytes), members, cluster, profile, root=op.root, shares=shares, copies=size.copies)
        return self._plans[key]

    def _body_key(self, layout: Layout) -> tuple[object, ...]:
        d = layout.degrees
        return (d.tp, d.cp, d.ep, layout.batch.micro, layout.tensor.sequence_parallel, layout.recompute.modules)

    def _plain(self, layout: Layout, schedule: str = "1f1b") -> Workload:
        """Without replicas that share anything out: what most numbers are read off."""
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
        aligned = self._server and together and (self._server % block == 0 or block % self._server == 0)
        ranks = [mesh.rank(pp=s) for s in (range(1) if aligned else range(d.pp))]
        tables = {axis: mesh.groups(axis) for axis in ("tp", "cp") if getattr(d, axis) > 1}
        tables |= {"ep": mesh.experts["ep"]} if d.ep > 1 else {}
        return {name: tuple(tuple(t[np.nonzero((t == r).any(axis=1))[0][0]].tolist()) for r in ranks) for name, t in tables.items()}

    def _timed(self, layout: Layout, groups: Groups) -> dict[int, dict[str, float]]:
        model, fused, split = shallow(self.run.plan.model), self._plain(layout), self._plain(layout, "zb-h1")
        price = self._pricer(fused, groups)
        seconds: dict[int, dict[str, float]] = {}
        for letter, source in (("F", fused), ("B", fused), ("I", split), ("W", split)):
            ops = source.program_of(0).bodies[f"{letter}0"]
            body = _anew(ops) if fresh(layout) else ops
            for part, s in _by_part(model, body, letter, price).items():
                seconds.setdefault(part, {})[letter] = s
            again = _by_part(model, body, letter, lambda op: price(op) if op.label.phase == "R" else 0.0) if letter in "BI" else {}
            for part, s in again.items():
                seconds[part]["R"] = max(s, seconds[part].get("R", 0.0))
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
            recompute=replace(layout.recompute, modules=() if layout.recompute.layers else layout.recompute.modules, layers=None),
        )
        return lower(Plan(model, small), check=False).bound

    def _pricer(self, workload: Workload, groups: Groups) -> Callable[[Op], float]:
        cluster, profile = self.run.cluster, self.run.profile
        overhead = profile.get("compute.op_overhead", 0.0)
        slowest = min([1.0, *cluster.slowdown.values()])

        def price(op: Op) -> float:
            if isinstance(op, Compute):
                return slowest * (overhead + sum(kernel_seconds(k, cluster.accelerator, profile) for k in op.kernels))
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


def shallow(model: Model) -> Model:
    """The model with as few layers as show every kind of them: a prefix, so that every layer keeps its kind."""
    kinds = [kind(model, n) for n in range(model.layers)]
    depth = min(model.layers, max(2, *(kinds.index(k) + 1 for k in set(kinds))))
    if isinstance(model, Fixed):
        return replace(model, layers=depth, parameters=model.parameters // model.layers * depth)
    return replace(model, layers=depth)


def _part_of(model: Model, layers: Sequence[int], letter: str) -> list[int | None]:
    """The part of every op of a body, from the layers of their labels; what carries none belongs to the end it stands at."""
    numbered = [i for i, n in enumerate(layers) if n >= 0]
    low, high = (numbered[0], numbered[-1]) if numbered else (len(layers), len(layers))
    before, behind = (FIRST, LAST) if letter == "F" else (LAST, FIRST)
    return [kind(model, n) if n >= 0 else before if i < low else behind if i > high else None for i, n in enumerate(layers)]


def _by_part(model: Model, body: Sequence[Op], letter: str, price: Callable[[Op], float]) -> dict[int, float]:
    """Seconds of the compute stream by part; of the layers of a kind the shortest."""
    totals: dict[tuple[int, int], float] = {}
    for op, part in zip(body, _part_of(model, [op.label.layer for op in body], letter), strict=True):
        if part is not None and op.stream == COMPUTE:
            key = (part, op.label.layer if part >= 0 else -1)
            totals[key] = totals.get(key, 0.0) + price(op)
    return {part: min(s for (p, _), s in totals.items() if p == part) for part in {p for p, _ in totals}}


def _stored(model: Model, program: Program, price: Callable[[Op], float]) -> dict[int, dict[str, float]]:
    """Bytes of parameters, gradients, optimizer state and what is kept, and seconds of their update, by part; of the layers of a kind the least."""
    home: dict[str, tuple[int, int]] = {}  # parameter -> (part, layer)
    forward = program.bodies["F0"]
    for op, part in zip(forward, _part_of(model, [op.label.layer for op in forward], "F"), strict=True):
        for ref in op.reads:
            if part is not None and program.buffers[ref.name].category == "parameters":
                home.setdefault(ref.name, (part, op.label.layer))
    sums: dict[tuple[int, int], dict[str, float]] = {}
    for name, buffer in program.buffers.items():
        owner = buffer.of[0] if buffer.of else name
        at = next((home[n] for n in (owner, owner.removesuffix(".grad"), owner.rpartition(".")[0]) if n in home), None)
        if at is not None and buffer.persistent and buffer.category in ("parameters", "gradients", "optimizer"):
            sums.setdefault(at, {}).setdefault(buffer.category, 0.0)
            sums[at][buffer.category] += buffer_bytes(buffer)
    for op in program.bodies.get("step", ()):
        if isinstance(op, Compute) and op.stream == COMPUTE:
            for kernel in op.kernels:
                at = next((home[r.name] for r in kernel.writes if r.name in home), None)
                if at is not None:
                    sums.setdefault(at, {}).setdefault("update", 0.0)
                    sums[at]["update"] += price(replace(op, kernels=(kernel,)))
    for at, nbytes in _kept(model, program.resolved).items():
        sums.setdefault(at, {})["kept"] = nbytes
    out: dict[int, dict[str, float]] = {}
    for part in {p for p, _ in sums}:
        rows = [row for (p, _), row in sums.items() if p == part]
        out[part] = {what: min(row.get(what, 0.0) for row in rows) for what in ("parameters", "gradients", "optimizer", "kept", "update")}
    return out


def _kept(model: Model, resolved: Resolved) -> dict[tuple[int, int], float]:
    """Bytes born in the first forward and used in its backward, by (part, layer) of the op that makes them."""
    program = resolved.program
    forward = np.flatnonzero(resolved.call == 0)
    layers = [resolved.op(int(i)).label.layer for i in forward]
    parts = _part_of(model, layers, "F")
    last = np.maximum.reduceat(resolved.last_users, resolved.last_start[:-1]) if len(resolved.last_users) else np.zeros(0, dtype=np.int64)
    out: dict[tuple[int, int], float] = {}
    for g in np.flatnonzero((resolved.birth >= 0) & (resolved.birth < len(forward)) & (last >= len(forward))).tolist():
        buffer = program.buffers[resolved.buffers[int(resolved.generation_buffer[g])]]
        i = int(resolved.birth[g])
        part = parts[i]
        if part is not None and buffer.category in CATEGORIES and program.calls[int(resolved.call[last[g]])].body.startswith(("B", "I")):
            key = (part, layers[i] if part >= 0 else -1)
            out[key] = out.get(key, 0.0) + buffer_bytes(buffer)
    return out


def _rise(model: Model, resolved: Resolved) -> float:
    """Bytes by which memory rises above what is kept while the first backward passes the head and the last layer."""
    calls = resolved.program.calls
    backward = next((c for c, call in enumerate(calls) if call.body.startswith("B")), -1)
    begin = int(np.flatnonzero(resolved.call == backward)[0])
    sizes = np.array([buffer_bytes(resolved.program.buffers[b]) for b in resolved.buffers], dtype=float)
    counted = np.array([resolved.program.buffers[b].category in CATEGORIES for b in resolved.buffers])
    weight = np.where(counted, sizes, 0.0)[resolved.generation_buffer]
    last = np.maximum.reduceat(resolved.last_users, resolved.last_start[:-1])
    mortal = resolved.birth >= 0
    levels, kept = [], float(weight[mortal & (resolved.birth < begin) & (last >= begin)].sum())
    for i in np.flatnonzero(resolved.call == backward).tolist():
        op = resolved.op(i)
        if op.label.layer not in (-1, model.layers - 1):
            break
        if isinstance(op, Compute) and op.stream == COMPUTE:
            levels.append(float(weight[mortal & (resolved.birth <= i) & (last >= i)].sum()))
        if op.label.layer == -1 and levels and any(resolved.op(j).label.layer >= 0 for j in range(begin, i)):
            break
    return max(0.0, max(levels, default=0.0) - kept)
