"""Chrome's JSON and the table: as many ops out as there are in the timeline, numbers that are the timeline's."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parasim.errors import Malformed
from parasim.memory import memory_peak
from parasim.plots import write_chrome, write_csv
from parasim.timeline import Timeline

Pipeline = Callable[..., Timeline]


def events(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["traceEvents"]


def test_times_are_numbers_of_microseconds_from_zero(pipeline: Pipeline, tmp_path: Path) -> None:
    t = pipeline(3, 4, layers=2)
    assert write_chrome(t, tmp_path / "a.json") == len(t.ops)
    slices = [e for e in events(tmp_path / "a.json") if e["ph"] == "X"]
    assert len(slices) == len(t.ops)
    assert all(type(e[k]) is float for e in slices for k in ("ts", "dur"))
    assert min(e["ts"] for e in slices) == 0.0 and all(e["dur"] >= 0 for e in slices)
    assert max(e["ts"] + e["dur"] for e in slices) == pytest.approx(t.makespan * 1e6, rel=1e-12)
    assert sorted(e["ts"] for e in slices) == pytest.approx(sorted((t.ops["start"] * 1e6).tolist()))
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events(tmp_path / "a.json") if e["name"] == "thread_name"}
    assert Counter(named[e["pid"], e["tid"]] for e in slices) == Counter(t.streams[o["stream"]] for o in t.ops)


def test_arrows_leave_and_reach_the_ops_of_an_edge(pipeline: Pipeline, tmp_path: Path) -> None:
    t = pipeline(2, 2)
    write_chrome(t, tmp_path / "a.json")
    arrows = {phase: {e["id"]: e for e in events(tmp_path / "a.json") if e["ph"] == phase} for phase in "sf"}
    assert arrows["s"].keys() == arrows["f"].keys() == set(range(1, len(t.edges) + 1))
    for number, (op, source) in enumerate(t.edges.tolist(), 1):
        leaves, reaches = arrows["s"][number]["ts"], arrows["f"][number]["ts"]
        assert t.ops["start"][source] * 1e6 <= leaves <= t.ops["end"][source] * 1e6
        assert reaches == pytest.approx(t.ops["start"][op] * 1e6) and leaves <= reaches


def test_the_counter_reaches_the_exact_peak(pipeline: Pipeline, tmp_path: Path) -> None:
    t = pipeline(3, 4)
    write_chrome(t, tmp_path / "a.json")
    for rank in range(3):
        assert max(e["args"]["bytes"] for e in events(tmp_path / "a.json") if e["ph"] == "C" and e["pid"] == rank) == memory_peak(t, rank).nbytes


def test_ops_of_one_stream_that_overlap_get_threads_of_their_own(pipeline: Pipeline, overlapping: Callable[[Timeline], Timeline], tmp_path: Path) -> None:
    t = overlapping(pipeline(2, 2))
    write_chrome(t, tmp_path / "a.json")
    by_thread: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for e in events(tmp_path / "a.json"):
        if e["ph"] == "X":
            by_thread.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    assert sum(map(len, by_thread.values())) == len(t.ops)
    for spans in by_thread.values():
        spans.sort()
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(spans))


def test_a_row_per_op_with_its_numbers(pipeline: Pipeline, tmp_path: Path) -> None:
    t = pipeline(3, 4)
    assert write_csv(t, tmp_path / "a.csv") == len(t.ops)
    with open(tmp_path / "a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(r["start_s"]) for r in rows] == t.ops["start"].tolist()  # to the last bit
    assert [float(r["end_s"]) for r in rows] == t.ops["end"].tolist()
    assert [float(r["bytes"]) for r in rows] == t.ops["bytes"].tolist()
    assert [int(r["rank"]) for r in rows] == t.ops["rank"].tolist()
    assert {r["stream"] for r in rows} == {t.streams[s] for s in np.unique(t.ops["stream"])}
    assert {r["kind"] for r in rows} == {"compute", "p2p", "collective"}


def test_the_command_says_how_many(pipeline: Pipeline, tmp_path: Path, cli: Callable[..., Any]) -> None:
    t = pipeline(2, 2)
    t.save(tmp_path / "t.npz")
    for form in ("chrome", "csv"):
        answer = cli("export", form, tmp_path / "t.npz", "--out", tmp_path / f"x.{form}")
        assert (answer.code, answer.out) == (0, f"wrote {tmp_path / f'x.{form}'}: {len(t.ops):,} ops\n")
    assert cli("export", "crome", tmp_path / "t.npz", "--out", tmp_path / "x").code == 2
    assert cli("export", "csv", tmp_path / "t.npz", "--out", tmp_path / "x", "--rank", 1).code == 2
    for write in (write_chrome, write_csv):
        with pytest.raises(Malformed, match="cannot be written"):
            write(t, tmp_path / "no" / "x")
