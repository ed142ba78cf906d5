"""What a rank holds: the arrays of its state, and what a layer keeps from its forward to its backward, buffer by buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..parallel.layout import Layout
from ..program.ops import CATEGORIES, DTYPE_BYTES
from ..program.workload import Program, buffer_bytes

STATE = ("parameters", "gradients", "optimizer")
CORE = ("attention.probs", "attention.dropped", "attention.mask", "attention.scores")  # what grows with the square of the sequence


@dataclass(frozen=True)
class Kept:
    """Bytes of one microbatch that `layer` keeps, by buffer without its layer's name; of those `whole` are not cut by tensor parallelism.

    `live_bytes`: what full recompute makes again of the layer, beyond what is kept. `rank_bytes`: of all layers of the rank.
    """

    layer: int
    tensors: Mapping[str, int]
    whole: frozenset[str]
    live_bytes: float
    rank_bytes: float

    @property
    def middle_bytes(self) -> float:
        """Bytes of the layer in the middle."""
        return float(sum(self.tensors.values()))

    @property
    def core_bytes(self) -> float:
        """Those of the attention core."""
        return float(sum(n for name, n in self.tensors.items() if name in CORE))

    def to_json(self, elements: int) -> dict[str, Any]:
        """`elements`: tokens x hidden of a microbatch."""
        rest = self.middle_bytes - self.core_bytes
        return {
            "bytes": self.middle_bytes,
            "attention_core_bytes": self.core_bytes,
            "other_bytes": rest,
            "bytes_that_tp_leaves_whole": float(sum(n for name, n in self.tensors.items() if name in self.whole)),
            "tensors": dict(self.tensors),
            "bytes_per_element": {name: n / elements for name, n in self.tensors.items()} if elements else {},
            "core_bytes_per_element": self.core_bytes / elements if elements else None,
            "rank_bytes": self.rank_bytes,
            "live_bytes": self.live_bytes,
        }


def kept(program: Program) -> Kept:
    """What generations born in the first forward of the rank are still used by a backward."""
    resolved = program.resolved
    call = next(i for i, c in enumerate(program.calls) if c.body.startswith("F"))
    last = np.maximum.reduceat(resolved.last_users, resolved.last_start[:-1]) if len(resolved.last_users) else np.zeros(0, dtype=np.int64)
    mine = (resolved.birth >= 0) & (np.where(resolved.birth >= 0, resolved.call[resolved.birth], -1) == call)
    layers: dict[int, dict[str, int]] = {}
    whole: set[str] = set()
    for g in np.flatnonzero(mine).tolist():
        name = resolved.buffers[int(resolved.generation_buffer[g])]
        user = program.calls[int(resolved.call[last[g]])].body
        layer, dot, tensor = name.partition(".")
        buffer = program.buffers[name]
        if buffer.category in CATEGORIES and user[0] in "BIW" and dot and layer[0] == "L" and layer[1:].isdecimal() and not tensor.endswith("grad"):
            layers.setdefault(int(layer[1:]), {})[tensor] = buffer_bytes(buffer)
            whole |= {tensor} if all(axis != "tp" for _, axis in buffer.shard) else set()
    layers = {n: row for n, row in layers.items() if any(op.label.layer == n for op in program.bodies[program.calls[call].body])}
    if not layers:
        first = next((op.label.layer for op in program.bodies[program.calls[call].body] if op.label.layer >= 0), 0)
        return Kept(first, {}, frozenset(), 0.0, 0.0)
    middle = sorted(layers)[len(layers) // 2]
    return Kept(middle, layers[middle], frozenset(whole), _live(program, middle), float(sum(sum(row.values()) for row in layers.values())))


def _live(program: Program, layer: int) -> float:
    """Bytes of the layer that recomputation (phase R) makes again and the backward then uses; 0 where only parts of layers are repeated."""
    body = next((b for name, b in program.bodies.items() if name[0] in "BI" and any(op.label.phase == "R" for op in b)), ())
    made = {r.name for op in body if op.label.phase == "R" and op.label.layer == layer for r in op.writes}
    used = {r.name for op in body if op.label.phase not in ("R", "S") and op.label.layer == layer for r in op.reads}
    inputs = {r.name for op in body if op.label.phase == "R" and op.label.layer == layer for r in op.reads}
    whole_layer = f"L{layer}.input" in inputs and f"L{layer}.input" not in made
    return float(sum(program.sizes[n] for n in made & used)) if whole_layer else 0.0


def state(program: Program, model: int, elements: int, layout: Layout, capacity: float) -> dict[str, Any]:
    """Persistent bytes of the rank by category and array; `largest_parameters`: of a model whose state alone fills the capacity, cut alike.

    `whole`: the state of the model unsharded, the devices that it fills when nothing else is there, and those of the weights alone.
    """
    sizes: dict[str, float] = dict.fromkeys(STATE, 0.0)
    arrays: dict[str, float] = {}
    counts: dict[str, float] = {}
    width: dict[str, int] = {}
    for name, buffer in program.buffers.items():
        if buffer.persistent and buffer.category in STATE:
            sizes[buffer.category] += buffer_bytes(buffer)
            array = name.rpartition(".")[2] if buffer.category == "optimizer" else buffer.category
            arrays[array] = arrays.get(array, 0.0) + buffer_bytes(buffer)
            counts[array] = counts.get(array, 0.0) + math.prod(int(n) for n in buffer.shape)
            width[array] = DTYPE_BYTES[buffer.dtype]
    total = sum(sizes.values())
    each = float(sum(width.values()))
    return {
        "bytes": total,
        **{f"{name}_bytes": size for name, size in sizes.items()},
        "arrays_bytes": arrays,
        "bytes_per_parameter": {**width, "total": each},
        "share": {**{name: n / each for name, n in width.items()}, "optimizer": sum(n for a, n in width.items() if a not in STATE) / each if each else 0.0},
        "bytes_over_model_parameters": total / model if model else None,
        "first_iteration_bytes_per_parameter": [(sizes["parameters"] + more) / model if model else None for more in _growth(sizes)],
        "largest_parameters": capacity * model / total if total else math.inf,
        "share_of_devices": total / capacity,
        "whole": {
            "bytes": each * model,
            "devices_at_least": math.ceil(each * model / capacity),
            "weights_bytes": width.get("parameters", 0) * float(model),
            "weights_devices_at_least": math.ceil(width.get("parameters", 0) * model / capacity),
        },
    }


def _growth(sizes: Mapping[str, float]) -> tuple[float, float, float]:
    """What is there beside parameters after the start, before the first optimizer step, and after it, which makes its moments."""
    return 0.0, sizes["gradients"], sizes["gradients"] + sizes["optimizer"]
