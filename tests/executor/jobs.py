"""Functions that test processes run, and small hand-written Workloads."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

import numpy as np

from parasim.program.ops import COMPUTE, P2P, Buffer, Collective, Compute, Kernel, Label, Msg, Ref
from parasim.program.workload import Call, Program, Workload


def compute(name, writes, reads=(), seconds=0.0, *, stream=COMPUTE, phase="F"):
    kernel = Kernel("delay", tuple(Ref(r, 0) for r in reads), tuple(Ref(w, 0) for w in writes), (seconds,), "fp32", role=name)
    return Compute(label=Label(phase, slot=0), stream=stream, kernels=(kernel,))


def workload(bodies_by_class, buffers, class_of_rank, calls=1, **arrays):
    """One Program per class, each calling its one body for `calls` microbatches."""
    everyone = np.arange(len(class_of_rank), dtype=np.int64)
    programs = tuple(Program(buffers, {"body": tuple(body)}, tuple(Call("body", (m,)) for m in range(calls))) for body in bodies_by_class)
    return Workload(
        programs=programs,
        class_of_rank=np.array(class_of_rank, dtype=np.int64),
        groups={"world": everyone[None]},
        peers={"next": np.roll(everyone, -1), "previous": np.roll(everyone, 1), **arrays},
        coordinates={"dp": everyone},
    )


BUFFERS = {n: Buffer(n, (256, 1024), "fp32", "activations") for n in ("a", "b", "c")}


def relay(calls=2):
    """Rank 0 sleeps 30 ms and sends 1 MiB to rank 1, which receives on a stream of its own and sleeps 10 ms."""
    label = Label("send", slot=0, axis="pp")
    send = P2P(label=label, stream="pp.send", after=(COMPUTE,), sends=(Msg(Ref("a", 0), "next", "F0"),))
    recv = P2P(label=label._replace(phase="recv"), stream="pp.recv", recvs=(Msg(Ref("a", 0), "previous", "F0"),))
    first = (compute("make", ["a"], seconds=0.03), send)
    second = (recv, compute("use", ["b"], ["a"], seconds=0.01))
    return workload([first, second], BUFFERS, [0, 1], calls)


def summed(ranks=3, calls=1):
    """Every rank sleeps, then all sum 1 MiB."""
    label = Label("S", slot=0, axis="dp")
    total = Collective(label=label, stream="dp.reduce", after=(COMPUTE,), op="all_reduce", group="world", reads=(Ref("a", 0),), writes=(Ref("a", 0),))
    return workload([(compute("make", ["a"], seconds=0.02), total, compute("use", ["b"], ["a"]))], BUFFERS, [0] * ranks, calls)


def given(_, op):
    """Durations: what the delay says."""
    return float(op.kernels[0].dims[0])


def slept(w, repetitions=2, timeout=20.0):
    from parasim.executor.execution import Execution, Settings

    return Execution(w, Settings("sleep", timeout, given)).run(repetitions)


def through_execute(w, **keywords):
    from parasim.executor import execute

    return execute(w, **keywords)


def interrupted(w, culprit, how, timeout):
    """Run with a culprit that dies, or sleeps far too long, in its second compute op; the message, the rows kept and the seconds it took."""
    import torch.distributed as dist

    from parasim.executor.execution import Execution, Interrupted, Settings

    met = []

    def durations(rank, op):
        met.append(op)
        if rank == culprit and len(met) == 2:
            if how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            return 1000.0
        return given(rank, op)

    execution = Execution(w, Settings("sleep", timeout, durations))
    began = time.monotonic()
    try:
        execution.run(1)
    except Interrupted as error:
        return dist.get_rank(), str(error), len(error.timeline.ops), time.monotonic() - began
    return dist.get_rank(), "", 0, time.monotonic() - began


def gathered_along_columns(_):
    """The collectives' layouts on two ranks: what each returns for known input."""
    import torch
    import torch.distributed as dist

    from parasim.executor.transfers import connect, pack, transfer, unpack

    rank = dist.get_rank()
    label = Label("x", slot=0)
    one = Collective(label=label, stream="s", op="all_gather", group="world", reads=(Ref("a", 0),), writes=(Ref("b", 0),), dim=1)
    w = workload([(one,)], BUFFERS, [0, 0])
    c = connect(w, rank, 10.0).collective["world", "s"]

    def run(op, tensor, write_shape):
        y = transfer(op, pack(op, [tensor], 2), c)
        return unpack(op, y, [tuple(tensor.shape)], [write_shape], 2)[0].tolist()

    mine = torch.arange(4.0).reshape(2, 2) + 10 * rank
    ragged = torch.arange(3.0) + 10 * rank
    return {
        "gather columns": run(one, mine, (2, 4)),
        "gather rows": run(replace(one, dim=0), mine, (4, 2)),
        "scatter columns": run(replace(one, op="reduce_scatter"), mine, (2, 1)),
        "scatter flat": run(replace(one, op="reduce_scatter", dim=None), ragged, (2,)),
        "average": run(replace(one, op="all_reduce", dim=None, reduce="avg"), mine, (2, 2)),
        "largest": run(replace(one, op="all_reduce", dim=None, reduce="max"), mine, (2, 2)),
        "all to all": run(replace(one, op="all_to_all", dim=0), mine, (2, 2)),
        "broadcast": run(replace(one, op="broadcast", dim=None, root=1), mine, (2, 2)),
    }
