"""Which algorithm runs: what the user or the profile asks for, else the first row of selection.yaml that holds for the call.

A new algorithm is one file, one entry in `catalog`, and a row where it is the default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache, partial
from importlib.resources import files
from typing import Any, NamedTuple, get_args

from .. import documents
from ..cost.profile import SPANS, Backend, Profile
from ..errors import Malformed
from ..topology.cluster import Cluster
from ..units import parse
from ..words import nearest
from . import chain
from .catalog import ALGORITHMS
from .group import Algorithm, RingOrder, rails, rank_order
from .torus import block_of

RING_ORDER: Mapping[str, RingOrder] = {"nccl": rails, "gloo": rank_order, "tpu": rails}


@dataclass(frozen=True)
class Row:
    """`algorithms` of `op` on `backend` for calls that every other column allows (see selection.yaml); several: the fastest runs."""

    backend: str
    op: str
    algorithms: tuple[str, ...]
    reason: str
    span: str = "any"
    ranks: int = 1
    upto: float = math.inf
    reduces: str = ""
    accelerators: tuple[str, ...] = ("*",)


class Call(NamedTuple):
    """What the choice depends on: span (node, nodes or torus), members, bytes of the larger buffer, accelerator, what the switches reduce with."""

    span: str
    ranks: int = 2
    nbytes: float = 0.0
    accelerator: str = ""
    reduces: frozenset[str] = frozenset()


class Choice(NamedTuple):
    """A picked algorithm: its name, why, and the function; `asked` where the user or the profile named it."""

    name: str
    reason: str
    run: Algorithm
    asked: bool = False


def call_of(members: Sequence[str], cluster: Cluster, nbytes: float) -> Call:
    """The facts about a call that rows ask for."""
    home = cluster.node_of[members[0]]
    span = "torus" if block_of(members, cluster) else "node" if all(cluster.node_of[m] == home for m in members) else "nodes"
    reduces = frozenset(str(cluster.description.get(f"{where}.reduces", "")) for where in ("node.scale_up", "scale_out"))
    return Call(span, len(members), nbytes, cluster.accelerator.name, reduces)


def choices(op: str, profile: Profile, call: Call, algorithm: str = "auto") -> tuple[Choice, ...]:
    """The algorithm asked for, or those that the profile or the table names for such a call: the fastest of them runs.

    Raises `Malformed` for an unknown op, algorithm or back end, naming the known ones.
    """
    if op not in ALGORITHMS:
        raise Malformed(f"op={op!r} is no collective; {nearest(op, ALGORITHMS)}")
    if algorithm != "auto":
        return (Choice(algorithm, "asked for", named(op, algorithm, "algorithm"), asked=True),)
    for key, name in profile.algorithms.items():
        if holds(key, op, call):
            words = f"profile {profile.name}: algorithms.{key}"
            return tuple(Choice(one, f"{words} says so", named(op, one, words), asked=True) for one in name.replace(" ", "").split(","))
    row = _row(op, profile.backend, call)
    return tuple(Choice(name, row.reason, ALGORITHMS[op][name]) for name in row.algorithms)


def select(op: str, backend: Backend, span: str, nbytes: float, algorithm: str = "auto") -> Choice:
    """The algorithm of `op` asked for, or the first one that the table names. Raises as `choices` does."""
    return choices(op, Profile("none", backend), Call(span, nbytes=nbytes), algorithm)[0]


def named(op: str, algorithm: str, field: str) -> Algorithm:
    """The function of an algorithm's name; `chain:16` is a chain in 16 chunks. Raises `Malformed` that opens with `field`."""
    name, colon, count = algorithm.partition(":")
    if colon and name == "chain" and op == "broadcast":
        if not count.isdecimal() or int(count) < 1:
            raise Malformed(f"{field}={algorithm!r}: the number of chunks after the colon must be 1 or more, such as chain:8")
        return partial(chain.broadcast, chunks=int(count))
    if algorithm not in ALGORITHMS[op]:
        raise Malformed(f"{field}={algorithm!r} is not one of {op}; {nearest(algorithm, ['auto', *ALGORITHMS[op]])}")
    return ALGORITHMS[op][algorithm]


def holds(key: str, op: str, call: Call) -> bool:
    """Does a key of a profile's `algorithms`, op[/span][/most bytes], hold for a call?"""
    first, *rest = key.split("/")
    spans = [word for word in rest if word in SPANS]
    limits = [parse(word, "bytes") for word in rest if word not in spans]
    return first == op and all(span in ("any", call.span) for span in spans) and all(call.nbytes <= limit for limit in limits)


def _row(op: str, backend: str, call: Call) -> Row:
    for row in table():
        if (row.backend, row.op) == (backend, op) and row.span in ("any", call.span) and row.ranks <= call.ranks and call.nbytes <= row.upto:
            fits = any(fnmatch(call.accelerator, name) for name in row.accelerators)
            if fits and (not row.reduces or row.reduces in call.reduces):
                return row
    raise Malformed(f"profile.backend={backend!r} has no {op}; {nearest(backend, RING_ORDER)}")


@cache
def table() -> tuple[Row, ...]:
    """The rows of selection.yaml, in order."""
    path = files(__package__).joinpath("selection.yaml")
    entries: Any = documents.parse(path.read_bytes(), path.name).data
    return tuple(_read(entry) for entry in entries)


def _read(entry: Mapping[str, Any]) -> Row:
    names = entry["algorithm"]
    return Row(
        backend=entry["backend"],
        op=entry["op"],
        algorithms=(names,) if isinstance(names, str) else tuple(names),
        reason=entry["reason"],
        span=entry.get("span", "any"),
        ranks=entry.get("ranks", 1),
        upto=parse(entry["upto"], "bytes") if "upto" in entry else math.inf,
        reduces=entry.get("reduces", ""),
        accelerators=tuple(entry.get("accelerators", ("*",))),
    )


def ring_order(backend: str) -> RingOrder:
    """How `backend` orders a ring. Raises `Malformed` for an unknown back end."""
    if backend not in get_args(Backend):
        raise Malformed(f"profile.backend={backend!r} is unknown; {nearest(backend, RING_ORDER)}")
    return RING_ORDER[backend]
