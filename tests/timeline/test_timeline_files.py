"""Timelines on disk: what is saved comes back, and whatever is not a Timeline is one clear error."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parasim.config import build
from parasim.errors import Malformed, Unparsable
from parasim.lowering import lower
from parasim.sim import simulate
from parasim.timeline import COLLECTIVE, COMPUTE, EDGES, FLOWS, MEMORY, OPS, P2P, Timeline
from parasim.timeline_columns import merged

COLUMNS = {"ops": OPS, "flows": FLOWS, "memory": MEMORY, "edges": EDGES, "representative": np.dtype("i8")}


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    keys: dict[str, Any] = {"model": {"kind": "mlp", "layers": 2, "hidden": 16, "ffn": 32}, "cluster": "h100-hgx-ib400", "devices": 4}
    run = build(keys | {"batch": {"global": 4, "sequence": 8}, "parallel": {"pp": 2, "dp": 2}})
    return simulate(lower(run.plan), run.cluster, run.profile)


def parts(path: Path) -> dict[str, Any]:
    with np.load(path) as z:
        return {k: z[k] for k in z.files}


def test_what_is_saved_comes_back(timeline: Timeline, tmp_path: Path) -> None:
    timeline.save(tmp_path / "t.npz")
    back = Timeline.load(tmp_path / "t.npz")
    for name, dtype in COLUMNS.items():
        assert getattr(back, name).dtype == getattr(timeline, name).dtype == dtype
        assert np.array_equal(getattr(back, name), getattr(timeline, name))
    assert (back.streams, back.phases, back.buffers, back.links) == (timeline.streams, timeline.phases, timeline.buffers, timeline.links)
    assert dict(back.meta) == dict(timeline.meta)
    back.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "t.npz").read_bytes()


def test_written_columns_come_back_with_a_memory_of_their_own(timeline: Timeline, tmp_path: Path) -> None:
    """A Timeline that is made of columns, as by another program, holds memory that follows from no lifetimes."""
    written = replace(timeline, memory=timeline.memory[::2])
    written.save(tmp_path / "t.npz")
    back = Timeline.load(tmp_path / "t.npz")
    for name in COLUMNS:
        assert np.array_equal(getattr(back, name), getattr(written, name))


def test_ranks_of_one_program_share_what_no_time_changes(timeline: Timeline, tmp_path: Path) -> None:
    timeline.save(tmp_path / "t.npz")
    columns = parts(tmp_path / "t.npz")
    assert len(columns["parts.rank"]) == len(timeline.ranks)
    assert len(columns["scripts.kind"]) == sum(len(s.columns["kind"]) for s in {id(p.script): p.script for p in timeline.parts}.values())


def test_an_empty_timeline_comes_back(tmp_path: Path) -> None:
    empty = Timeline(*(np.zeros(0, dtype=d) for d in COLUMNS.values()), streams=("compute",), phases=(), buffers=())
    empty.save(tmp_path / "t.npz")
    back = Timeline.load(tmp_path / "t.npz")
    assert back.makespan == 0.0 and back.ranks == [] and back.multiplicity == {}


def test_views(timeline: Timeline) -> None:
    assert sum(timeline.multiplicity.values()) == 4 and timeline.ranks == sorted(timeline.multiplicity)
    assert timeline.makespan == max(timeline.of(r)["end"].max() for r in range(4))
    for rank in range(4):
        rows = timeline.of(rank)
        assert (rows["ready"] <= rows["start"]).all() and (rows["start"] <= rows["end"]).all()
        assert rows["op"].tolist() == list(range(len(rows)))
    waiting, awaited = timeline.ops[timeline.edges["op"]], timeline.ops[timeline.edges["waits_for"]]
    assert (waiting["rank"] == awaited["rank"]).all() and (awaited["end"] <= waiting["ready"]).all()
    assert set(timeline.ops["kind"]) == {COMPUTE, COLLECTIVE, P2P}


def refused(path: Path) -> str:
    with pytest.raises(Unparsable) as caught:
        Timeline.load(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and "\n" not in text and caught.value.exit_code == 3
    assert "pickle" not in text and "Error" not in text  # our words, not those of numpy and zipfile
    return text


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.npz", tmp_path):
        with pytest.raises(Malformed, match="no such file"):
            Timeline.load(path)


def test_every_truncation_is_refused(timeline: Timeline, tmp_path: Path) -> None:
    timeline.save(tmp_path / "t.npz")
    whole = (tmp_path / "t.npz").read_bytes()
    for n in range(0, len(whole), 97):
        (tmp_path / "cut.npz").write_bytes(whole[:n])
        refused(tmp_path / "cut.npz")


def test_every_damaged_byte_is_refused_or_harmless(timeline: Timeline, tmp_path: Path) -> None:
    """A flipped byte is an error of ours, or it sat where zip keeps nothing of the data."""
    timeline.save(tmp_path / "t.npz")
    whole = (tmp_path / "t.npz").read_bytes()
    for n in range(3, len(whole), 41):
        (tmp_path / "bad.npz").write_bytes(whole[:n] + bytes([whole[n] ^ 0xFF]) + whole[n + 1 :])
        try:
            back = Timeline.load(tmp_path / "bad.npz")
        except Unparsable:
            continue
        assert np.array_equal(back.ops, timeline.ops)


def edited(header: dict[str, Any], **changes: Any) -> np.ndarray[Any, Any]:
    return np.frombuffer(json.dumps({k: v for k, v in (header | changes).items() if v is not ...}).encode(), dtype=np.uint8)


def header_of(p: dict[str, Any]) -> dict[str, Any]:
    return json.loads(p["header"].tobytes())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda p: p | {"header": edited(header_of(p), version=1)}, "timeline version 1, this parasim reads 4"),
        (lambda p: p | {"header": edited(header_of(p), version=...)}, "timeline version None, this parasim reads 4"),
        (lambda p: p | {"header": edited(header_of(p), streams=...)}, "streams"),
        (lambda p: p | {"header": edited(header_of(p), links=[["a", "nic", 1.0]])}, "links"),
        (lambda p: p | {"header": np.frombuffer(b"[1]", dtype=np.uint8)}, "not a parasim timeline"),
        (lambda p: p | {"header": np.frombuffer(b"\xff\xfe", dtype=np.uint8)}, "not a parasim timeline"),
        (lambda p: {k: v for k, v in p.items() if k != "scripts.lives.users"}, "scripts.lives.users missing"),
        (lambda p: {k: v for k, v in p.items() if k != "header"}, "header"),
        (lambda p: p | {"parts.end": p["parts.end"][:-1]}, "parts.end"),
        (lambda p: p | {"flows.start": np.zeros((2, 2))}, "flows.start"),
        (lambda p: p | {"scripts.lives.nbytes": p["scripts.lives.nbytes"].astype("f4")}, "scripts.lives.nbytes"),
        (lambda p: p | {"parts.script": p["parts.script"] + 9}, "a script that is not there"),
        (lambda p: p | {"scripts.waiting": p["scripts.waiting"].astype("i8")}, "scripts.waiting"),
        (lambda p: p | {"representative": np.array(["0"])}, "representative"),
        (lambda p: p | {"representative": np.array([0.5])}, "representative"),
    ],
)  # fmt: skip
def test_wrong_contents_are_named(timeline: Timeline, tmp_path: Path, damage: Callable[[dict[str, Any]], dict[str, Any]], words: str) -> None:
    timeline.save(tmp_path / "t.npz")
    np.savez_compressed(tmp_path / "bad.npz", **damage(parts(tmp_path / "t.npz")))
    assert words in refused(tmp_path / "bad.npz")


def pickled() -> bytes:
    out = io.BytesIO()
    np.savez(out, ops=np.array([{}], dtype=object), allow_pickle=True)
    return out.getvalue()


def zipped() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr("readme.txt", "hello")
    return out.getvalue()


def bare_array() -> bytes:
    out = io.BytesIO()
    np.save(out, np.zeros(3))
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"hello", "it is no .npz file"),
        (b"PK\x03\x04", "it is cut off"),
        (b"\x80\x04]", "it is no .npz file"),
        (b"{}", "it is no .npz file"),
        (pickled(), "it has no header"),
        (zipped(), "it has no header"),
        (bare_array(), "it is no .npz file"),
    ],
)
def test_what_is_no_timeline(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    assert f"not a parasim timeline: {said}" in refused(tmp_path / "x.npz")


def test_merged_rows_cover_the_ops_of_one_call(timeline: Timeline) -> None:
    coarse = merged(timeline)
    assert 0 < len(coarse.ops) < len(timeline.ops)
    assert coarse.ops["bytes"].sum() == pytest.approx(timeline.ops["bytes"].sum())
    for rank in timeline.ranks:
        rows, whole = coarse.of(rank), timeline.of(rank)
        assert (np.diff(rows["op"]) > 0).all()
        for stream in np.unique(rows["stream"]):
            mine, all_of_it = rows[rows["stream"] == stream], whole[whole["stream"] == stream]
            assert mine["start"][0] == all_of_it["start"][0] and mine["end"][-1] == all_of_it["end"][-1]
            cuts = np.searchsorted(all_of_it["op"], mine["op"])  # a merged row ends with the op before the next row's first
            assert mine["end"][:-1].tolist() == all_of_it["end"][cuts[1:] - 1].tolist()
            for name in ("phase", "stage", "microbatch"):
                assert all_of_it[name].tolist() == np.repeat(mine[name], np.diff(np.append(cuts, len(all_of_it)))).tolist()
    waiting, awaited = coarse.ops[coarse.edges["op"]], coarse.ops[coarse.edges["waits_for"]]
    assert len(coarse.edges) and (waiting["rank"] == awaited["rank"]).all()
