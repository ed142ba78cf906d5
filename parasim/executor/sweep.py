"""Workloads for calibration: the same transfer again and again between slept ops, so that it is measured the way a training step meets it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ..program.ops import COMPUTE, P2P, Buffer, Collective, CollectiveOp, Compute, Kernel, Label, Msg, Op, Ref
from ..program.workload import Call, IntArray, Program, Workload
from ..timeline import Timeline

SLEEPS, WAITS, BOTH = range(3)  # the layer of a slept op: before a transfer, after one, both
MESSAGE = Label("sweep", slot=0, axis="pp")
ELEMENT = 4  # bytes of fp32, which gradients and activations are moved in


def slept_ops(ranks: int, count: int, seconds: float) -> Workload:
    """`count` slept ops in a row on every rank."""
    return _workload(ranks, {}, [(_sleep(seconds, ()),)], count)


def collectives(op: CollectiveOp, ranks: int, nbytes: int, count: int, pause: float) -> Workload:
    """`count` calls of `op` on a stream of their own, each after every rank has slept `pause` seconds. `nbytes` as in a CollectivePlan:
    the larger of a rank's two buffers."""
    whole, part = nbytes // ELEMENT, nbytes // ELEMENT // ranks
    sizes = {"all_gather": (part, whole), "reduce_scatter": (whole, part)}.get(op, (whole, whole))
    buffers = {name: Buffer(name, (size,), "fp32", "buffers") for name, size in zip(("sent", "received"), sizes, strict=True)}
    moved = Collective(
        label=Label("sweep", slot=0, axis="dp"),
        stream="transfer",
        after=(COMPUTE,),
        op=op,
        group="world",
        reads=(Ref("sent", 0),),
        writes=(Ref("received", 0),),
    )
    return _workload(ranks, buffers, [(_sleep(pause, ("sent",)), moved, _sleep(0.0, ("done",), ("received",)))], count)


def messages(ranks: int, nbytes: int, count: int, pause: float) -> Workload:
    """`count` times ranks 2k send `nbytes` to ranks 2k+1 and get as much back, each after `pause` slept seconds; an odd last rank only sleeps.

    As in a pipeline, half of the ranks send at a time: with every rank sending at once a small machine would look slower than it is.
    """
    buffers = {name: Buffer(name, (nbytes // ELEMENT,), "fp32", "buffers") for name in ("there", "back")}
    first = (_sleep(pause, ("there",)), _send("there"), _receive("back"), _sleep(0.0, ("done",), ("back",)))
    second = (_receive("there"), _sleep(pause, ("back",), ("there",)), _send("back"))
    ranks_ = np.arange(ranks)
    peer = np.where(ranks_ % 2 == 0, ranks_ + 1, ranks_ - 1)
    role = np.where(peer < ranks, ranks_ % 2, 2)
    return _workload(ranks, buffers, [first, second, (_sleep(pause, ()),)], count, role, {"partner": np.where(peer < ranks, peer, -1)})


def _send(name: str) -> Op:
    return P2P(label=MESSAGE, stream=f"send.{name}", after=(COMPUTE,), sends=(Msg(Ref(name, 0), "partner", name),))


def _receive(name: str) -> Op:
    return P2P(label=MESSAGE, stream=f"recv.{name}", recvs=(Msg(Ref(name, 0), "partner", name),))


def collective_costs(timeline: Timeline) -> list[float]:
    """Seconds of each collective: from the moment the last rank had slept to the one when the last rank may go on."""
    slept, waiting = _sides(timeline)
    return [max(float(w["ready"]) for w in waiting[m].values()) - max(float(s["end"]) for s in slept[m].values()) for m in slept]


def message_costs(timeline: Timeline) -> list[float]:
    """Seconds of each message: from the moment the sender had slept to the one when the receiver may go on."""
    slept, waiting = _sides(timeline)
    pairs = [(a, b) for a in range(0, len(timeline.representative) - 1, 2) for b in (a + 1,)]
    out = []
    for m in slept:
        for a, b in pairs:
            out += [float(waiting[m][b]["ready"] - slept[m][a]["end"]), float(waiting[m][a]["ready"] - slept[m][b]["end"])]
    return out


Side = dict[int, dict[int, Any]]  # microbatch -> rank -> row of the Timeline


def _sides(timeline: Timeline) -> tuple[Side, Side]:
    """The slept op before each rank's transfer, and the op that waits for one (of a second rank in a pair they are the same)."""
    slept: Side = {}
    waiting: Side = {}
    for row in timeline.ops[timeline.ops["kind"] == 0]:
        m, rank = int(row["microbatch"]), int(row["rank"])
        if row["layer"] != WAITS:
            slept.setdefault(m, {})[rank] = row
        if row["layer"] != SLEEPS:
            waiting.setdefault(m, {})[rank] = row
    return slept, waiting


def _sleep(seconds: float, writes: Sequence[str], reads: Sequence[str] = ()) -> Compute:
    """A slept op; its layer says whether it sleeps, waits for a transfer, or both."""
    kernel = Kernel("delay", tuple(Ref(r, 0) for r in reads), tuple(Ref(w, 0) for w in writes or ("done",)), (seconds,), "fp32")
    layer = BOTH if reads and seconds else WAITS if reads else SLEEPS
    return Compute(label=Label("sweep", slot=0, layer=layer), stream=COMPUTE, kernels=(kernel,))


def _workload(
    ranks: int,
    buffers: Mapping[str, Buffer],
    bodies: Sequence[tuple[Op, ...]],
    count: int,
    role: IntArray | None = None,
    peers: Mapping[str, IntArray] = MappingProxyType({}),
) -> Workload:
    """One Program per body; `role` int[ranks] picks a rank's."""
    everyone = np.arange(ranks, dtype=np.int64)
    done = Buffer("done", (1,), "fp32", "buffers")
    calls = tuple(Call("body", (m,)) for m in range(count))
    return Workload(
        programs=tuple(Program({**buffers, "done": done}, {"body": body}, calls) for body in bodies),
        class_of_rank=np.zeros(ranks, dtype=np.int64) if role is None else role,
        groups={"world": everyone[None]},
        peers=dict(peers),
        coordinates={"dp": everyone},
    )
