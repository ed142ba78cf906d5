"""A Timeline as a Perfetto trace: open the file at https://ui.perfetto.dev.

One process per kept rank, in it one track per stream with a slice per op (per call where there are very many), arrows along the edges,
and counters of the memory in use. Numbers of fields are those of perfetto/trace/perfetto_trace.proto (github.com/google/perfetto).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..files import whole
from ..memory import memory_curve, thinned
from ..program.ops import AXES, CATEGORIES
from ..report.labels import op_names
from ..report.lanes import apart
from ..timeline import COMPUTE, KINDS, Timeline
from ..timeline_columns import merged
from .wire import Bytes, doubles, fixed, joined, message, nested, numbers, only, same

NANOSECONDS = 1e9
MOST = 120_000  # slices; where there are more ops, those of one call are one slice
VALUES = 100_000  # values of all counters together; each may have LEAST in any case
LEAST = 200
AT_ONCE = 10_000  # packets: more would be fresh memory
CLEARED, NEEDED = 1, 2  # sequence flags: names are told from here on; names that were told are used
BEGIN, END, COUNTER = 1, 2, 4  # types of events
EXPLICIT = 3  # tracks in the order that they ask for
BYTES = 3  # a unit
SEQUENCE = {"f10": 1}  # of packets: this one
NAMES_OF_NOTES = ("bytes", "stage", "waited for partners, s")


def write(timeline: Timeline, path: str | Path) -> None:
    """Write `timeline` to `path` (.pftrace). A slice begins at the first FLOP or byte; times are rounded to nanoseconds.

    The file appears only when it is whole. Raises Malformed where it cannot be written.
    """
    with whole(Path(path)) as draft, open(draft, "wb") as file:
        for packets in _Trace(timeline).packets():
            file.write(packets)


class _Trace:
    """Makes packets, rank by rank: concatenated traces are one trace."""

    def __init__(self, timeline: Timeline) -> None:
        self.whole = timeline
        self.timeline = merged(timeline) if sum(map(len, timeline.parts)) > MOST else timeline
        self.points = max(LEAST, VALUES // (max(1, len(timeline.parts)) * (len(CATEGORIES) + 1))) // 2
        self.many = timeline.multiplicity
        self.tracks = 0

    def packets(self) -> Iterator[bytes]:
        timeline = self.timeline
        names = op_names(timeline)
        number = {name: i for i, name in enumerate(dict.fromkeys(names), 1)}
        yield _names(list(number), timeline)
        name = np.array([number[one] for one in names], dtype=np.int64)
        slices: list[tuple[NDArray[np.int64], int]] = []  # rows and their track
        values: list[tuple[NDArray[np.int64], int, NDArray[np.float64]]] = []  # times, their track, bytes
        low = 0
        for order, part in enumerate(timeline.parts):
            high = low + len(part)
            process, packet = self._process(part.rank, order)
            yield packet
            for position, (stream, mine) in enumerate(tracks(timeline, low, high)):
                yield self._described(f2=stream, f5=process, f12=position)
                slices.append((mine, self.tracks))
            yield from self._memory(part.rank, process, values)
            low = high
        yield from _slices(timeline, slices, name)
        yield from _counters(values)

    def _described(self, **more: Any) -> bytes:
        """The packet of the next track: its name f2, parent f5, place f12, and other fields of TrackDescriptor."""
        self.tracks += 1
        return message(f1=message(f60=message(f1=self.tracks, **more), f13=NEEDED, **SEQUENCE))

    def _process(self, rank: int, order: int) -> tuple[int, bytes]:
        """The track of a rank, and its packet."""
        count = self.many.get(rank, 1)
        name = f"rank {rank}" + (f" (stands for {count} ranks)" if count > 1 else "")
        packet = self._described(f2=name, f3=message(f1=rank + 1, f6=name), f11=EXPLICIT, f12=order)  # pid 0 is the idle process
        return self.tracks, packet

    def _memory(self, rank: int, process: int, told: list[tuple[NDArray[np.int64], int, NDArray[np.float64]]]) -> Iterator[bytes]:
        """Counters in bytes: the total, and each category that is ever used; a value only where it changes, thinned where there are many."""
        curve = memory_curve(self.whole, rank)
        times = np.maximum(np.rint(curve.times * NANOSECONDS).astype(np.int64), 0)
        columns = [("memory", curve.total), *((f"memory: {c}", curve.by_category[:, i]) for i, c in enumerate(CATEGORIES))]
        for order, (name, values) in enumerate(columns):
            if not values.any():
                continue
            yield self._described(f2=name, f5=process, f8=message(f3=BYTES), f12=1000 + order)
            changed = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
            rows = changed[thinned(values[changed], self.points)]
            told.append((times[rows], self.tracks, values[rows]))


def _counters(told: Sequence[tuple[NDArray[np.int64], int, NDArray[np.float64]]]) -> Iterator[bytes]:
    """The values of counters: times, track and bytes of each."""
    if told:
        times, tracks, values = zip(*told, strict=True)
        at, held = np.concatenate(times), np.rint(np.concatenate(values)).astype(np.int64)
        track = np.repeat(tracks, [len(x) for x in times])
        for mine in _pieces(len(at)):
            yield _events(at[mine], COUNTER, track[mine], numbers(30, held[mine])).data.tobytes()


def _pieces(n: int) -> Iterator[slice]:
    """As many packets as are made at once."""
    return (slice(at, at + AT_ONCE) for at in range(0, n, AT_ONCE))


def _events(times: NDArray[np.int64], kind: int, track: NDArray[np.int64], *more: Bytes) -> Bytes:
    """Packets with one event each, of a kind, on tracks; `more` are further fields of TrackEvent."""
    event = nested(11, same(message(f9=kind), len(times)), numbers(11, track), *more)
    return nested(1, numbers(8, times), event, same(message(f13=NEEDED, **SEQUENCE), len(times)))


def _slices(timeline: Timeline, on_tracks: Sequence[tuple[NDArray[np.int64], int]], name: NDArray[np.int64]) -> Iterator[bytes]:
    """Begin and end of the rows on each track, in order: slices of a track never overlap."""
    if on_tracks:
        rows = np.concatenate([mine for mine, _ in on_tracks])
        track = np.repeat([number for _, number in on_tracks], [len(mine) for mine, _ in on_tracks])
        arrows = [_Arrows(47, timeline.edges["waits_for"]), _Arrows(48, timeline.edges["op"])]
        for mine in _pieces(len(rows)):
            yield _begun_and_ended(timeline.ops[rows[mine]], track[mine], name[rows[mine]], [arrow.of(rows[mine]) for arrow in arrows])


def _begun_and_ended(mine: NDArray[Any], track: NDArray[np.int64], name: NDArray[np.int64], arrows: Sequence[Bytes]) -> bytes:
    """Two packets for every row."""
    starts, ends = (np.rint(mine[column] * NANOSECONDS).astype(np.int64) for column in ("start", "end"))
    category = mine["kind"].astype(np.int64) * (len(AXES) + 1) + mine["axis"] + 2
    staged, transfer, waited = mine["stage"] >= 0, mine["kind"] != COMPUTE, mine["start"] - mine["ready"]
    late = transfer & (waited > 0)
    begin = _events(
        starts,
        BEGIN,
        track,
        numbers(10, name),
        numbers(3, category),
        only(staged, nested(4, same(message(f1=2), int(staged.sum())), numbers(4, mine["stage"][staged]))),
        only(transfer, nested(4, same(message(f1=1), int(transfer.sum())), doubles(5, mine["bytes"][transfer]))),
        only(late, nested(4, same(message(f1=3), int(late.sum())), doubles(5, waited[late]))),
        *arrows,
    )
    return joined(begin, _events(ends, END, track)).data.tobytes()


class _Arrows:
    """One end of all edges, as the field `number` of the slices there."""

    def __init__(self, number: int, ends: NDArray[np.int32]) -> None:
        self.number, self.order = number, np.argsort(ends, kind="stable")
        self.ends = ends[self.order]

    def of(self, rows: NDArray[np.int64]) -> Bytes:
        """Of each row the numbers of the edges that end there."""
        low, high = np.searchsorted(self.ends, rows, "left"), np.searchsorted(self.ends, rows, "right")
        counts = high - low
        at = np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
        return fixed(self.number, self.order[at] + 1, counts)


def _names(names: list[str], timeline: Timeline) -> bytes:
    """The packet that tells the names of ops, of their categories (entry kind x 6 + axis + 1: the kind, and the axis of transfers) and of notes."""
    categories = [kind if axis == "" else f"{kind},{axis}" for kind in KINDS for axis in ("", *AXES)]
    told = {f"f{n}": [message(f1=i, f2=x) for i, x in enumerate(texts, 1)] for n, texts in ((1, categories), (2, names), (3, NAMES_OF_NOTES))}
    return message(f1=message(f8=0, f12=message(**told), f13=CLEARED, **SEQUENCE))


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
