"""Which algorithm runs: a table of (back end, op, span, bytes). A new algorithm is one file, one entry here, and a row where it is the default."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from ..errors import Malformed
from ..words import nearest
from . import binomial, direct, hierarchical, ring, tree
from .group import Algorithm, RingOrder, rails, rank_order

ALGORITHMS: Mapping[str, Mapping[str, Algorithm]] = {
    "all_reduce": {
        "ring": ring.all_reduce,
        "direct": direct.all_reduce,
        "tree": tree.all_reduce,
        "hierarchical": hierarchical.all_reduce,
    },
    "all_gather": {"ring": ring.all_gather, "direct": direct.all_gather, "hierarchical": hierarchical.all_gather},
    "reduce_scatter": {
        "ring": ring.reduce_scatter,
        "direct": direct.reduce_scatter,
        "hierarchical": hierarchical.reduce_scatter,
        "ring-all-reduce": ring.all_reduce,
    },
    "all_to_all": {"ring": ring.all_to_all, "direct": direct.all_to_all},
    "broadcast": {"ring": ring.broadcast, "direct": direct.broadcast, "binomial": binomial.broadcast},
    "reduce": {"ring": ring.reduce, "direct": direct.reduce, "ring-gather": ring.reduce_gather},
    "barrier": {"direct": direct.barrier},
}
RING_ORDER: Mapping[str, RingOrder] = {"nccl": rails, "gloo": rank_order, "tpu": rails}


class Row(NamedTuple):
    """The algorithm of `op` on `backend` for groups of that span (node, nodes, or any) and at most `upto` bytes; the first match holds."""

    backend: str
    op: str
    span: str
    upto: float
    algorithm: str
    reason: str


def _any(backend: str, op: str, algorithm: str, reason: str) -> Row:
    return Row(backend, op, "any", math.inf, algorithm, reason)


TABLE: tuple[Row, ...] = (
    _any("nccl", "all_reduce", "ring", "NCCL at bandwidth-bound sizes: rings that leave each node once per rail"),
    _any("nccl", "all_gather", "ring", "NCCL gathers around rings, one per rail"),
    _any("nccl", "reduce_scatter", "ring", "NCCL reduce-scatters around rings, one per rail"),
    _any("nccl", "all_to_all", "direct", "NCCL groups sends and receives of all pairs"),
    _any("nccl", "broadcast", "ring", "NCCL pipelines a chain from the root"),
    _any("nccl", "reduce", "ring", "NCCL pipelines a chain to the root"),
    _any("nccl", "barrier", "direct", "a barrier is one exchange of empty messages"),
    _any("gloo", "all_reduce", "ring", "gloo: one ring in rank order, no hierarchy"),
    _any("gloo", "all_gather", "ring", "gloo: one ring in rank order, no hierarchy"),
    _any("gloo", "reduce_scatter", "ring-all-reduce", "gloo's reduce-scatter is an all-reduce inside: 2(n-1)/n of the input per rank"),
    _any("gloo", "all_to_all", "direct", "gloo posts all pairs at once"),
    _any("gloo", "broadcast", "binomial", "gloo broadcasts whole messages down a binomial tree"),
    _any("gloo", "reduce", "ring-gather", "gloo reduce-scatters around the ring, then gathers at the root"),
    _any("gloo", "barrier", "direct", "a barrier is one exchange of empty messages"),
    _any("tpu", "all_reduce", "ring", "XLA reduces around the ring of an axis"),
    _any("tpu", "all_gather", "ring", "XLA gathers around the ring of an axis"),
    _any("tpu", "reduce_scatter", "ring", "XLA reduce-scatters around the ring of an axis"),
    _any("tpu", "all_to_all", "direct", "XLA exchanges all pairs at once"),
    _any("tpu", "broadcast", "ring", "a pipelined chain from the root"),
    _any("tpu", "reduce", "ring", "a pipelined chain to the root"),
    _any("tpu", "barrier", "direct", "a barrier is one exchange of empty messages"),
)


class Choice(NamedTuple):
    """A picked algorithm: its name, why, and the function."""

    name: str
    reason: str
    run: Algorithm


def select(op: str, backend: str, span: str, nbytes: float, algorithm: str = "auto") -> Choice:
    """The algorithm of `op`: the one asked for, or the first row of the table that matches.

    `span` is "node" for a group inside one server, else "nodes"; `nbytes` the larger buffer. Raises `Malformed` for an unknown op,
    algorithm or back end, naming the known ones.
    """
    if op not in ALGORITHMS:
        raise Malformed(f"op={op!r} is no collective; {nearest(op, ALGORITHMS)}")
    if algorithm != "auto":
        if algorithm not in ALGORITHMS[op]:
            raise Malformed(f"algorithm={algorithm!r} is not one of {op}; {nearest(algorithm, ['auto', *ALGORITHMS[op]])}")
        return Choice(algorithm, "asked for", ALGORITHMS[op][algorithm])
    for row in TABLE:
        if (row.backend, row.op) == (backend, op) and row.span in ("any", span) and nbytes <= row.upto:
            return Choice(row.algorithm, row.reason, ALGORITHMS[op][row.algorithm])
    raise Malformed(f"profile.backend={backend!r} has no collectives; {nearest(backend, RING_ORDER)}")


def ring_order(backend: str) -> RingOrder:
    """How `backend` orders a ring. Raises `Malformed` for an unknown back end."""
    if backend not in RING_ORDER:
        raise Malformed(f"profile.backend={backend!r} is unknown; {nearest(backend, RING_ORDER)}")
    return RING_ORDER[backend]
