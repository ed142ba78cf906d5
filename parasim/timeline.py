"""Timeline: what both back ends return; the second waist. Columns over the ops of the ranks that were kept, expanded lazily.

A simulated Timeline keeps one rank per fold class (`ranks`) and a map from every rank to its representative; a measured one keeps every rank.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
from numpy.typing import NDArray

from .errors import Malformed, Unparsable

VERSION = 2
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

    def save(self, path: Path | str) -> None:
        """Write a versioned .npz, which replaces an older one only when it is whole. Raises OSError."""
        path = Path(path)
        header = {
            "version": VERSION,
            "streams": self.streams,
            "phases": self.phases,
            "buffers": self.buffers,
            "links": self.links,
            "meta": dict(self.meta),
        }
        draft = path.with_name(f".{path.name}.part")
        try:
            with ZipFile(draft, "w", ZIP_DEFLATED, compresslevel=1) as file:
                _put(file, "header", np.frombuffer(json.dumps(header).encode(), dtype=np.uint8))
                for name, dtype in COLUMNS.items():
                    rows = getattr(self, name)
                    for part, values in [(f"{name}.{n}", rows[n]) for n in dtype.names] if dtype.names else [(name, rows)]:
                        _put(file, part, np.ascontiguousarray(values))
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)

    @staticmethod
    def load(path: Path | str) -> Timeline:
        """Read what `save` wrote. Raises Malformed for a missing file, Unparsable for anything that is not a Timeline of this version."""
        path = Path(path)
        header, columns = _read(path)
        if header.get("version") != VERSION:
            raise Unparsable(f"{path}: timeline version {header.get('version')}, this parasim reads {VERSION}")
        return Timeline(
            **columns,
            streams=_names(path, header, "streams"),
            phases=_names(path, header, "phases"),
            buffers=_names(path, header, "buffers"),
            links=_links(path, header),
            meta=_entry(path, header, "meta", dict),
        )


COLUMNS: Mapping[str, np.dtype[Any]] = {"ops": OPS, "flows": FLOWS, "memory": MEMORY, "edges": EDGES, "representative": np.dtype(np.int64)}


def _put(file: ZipFile, name: str, values: NDArray[Any]) -> None:
    with file.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array(member, values, allow_pickle=False)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """(header, columns) of a file; each field of a structured column is an array of its own there."""
    if not path.is_file():
        raise Malformed(f"{path}: no such file")
    try:
        with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as z:
            header = json.loads(z["header"].tobytes().decode())
            if not isinstance(header, dict):
                raise ValueError(f"the header is a {type(header).__name__}")
            if header.get("version") != VERSION:
                return header, {}
            parts = {name: [f"{name}.{n}" for n in dtype.names] if dtype.names else [name] for name, dtype in COLUMNS.items()}
            missing = [part for names in parts.values() for part in names if part not in z]
            if missing:
                raise ValueError(f"{', '.join(missing)} missing")
            columns = {name: _joined({part: z[part] for part in parts[name]}, dtype) for name, dtype in COLUMNS.items()}
    except Exception as e:  # a damaged file can fail anywhere in zip, deflate or npy
        raise Unparsable(f"{path}: not a parasim timeline ({type(e).__name__}: {str(e).splitlines()[0] if str(e) else 'empty'})") from e
    return header, columns


def _joined(fields: Mapping[str, NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    """One array of `dtype` from its fields, named as in the file. Raises ValueError where one has another shape or type."""
    rows = len(next(iter(fields.values())))
    for part, values in fields.items():
        wanted = dtype[part.partition(".")[2]] if dtype.names else dtype
        if values.shape != (rows,) or values.dtype != wanted:
            raise ValueError(f"column {part} is {values.dtype} of shape {values.shape}, not {rows} of {wanted}")
    if not dtype.names:
        return next(iter(fields.values()))
    out = np.empty(rows, dtype=dtype)
    for name, values in zip(dtype.names, fields.values(), strict=True):
        out[name] = values
    return out


def _entry(path: Path, header: Mapping[str, Any], key: str, kind: type) -> Any:
    if not isinstance(header.get(key), kind):
        raise Unparsable(f"{path}: {key} of the header is missing or no {kind.__name__}")
    return header[key]


def _names(path: Path, header: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(map(str, _entry(path, header, key, list)))


def _links(path: Path, header: Mapping[str, Any]) -> tuple[tuple[str, str, float, int], ...]:
    try:
        return tuple((str(n), str(k), float(b), int(m)) for n, k, b, m in _entry(path, header, "links", list))
    except (TypeError, ValueError) as e:
        raise Unparsable(f"{path}: links of the header are not (name, kind, bytes/s, multiplicity)") from e
