"""The recompute pass: full activation recomputation. Each layer's forward, with its collectives, runs again before the layer's first backward op."""

from __future__ import annotations

from ..program.ops import Op
from .draft import Draft, relabel


def recompute(draft: Draft) -> None:
    """Keep only layer inputs between forward and backward; repeat the whole forward of a layer (as Megatron does) under phase R."""
    if draft.layout.recompute == "none":
        return
    for stage in draft.stages:
        forward: dict[int, list[Op]] = {}
        for op in draft.bodies[f"F{stage.number}"]:
            if op.label.layer >= 0:
                forward.setdefault(op.label.layer, []).append(relabel(op, "R"))
        for kind in ("I", "B"):
            body: list[Op] = []
            repeated: set[int] = set()
            for op in draft.bodies[f"{kind}{stage.number}"]:
                if op.label.layer in forward and op.label.layer not in repeated:
                    repeated.add(op.label.layer)
                    body += forward[op.label.layer]
                body.append(op)
            draft.bodies[f"{kind}{stage.number}"] = body
