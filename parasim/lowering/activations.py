"""Activations of feed-forwards in two kernel sets: one kernel, or, where a gate multiplies and the GLU is unfused, the activation of the gate and the
product one by one as torch runs them eagerly, with what the first one makes kept for the backward (f wide, beside gate, up and product)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..program.ops import Op, Ref
from .draft import grad

if TYPE_CHECKING:
    from .transformer import TransformerWriter


def activated(writer: TransformerWriter, n: int, prefix: str, up: Ref, act: Ref) -> list[Op]:
    """Forward from `up` (rows, f or, gated, 2 f) to `act` (rows, f), with buffers of its own under `prefix`; returns the backward, which writes the
    gradient of `up`."""
    m, d = writer.model, writer.draft
    if m.gates == 1 or d.layout.kernels.glu == "fused":
        writer.add_forward(n, m.activation, (up,), (act,))
        return [writer.op("I", n, f"{m.activation}_grad", (grad(act), up), (grad(up),))]
    of_gate = {"swiglu": "gate_silu", "geglu": "gate_gelu"}[m.activation]
    shape = tuple(map(int, d.buffers[act.name].shape))
    gate = d.activation(f"{prefix}.act.gate", shape, cut=1)
    dup = d.buffer(f"{prefix}.act.up.grad", shape, "activations", cut=1)
    writer.add_forward(n, of_gate, (up,), (gate,))
    writer.add_forward(n, "gate_product", (gate, up), (act,))
    return [
        writer.op("I", n, "gate_product_grad", (grad(act), gate, up), (grad(gate), dup)),
        writer.op("I", n, f"{of_gate}_grad", (grad(gate), dup, up), (grad(up),)),
    ]
