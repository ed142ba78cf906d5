"""Timeline: what both back ends return; the second waist. Columns over the ops of the ranks that were kept, expanded lazily.

A simulated Timeline keeps one rank per fold class (`ranks`) and a map from every rank to its representative; a measured one keeps every rank.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from .errors import Malformed, Unparsable

VERSION = 1
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


@dataclass(frozen=True)
class Timeline:
    """Columns of one or more steps.

    `ops`, `flows`, `memory` and `edges` are structured arrays of the dtypes above (seconds, bytes); `ops` is sorted by (rank, op).
    `representative` int[world] gives the rank whose rows stand for each rank; `links` names and kinds of the links that `flows` index, each
    (name, kind, bytes/s, multiplicity). `meta` holds the source (`simulated` or `measured`), capacities, provenance.
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

    @property
    def ranks(self) -> list[int]:
        """The ranks whose rows are kept."""
        return [int(r) for r in np.unique(self.ops["rank"])]

    @property
    def multiplicity(self) -> dict[int, int]:
        """How many ranks each kept rank stands for."""
        ranks, counts = np.unique(self.representative, return_counts=True)
        return {int(r): int(c) for r, c in zip(ranks, counts, strict=True)}

    @property
    def makespan(self) -> float:
        """Seconds from zero to the end of the last op."""
        return float(self.ops["end"].max()) if len(self.ops) else 0.0

    def of(self, rank: int) -> NDArray[Any]:
        """Rows of `ops` of the representative of `rank`."""
        return np.asarray(self.ops[self.ops["rank"] == self.representative[rank]])

    def save(self, path: Path) -> None:
        """Write a versioned .npz."""
        header = {
            "version": VERSION,
            "streams": self.streams,
            "phases": self.phases,
            "buffers": self.buffers,
            "links": self.links,
            "meta": dict(self.meta),
        }
        with open(path, "wb") as f:
            np.savez_compressed(
                f,
                ops=self.ops,
                flows=self.flows,
                memory=self.memory,
                edges=self.edges,
                representative=self.representative,
                header=np.frombuffer(json.dumps(header).encode(), dtype=np.uint8),
            )

    @staticmethod
    def load(path: Path) -> Timeline:
        """Read what `save` wrote. Raises Malformed for a missing file, Unparsable for anything that is not a Timeline of this version."""
        if not path.is_file():
            raise Malformed(f"{path}: no such file")
        try:
            with np.load(path, allow_pickle=False) as z:
                header = json.loads(z["header"].tobytes().decode())
                arrays = {k: z[k] for k in ("ops", "flows", "memory", "edges", "representative")}
        except (ValueError, KeyError, OSError, EOFError, BadZipFile) as e:
            raise Unparsable(f"{path}: not a parasim timeline (a .npz that `parasim run` or `parasim execute` wrote)") from e
        if header.get("version") != VERSION or arrays["ops"].dtype != OPS:
            raise Unparsable(f"{path}: timeline version {header.get('version')}, this parasim reads {VERSION}")
        return Timeline(
            **arrays,
            streams=tuple(header["streams"]),
            phases=tuple(header["phases"]),
            buffers=tuple(header["buffers"]),
            links=tuple((n, k, b, m) for n, k, b, m in header["links"]),
            meta=header["meta"],
        )
