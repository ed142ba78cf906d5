"""Lower bounds of a layout's step and peak memory, without simulating it: a closed form for very many layouts, a replay of the schedule for few.

Step. Every compute op takes at least its price, every transfer its time alone on the network, so any chain of things that wait for each other
bounds the step. Chains used, for replica 0, with f, b seconds of a stage's passes, c of a message, w all passes of a rank, m microbatches:

- fill + m w + drain: no rank starts before the stages before its first have passed one microbatch (sum of f + c); its compute stream is busy for
  m w; and after the last backward of its first stage the stages before it still pass theirs back (sum of b + c, or of input gradients);
- then the optimizer; from the last backward of stage 0 on, the reduction of its gradients; and, where ZeRO shares the optimizer out, the gather;
- all transfers of one stream of one rank, which run one at a time (gathers of ZeRO-3, reductions of every microbatch of ZeRO-2 and 3).

`refined` replaces the first chain by the longest path through the very schedule, which knows that a message takes time.

Memory. Parameters, gradients and optimizer state of a rank, what is kept of the microbatches in flight at the fullest instant of its order, and
what the head needs beyond that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..collectives.plan import CollectivePlan, capacity, send
from ..collectives.plan import plan as collective_plan
from ..collectives.plan import seconds as collective_seconds
from ..config import Run
from ..parallel.layout import Degrees, Layout
from ..parallel.placement import stage_bounds
from ..schedules import BIDIRECTIONAL, SCHEDULES, ScheduleInput
from .depth import PARTS, Depth, Floats, Sizes, Times, by_part, depth
from .orders import Orders, backwards, least_inflight, orders, replay
from .parts import FIRST, LAST, kind
from .pieces import NOTHING, Pieces, fresh, whole
from .space import OVERLAPPED, Way

SIZES = tuple(2**k for k in (20, 25, 28))  # bytes at which a collective's seconds per byte are looked at
SAFE = 1 - 1e-9  # rounding of sums


@dataclass(frozen=True)
class Stages:
    """Seconds of the passes by stage, float[stages], and those of the messages between them."""

    seconds: dict[str, Floats]
    forward: Floats
    backward: Floats


@dataclass(frozen=True)
class Held:
    """Bytes by stage, and seconds of the optimizer on all of them, float[stages]."""

    parameters: Floats
    gradients: Floats
    optimizer: Floats
    kept: Floats
    update: Floats


class Bounds:
    """Bounds of layouts of one run (model, cluster, profile)."""

    def __init__(self, run: Run) -> None:
        self.run, self.pieces = run, Pieces(run)
        self._kept: dict[object, Any] = {}
        self._counts: dict[tuple[int, ...], list[Floats]] = {}
        self._kinds = [kind(run.plan.model, n) for n in range(run.plan.model.layers)]

    def step(self, layout: Layout) -> float:
        """Seconds that the step takes at least, in closed form."""
        key = ("closed", *self._key(layout))
        if key not in self._kept:
            self._kept[key] = self._closed(layout)
        end, begin, latest = self._kept[key]
        return max(self._whole(layout, float(end), float(begin), 0.0), float(latest) * SAFE)

    def quick(self, layout: Layout) -> float:
        """Less than `step`, and sooner: without the transfers of gradients and parameters."""
        key = ("closed", *self._key(layout))
        if key not in self._kept:
            self._kept[key] = self._closed(layout)
        end, _, latest = self._kept[key]
        return max(self._busy(layout) if layout.zero.overlap_gather else float(end), float(latest)) * SAFE

    def refined(self, layout: Layout) -> float:
        """The same by a replay of the schedule; never less than `step`."""
        key = ("replay", *self._key(layout))
        if key not in self._kept:
            stages, order = self.stages(layout, alone=True), self.orders(layout)
            rows = [{k: float(stages.seconds[k][s]) for k in "FBIWR"} for s in range(len(order.rank_of))]
            first, last, ends = replay(order, rows, stages.forward.tolist(), stages.backward.tolist(), self._paired(layout, order))
            known = SCHEDULES[layout.pipeline.schedule].placement is not BIDIRECTIONAL  # else of one of the two that hold stage 0
            self._kept[key] = ends[order.rank_of[0]], known * last[0], known * first[0], max(ends)
        end, last_backward, first_backward, latest = self._kept[key]
        return float(max(self.step(layout), self._whole(layout, end, last_backward, first_backward), latest * SAFE))

    def _paired(self, layout: Layout, order: Orders) -> dict[tuple[int, int], float]:
        """Seconds of the overlapped pairs of an order by their stages."""
        bounds = stage_bounds(layout.pipeline.layers)
        found = {(cell[0][1], cell[1][1]) for cells in order.cells for cell in cells if len(cell) > 1}
        return {(f, b): self.pieces.pair(layout, bounds[f], bounds[b]) for f, b in found}

    def memory(self, layout: Layout) -> float:
        """Bytes that the heaviest rank holds at its peak, at least, by what its schedule keeps in flight in any case."""
        pipe, d = layout.pipeline, layout.degrees
        return self._peak(layout, least_inflight(pipe.schedule, d.pp, layout.batch.microbatches, self.rank_of(layout), grouped=pipe.group is not None))

    def refined_memory(self, layout: Layout) -> float:
        """The same with what the very order keeps in flight."""
        return max(self.memory(layout), self._peak(layout, self.orders(layout).inflight))

    def ways(self, layout: Layout, ways: Sequence[Way]) -> tuple[Floats, Floats]:
        """Least seconds and bytes of the layouts that differ from `layout` in schedule (all of OVERLAPPED, or none), chunks and stage of ZeRO only.

        Both float[ways]. As `quick` and `memory`, but without messages, and with no backward before the optimizer where it may be cut apart.
        """
        d, m = layout.degrees, layout.batch.microbatches
        pairs = list(dict.fromkeys((w.schedule, w.chunks) for w in ways))
        key = ("depth", d.pp, m, *pairs)
        if key not in self._kept:
            self._kept[key] = depth(self._kinds, d.pp, m, pairs, grouped=layout.pipeline.group is not None)
        laid: Depth = self._kept[key]
        rows, zeros = [pairs.index((w.schedule, w.chunks)) for w in ways], [w.zero for w in ways]
        times = self.pieces.least(layout, new=max(zeros) >= 2 and d.replicas > 1)
        seconds = laid.seconds(Times(*(by_part(times, x) for x in "FBRLC")), m, steady=layout.zero.overlap_gather)
        return seconds[rows] * SAFE, laid.bytes(self._sizes(layout))[rows, zeros] * SAFE

    def _sizes(self, layout: Layout) -> Sizes:
        """What `Depth.bytes` needs, kept."""
        d = layout.degrees
        key = ("sizes", d.tp, d.cp, d.ep, layout.batch.micro, layout.tensor.sequence_parallel, layout.recompute, d.replicas)
        if key not in self._kept:
            body = self.pieces.held(layout)
            column = {w: np.array([getattr(body.parts.get(k, NOTHING), w) for k in PARTS]) for w in ("parameters", "gradients", "optimizer", "kept")}
            here = {"parameters": 1 - layout.offload.parameters, "gradients": 1, "optimizer": 1 - layout.offload.optimizer}
            level = {"parameters": 3, "gradients": 2, "optimizer": 1}
            state = [sum(here[w] * column[w] / (d.replicas if zero >= level[w] else 1) for w in level) for zero in range(4)]
            self._kept[key] = Sizes(np.stack(state, axis=1), column["kept"], body.message)
        found: Sizes = self._kept[key]
        return found

    def _peak(self, layout: Layout, inflight: NDArray[np.int64]) -> float:
        stages, rank_of = self.held(layout), self.rank_of(layout)
        zero = layout.zero
        parts = [zero.shard if zero.stage >= level else 1 for level in (3, 2, 1)]
        here = [1 - layout.offload.parameters, 1, 1 - layout.offload.optimizer]
        state = zip((stages.parameters, stages.gradients, stages.optimizer), parts, here, strict=True)
        held = self._by_rank(layout, sum((rows * (x / n) for rows, n, x in state), np.zeros(len(rank_of))))
        active = inflight @ stages.kept
        last = rank_of[-1]
        if not (whole(layout) or layout.tensor.asynchronous or layout.recompute.layers) and inflight[last, -1] == 1 == inflight[last].sum():
            active[last] += self.pieces.rise(layout)
        return float((held + active).max()) * SAFE

    def rank_of(self, layout: Layout) -> NDArray[np.int64]:
        """The rank of every stage."""
        key = ("ranks", layout.degrees.pp, layout.pipeline.schedule, layout.pipeline.chunks)
        if key not in self._kept:
            row, pp, m = SCHEDULES[layout.pipeline.schedule], layout.degrees.pp, layout.batch.microbatches
            self._kept[key] = np.array([row.placement.rank(s, 0, pp, m) for s in range(row.placement.stages(pp, layout.pipeline.chunks))])
        found: NDArray[np.int64] = self._kept[key]
        return found

    def orders(self, layout: Layout) -> Orders:
        """The schedule of `layout`."""
        pipe = layout.pipeline
        return orders(pipe.schedule, ScheduleInput(layout.degrees.pp, layout.batch.microbatches, pipe.chunks, pipe.group, pipe.times, pipe.memory_cap))

    def _key(self, layout: Layout) -> tuple[object, ...]:
        return (self._stages_key(layout), layout.pipeline.schedule, layout.batch.microbatches, layout.pipeline.times)

    def _stages_key(self, layout: Layout) -> tuple[object, ...]:
        d, pipe = layout.degrees, layout.pipeline
        ways = (fresh(layout), whole(layout), pipe.schedule in OVERLAPPED, SCHEDULES[pipe.schedule].placement.name)
        return (d, layout.batch.micro, layout.tensor.sequence_parallel, layout.recompute, pipe.layers, ways)

    def _closed(self, layout: Layout) -> tuple[float, float, float]:
        """End of all passes of the rank of stage 0, the beginning of its last backward, and the end of all passes of the latest rank."""
        stages, m, two = self.stages(layout), layout.batch.microbatches, SCHEDULES[layout.pipeline.schedule].placement is BIDIRECTIONAL
        each = m / 2 if two else float(m)  # half of the microbatches come from the other end
        s = stages.seconds
        back, work = self._backward(layout)
        lowest = np.unique(self.rank_of(layout), return_index=True)[1]
        fill = np.concatenate([[0.0], np.cumsum(s["F"][:-1] + stages.forward[:-1])])
        drain = np.concatenate([[0.0], np.cumsum(back[:-1] - s["R"][:-1] + stages.backward[1:])])
        if two:
            fill, drain = np.minimum(fill, fill[::-1]), np.minimum(drain, drain[::-1])
        busy = np.maximum(each * self._by_rank(layout, s["F"] + work), each * self._in_pairs(layout))
        chain = fill[lowest] + each * self._by_rank(layout, s["F"] + back) + drain[lowest]
        end = max(float(chain.max()), float(busy[self.rank_of(layout)[0]]))
        return end, 0.0 if two else float(chain.max()) - float(back[0]), float((fill[lowest] + busy).max())

    def _in_pairs(self, layout: Layout) -> Floats:
        """Seconds of a microbatch on the middle rank of an overlapped schedule if all of its passes are in pairs, or outside where that takes less.

        By rank; 0 for all others.
        """
        pp, out = layout.degrees.pp, np.zeros(layout.degrees.pp)
        if layout.pipeline.schedule in OVERLAPPED:
            s, bounds, rank_of = self.stages(layout, alone=True).seconds, stage_bounds(layout.pipeline.layers), self.rank_of(layout)
            low = int(np.nonzero(rank_of == pp // 2)[0][0])
            apart = s["F"][:, None] + np.minimum(s["B"], s["I"] + s["W"])
            mine = (low, len(rank_of) - 1 - low)
            out[pp // 2] = 2 * min(min(self.pieces.pair(layout, bounds[f], bounds[b]), float(apart[f, b])) for f in mine for b in mine)
        return out

    def _backward(self, layout: Layout) -> tuple[Floats, Floats]:
        """Seconds of a backward by stage until its message leaves, and of all of it; the least of the ways that the schedule may choose from."""
        s, kinds = self.stages(layout).seconds, backwards(layout.pipeline.schedule)
        ways = [(s["B"], s["B"])] * ("B" in kinds) + [(s["I"], s["I"] + s["W"])] * ("I" in kinds)
        return np.minimum.reduce([a for a, _ in ways]), np.minimum.reduce([b for _, b in ways])

    def _by_rank(self, layout: Layout, by_stage: Floats) -> Floats:
        """Sums over the stages of every rank."""
        out = np.bincount(self.rank_of(layout), by_stage, layout.degrees.pp)
        return np.asarray(out + out[::-1] if SCHEDULES[layout.pipeline.schedule].placement is BIDIRECTIONAL else out)

    def _whole(self, layout: Layout, end: float, last_backward: float, first_backward: float) -> float:
        """With the optimizer, the reduction of the gradients of stage 0 and the gather of its parameters."""
        d, zero, m = layout.degrees, layout.zero, layout.batch.microbatches
        stage = zero.stage if d.replicas > 1 and zero.shard > 1 else 0
        if zero.overlap_gather and stage in (1, 2):
            return self._busy(layout) * SAFE
        stages = self.held(layout)
        update = 0.0 if layout.offload.optimizer else float(self._by_rank(layout, stages.update)[0]) / (d.replicas if stage else 1)
        best = max(end, last_backward + float(self._backward(layout)[0][0])) + update
        if d.replicas == 1:
            return best * SAFE
        gradients, parameters = float(self._dense(layout, "gradients")), float(self._dense(layout, "parameters", rank=True))
        if stage == 0:
            return max(best, last_backward + gradients * self._rate("all_reduce", d)) * SAFE
        reduce = gradients * self._rate("reduce_scatter", d)
        gather = parameters * self._rate("all_gather", d)
        if stage == 3:
            again = m if zero.reshard_after_forward else 0
            carried = self._carried(d, 2 * again * parameters, m * self._dense(layout, "gradients", rank=True))
            return max(best, first_backward + m * reduce, 2 * again * gather, carried) * SAFE
        reduced = last_backward + self._behind(layout) * self._rate("reduce_scatter", d) if stage == 1 else first_backward + (m - 1) * reduce
        return max(best, max(end, reduced) + gather) * SAFE

    def _busy(self, layout: Layout) -> float:
        """Seconds of the busiest compute stream."""
        two = SCHEDULES[layout.pipeline.schedule].placement is BIDIRECTIONAL
        work = self._by_rank(layout, self.stages(layout).seconds["F"] + self._backward(layout)[0])
        return float(work.max()) * layout.batch.microbatches / (2 if two else 1)

    def _dense(self, layout: Layout, what: str, *, rank: bool = False) -> float:
        """Bytes of stage 0, or of all stages of its rank, that are shared by all of dp: with expert parallelism only the dense layers, for sure."""
        key = ("dense", what, rank, self._stages_key(layout))
        if key not in self._kept:
            body = self.pieces.held(layout)
            rank_of, bounds = self.rank_of(layout), stage_bounds(layout.pipeline.layers)
            mine = [self._kinds[a:b] for s, (a, b) in enumerate(bounds) if s == 0 or (rank and rank_of[s] == rank_of[0])]
            layers = [k for kinds in mine for k in kinds if not (k and layout.degrees.ep > 1)]
            self._kept[key] = sum(getattr(body.parts.get(k, NOTHING), what) for k in layers) + getattr(body.parts.get(FIRST, NOTHING), what)
        return float(self._kept[key])

    def _behind(self, layout: Layout) -> float:
        """Bytes of gradients whose reduction certainly precedes the first gather: all of stage 0 but its first layer and the embedding."""
        if layout.degrees.ep > 1:
            return 0.0
        body = self.pieces.held(layout)
        first = body.parts.get(FIRST, NOTHING).gradients + body.parts.get(self._kinds[0], NOTHING).gradients
        return max(0.0, self._dense(layout, "gradients") - first)

    def stages(self, layout: Layout, *, alone: bool = False) -> Stages:
        """The pieces of `layout` summed by stage; `alone` as in `Pieces.passes`."""
        key = ("stages", alone, self._stages_key(layout))
        if key not in self._kept:
            kept, again = (self.pieces.passes(one, alone=alone) for one in _both(layout))
            seconds = {x: self._total(layout, *(lambda k, x=x, p=p: p.get(k, {}).get(x, 0.0) for p in (kept, again))) for x in "FBIW"}
            most = layout.recompute.layers or 0
            last = [(self._kinds[b - 1], again if b - a <= most else kept) for a, b in stage_bounds(layout.pipeline.layers)]
            seconds["R"] = np.array([passes.get(k, {}).get("R", 0.0) for k, passes in last])
            self._kept[key] = Stages(seconds, *self._messages(layout, self.pieces.held(layout).message))
        found: Stages = self._kept[key]
        return found

    def held(self, layout: Layout) -> Held:
        """The bytes of `layout` by stage."""
        d, pipe = layout.degrees, layout.pipeline
        key = ("held", d.tp, d.cp, d.ep, layout.batch.micro, layout.tensor.sequence_parallel, layout.recompute, pipe.layers)
        if key not in self._kept:
            bodies = [self.pieces.held(one) for one in _both(layout)]
            body, names = bodies[0], ("parameters", "gradients", "optimizer", "kept", "update")
            rows = {n: self._total(layout, *(lambda k, n=n, x=x: getattr(x.parts.get(k, NOTHING), n) for x in bodies)) for n in names}
            if len(pipe.layers) > 1:
                rows["kept"][0] = max(0.0, rows["kept"][0] - body.message)  # the last output of stage 0 leaves it
            self._kept[key] = Held(**rows)
        found: Held = self._kept[key]
        return found

    def _total(self, layout: Layout, kept: Callable[[int], float], again: Callable[[int], float]) -> Floats:
        """Sums over the parts of every stage of `kept(part)`, of the layers that are repeated one by one of `again(part)`."""
        layers, some = layout.pipeline.layers, layout.recompute.layers or 0
        key = (some, *layers)
        if key not in self._counts:
            kinds, bounds = np.array(self._kinds), stage_bounds(layers)
            rest = [np.array([(kinds[min(b, a + some) : b] == k).sum() for a, b in bounds], dtype=np.float64) for k in (0, 1)]
            self._counts[key] = rest + [np.array([(kinds[a : min(b, a + some)] == k).sum() for a, b in bounds], dtype=np.float64) for k in (0, 1)]
        ways = [kept(0), kept(1), again(0), again(1)] if some else [kept(0), kept(1)]
        out = sum((n * s for n, s in zip(self._counts[key], ways, strict=False)), np.zeros(len(layers)))
        out[0] += kept(FIRST)
        out[-1] += kept(LAST)
        return np.asarray(out)

    def _messages(self, layout: Layout, nbytes: float) -> tuple[Floats, Floats]:
        """Seconds of the messages of replica 0 from each stage to the next and to the one before."""
        key = ("messages", layout.degrees, nbytes, SCHEDULES[layout.pipeline.schedule].placement.name, layout.pipeline.chunks)
        if key not in self._kept:
            self._kept[key] = self._between(layout, nbytes)
        found: tuple[Floats, Floats] = self._kept[key]
        return found

    def _between(self, layout: Layout, nbytes: float) -> tuple[Floats, Floats]:
        d, cluster, rank_of = layout.degrees, self.run.cluster, self.rank_of(layout)
        device = [cluster.devices[self.pieces.mesh(d).rank(pp=p)] for p in range(d.pp)]
        ways = [rank_of, d.pp - 1 - rank_of] if SCHEDULES[layout.pipeline.schedule].placement is BIDIRECTIONAL else [rank_of]
        forward, backward = np.zeros(len(rank_of)), np.zeros(len(rank_of))
        for s in range(len(rank_of) - 1):
            hops = [(device[way[s]], device[way[s + 1]]) for way in ways]
            if nbytes and hops[0][0] != hops[0][1]:
                forward[s] = min(self._send(nbytes, a, b) for a, b in hops)
                backward[s + 1] = min(self._send(nbytes, b, a) for a, b in hops)
        return forward, backward

    def _send(self, nbytes: float, source: str, target: str) -> float:
        key = ("send", nbytes, source, target)
        if key not in self._kept:
            self._kept[key] = collective_seconds(send(nbytes, source, target, self.run.cluster, self.run.profile), self.run.cluster, self.run.profile)
        return float(self._kept[key])

    def _carried(self, d: Degrees, gathered: float, reduced: float) -> float:
        """Seconds that the busiest link of the replicas of rank 0 needs for so many bytes of gathers and reductions, which share it."""
        key = ("links", self._replicas(d).tobytes())
        if key not in self._kept:
            busy = [self._loads(op, d) for op in ("all_gather", "reduce_scatter")]
            free = capacity(self.run.cluster, self.run.profile)
            rows = [(busy[0].get(k, 0.0) / free[k], busy[1].get(k, 0.0) / free[k]) for k in {*busy[0], *busy[1]}]
            self._kept[key] = np.unique(np.array(rows).reshape(-1, 2), axis=0)
        return float((self._kept[key] @ np.array([gathered, reduced])).max())

    def _loads(self, op: str, d: Degrees) -> dict[int, float]:
        """Bytes that every link carries for a byte of `op`."""
        loads: dict[int, float] = {}
        for phase in self._planned(op, SIZES[-1], d).phases:
            for link, weight in phase.weights:
                loads[link] = loads.get(link, 0.0) + phase.bytes * weight / SIZES[-1]
        return loads

    def _planned(self, op: str, nbytes: int, d: Degrees) -> CollectivePlan:
        """`op` over the replicas of rank 0."""
        key = ("plan", op, nbytes, self._replicas(d).tobytes())
        if key not in self._kept:
            members = [self.run.cluster.devices[r] for r in self._replicas(d)]
            self._kept[key] = collective_plan(op, float(nbytes), members, self.run.cluster, self.run.profile)
        made: CollectivePlan = self._kept[key]
        return made

    def _replicas(self, d: Degrees) -> NDArray[np.int64]:
        """The replicas of rank 0."""
        table = self.pieces.mesh(d).replicas
        return np.asarray(table[np.nonzero((table == self.pieces.mesh(d).rank()).any(axis=1))[0][0]])

    def _rate(self, op: str, d: Degrees) -> float:
        """Least seconds per byte of `op` over the replicas of rank 0, over some sizes."""
        key = ("rate", op, self._replicas(d).tobytes())
        if key not in self._kept:
            self._kept[key] = min(collective_seconds(self._planned(op, n, d), self.run.cluster, self.run.profile) / n for n in SIZES)
        return float(self._kept[key])


def _both(layout: Layout) -> tuple[Layout, Layout]:
    """Where only some layers are repeated, the layout that repeats none and the one that repeats all; else twice itself."""
    again = layout.recompute
    if again.layers is None:
        return layout, layout
    return replace(layout, recompute=replace(again, modules=(), layers=None)), replace(layout, recompute=replace(again, layers=None))
