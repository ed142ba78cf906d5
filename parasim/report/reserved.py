"""What torch's caching allocator would reserve for a rank's buffers: their births and deaths replayed on its rules.

c10/cuda/CUDACachingAllocator.cpp: sizes are rounded up to 512 B; what is up to 1 MiB comes from segments of 2 MiB, up to 10 MiB from 20 MiB, what is
larger from a segment of its own, rounded up to 2 MiB. The smallest free block that is large enough is taken and split where more than 1 MiB (of
small ones: anything) would be left; freed neighbours of a segment join. Where the device is full, segments that are free as a whole are given back
first (a retry, which stalls). One pool is modelled for all streams; of equal buffers the oldest dies first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

import numpy as np

from ..memory import ordered_memory
from ..timeline import Timeline
from .values import Reserved

MIB = 2**20
FAR = 2**48  # beyond every address
ALIGNED, SMALL, SMALL_SEGMENT, LARGE, LARGE_SEGMENT, ROUND = 512, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 2 * MIB


@dataclass(eq=False, slots=True)
class Block:
    """A stretch of a segment; its neighbours there."""

    address: int
    size: int
    small: bool
    free: bool = True
    before: Block | None = None
    behind: Block | None = None


@dataclass(slots=True)
class Pool:
    """The allocator of one device of `capacity` bytes; free blocks in order of size and address, which together are one number, and by address."""

    capacity: float
    reserved: int = 0
    used: int = 0
    retries: int = 0
    top: int = 0
    free: dict[bool, list[int]] = field(default_factory=lambda: {True: [], False: []})
    at: dict[int, Block] = field(default_factory=dict)

    def take(self, nbytes: int) -> Block:
        """A block for `nbytes`."""
        size = -(-nbytes // ALIGNED) * ALIGNED or ALIGNED
        small = size <= SMALL
        pool = self.free[small]
        place = bisect_left(pool, size * FAR)
        block = self.at[pool.pop(place) % FAR] if place < len(pool) else self._segment(size, small)
        rest = block.size - size
        if rest >= ALIGNED if small else rest > SMALL:
            behind = Block(block.address + size, rest, small, True, block, block.behind)
            if block.behind:
                block.behind.before = behind
            block.behind, block.size = behind, size
            self._keep(behind)
        block.free = False
        self.used += block.size
        return block

    def give(self, block: Block) -> None:
        """Free a block and join it to free neighbours."""
        self.used -= block.size
        before, behind = block.before, block.behind
        if before and before.free:
            self._forget(before)
            block = _joined(before, block)
        if behind and behind.free:
            self._forget(behind)
            block = _joined(block, behind)
        self._keep(block)

    def unused(self) -> list[Block]:
        """The free blocks."""
        return [self.at[key % FAR] for pool in self.free.values() for key in pool]

    def _segment(self, size: int, small: bool) -> Block:
        whole = SMALL_SEGMENT if small else LARGE_SEGMENT if size < LARGE else -(-size // ROUND) * ROUND
        if self.reserved + whole > self.capacity and self._release():
            self.retries += 1
        self.reserved += whole
        self.top += whole
        return Block(self.top - whole, whole, small)

    def _release(self) -> bool:
        """Give back the segments that are free as a whole."""
        whole = [b for b in self.unused() if b.before is None and b.behind is None]
        for block in whole:
            self._forget(block)
            self.reserved -= block.size
        return bool(whole)

    def _keep(self, block: Block) -> None:
        block.free = True
        self.at[block.address] = block
        insort(self.free[block.small], block.size * FAR + block.address)

    def _forget(self, block: Block) -> None:
        pool = self.free[block.small]
        del pool[bisect_left(pool, block.size * FAR + block.address)]


def _joined(first: Block, second: Block) -> Block:
    """Neighbours as one block."""
    first.size += second.size
    first.behind = second.behind
    if second.behind:
        second.behind.before = first
    return first


def reserved(timeline: Timeline, rank: int, capacity: float) -> Reserved:
    """Replay the memory of `rank` on an empty device of `capacity` bytes."""
    pool, exact, peak, rounded, most = Pool(capacity), 0, 0, 0, 0
    rows = ordered_memory(timeline, rank)
    live: defaultdict[int, deque[tuple[int, Block]]] = defaultdict(deque)
    momentary: Counter[int] = Counter()  # what dies as it is born, and takes no block
    for buffer, delta in zip(rows["buffer"].tolist(), rows["delta"].astype(np.int64).tolist(), strict=True):
        if delta > 0 and buffer in momentary:
            momentary -= Counter([buffer])
        elif delta > 0:
            live[buffer].append((delta, pool.take(delta)))
            exact += delta
            if exact > peak:
                peak, rounded = exact, pool.used - exact
            most = max(most, pool.reserved)
        elif delta < 0 and live[buffer]:
            nbytes, block = live[buffer].popleft()
            pool.give(block)
            exact -= nbytes
        elif delta < 0:
            momentary[buffer] += 1
    return Reserved(float(most), float(rounded), float(most - peak - rounded), pool.retries)
