"""Key-value heads over tensor parallelism: where tp is a multiple of them, every rank holds a copy of the one that its query heads use."""

from __future__ import annotations

from ..model.spec import Model, Transformer
from .layout import Layout
from .mesh import IntArray, Mesh


def kv_copies(model: Model, layout: Layout) -> int:
    """Ranks that hold copies of one key-value head; 1 where heads are cut, or every head has keys and values of its own (latent attention)."""
    tp = layout.degrees.tp
    if not isinstance(model, Transformer) or model.latent or tp <= model.kv_heads or tp % model.kv_heads:
        return 1
    return tp // model.kv_heads


def copies_groups(mesh: Mesh, copies: int) -> IntArray:
    """The groups of `copies` neighbours along tp, int[k, copies]."""
    return mesh.groups("tp").reshape(-1, copies)


def head_coordinate(mesh: Mesh, copies: int) -> IntArray:
    """The key-value head of every rank, int[world]."""
    return mesh.coordinates["tp"] // copies
