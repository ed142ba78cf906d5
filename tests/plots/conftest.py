"""Timelines large enough to draw: one 1F1B step, laid out by its dependencies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parasim.program.ops import AXES, CATEGORIES
from parasim.timeline import COMPUTE, EDGES, FLOWS, MEMORY, OPS, P2P, Timeline

STREAMS = ("compute", "pp.send.F", "pp.recv.F", "pp.send.B", "pp.recv.B", "dp.reduce")
PHASES = ("F", "B", "send", "recv", "S")
TIMES = {"F": 1e-2, "B": 2e-2, "send": 2e-3, "reduce": 8e-3, "S": 5e-3}


def _order(p: int, m: int, r: int) -> list[tuple[str, int]]:
    warm = min(m, p - r - 1)
    out = [("F", i) for i in range(warm)]
    for i in range(m - warm):
        out += [("F", warm + i), ("B", i)]
    return out + [("B", i) for i in range(m - warm, m)]


def one_f_one_b(p: int = 4, m: int = 8, layers: int = 1) -> Timeline:
    """`p` ranks, `m` microbatches, each F and B in `layers` ops, asynchronous messages, a reduction and the optimizer."""
    orders = [_order(p, m, r) for r in range(p)]
    ends: dict[tuple[str, int, int], float] = {}
    ops: list[tuple[Any, ...]] = []
    edges, memory = [], []
    clock, at, count = [0.0] * p, [0] * p, [0] * p

    def emit(r: int, kind: int, stream: str, phase: str, axis: str, mb: int, layer: int, ready: float, start: float, end: float) -> tuple[int, int]:
        ops.append((r, count[r], kind, STREAMS.index(stream), PHASES.index(phase), AXES.index(axis) if axis else -1, r, layer, mb, 0,
                    1e6 if kind == P2P and phase == "send" else 0.0, ready, start, end))  # fmt: skip
        count[r] += 1
        return r, count[r] - 1

    while any(at[r] < len(orders[r]) for r in range(p)):
        for r in range(p):
            while at[r] < len(orders[r]):
                phase, mb = orders[r][at[r]]
                source = r - 1 if phase == "F" else r + 1
                waits = 0 <= source < p
                if waits and (phase, mb, source) not in ends:
                    break
                arrived = ends[phase, mb, source] + TIMES["send"] if waits else 0.0
                start = max(clock[r], arrived)
                if waits:
                    recv = emit(r, P2P, f"pp.recv.{phase}", "recv", "pp", mb, -1, clock[r], arrived - TIMES["send"], arrived)
                for k in range(layers):
                    op = emit(r, COMPUTE, "compute", phase, "", mb, k, start, start + TIMES[phase] * k / layers, start + TIMES[phase] * (k + 1) / layers)
                    if waits and k == 0:
                        edges.append((op, recv))
                clock[r] = end = start + TIMES[phase]
                ends[phase, mb, r] = end
                memory.append((r, start if phase == "F" else end, 1, CATEGORIES.index("activations"), 2e9 if phase == "F" else -2e9))
                if 0 <= (r + 1 if phase == "F" else r - 1) < p:
                    sent = emit(r, P2P, f"pp.send.{phase}", "send", "pp", mb, -1, end, end, end + TIMES["send"])
                    edges.append((sent, op))
                at[r] += 1
    for r in range(p):
        memory.append((r, -np.inf, 0, CATEGORIES.index("parameters"), 20e9))
        memory.append((r, -np.inf, 2, CATEGORIES.index("optimizer"), 30e9))
        reduce = emit(r, 1, "dp.reduce", "S", "dp", -1, -1, clock[r], clock[r], clock[r] + TIMES["reduce"])
        step = emit(r, COMPUTE, "compute", "S", "", -1, -1, clock[r] + TIMES["reduce"], clock[r] + TIMES["reduce"], clock[r] + TIMES["reduce"] + TIMES["S"])
        edges.append((step, reduce))
    ops.sort(key=lambda o: (o[0], o[1]))
    row = {(o[0], o[1]): i for i, o in enumerate(ops)}
    return Timeline(
        ops=np.array(ops, dtype=OPS),
        flows=np.zeros(0, dtype=FLOWS),
        memory=np.array(memory, dtype=MEMORY),
        edges=np.array([(row[a], row[b]) for a, b in edges], dtype=EDGES),
        representative=np.arange(p),
        streams=STREAMS,
        phases=PHASES,
        buffers=("weights", "h", "moments"),
        meta={"source": "simulated", "capacity_bytes": 80e9},
    )


@pytest.fixture
def pipeline() -> Callable[..., Timeline]:
    """`one_f_one_b`."""
    return one_f_one_b


@pytest.fixture
def overlapping() -> Callable[[Timeline], Timeline]:
    """Every op begins half of its length earlier, as kernels of several queues do that a profiler shows on one stream."""

    def earlier(t: Timeline) -> Timeline:
        ops = t.ops.copy()
        ops["start"] = np.maximum(ops["start"] - 0.5 * (ops["end"] - ops["start"]), 0)
        return replace(t, ops=ops)

    return earlier
