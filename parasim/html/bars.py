"""The bars of a page: for every shown rank a lane per stream, its runs of microbatches, its gaps, and its memory, as columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..memory import memory_curve, memory_peaks, thinned
from ..program.ops import COMPUTE as COMPUTE_STREAM
from ..report import Window, rank_gaps
from ..report.folding import ranges
from ..report.lanes import apart, lane_of, runs
from .columns import WHOLE, Columns, distinct
from .details import op_details, op_links, partners
from .side import Side

NANOSECOND = 1e-9
MOST_POINTS, ALL_POINTS = 3000, 60_000  # of one memory curve, of all
MOST_MEMBERS = 6  # ranges in the list of ranks that one stands for
KEY = ("kind", "phase", "axis", "stage", "layer", "detail")


class Bars:
    """The columns and the tables that they index, made once."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.columns = Columns()
        longest = max(side.timeline.makespan, NANOSECOND)
        self.tick = max(NANOSECOND, longest / (WHOLE - 1))
        self.bytes_tick = max(1.0, max((p.nbytes for p in memory_peaks(side.timeline).values()), default=1.0) / (WHOLE // 4))

    def to_json(self) -> dict[str, Any]:
        """`ranks` with their slices of the columns, the tables, the columns."""
        side = self.side
        lanes = [(rank, *self._lanes(rank)) for rank in side.shown]
        order = np.concatenate([rows for _, _, rows in lanes])
        tables = self._ops(order, lanes)
        points = min(MOST_POINTS, ALL_POINTS // len(lanes))
        counts = dict.fromkeys(("op", "run", "gap", "memory"), 0)
        parts: dict[str, list[NDArray[Any]]] = {name: [] for name in ("run", "run_first", "gap", "cause", "memory_time", "memory")}
        ranks = []
        for rank, names, rows in lanes:
            sizes = {"op": len(rows), **self._runs(rows[: names[0][1]], counts["op"], parts)}
            sizes |= {"gap": self._gaps(rank, parts), "memory": self._memory(rank, points, parts)}
            ranks.append(self._rank(rank, names, counts, sizes))
            counts = {name: counts[name] + sizes[name] for name in counts}
        self._put(parts)
        return {"tick": self.tick, "bytes_tick": self.bytes_tick, "ranks": ranks, **tables, "columns": self.columns.to_json()}

    def _rank(self, rank: int, names: list[tuple[str, int]], counts: dict[str, int], sizes: dict[str, int]) -> dict[str, Any]:
        members = np.flatnonzero(self.side.timeline.representative == rank).tolist()
        text = ranges(members).split(", ")
        lanes, low = [], counts["op"]
        for name, size in names:
            lanes.append([name, low, low + size])
            low += size
        return {
            "rank": rank,
            "count": len(members),
            "members": ", ".join(text[:MOST_MEMBERS]) + (", ..." if len(text) > MOST_MEMBERS else ""),
            "stages": self.side.stages[rank],
            "lanes": lanes,
            **{key: [counts[name], counts[name] + sizes[name]] for key, name in (("runs", "run"), ("gaps", "gap"), ("memories", "memory"))},
        }

    def _lanes(self, rank: int) -> tuple[list[tuple[str, int]], NDArray[np.int64]]:
        """(name, bars) of the lanes of a rank, the compute stream first, and its rows in their order. Bars of a lane never overlap."""
        timeline = self.side.timeline
        ops = timeline.ops
        rows = np.arange(np.searchsorted(ops["rank"], rank, "left"), np.searchsorted(ops["rank"], rank, "right"))
        kinds: dict[str, list[int]] = {COMPUTE_STREAM: []}
        for stream in np.unique(ops["stream"][rows]).tolist():
            name = timeline.streams[stream]
            kinds.setdefault(COMPUTE_STREAM if name == COMPUTE_STREAM else lane_of(name), []).append(stream)
        names, order = [], []
        for name in [COMPUTE_STREAM, *sorted(set(kinds) - {COMPUTE_STREAM})]:
            mine = rows[np.isin(ops["stream"][rows], kinds[name])]
            for i, lane in enumerate(apart(ops["start"][mine], ops["end"][mine], NANOSECOND)):
                names.append((name if i == 0 else f"{name} ({i + 1})", len(lane)))
                order.append(mine[lane])
        return names, np.concatenate(order)

    def _ops(self, order: NDArray[np.int64], lanes: list[tuple[int, list[tuple[str, int]], NDArray[np.int64]]]) -> dict[str, Any]:
        side, put = self.side, self.columns
        ops = side.timeline.ops[order]
        texts, detail = op_details(side)
        lists, links = op_links(side.timeline)
        table = np.zeros(len(ops), dtype=[(name, "i8") for name in KEY])
        for name in KEY[:-1]:
            table[name] = ops[name]
        table["detail"] = detail[order]
        keys, key = distinct(table, KEY)
        sizes, size = np.unique(ops["bytes"], return_inverse=True)
        heads = np.cumsum([0, *(n for _, names, _ in lanes for _, n in names)])
        self._times("op", ops["start"], ops["end"], heads)
        put.put("op_wait", self._ticks(np.maximum(ops["start"] - ops["ready"], 0.0)), "u4")
        put.put_index("op_key", key)
        put.put("op_microbatch", ops["microbatch"], "i4" if len(ops) and ops["microbatch"].max() > 2**15 - 1 else "i2")
        put.put("op_step", ops["step"], "i2")
        put.put_index("op_size", size)
        put.put_index("op_links", links[order])
        self._arrows(order)
        return {"keys": keys.tolist(), "details": texts, "sizes": sizes.tolist(), "link_lists": lists}

    def _arrows(self, order: NDArray[np.int64]) -> None:
        """Edges between ops of the page, and both ends of messages, in its numbering."""
        timeline = self.side.timeline
        place = np.full(len(timeline.ops), -1, dtype=np.int64)
        place[order] = np.arange(len(order))
        edges = np.stack((place[timeline.edges["op"]], place[timeline.edges["waits_for"]]), axis=1)
        for name, pairs in (("edge", edges), ("partner", place[partners(timeline.ops)])):
            pairs = pairs[(pairs >= 0).all(axis=1)]
            pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
            self.columns.put_steps(f"{name}_a", pairs[:, 0])
            self.columns.put_steps(f"{name}_b", pairs[:, 1])

    def _runs(self, rows: NDArray[np.int64], offset: int, parts: dict[str, list[NDArray[Any]]]) -> dict[str, int]:
        """Runs of the compute lane: seconds, and the op that gives them name and colour, the first that computes if any does."""
        if not len(rows):
            return {"run": 0}
        queue = self.side.timeline.ops[rows]
        found = runs(queue)
        computing = np.flatnonzero(queue["kind"] == 0)
        first = found.first.copy()
        _, where = np.unique(found.of_row[computing], return_index=True)
        first[found.computes] = computing[where]
        parts["run"].append(np.stack((found.start, found.end)))
        parts["run_first"].append(first + offset)
        return {"run": len(first)}

    def _gaps(self, rank: int, parts: dict[str, list[NDArray[Any]]]) -> int:
        """Gaps of the compute stream over the whole timeline, by cause: an index of report.NAMES, one more for idle."""
        timeline = self.side.timeline
        found = np.array(rank_gaps(timeline, rank, Window(0.0, timeline.makespan, self.side.window.step)), dtype=np.float64).reshape(-1, 3)
        parts["gap"].append(found[:, :2].T)
        parts["cause"].append(found[:, 2])
        return len(found)

    def _memory(self, rank: int, points: int, parts: dict[str, list[NDArray[Any]]]) -> int:
        """The curve, thinned to the highest and the last of runs of neighbours: the peak stays."""
        curve = memory_curve(self.side.timeline, rank)
        at = thinned(curve.total, points)
        parts["memory_time"].append(curve.times[at])
        parts["memory"].append(curve.by_category[at])
        return len(at)

    def _put(self, parts: dict[str, list[NDArray[Any]]]) -> None:
        put = self.columns
        for name in ("run", "gap"):
            both = np.concatenate(parts[name], axis=1) if parts[name] else np.zeros((2, 0))
            heads = np.cumsum([0, *(part.shape[1] for part in parts[name])])
            self._times(name, both[0], both[1], heads)
        put.put_steps("run_first", np.concatenate(parts["run_first"]) if parts["run_first"] else [])
        put.put("gap_cause", np.concatenate(parts["cause"]), "u1")
        put.put_steps("memory_time", self._ticks(np.maximum(np.concatenate(parts["memory_time"]), 0.0)))
        held = np.rint(np.concatenate(parts["memory"]) / self.bytes_tick).astype(np.int64)
        for i in range(held.shape[1]):
            put.put_steps(f"memory_{i}", held[:, i])

    def _ticks(self, seconds: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.minimum(np.rint(seconds / self.tick).astype(np.int64), (WHOLE - 1))

    def _times(self, name: str, start: NDArray[np.float64], end: NDArray[np.float64], heads: NDArray[np.int64]) -> None:
        """Starts as gaps to the end before (from zero at each of `heads`) and durations: numbers that repeat, and so compress."""
        first, last = self._ticks(np.maximum(start, 0.0)), self._ticks(np.maximum(end, 0.0))
        before = np.append(0, last[:-1])
        before[heads[heads < len(before)]] = 0
        self.columns.put(f"{name}_gap", np.maximum(first - before, 0), "u4")
        self.columns.put(f"{name}_seconds", np.maximum(last - np.maximum(first, before), 0), "u4")
