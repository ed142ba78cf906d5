"""The loss of a language model in three kernel sets, from logits in the run's precision to their gradient.

Fused, two passes over the logits as they are, nothing as large as they kept. `unfused` is torch's cross_entropy on fp32 logits: log-softmax, kept for
the backward, then the gradients of the likelihood and of log-softmax, each fp32. `megatron` is Megatron-LM's vocabulary-parallel loss, which nanotron
has too: softmax in fp32, kept, in whose place its gradient is written. Both cast the logits to fp32 and the gradient back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..program.ops import Compute, Label, Op, Ref
from .attention import statistics
from .context import sequence_cut
from .draft import compute, grad

if TYPE_CHECKING:
    from .transformer import TransformerWriter

# Kernels that read what every shard of the vocabulary knows of a row, as their last operand
READS_STATISTICS = frozenset({"cross_entropy", "cross_entropy_grad", "log_softmax", "vocabulary_softmax"})
# Each an op of its own: their buffers, the largest of a stage, live no longer than they must
APART = frozenset({"convert", "log_softmax", "log_softmax_grad", "likelihood_grad", "vocabulary_softmax", "vocabulary_softmax_grad"})


def loss(writer: TransformerWriter, logits: Ref) -> list[Op]:
    """Forward from `logits` (rows, vocab) to the loss; returns the backward, which writes their gradient."""
    d, form = writer.draft, writer.draft.layout.kernels.loss
    labels = d.buffer("labels", (writer.batch, writer.sequence), "buffers", dtype="int32", shard=sequence_cut(d.layout))
    stats = d.buffer("loss.stats", (1, writer.rows, 3), "buffers", dtype=statistics(writer.dtype))
    total = d.buffer("loss", (1,), "buffers", dtype=d.buffers[stats.name].dtype)
    valid = _valid(writer)
    writer.add_forward(-1, "sample", (), (labels,), (writer.model.vocab,), role="target")
    if form == "fused":
        writer.add_forward(-1, "cross_entropy_stats", (logits, labels), (stats,), valid)
        writer.add_forward(-1, "cross_entropy", (stats,), (total,), (writer.scale,))
        return [writer.op("I", -1, "cross_entropy_grad", (logits, labels, stats), (grad(logits),), (writer.scale, *valid))]
    return (_likelihood if form == "unfused" else _softmax)(writer, logits, labels, stats, total)


def _valid(writer: TransformerWriter) -> tuple[int, ...]:
    """The vocabulary, where columns behind it are padding."""
    return (writer.model.vocab,) if writer.vocabulary > writer.model.vocab else ()


def _wide(writer: TransformerWriter, name: str) -> Ref:
    """A buffer as large as the logits, in fp32."""
    return writer.columns(name, statistics(writer.dtype))


def _op(writer: TransformerWriter, phase: str, kernel: str, reads: tuple[Ref, ...], writes: tuple[Ref, ...], dims: tuple[float, ...] = ()) -> Compute:
    """A kernel that works in fp32."""
    return compute(Label(phase, writer.stage.number, 0), kernel, reads, writes, statistics(writer.dtype), dims=dims)


def _forward(writer: TransformerWriter, logits: Ref, labels: Ref, stats: Ref, total: Ref, kernel: str, kept: Ref) -> None:
    wide = _wide(writer, "logits.fp32")
    writer.add_forward(-1, "convert", (logits,), (wide,))
    writer.forward.append(_op(writer, "F", "cross_entropy_stats", (wide, labels), (stats,), _valid(writer)))
    writer.forward.append(_op(writer, "F", kernel, (wide, stats), (kept,), _valid(writer)))
    writer.add_forward(-1, "cross_entropy", (stats,), (total,), (writer.scale,))


def _likelihood(writer: TransformerWriter, logits: Ref, labels: Ref, stats: Ref, total: Ref) -> list[Op]:
    kept, likelihood, wide = (_wide(writer, name) for name in ("loss.log_softmax", "loss.log_softmax.grad", "logits.fp32.grad"))
    _forward(writer, logits, labels, stats, total, "log_softmax", kept)
    return [
        _op(writer, "I", "likelihood_grad", (labels,), (likelihood,), (writer.scale,)),
        _op(writer, "I", "log_softmax_grad", (likelihood, kept), (wide,), (writer.scale,)),
        writer.op("I", -1, "convert", (wide,), (grad(logits),)),
    ]


def _softmax(writer: TransformerWriter, logits: Ref, labels: Ref, stats: Ref, total: Ref) -> list[Op]:
    kept = _wide(writer, "loss.softmax")
    _forward(writer, logits, labels, stats, total, "vocabulary_softmax", kept)
    return [
        _op(writer, "I", "vocabulary_softmax_grad", (labels, kept), (kept,), (writer.scale,)),
        writer.op("I", -1, "convert", (kept,), (grad(logits),)),
    ]
