"""A rank's memory as a snapshot that PyTorch's memory viewer opens: https://pytorch.org/memory_viz.

The form is that of torch.cuda.memory._dump_snapshot ("Understanding CUDA Memory Usage", section Snapshot API Reference, of PyTorch's documentation):
a pickled dict of `segments` (what the allocator holds at the end) and `device_traces` (a list of allocations and frees per device).
"""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict, deque
from pathlib import Path
from typing import Any

from ..errors import Malformed
from ..files import whole
from ..memory import ordered_memory
from ..program.ops import CATEGORIES
from ..timeline import Timeline

BASE = 1 << 46  # where addresses begin; each allocation has one of its own
ALIGNED = 512  # bytes, as PyTorch's caching allocator rounds (c10/cuda/CUDACachingAllocator.h, kMinBlockSize)
MICROSECONDS = 1e6
PROTOCOL = 4


def snapshot(timeline: Timeline, rank: int) -> dict[str, Any]:
    """The snapshot of `rank`: one segment that holds every allocation, and an `alloc` and a `free_completed` for each, in order of time.

    Sizes are those of the buffers, unrounded; the frames of an allocation are its buffer and, outside it, its category. Times are
    microseconds from the start of the step. Raises Malformed for a rank that is not in the timeline.
    """
    if not 0 <= rank < len(timeline.representative):
        raise Malformed(f"rank={rank} must be one of 0 to {len(timeline.representative) - 1}")
    live: dict[int, deque[dict[str, Any]]] = defaultdict(deque)
    momentary: Counter[int] = Counter()  # what dies as it is born: the death stands first
    trace: list[dict[str, Any]] = []
    address = BASE
    for row in ordered_memory(timeline, rank):
        size, time, buffer = abs(int(row["delta"])), int(max(float(row["time"]), 0.0) * MICROSECONDS), int(row["buffer"])
        if row["delta"] > 0 and momentary[buffer]:
            momentary[buffer] -= 1
        elif row["delta"] > 0:
            live[buffer].append(_entry("alloc", address, size, time, _frames(timeline, row)))
            trace.append(live[buffer][-1])
            address += -(-size // ALIGNED) * ALIGNED
        elif live[buffer]:
            born = live[buffer].popleft()
            trace.append(_entry("free_completed", born["addr"], size, time, born["frames"]))
        else:
            momentary[buffer] += 1
    blocks = sorted((e for entries in live.values() for e in entries), key=lambda e: e["addr"])
    opened = _entry("segment_alloc", BASE, address - BASE, 0, [])
    return {"segments": [_segment(blocks, address - BASE)], "device_traces": [[opened, *trace]]}


def write(timeline: Timeline, rank: int, path: Path) -> None:
    """Write the snapshot of `rank`; the file appears only when it is whole. Raises Malformed where it cannot be written."""
    data = snapshot(timeline, rank)
    with whole(path) as draft:
        draft.write_bytes(pickle.dumps(data, protocol=PROTOCOL))


def _entry(action: str, address: int, size: int, time: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time, "frames": frames}


def _frames(timeline: Timeline, row: Any) -> list[dict[str, Any]]:
    names = (timeline.buffers[int(row["buffer"])], CATEGORIES[int(row["category"])])
    return [{"filename": "parasim", "line": 0, "name": name} for name in names]


def _segment(blocks: list[dict[str, Any]], size: int) -> dict[str, Any]:
    """One large segment: the blocks that are alive at the end, and what lies between them."""
    out, at = [], BASE
    for b in blocks:
        if b["addr"] > at:
            out.append(_block(at, b["addr"] - at, "inactive", []))
        rounded = -(-b["size"] // ALIGNED) * ALIGNED
        out.append(_block(b["addr"], rounded, "active_allocated", b["frames"]) | {"requested_size": b["size"]})
        at = b["addr"] + rounded
    if BASE + size > at:
        out.append(_block(at, BASE + size - at, "inactive", []))
    held = sum(b["size"] for b in out if b["state"] == "active_allocated")
    return {
        "device": 0,
        "address": BASE,
        "total_size": size,
        "allocated_size": held,
        "active_size": held,
        "requested_size": sum(b["requested_size"] for b in out if b["state"] == "active_allocated"),
        "stream": 0,
        "segment_type": "large",
        "is_expandable": False,
        "blocks": out,
        "frames": [],
    }


def _block(address: int, size: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": frames}
