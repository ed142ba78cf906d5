"""Timeline: what both back ends return; the second waist. Columns over the ops of the ranks that were kept, expanded lazily.

A simulated Timeline keeps one rank per fold class (`ranks`) and a map from every rank to its representative; a measured one keeps every rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

VERSION = 4
COMPUTE, COLLECTIVE, P2P = 0, 1, 2
KINDS = ("compute", "collective", "p2p")

OPS = np.dtype(
    [
        ("rank", "i4"),  # a representative rank
        ("op", "i4"),  # instance number: position in the order of the rank's whole Program
        ("kind", "i1"),  # index in KINDS
        ("stream", "i2"),  # index in `streams`
        ("phase", "i2"),  # index in `phases`
        ("axis", "i1"),  # index in AXES, -1 where none
        ("stage", "i4"),
        ("layer", "i4"),
        ("microbatch", "i4"),
        ("step", "i2"),
        ("bytes", "f8"),  # wire bytes this rank sends for the op
        ("ready", "f8"),  # seconds: at the head of its stream, its edges ended
        ("start", "f8"),  # seconds: first FLOP or byte
        ("end", "f8"),
    ]
)
FLOWS = np.dtype([("op", "i4"), ("link", "i4"), ("bytes", "f8"), ("start", "f8"), ("end", "f8")])  # op: row of `ops`
MEMORY = np.dtype([("rank", "i4"), ("time", "f8"), ("buffer", "i4"), ("category", "i1"), ("delta", "f8")])  # time -inf: resident
EDGES = np.dtype([("op", "i4"), ("waits_for", "i4")])  # both rows of `ops`
COLUMNS: Mapping[str, np.dtype[Any]] = {"ops": OPS, "flows": FLOWS, "memory": MEMORY, "edges": EDGES, "representative": np.dtype(np.int64)}
TIMES = ("ready", "start", "end")
FIXED = tuple(name for name in OPS.names or () if name not in ("rank", *TIMES))  # what no time changes

Seconds = NDArray[np.float64]
Ints = NDArray[np.int64]


class Lives(NamedTuple):
    """Buffers that come and go, as columns: of buffer `buffer` with `nbytes` in `category`, born at the start of op `birth` (-1: resident), dead
    when the last of the ops `users[first[i]:first[i + 1]]` has ended (resident ones never)."""

    buffer: NDArray[np.int32]
    category: NDArray[np.int8]
    nbytes: NDArray[np.float64]
    birth: NDArray[np.int32]
    first: NDArray[np.int32]
    users: NDArray[np.int32]


class Births(NamedTuple):
    """What comes and goes in the memory of a rank, as columns of MEMORY."""

    time: Seconds
    buffer: NDArray[np.int32]
    category: NDArray[np.int8]
    delta: NDArray[np.float64]

    def at(self, rows: NDArray[np.int64] | slice) -> Births:
        """Some of its rows."""
        return Births(self.time[rows], self.buffer[rows], self.category[rows], self.delta[rows])


NO_BIRTHS = Births(np.zeros(0), np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int8), np.zeros(0))


@dataclass(frozen=True, eq=False)
class Script:
    """What ranks of one Program have in common: `columns` holds the FIXED fields of OPS, each [n]; op `waiting[e]` waits for `awaited[e]`, sorted
    by `waiting`; `lives` as above."""

    columns: Mapping[str, NDArray[Any]]
    waiting: NDArray[np.int32]
    awaited: NDArray[np.int32]
    lives: Lives

    def __len__(self) -> int:
        return len(self.columns["op"])


_NONE = np.zeros(0, dtype=np.int32)
NO_LIVES = Lives(_NONE, np.zeros(0, dtype=np.int8), np.zeros(0), _NONE, np.zeros(1, dtype=np.int32), _NONE)


@dataclass(frozen=True, eq=False)
class Part:
    """A kept rank: its Script and the seconds of its ops, [n] each. `given` is its memory where that does not follow from the Script."""

    rank: int
    script: Script
    ready: Seconds
    start: Seconds
    end: Seconds
    given: Births | None = None

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """A field of OPS except `rank`."""
        return np.asarray(getattr(self, name)) if name in TIMES else self.script.columns[name]

    def ops(self) -> NDArray[Any]:
        """Its rows of `ops`."""
        rows = np.empty(len(self), dtype=OPS)
        rows["rank"] = self.rank
        for name in (*FIXED, *TIMES):
            rows[name] = self[name]
        return rows

    def births(self) -> Births:
        """Its memory: everything that is born, in order of the Script, then everything that dies."""
        if self.given is not None:
            return self.given
        lives = self.script.lives
        mortal = lives.birth >= 0
        buffer, category, delta = ((c, c[mortal]) for c in (lives.buffer, lives.category, lives.nbytes))
        return Births(self.birth_times(), np.concatenate(buffer), np.concatenate(category), np.concatenate([delta[0], -delta[1]]))

    def birth_times(self) -> Seconds:
        """When it happens: the times of `births`."""
        if self.given is not None:
            return self.given.time
        lives = self.script.lives
        mortal = lives.birth >= 0
        born = np.where(mortal, self.start[lives.birth], -np.inf) if len(self) else np.full(len(lives.birth), -np.inf)
        dead = np.maximum.reduceat(self.end[lives.users], lives.first[:-1]) if len(self) else np.zeros(len(mortal))
        return np.concatenate([born, dead[mortal]])

    def memory(self) -> NDArray[Any]:
        """Its rows of `memory`."""
        births = self.births()
        rows = np.empty(len(births.time), dtype=MEMORY)
        rows["rank"] = self.rank
        for name in Births._fields:
            rows[name] = getattr(births, name)
        return rows


class Source(Protocol):
    """Where the rows of a Timeline come from once somebody wants them."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its kept ranks, in order."""
        ...

    @property
    def flows(self) -> NDArray[Any]:
        """Its flows."""
        ...


