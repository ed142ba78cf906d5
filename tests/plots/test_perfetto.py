"""The trace, parsed back with the protobuf classes."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from parasim.errors import Malformed
from parasim.memory import memory_peak
from parasim.plots import write_perfetto
from parasim.timeline import Timeline

Pipeline = Callable[..., Timeline]


def read(path: Path) -> Trace:
    trace = Trace()
    trace.ParseFromString(path.read_bytes())
    return trace


def test_one_slice_per_op_on_the_track_of_its_stream(pipeline: Pipeline, tmp_path: Path) -> None:
    t = pipeline(3, 4, layers=2)
    write_perfetto(t, tmp_path / "trace.pftrace")
    trace = read(tmp_path / "trace.pftrace")
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}
    begins = [p for p in trace.packet if p.track_event.type == TrackEvent.TYPE_SLICE_BEGIN]
    ends = [p for p in trace.packet if p.track_event.type == TrackEvent.TYPE_SLICE_END]
    assert len(begins) == len(ends) == len(t.ops)
    where = Counter((tracks[tracks[p.track_event.track_uuid].parent_uuid].process.process_name, tracks[p.track_event.track_uuid].name) for p in begins)
    assert where == Counter((f"rank {o['rank']}", t.streams[o["stream"]]) for o in t.ops)
    names = {n.iid: n.name for p in trace.packet for n in p.interned_data.event_names}
    assert Counter(names[p.track_event.name_iid] for p in begins)["F3 layer 1"] == 3  # on each of three ranks
    categories = {c.iid: c.name for p in trace.packet for c in p.interned_data.event_categories}
    seen = Counter(categories[p.track_event.category_iids[0]] for p in begins)
    assert seen == {"compute": 3 * (2 * 2 * 4 + 1), "p2p,pp": 2 * 2 * 2 * 4, "collective,dp": 3}


def test_slices_of_a_track_follow_each_other(pipeline: Pipeline, tmp_path: Path) -> None:
    t = pipeline(3, 4)
    write_perfetto(t, tmp_path / "trace.pftrace")
    events = defaultdict(list)
    for p in read(tmp_path / "trace.pftrace").packet:
        if p.track_event.type in (TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END):
            events[p.track_event.track_uuid].append((p.timestamp, p.track_event.type))
    for track in events.values():
        assert [kind for _, kind in track] == [TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END] * (len(track) // 2)
        assert [at for at, _ in track] == sorted(at for at, _ in track)
    assert max(at for track in events.values() for at, _ in track) == round(t.makespan * 1e9)


def test_every_slice_is_at_depth_zero_of_its_track_also_where_ops_of_a_stream_overlap(
    pipeline: Pipeline, overlapping: Callable[[Timeline], Timeline], tmp_path: Path
) -> None:
    """A slice of a track begins after the one before has ended, so that viewers nest none; overlapping ops stand on tracks of their own."""
    for t in (pipeline(3, 4), overlapping(pipeline(3, 4))):
        write_perfetto(t, tmp_path / "trace.pftrace")
        depth: dict[int, int] = defaultdict(int)
        seen = 0
        for p in read(tmp_path / "trace.pftrace").packet:
            event = p.track_event
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                assert depth[event.track_uuid] == 0
                depth[event.track_uuid], seen = 1, seen + 1
            elif event.type == TrackEvent.TYPE_SLICE_END:
                depth[event.track_uuid] -= 1
        assert seen == len(t.ops) and set(depth.values()) == {0}


def test_memory_counter_reaches_the_exact_peak(pipeline: Pipeline, tmp_path: Path) -> None:
    t = pipeline(3, 4)
    write_perfetto(t, tmp_path / "trace.pftrace")
    trace = read(tmp_path / "trace.pftrace")
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}
    highest: dict[tuple[str, str], int] = defaultdict(int)
    for p in trace.packet:
        if p.track_event.type == TrackEvent.TYPE_COUNTER:
            track = tracks[p.track_event.track_uuid]
            key = tracks[track.parent_uuid].name, track.name
            highest[key] = max(highest[key], p.track_event.counter_value)
    for rank in range(3):
        assert highest[f"rank {rank}", "memory"] == memory_peak(t, rank).nbytes
    assert highest["rank 0", "memory: parameters"] == 20e9


def test_arrows_follow_the_edges(pipeline: Pipeline, tmp_path: Path) -> None:
    t = pipeline(2, 2)
    write_perfetto(t, tmp_path / "trace.pftrace")
    trace = read(tmp_path / "trace.pftrace")
    out = [f for p in trace.packet for f in p.track_event.flow_ids]
    into = [f for p in trace.packet for f in p.track_event.terminating_flow_ids]
    assert sorted(out) == sorted(into) == list(range(1, len(t.edges) + 1))
    assert max(out) < 2**53  # what a number of JavaScript holds exactly


def test_a_folded_rank_says_for_how_many_it_stands(pipeline: Pipeline, tmp_path: Path) -> None:
    t = pipeline(2, 2)
    folded = replace(t, representative=np.array([0, 1, 0, 1, 0, 1]))
    write_perfetto(folded, tmp_path / "trace.pftrace")
    names = [p.track_descriptor.process.process_name for p in read(tmp_path / "trace.pftrace").packet if p.track_descriptor.HasField("process")]
    assert names == ["rank 0 (stands for 3 ranks)", "rank 1 (stands for 3 ranks)"]


def test_same_bytes_twice(pipeline: Pipeline, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_perfetto(pipeline(2, 3), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_unwritable_is_malformed(pipeline: Pipeline, tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="cannot be written"):
        write_perfetto(pipeline(2, 2), tmp_path / "no" / "trace.pftrace")


def test_a_hundred_thousand_ops_take_seconds(pipeline: Pipeline, tmp_path: Path) -> None:
    t = pipeline(8, 64, layers=96)
    assert len(t.ops) > 98_000
    began = time.process_time()
    write_perfetto(t, tmp_path / "trace.pftrace")
    assert time.process_time() - began < 10.0  # about 1.5 s on a quiet machine
    assert len(read(tmp_path / "trace.pftrace").packet) > 2 * len(t.ops)
