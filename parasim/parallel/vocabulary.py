"""The vocabulary over tensor parallelism, and over pp where that cuts it too: padded where they do not divide it."""

from __future__ import annotations

from ..model.spec import Transformer
from .layout import Layout

PER_RANK = 128  # rows that every rank's part is a multiple of: Megatron-LM's --make-vocab-size-divisible-by


def padded_vocabulary(model: Transformer, layout: Layout) -> int:
    """Rows of the embedding: the vocabulary itself, or the next multiple of 128 x its parts where they do not divide it, as Megatron-LM pads it."""
    parts = layout.degrees.tp * layout.vocabulary_parts
    return -(-model.vocab // (PER_RANK * parts)) * PER_RANK * parts if model.vocab % parts else model.vocab