@dataclass(frozen=True)
class Timeline:
    """Columns of one or more steps.

    `ops`, `flows`, `memory` and `edges` are structured arrays of the dtypes above (seconds, bytes); `ops` is sorted by (rank, op).
    `representative` int[world] gives the rank whose rows stand for each rank; `links` names and kinds of the links that `flows` index, each
    (name, kind, bytes/s, multiplicity). `meta` holds the source (`simulated` or `measured`), capacities, provenance.

    One that is made `of_parts` writes `ops`, `memory` and `edges` out when they are first asked for; `parts` does without. One that is made
    `of_source` asks that for its parts and flows then.
    """

    ops: NDArray[Any]
    flows: NDArray[Any]
    memory: NDArray[Any]
    edges: NDArray[Any]
    representative: NDArray[np.int64]
    streams: tuple[str, ...]
    phases: tuple[str, ...]
    buffers: tuple[str, ...]
    links: tuple[tuple[str, str, float, int], ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_parts(cls, parts: Sequence[Part], **fields: Any) -> Timeline:
        """A Timeline of kept ranks, in order; `fields` are the others (`flows`, `representative`, `streams`, ...)."""
        timeline = object.__new__(cls)
        timeline.__dict__.update({"links": (), "meta": {}} | fields | {"_parts": tuple(parts)})
        return timeline

    @classmethod
    def of_source(cls, source: Source, **fields: Any) -> Timeline:
        """A Timeline of the parts and flows of `source`; `fields` are the others."""
        timeline = object.__new__(cls)
        timeline.__dict__.update({"links": (), "meta": {}} | fields | {"_source": source})
        return timeline

    def __getattr__(self, name: str) -> Any:
        """Write out a column that is not there yet."""
        if name in ("_parts", "flows") and "_source" in self.__dict__:
            self.__dict__[name] = getattr(self._source, name.removeprefix("_"))
        elif name in _WRITTEN and self.__dict__.keys() & {"_parts", "_source"}:
            self.__dict__[name] = _WRITTEN[name](self.parts)
        else:
            raise AttributeError(f"a Timeline has no {name}")
        return self.__dict__[name]

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: parts and flows in place of what they come from."""
        made = {"_parts": self.parts, "flows": self.flows} if "_source" in self.__dict__ else {}
        return made | {k: v for k, v in self.__dict__.items() if k != "_source"}

    @property
    def parts(self) -> tuple[Part, ...]:
        """The kept ranks, in order, without writing out the columns."""
        if not self.__dict__.keys() & {"_parts", "_source"}:
            self.__dict__["_parts"] = tuple(_cut(self))
        found: tuple[Part, ...] = self._parts
        return found

    def part(self, rank: int) -> Part | None:
        """The kept rank that stands for `rank`; None where it has no rows."""
        kept = int(self.representative[rank])
        return next((p for p in self.parts if p.rank == kept), None)

    def with_meta(self, **more: Any) -> Timeline:
        """The same with more in `meta`."""
        timeline = object.__new__(type(self))
        timeline.__dict__.update(self.__dict__ | {"meta": {**self.meta, **more}})
        return timeline

    @property
    def ranks(self) -> list[int]:
        """The ranks whose rows are kept."""
        return [p.rank for p in self.parts]

    @property
    def multiplicity(self) -> dict[int, int]:
        """How many ranks each kept rank stands for."""
        ranks, counts = np.unique(self.representative, return_counts=True)
        return {int(r): int(c) for r, c in zip(ranks, counts, strict=True)}

    @property
    def makespan(self) -> float:
        """Seconds from zero to the end of the last op."""
        return max((float(p.end.max()) for p in self.parts if len(p)), default=0.0)

    def of(self, rank: int) -> NDArray[Any]:
        """Rows of `ops` of the representative of `rank`."""
        part = self.part(rank)
        return np.zeros(0, dtype=OPS) if part is None else part.ops()

    def save(self, path: Path | str) -> None:
        """Write a versioned .npz, which replaces an older one only when it is whole. Raises OSError."""
        from .timeline_files import save

        save(self, Path(path))

    def to_pandas(self, table: str = "ops") -> Any:
        """`ops`, `flows`, `memory` or `edges` as a pandas DataFrame, names in place of numbers, units in the names of columns.

        Raises Malformed for another table, MissingExtra where pandas is not installed.
        """
        from .timeline_frames import frame

        return frame(self, table)

    def _repr_html_(self) -> str:
        from .timeline_frames import facts

        return facts(self)

    @staticmethod
    def load(path: Path | str) -> Timeline:
        """Read what `save` wrote. Raises Malformed for a missing file, Unparsable for anything that is not a Timeline of this version."""
        from .timeline_files import load

        return load(Path(path))


def without_flows(timeline: Timeline, parts: Sequence[Part] | None = None) -> Timeline:
    """The same without what is on the links; with other `parts`, where they are given."""
    fields = ("representative", "streams", "phases", "buffers", "links", "meta")
    return Timeline.of_parts(timeline.parts if parts is None else parts, flows=np.zeros(0, dtype=FLOWS), **{name: getattr(timeline, name) for name in fields})


def _cut(timeline: Timeline) -> list[Part]:
    """The parts of a Timeline whose columns are written out."""
    ops, memory, edges = timeline.ops, timeline.memory, timeline.edges
    ranks, first = np.unique(ops["rank"], return_index=True)
    bounds = np.append(first, len(ops))
    edges = edges[np.argsort(edges["op"], kind="stable")] if (edges["op"][1:] < edges["op"][:-1]).any() else edges
    memory = memory[np.argsort(memory["rank"], kind="stable")] if (memory["rank"][1:] < memory["rank"][:-1]).any() else memory
    waits = np.searchsorted(edges["op"], bounds)
    born = np.searchsorted(memory["rank"], ranks, "left"), np.searchsorted(memory["rank"], ranks, "right")
    parts = []
    for i, rank in enumerate(ranks.tolist()):
        rows, low, high = ops[bounds[i] : bounds[i + 1]], waits[i], waits[i + 1]
        columns = {name: np.ascontiguousarray(rows[name]) for name in OPS.names or ()}
        births = {name: np.ascontiguousarray(memory[name][born[0][i] : born[1][i]]) for name in Births._fields}
        script = Script({n: columns[n] for n in FIXED}, edges["op"][low:high] - bounds[i], edges["waits_for"][low:high] - bounds[i], NO_LIVES)
        parts.append(Part(rank, script, columns["ready"], columns["start"], columns["end"], Births(**births)))
    return parts


def _edges(parts: Sequence[Part]) -> NDArray[Any]:
    rows = np.empty(sum(len(p.script.waiting) for p in parts), dtype=EDGES)
    at = first = 0
    for part in parts:
        mine = slice(at, at + len(part.script.waiting))
        rows["op"][mine], rows["waits_for"][mine] = part.script.waiting + first, part.script.awaited + first
        at, first = at + len(part.script.waiting), first + len(part)
    return rows


_WRITTEN = {
    "ops": lambda parts: np.concatenate([np.zeros(0, dtype=OPS), *(p.ops() for p in parts)]),
    "memory": lambda parts: np.concatenate([np.zeros(0, dtype=MEMORY), *(p.memory() for p in parts)]),
    "edges": _edges,
}
