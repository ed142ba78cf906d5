"""Workloads for calibration: the same transfer again and again between slept ops, so that it is measured the way a training step meets it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..program.ops import COMPUTE, P2P, Buffer, Collective, CollectiveOp, Compute, Kernel, Label, Msg, Op, Ref
from ..program.workload import Call, Program, Workload
from ..timeline import Timeline

ELEMENT = 4  # bytes of fp32, which gradients and activations are moved in


def slept_ops(ranks: int, count: int, seconds: float) -> Workload:
    """`count` slept ops in a row on every rank."""
    return _workload(ranks, {}, (_sleep(seconds, ()),), count)


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
    return _workload(ranks, buffers, (_sleep(pause, ("sent",)), moved, _sleep(0.0, ("done",), ("received",))), count)


def messages(ranks: int, nbytes: int, count: int, pause: float) -> Workload:
    """`count` times every rank sends `nbytes` to the next one and receives from the one before, all pairs at once."""
    buffers = {name: Buffer(name, (nbytes // ELEMENT,), "fp32", "buffers") for name in ("sent", "received")}
    label = Label("sweep", slot=0, axis="pp")
    body = (
        P2P(label=label, stream="recv", recvs=(Msg(Ref("received", 0), "pp-1", "shift"),)),
        _sleep(pause, ("sent",)),
        P2P(label=label, stream="send", after=(COMPUTE,), sends=(Msg(Ref("sent", 0), "pp+1", "shift"),)),
        _sleep(0.0, ("done",), ("received",)),
    )
    return _workload(ranks, buffers, body, count)


def costs(timeline: Timeline, count: int) -> list[float]:
    """Seconds of each of the transfers: from the moment the last rank had slept to the end of the last transfer."""
    ops = timeline.ops
    slept = {m: ops["end"][(ops["kind"] == 0) & (ops["microbatch"] == m) & (ops["layer"] == 0)].max() for m in range(count)}
    ended = {m: ops["end"][(ops["kind"] != 0) & (ops["microbatch"] == m)].max() for m in range(count)}
    return [float(ended[m] - slept[m]) for m in range(count)]


def _sleep(seconds: float, writes: Sequence[str], reads: Sequence[str] = ()) -> Compute:
    """A slept op; layer 0 marks the one before a transfer."""
    names = writes or ("done",)
    kernel = Kernel("delay", tuple(Ref(r, 0) for r in reads), tuple(Ref(w, 0) for w in names), (seconds,), "fp32")
    return Compute(label=Label("sweep", slot=0, layer=-1 if reads else 0), stream=COMPUTE, kernels=(kernel,))


def _workload(ranks: int, buffers: Mapping[str, Buffer], body: tuple[Op, ...], count: int) -> Workload:
    everyone = np.arange(ranks, dtype=np.int64)
    done = Buffer("done", (1,), "fp32", "buffers")
    program = Program({**buffers, "done": done}, {"body": body}, tuple(Call("body", (m,)) for m in range(count)))
    return Workload(
        programs=(program,),
        class_of_rank=np.zeros(ranks, dtype=np.int64),
        groups={"world": everyone[None]},
        peers={"pp+1": np.roll(everyone, -1), "pp-1": np.roll(everyone, 1)},
        coordinates={"dp": everyone},
    )
