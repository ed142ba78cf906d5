"""The vocabulary over tensor parallelism: padded where tp does not divide it."""

from __future__ import annotations

from ..model.spec import Transformer
from .layout import Layout

PER_RANK = 128  # rows that every rank's part is a multiple of: Megatron-LM's --make-vocab-size-divisible-by


def padded_vocabulary(model: Transformer, layout: Layout) -> int:
    """Rows of the embedding: the vocabulary itself, or the next multiple of 128 tp where tp does not divide it, as Megatron-LM pads it."""
    tp = layout.degrees.tp
    return -(-model.vocab // (PER_RANK * tp)) * PER_RANK * tp if model.vocab % tp else model.vocab
