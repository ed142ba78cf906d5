"""One collective that its ranks reach at different times, as a Workload: each rank is delayed, then joins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..program.ops import COMPUTE, Buffer, Collective, CollectiveOp, Compute, Kernel, Label, Op, Ref
from ..program.workload import Call, Program, Workload

SHARED = {"all_gather": "written", "reduce_scatter": "read"}  # the buffer that is the larger one


def lower_meeting(op: CollectiveOp, nbytes: int, arrivals: Sequence[float]) -> Workload:
    """`op` over len(arrivals) ranks; rank r comes to it after arrivals[r] seconds. `nbytes` of the larger buffer of a rank."""
    n = len(arrivals)
    return Workload(
        programs=tuple(_program(op, nbytes, n, seconds) for seconds in arrivals),
        class_of_rank=np.arange(n),
        groups={"all": np.arange(n)[None]},
        peers={},
        coordinates={"dp": np.arange(n)},
    )


def _program(op: CollectiveOp, nbytes: int, n: int, seconds: float) -> Program:
    part = -(-nbytes // n)
    sizes = {"mine": part if SHARED.get(op) == "written" else nbytes, "result": part if SHARED.get(op) == "read" else nbytes}
    mine, result = Ref("mine"), Ref("result")
    work = Compute(label=Label("F"), stream=COMPUTE, kernels=(Kernel("delay", (), (mine,), (seconds,), "fp32"),))
    moves = op != "barrier"
    meet = Collective(label=Label("F", axis="dp"), stream=COMPUTE, op=op, group="all", reads=(mine,) if moves else (), writes=(result,) if moves else ())
    body: tuple[Op, ...] = (work, meet)
    buffers = {name: Buffer(name, (size,), "uint8", "buffers") for name, size in sizes.items() if moves or name == "mine"}
    return Program(buffers, {"meet": body}, (Call("meet"),))
