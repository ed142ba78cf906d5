"""Names of ops for people: `F3 layer 7`, `dp reduce layer 7`."""

from __future__ import annotations

import numpy as np

from ..program.ops import AXES
from ..timeline import COMPUTE, Timeline
from .keys import row_keys

_KEY = ("kind", "phase", "axis", "microbatch", "layer")


def op_names(timeline: Timeline) -> list[str]:
    """One name per row of `ops`: the axis of a transfer, the phase, the microbatch, the layer (each where there is one)."""
    _, first, index = np.unique(row_keys(timeline.ops, _KEY), return_index=True, return_inverse=True)
    names = [_name(timeline, *(int(row[name]) for name in _KEY)) for row in timeline.ops[first]]
    return [names[i] for i in index.tolist()]


def _name(timeline: Timeline, kind: int, phase: int, axis: int, microbatch: int, layer: int) -> str:
    word = timeline.phases[phase]
    if microbatch >= 0:
        word += f"{microbatch}" if len(word) == 1 else f" {microbatch}"
    if kind != COMPUTE and axis >= 0 and not word.startswith(AXES[axis]):
        word = f"{AXES[axis]} {word}"
    return word + (f" layer {layer}" if layer >= 0 else "")
