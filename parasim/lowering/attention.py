"""The core of attention in two kernel sets: one tiled kernel (Dao et al. 2022, arXiv 2205.14135), or the products, softmax and dropout one by
one with all s x s scores kept, as Megatron-LM had it (Korthikanti et al. 2022, arXiv 2205.05198, section 4.1 and figure 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..program.ops import DType, Op, Ref
from ..program.workload import KV_COPIES
from .draft import grad

if TYPE_CHECKING:
    from .transformer import TransformerWriter

Dims = tuple[int, ...]


def packed_qkv(writer: TransformerWriter, n: int, x: Ref, dx: Ref) -> tuple[Ref, list[Op]]:
    """Forward from `x` (rows, hidden) to packed queries, keys and values, normed and rotated as the model has it; returns them and the backward,
    which writes `dx`."""
    d, m, p = writer.draft, writer.model, f"L{n}"
    qkv = d.activation(f"{p}.qkv.out", (writer.rows, m.qkv), cut=1)
    if writer.copies > 1:
        backward = _with_copies(writer, n, x, qkv, dx)
    else:
        backward = writer.linear(n, f"{p}.qkv", x, qkv, dx, (writer.h, m.qkv), "column", m.biased("qkv"))
    if m.qk_norm != "none":
        qkv, norm_back = _qk_norm(writer, n, qkv)
        backward = norm_back + backward
    if m.positions == "rotary":
        rotated = d.activation(f"{p}.rotary.out", (writer.rows, m.qkv), cut=1)
        writer.add_forward(n, "rotary", (qkv,), (rotated,), _dims(writer))
        backward = [writer.op("I", n, "rotary_grad", (grad(rotated),), (grad(qkv),), _dims(writer)), *backward]
        qkv = rotated
    return qkv, backward


def _with_copies(writer: TransformerWriter, n: int, x: Ref, qkv: Ref, dx: Ref) -> list[Op]:
    """The product whose key-value columns several ranks hold: parameters of their own beside those of the queries, and a rank sees the gradients of
    its query heads only, so those of the copies are summed, once, like the rest of what is replicated."""
    d, m, p = writer.draft, writer.model, f"L{n}"
    widths = {"q": m.heads * m.head_dim, "kv": 2 * m.kv_heads // writer.copies * m.head_dim}
    weights = tuple(d.parameter(f"{p}.{name}.weight", (writer.h, width), cut=1) for name, width in widths.items())
    biases = tuple(d.parameter(f"{p}.{name}.bias", (width,), cut=0) for name, width in widths.items() if m.biased("qkv"))
    for copied in (weights[1], *biases[1:]):
        d.copied |= {copied.name, grad(copied).name}
        d.shared[copied.name] = KV_COPIES
    return writer.product(n, x, qkv, dx, weights, biases, "column")


def _qk_norm(writer: TransformerWriter, n: int, qkv: Ref) -> tuple[Ref, list[Op]]:
    """Norms on queries and keys. A rank sees its own heads only, so its weights' gradients are summed over tp."""
    d, m, p = writer.draft, writer.model, f"L{n}"
    widths = (m.head_dim, m.head_dim) if m.qk_norm == "head" else (m.heads * m.head_dim, m.kv_heads * m.head_dim)
    weights = tuple(d.parameter(f"{p}.{name}_norm.weight", (width,)) for name, width in zip("qk", widths, strict=True))
    if d.layout.degrees.tp > 1:
        d.shared |= {w.name: "tp" for w in weights}
    out = d.activation(f"{p}.qk_norm.out", (writer.rows, m.qkv), cut=1)
    writer.add_forward(n, "qk_norm", (qkv, *weights), (out,), _dims(writer))
    grads = tuple(grad(w) for w in weights)
    return out, [
        writer.op("I", n, "qk_norm_input_grad", (grad(out), qkv, *weights), (grad(qkv),), _dims(writer)),
        writer.op("W", n, "qk_norm_weight_grad", (grad(out), qkv, *grads), grads, _dims(writer)),
    ]


def _dims(writer: TransformerWriter) -> Dims:
    """batch sequence heads kv_heads head_dim, and value_dim where it is another."""
    m = writer.model
    values = (m.value_dim,) if m.latent else ()
    return writer.batch, writer.sequence, m.heads, m.heads if m.latent else m.kv_heads, m.key_dim, *values


def statistics(dtype: DType) -> DType:
    """The dtype of sums of a run in `dtype`: fp32, or wider."""
    return "fp32" if dtype in ("bf16", "fp16") else dtype


def attention_core(writer: TransformerWriter, n: int, qkv: Ref, out: Ref) -> list[Op]:
    """Forward from the packed `qkv` to `out` (rows, heads value_dim); returns its backward."""
    dims, role = _dims(writer), "alibi" if writer.model.positions == "alibi" else ""
    return (_unfused if writer.draft.layout.kernels.attention == "unfused" else _tiled)(writer, n, qkv, out, dims, role)


def _tiled(writer: TransformerWriter, n: int, qkv: Ref, out: Ref, dims: Dims, role: str) -> list[Op]:
    lse = writer.draft.buffer(f"L{n}.attention.lse", (writer.model.heads, writer.rows), "activations", dtype=statistics(writer.dtype), cut=0)
    writer.add_forward(n, "attention", (qkv,), (out, lse), dims, role)
    return [writer.op("I", n, "attention_grad", (grad(out), qkv, out, lse), (grad(qkv),), dims, role)]


def _unfused(writer: TransformerWriter, n: int, qkv: Ref, out: Ref, dims: Dims, role: str) -> list[Op]:
    """Scores, softmax (its output is kept), dropout (mask of one byte and output are kept), product with the values."""
    shape = (writer.model.heads, writer.rows, writer.sequence)
    d, p = writer.draft, f"L{n}.attention"
    scores, probs = d.activation(f"{p}.scores", shape, cut=0), d.activation(f"{p}.probs", shape, cut=0)
    writer.add_forward(n, "attention_scores", (qkv,), (scores,), dims, role)
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
