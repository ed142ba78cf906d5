"""What the parts of a model keep in memory, read off a Program of few layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..model.spec import Model
from ..program.edges import Resolved
from ..program.ops import CATEGORIES, COMPUTE, Compute, Op
from ..program.workload import Program, buffer_bytes
from .parts import part_of


def stored(model: Model, program: Program, price: Callable[[Op], float]) -> dict[int, dict[str, float]]:
    """Bytes of parameters, gradients, optimizer state and what is kept, and seconds of their update, by part; of the layers of a kind the least."""
    home: dict[str, tuple[int, int]] = {}  # parameter -> (part, layer)
    forward = program.bodies["F0"]
    for op, part in zip(forward, part_of(model, [op.label.layer for op in forward], "F"), strict=True):
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
    parts = part_of(model, layers, "F")
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


def rise(model: Model, resolved: Resolved) -> float:
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
