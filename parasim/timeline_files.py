"""Timelines on disk: a versioned .npz in which what several kept ranks have in common is written once.

Members: `header`; `representative`; `flows.*`; `scripts.*`, the columns of the Scripts one after the other, and `parts.*`, those of the kept ranks:
`script`, `rank` and their seconds (`late`: the rows whose op was ready before it started, and when). `memory.*` is there where a rank's memory does
not follow from its Script, as when it was measured.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from .errors import Malformed, Unparsable
from .timeline import FIXED, FLOWS, MEMORY, OPS, VERSION, Births, Lives, Part, Script, Timeline

Columns = dict[str, NDArray[Any]]
LIVES: Mapping[str, str] = {"buffer": "i4", "category": "i1", "nbytes": "f8", "birth": "i4", "first": "i4", "users": "i4"}
COUNTS = ("ops", "edges", "lives", "users")
FORM: Mapping[str, np.dtype[Any]] = {
    "representative": np.dtype("i8"),
    **{f"flows.{n}": FLOWS[n] for n in FLOWS.names or ()},
    **{f"scripts.{n}": OPS[n] for n in FIXED},
    **{f"scripts.{n}": np.dtype("i4") for n in ("waiting", "awaited")},
    **{f"scripts.lives.{n}": np.dtype(d) for n, d in LIVES.items()},
    **{f"scripts.count.{n}": np.dtype("i8") for n in COUNTS},
    **{f"parts.{n}": np.dtype("i4") for n in ("rank", "script", "late")},
    **{f"parts.{n}": np.dtype("f8") for n in ("ready", "start", "end")},
    **{f"memory.{n}": MEMORY[n] for n in MEMORY.names or ()},
}
GROWING = ("flows.op", "scripts.op", "scripts.lives.birth", "scripts.lives.first", "scripts.lives.users")  # written as differences, which are small
PLAIN = ("parts.start", "parts.end", "flows.start", "flows.end")  # seconds hardly shrink
EPOCH = (1980, 1, 1, 0, 0, 0)  # of every member: equal timelines are equal files


def save(timeline: Timeline, path: Path) -> None:
    """Write `timeline` to `path`, which is replaced only when the new file is whole. Raises OSError."""
    names = ("streams", "phases", "buffers", "links")
    header = {"version": VERSION, **{n: getattr(timeline, n) for n in names}, "meta": dict(timeline.meta)}
    draft = path.with_name(f".{path.name}.part")
    try:
        with ZipFile(draft, "w") as file:
            _put(file, "header", np.frombuffer(json.dumps(header).encode(), dtype=np.uint8))
            for name, values in _columns(timeline).items():
                column = np.ascontiguousarray(values, dtype=FORM[name])
                _put(file, name, np.diff(column, prepend=column.dtype.type(0)) if name in GROWING else column)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _put(file: ZipFile, name: str, values: NDArray[Any]) -> None:
    member = ZipInfo(f"{name}.npy", EPOCH)
    member.compress_type, member._compresslevel = (ZIP_STORED, None) if name in PLAIN else (ZIP_DEFLATED, 1)  # type: ignore[attr-defined]
    with file.open(member, "w", force_zip64=True) as out:
        np.lib.format.write_array(out, values, allow_pickle=False)


def _joined(parts: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype=dtype), *parts])


def _columns(timeline: Timeline) -> Columns:
    """Every member but the header."""
    parts = timeline.parts
    scripts = list({id(p.script): p.script for p in parts}.values())
    number = {id(s): i for i, s in enumerate(scripts)}
    given = [(p.rank, p.given) for p in parts if p.given is not None]
    late = [np.flatnonzero(p.ready != p.start) for p in parts]
    first = np.cumsum([0, *(len(p) for p in parts)])
    counts = {"ops": [len(s) for s in scripts], "edges": [len(s.waiting) for s in scripts]}
    counts |= {"lives": [len(s.lives.birth) for s in scripts], "users": [len(s.lives.users) for s in scripts]}
    out: Columns = {"representative": timeline.representative}
    out |= {f"flows.{n}": timeline.flows[n] for n in FLOWS.names or ()}
    out |= {f"scripts.{n}": _joined([s.columns[n] for s in scripts], OPS[n]) for n in FIXED}
    out |= {f"scripts.{n}": _joined([getattr(s, n) for s in scripts], np.dtype("i4")) for n in ("waiting", "awaited")}
    out |= {f"scripts.lives.{n}": _joined([getattr(s.lives, n) for s in scripts], np.dtype(d)) for n, d in LIVES.items()}
    out |= {f"scripts.count.{n}": np.array(counts[n], dtype=np.int64) for n in COUNTS}
    out |= {"parts.rank": np.array([p.rank for p in parts]), "parts.script": np.array([number[id(p.script)] for p in parts])}
    out["parts.late"] = _joined([rows + at for rows, at in zip(late, first.tolist(), strict=False)], np.dtype("i8"))
    out["parts.ready"] = _joined([p.ready[rows] for p, rows in zip(parts, late, strict=True)], np.dtype("f8"))
    out |= {f"parts.{n}": _joined([getattr(p, n) for p in parts], np.dtype("f8")) for n in ("start", "end")}
    if given:
        out["memory.rank"] = np.repeat([rank for rank, _ in given], [len(b.time) for _, b in given])
        out |= {f"memory.{n}": np.concatenate([getattr(b, n) for _, b in given]) for n in Births._fields}
    return out


def load(path: Path) -> Timeline:
    """Read what `save` wrote. Raises Malformed for a missing file, Unparsable for anything that is not a Timeline of this version."""
    if not path.is_file():
        raise Malformed(f"{path}: no such file")
    try:
        with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as z:
            header = json.loads(z["header"].tobytes().decode())
            if not isinstance(header, dict):
                raise _Wrong(f"its header is a {type(header).__name__}")
            if header.get("version") == VERSION:
                columns = _checked(z)
                parts = _parts(columns)
    except _Wrong as e:
        raise Unparsable(f"{path}: not a parasim timeline: {e}") from e
    except Exception as e:  # a damaged file can fail anywhere in zip, deflate or npy
        raise Unparsable(f"{path}: not a parasim timeline: {_damage(path)}") from e
    if header.get("version") != VERSION:
        raise Unparsable(f"{path}: timeline version {header.get('version')}, this parasim reads {VERSION}; make it again with this parasim")
    flows = np.empty(len(columns["flows.op"]), dtype=FLOWS)
    for name in FLOWS.names or ():
        flows[name] = columns[f"flows.{name}"]
    return Timeline.of_parts(
        parts,
        flows=flows,
        representative=columns["representative"],
        streams=_names(path, header, "streams"),
        phases=_names(path, header, "phases"),
        buffers=_names(path, header, "buffers"),
        links=_links(path, header),
        meta=_entry(path, header, "meta", dict),
    )


class _Wrong(ValueError):
    """What is wrong with a file that can be read."""


def _damage(path: Path) -> str:
    """Why a file cannot be read, by how it begins and ends: a zip has its table of contents at the end."""
    if not path.stat().st_size:
        return "it is empty"
    with open(path, "rb") as file:
        if file.read(4) != b"PK\x03\x04":
            return "it is no .npz file; parasim run writes timeline.npz"
    try:
        with ZipFile(path) as archive:
            whole = "header.npy" in archive.namelist()
    except Exception:  # zipfile raises more than BadZipFile over what is damaged
        return "it is cut off or damaged"
    return "its contents are damaged; make it again with parasim run" if whole else "it has no header; parasim run writes timeline.npz"


def _checked(z: Any) -> Columns:
    """Every member, of the right type. Raises _Wrong naming what is missing or of another type."""
    needed = [name for name in FORM if not name.startswith("memory.") or "memory.rank" in z]
    missing = [name for name in needed if name not in z]
    if missing:
        raise _Wrong(f"{', '.join(missing)} missing")
    columns = {name: z[name] for name in needed}
    for name, values in columns.items():
        if values.ndim != 1 or values.dtype != FORM[name]:
            raise _Wrong(f"column {name} is {values.dtype} of shape {values.shape}, not a row of {FORM[name]}")
    counts = {n: int(columns[f"scripts.count.{n}"].sum()) for n in COUNTS}
    scripts = columns["parts.script"]
    if len(scripts) and not 0 <= scripts.min() <= scripts.max() < len(columns["scripts.count.ops"]):
        raise _Wrong("column parts.script names a script that is not there")
    played = int(columns["scripts.count.ops"][scripts].sum())
    lengths = {"parts.start": played, "parts.end": played, "parts.rank": len(scripts), "parts.ready": len(columns["parts.late"])}
    lengths |= {f"scripts.{n}": counts["ops"] for n in FIXED} | {"scripts.waiting": counts["edges"], "scripts.awaited": counts["edges"]}
    lengths |= {f"scripts.lives.{n}": counts["lives"] for n in LIVES} | {"scripts.lives.users": counts["users"]}
    lengths["scripts.lives.first"] = counts["lives"] + len(columns["scripts.count.ops"])
    lengths |= {f"flows.{n}": len(columns["flows.op"]) for n in FLOWS.names or ()}
    lengths |= {name: len(columns["memory.rank"]) for name in columns if name.startswith("memory.")}
    for name, rows in lengths.items():
        if len(columns[name]) != rows:
            raise _Wrong(f"column {name} has {len(columns[name])} rows, not {rows}")
    return columns | {name: np.cumsum(columns[name], dtype=FORM[name]) for name in GROWING}


def _parts(columns: Columns) -> list[Part]:
    scripts = _scripts(columns)
    ready = columns["parts.start"].copy()
    ready[columns["parts.late"]] = columns["parts.ready"]
    given = "memory.rank" in columns
    parts, at = [], 0
    for rank, script in zip(columns["parts.rank"].tolist(), (scripts[k] for k in columns["parts.script"].tolist()), strict=True):
        mine = slice(at, at + len(script))
        low, high = np.searchsorted(columns["memory.rank"], (rank, rank + 1)) if given else (0, 0)
        births = Births(*(columns[f"memory.{n}"][low:high] for n in Births._fields)) if given else None
        parts.append(Part(rank, script, ready[mine], columns["parts.start"][mine], columns["parts.end"][mine], births))
        at += len(script)
    return parts


def _scripts(columns: Columns) -> list[Script]:
    first = {n: np.cumsum([0, *columns[f"scripts.count.{n}"].tolist()]) for n in COUNTS}
    scripts = []
    for k in range(len(columns["scripts.count.ops"])):
        ops, edges, lives, users = (slice(first[n][k], first[n][k + 1]) for n in COUNTS)
        bounds = slice(lives.start + k, lives.stop + k + 1)
        rows = {"first": bounds, "users": users}
        life = Lives(*(columns[f"scripts.lives.{n}"][rows.get(n, lives)] for n in LIVES))
        scripts.append(Script({n: columns[f"scripts.{n}"][ops] for n in FIXED}, columns["scripts.waiting"][edges], columns["scripts.awaited"][edges], life))
    return scripts


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
