"""Broadcast down a chain in c chunks that follow each other: n-2+c steps, S per hop, t = (n-2+c)(a + S/(cB)).

`ring` in the same table is the limit of many small chunks whose latencies overlap: (n-1)a + S/B.
"""

from __future__ import annotations

from . import ring
from .group import Group, Round
from .messages import Schedule, rounds

CHUNKS = 8


def broadcast(group: Group, chunks: int = CHUNKS) -> list[Round]:
    """One Round per step, with the links that are busy in it."""
    return rounds(group, ring.broadcast_messages(group, chunks))


def broadcast_messages(group: Group, chunks: int = CHUNKS) -> Schedule:
    """Keys (chunk, ring)."""
    return ring.broadcast_messages(group, chunks)
