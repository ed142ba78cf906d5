"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) up to the packed queries, keys and values.

Tensor parallelism cuts heads, hence the up-projections; every rank holds the down-projections whole. Under sequence parallelism the compressions
stay cut by rows and what is gathered is as narrow as they are, as in Megatron-LM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model.spec import Latent
from ..program.ops import Op, Ref
from .draft import grad

if TYPE_CHECKING:
    from .transformer import TransformerWriter


def latent_qkv(writer: TransformerWriter, latent: Latent, n: int, x: Ref, dx: Ref) -> tuple[Ref, list[Op]]:
    """Forward from `x` (rows, hidden) to the packed and rotated qkv; returns it and the backward, which writes `dx`."""
    d, m, p = writer.draft, writer.model, f"L{n}"
    q, q_back, dq = _queries(writer, latent, n, x)
    kv, shared, kv_back, dkv = _keys_and_values(writer, latent, n, x)
    packed = d.activation(f"{p}.rotary.out", (writer.rows, m.qkv), cut=1)
    dims = (writer.batch, writer.sequence, m.heads, latent.nope_dim, latent.rope_dim, latent.value_dim)
    writer.add_forward(n, "latent_rotary", (q, kv, shared), (packed,), dims, role="column")
    unpack = writer.op("I", n, "latent_rotary_grad", (grad(packed),), (grad(shared), grad(q), grad(kv)), dims, role="column")
    return packed, [unpack, *q_back, *kv_back, writer.op("I", n, "residual_add", (dq, dkv), (dx,))]


def _queries(writer: TransformerWriter, latent: Latent, n: int, x: Ref) -> tuple[Ref, list[Op], Ref]:
    """(queries of all heads, backward, gradient of x that it writes)."""
    d, p, width = writer.draft, f"L{n}", writer.model.heads * writer.model.key_dim
    dx = d.buffer(f"{p}.q.input.grad", (writer.rows, writer.h), "activations", rows=True)
    if not latent.query_rank:
        q = d.activation(f"{p}.q.out", (writer.rows, width), cut=1)
        return q, writer.linear(n, f"{p}.q", x, q, dx, (writer.h, width), "column"), dx
    shape = (writer.rows, latent.query_rank)
    down, normed = d.activation(f"{p}.q_down.out", shape, rows=True), d.activation(f"{p}.q_norm.out", shape, rows=True)
    q = d.activation(f"{p}.q_up.out", (writer.rows, width), cut=1)
    down_back = writer.linear(n, f"{p}.q_down", x, down, dx, (writer.h, latent.query_rank), "whole")
    norm_back = writer.norm(n, f"{p}.q_norm", down, normed, grad(down), latent.query_rank, "rms_norm")
    up_back = writer.linear(n, f"{p}.q_up", normed, q, grad(normed), (latent.query_rank, width), "column")
    return q, up_back + norm_back + down_back, dx


def _keys_and_values(writer: TransformerWriter, latent: Latent, n: int, x: Ref) -> tuple[Ref, Ref, list[Op], Ref]:
    """(keys without positions and values of all heads, rotary key that they share, backward, gradient of x that it writes)."""
    d, p, rope = writer.draft, f"L{n}", latent.rope_dim
    width = writer.model.heads * (latent.nope_dim + latent.value_dim)
    dx = d.buffer(f"{p}.kv.input.grad", (writer.rows, writer.h), "activations", rows=True)
    down = d.activation(f"{p}.kv_down.out", (writer.rows, latent.kv_rank + rope), rows=True)
    normed = d.activation(f"{p}.kv_norm.out", (writer.rows, latent.kv_rank), rows=True)
    shared = d.activation(f"{p}.kv_norm.shared", (writer.rows, rope), rows=True)
    kv = d.activation(f"{p}.kv_up.out", (writer.rows, width), cut=1)
    down_back = writer.linear(n, f"{p}.kv_down", x, down, dx, (writer.h, latent.kv_rank + rope), "whole")
    weight = d.parameter(f"{p}.kv_norm.weight", (latent.kv_rank,))
    writer.share((weight,))
    writer.add_forward(n, "latent_norm", (down, weight), (normed, shared), (rope,))
    norm_back: list[Op] = [
        writer.op("I", n, "latent_norm_input_grad", (grad(normed), grad(shared), down, weight), (grad(down),), (rope,)),
        writer.op("W", n, "latent_norm_weight_grad", (grad(normed), down, grad(weight)), (grad(weight),), (rope,)),
    ]
    up_back = writer.linear(n, f"{p}.kv_up", normed, kv, grad(normed), (latent.kv_rank, width), "column")
    return kv, shared, up_back + norm_back + down_back, dx
