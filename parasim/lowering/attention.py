"""The core of attention in two kernel sets: one tiled kernel (Dao et al. 2022, arXiv 2205.14135), or the products, softmax and dropout one by
one with all s x s scores kept, as Megatron-LM had it (Korthikanti et al. 2022, arXiv 2205.05198, section 4.1 and figure 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..program.ops import Op, Ref
from .draft import grad

if TYPE_CHECKING:
    from .transformer import TransformerWriter

Dims = tuple[int, ...]


def attention_core(writer: TransformerWriter, n: int, qkv: Ref, out: Ref, dims: Dims) -> list[Op]:
    """Forward from the packed `qkv` to `out` (rows, heads head_dim); returns its backward. `dims`: batch sequence heads kv_heads head_dim."""
    return (_unfused if writer.draft.layout.kernels.attention == "unfused" else _tiled)(writer, n, qkv, out, dims)


def _tiled(writer: TransformerWriter, n: int, qkv: Ref, out: Ref, dims: Dims) -> list[Op]:
    lse = writer.draft.buffer(f"L{n}.attention.lse", (writer.model.heads, writer.rows), "activations", dtype="fp32", cut=0)
    writer.add_forward(n, "attention", (qkv,), (out, lse), dims)
    return [writer.op("I", n, "attention_grad", (grad(out), qkv, out, lse), (grad(qkv),), dims)]


def _unfused(writer: TransformerWriter, n: int, qkv: Ref, out: Ref, dims: Dims) -> list[Op]:
    """Scores, softmax (its output is kept), dropout (mask of one byte and output are kept), product with the values."""
    shape = (writer.model.heads, writer.rows, writer.sequence)
    d, p = writer.draft, f"L{n}.attention"
    scores, probs = d.activation(f"{p}.scores", shape, cut=0), d.activation(f"{p}.probs", shape, cut=0)
    writer.add_forward(n, "attention_scores", (qkv,), (scores,), dims)
    writer.add_forward(n, "causal_softmax", (scores,), (probs,))
    backward = [writer.op("I", n, "causal_softmax_grad", (grad(probs), probs), (grad(scores),))]
    used = probs
    if d.layout.kernels.dropout:
        used = d.activation(f"{p}.dropped", shape, cut=0)
        mask = d.buffer(f"{p}.mask", shape, "activations", dtype="uint8", cut=0)
        writer.add_forward(n, "dropout", (probs,), (used, mask))
        backward.insert(0, writer.op("I", n, "dropout_grad", (grad(used), mask), (grad(probs),)))
    writer.add_forward(n, "attention_context", (used, qkv), (out,), dims)
    first = writer.op("I", n, "attention_context_grad", (grad(out), qkv), (grad(used),), dims)
    return [first, *backward, writer.op("I", n, "attention_scores_grad", (grad(scores), grad(out), used, qkv), (grad(qkv),), dims)]
