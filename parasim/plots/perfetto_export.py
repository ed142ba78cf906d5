"""A Timeline as a Perfetto trace: open the file at https://ui.perfetto.dev.

One process per kept rank, in it one track per stream with a slice per op (per call where there are very many), arrows along the edges,
and counters of the memory in use.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import CounterDescriptor, TracePacket, TrackDescriptor, TrackEvent
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

from ..errors import Malformed
from ..memory import memory_curve
from ..program.ops import AXES, CATEGORIES
from ..report.labels import op_names
from ..report.lanes import apart
from ..timeline import COMPUTE, KINDS, Timeline
from ..timeline_columns import merged

SEQUENCE = 1
CHUNK = 50_000  # packets held before they are written
NANOSECONDS = 1e9
MOST = 120_000  # slices; where there are more ops, those of one call are one slice
VALUES = 100_000  # values of all counters together; each may have LEAST in any case
LEAST = 200


def write(timeline: Timeline, path: str | Path) -> None:
    """Write `timeline` to `path` (.pftrace). A slice begins at the first FLOP or byte; times are rounded to nanoseconds.

    Raises Malformed where the file cannot be written.
    """
    try:
        with open(path, "wb") as file:
            _Trace(timeline, file).write()
    except OSError as e:
        raise Malformed(f"{path}: cannot be written ({e.strerror})") from e


class _Trace:
    """Builds packets and writes them in chunks: concatenated serialised traces are one trace."""

    def __init__(self, timeline: Timeline, file: IO[bytes]) -> None:
        self.whole = timeline
        self.timeline = merged(timeline) if sum(map(len, timeline.parts)) > MOST else timeline
        self.points = max(LEAST, VALUES // (max(1, len(timeline.parts)) * (len(CATEGORIES) + 1))) // 2
        self.file = file
        self.builder = TraceProtoBuilder()
        self.held = 0
        self.tracks = 0

    def write(self) -> None:
        timeline = self.timeline
        names = op_names(timeline)
        distinct = list(dict.fromkeys(names))
        self._intern(distinct)
        number = {name: i + 1 for i, name in enumerate(distinct)}
        iids = [number[name] for name in names]
        leaving, entering = _arrows(timeline)
        ranks = timeline.ranks
        low, high = np.searchsorted(timeline.ops["rank"], ranks, "left"), np.searchsorted(timeline.ops["rank"], ranks, "right")
        for order, (rank, a, b) in enumerate(zip(ranks, low, high, strict=True)):
            process = self._process(rank, order)
            for position, (name, rows) in enumerate(tracks(timeline, a, b)):
                self._slices(rows, self._track(process, name, position), iids, leaving, entering)
            self._memory(rank, process)
        self._flush()

    def _packet(self) -> Any:
        self.held += 1
        if self.held > CHUNK:
            self._flush()
        packet = self.builder.add_packet()
        packet.trusted_packet_sequence_id = SEQUENCE
        packet.sequence_flags = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        return packet

    def _flush(self) -> None:
        self.file.write(self.builder.serialize())
        self.builder = TraceProtoBuilder()
        self.held = 0

    def _intern(self, names: list[str]) -> None:
        packet = self._packet()
        packet.timestamp = 0
        packet.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        data = packet.interned_data
        for i, name in enumerate(names):
            data.event_names.add(iid=i + 1, name=name)
        for i, category in enumerate(_categories(self.timeline)):
            data.event_categories.add(iid=i + 1, name=category)
        for i, name in enumerate(("bytes", "stage", "waited for partners, s")):
            data.debug_annotation_names.add(iid=i + 1, name=name)

    def _describe(self, name: str, parent: int | None = None, order: int = 0) -> Any:
        self.tracks += 1
        descriptor = self._packet().track_descriptor
        descriptor.uuid = self.tracks
        descriptor.name = name
        descriptor.sibling_order_rank = order
        if parent is not None:
            descriptor.parent_uuid = parent
        return descriptor

    def _process(self, rank: int, order: int) -> int:
        count = self.timeline.multiplicity.get(rank, 1)
        name = f"rank {rank}" + (f" (stands for {count} ranks)" if count > 1 else "")
        descriptor = self._describe(name, order=order)
        descriptor.process.pid = rank + 1  # pid 0 is the idle process
        descriptor.process.process_name = name
        descriptor.child_ordering = TrackDescriptor.EXPLICIT
        return self.tracks

    def _track(self, process: int, name: str, order: int) -> int:
        self._describe(name, process, order)
        return self.tracks

    def _slices(self, rows: NDArray[np.int64], track: int, names: list[int], leaving: dict[int, list[int]], entering: dict[int, list[int]]) -> None:
        """Begin and end of each row of one stream, in its order: slices of a track never overlap."""
        ops = self.timeline.ops[rows]
        starts = np.rint(ops["start"] * NANOSECONDS).astype(np.int64).tolist()
        ends = np.rint(ops["end"] * NANOSECONDS).astype(np.int64).tolist()
        category = (ops["kind"].astype(np.int64) * (len(AXES) + 1) + ops["axis"] + 2).tolist()
        stages, sent, waited = ops["stage"].tolist(), ops["bytes"].tolist(), (ops["start"] - ops["ready"]).tolist()
        transfer = (ops["kind"] != COMPUTE).tolist()
        for i, row in enumerate(rows.tolist()):
            packet = self._packet()
            packet.timestamp = starts[i]
            event = packet.track_event
            event.type = TrackEvent.TYPE_SLICE_BEGIN
            event.track_uuid = track
            event.name_iid = names[row]
            event.category_iids.append(category[i])
            if stages[i] >= 0:
                event.debug_annotations.add(name_iid=2, int_value=stages[i])
            if transfer[i]:
                event.debug_annotations.add(name_iid=1, double_value=sent[i])
                if waited[i] > 0:
                    event.debug_annotations.add(name_iid=3, double_value=waited[i])
            if row in leaving:
                event.flow_ids.extend(leaving[row])
            if row in entering:
                event.terminating_flow_ids.extend(entering[row])
            packet = self._packet()
            packet.timestamp = ends[i]
            packet.track_event.type = TrackEvent.TYPE_SLICE_END
            packet.track_event.track_uuid = track

    def _memory(self, rank: int, process: int) -> None:
        """Counters in bytes: the total, and each category that is ever used; a value only where it changes, thinned where there are many."""
        curve = memory_curve(self.whole, rank)
        times = np.rint(curve.times * NANOSECONDS).astype(np.int64)
        columns = [("memory", curve.total), *((f"memory: {c}", curve.by_category[:, i]) for i, c in enumerate(CATEGORIES))]
        for order, (name, values) in enumerate(columns):
            if not values.any():
                continue
            descriptor = self._describe(name, process, 1000 + order)
            descriptor.counter.unit = CounterDescriptor.UNIT_SIZE_BYTES
            track = self.tracks
            changed = thinned(values, np.flatnonzero(np.append(True, values[1:] != values[:-1])), self.points)
            for time, value in zip(times[changed].tolist(), values[changed].tolist(), strict=True):
                packet = self._packet()
                packet.timestamp = max(time, 0)
                packet.track_event.type = TrackEvent.TYPE_COUNTER
                packet.track_event.track_uuid = track
                packet.track_event.counter_value = round(value)


def tracks(timeline: Timeline, low: int, high: int) -> list[tuple[str, NDArray[np.int64]]]:
    """(name, rows in order of time) of the streams of the rows from `low` to `high`; ops of a stream that overlap get tracks of their own."""
    ops = timeline.ops[low:high]
    starts, ends = (np.rint(ops[name] * NANOSECONDS) for name in ("start", "end"))
    out = []
    for stream in np.unique(ops["stream"]).tolist():
        mine = np.flatnonzero(ops["stream"] == stream)
        for k, lane in enumerate(apart(starts[mine], ends[mine])):
            out.append((timeline.streams[stream] + (f" ({k + 1})" if k else ""), low + mine[lane]))
    return out


def thinned(values: NDArray[np.float64], at: NDArray[np.int64], points: int) -> NDArray[np.int64]:
    """The first entry of `at` and, of each of `points` runs of neighbours, the highest (so the peak stays exact) and the last."""
    if len(at) <= 2 * points:
        return at
    runs = np.array_split(at, points)
    return np.unique([at[0], *(i for run in runs for i in (run[np.argmax(values[run])], run[-1]))])


def _categories(timeline: Timeline) -> list[str]:
    """Kind, and axis of transfers; the category of an op is entry kind x 6 + axis + 1."""
    return [kind if axis == "" else f"{kind},{axis}" for kind in KINDS for axis in ("", *AXES)]


def _arrows(timeline: Timeline) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Numbers of the edges that leave and enter each row."""
    leaving: dict[int, list[int]] = {}
    entering: dict[int, list[int]] = {}
    for i, (op, source) in enumerate(timeline.edges.tolist()):
        leaving.setdefault(source, []).append(i + 1)
        entering.setdefault(op, []).append(i + 1)
    return leaving, entering
