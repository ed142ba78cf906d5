"""Reserved memory by the rules of torch's caching allocator (c10/cuda/CUDACachingAllocator.cpp), sequence by sequence, and in a report."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from parasim.report.reserved import MIB, Block, Pool

Cli = Callable[..., Any]


def played(steps: list[float | str], capacity: float = 1e12) -> tuple[Pool, dict[str, Block]]:
    """Numbers are MiB to take, named a, b, c, ... in order; "-a" frees a."""
    pool, blocks = Pool(capacity), dict[str, Block]()
    for step in steps:
        if isinstance(step, str):
            pool.give(blocks[step[1:]])
        else:
            blocks["abcdefgh"[len(blocks)]] = pool.take(int(step * MIB))
    return pool, blocks


@pytest.mark.parametrize(
    ("steps", "reserved", "used"),
    [
        ([1 / MIB], 2, 512 / MIB),  # one byte: 512 of a small segment
        ([1.0, 1.0, 0.5], 4, 2.5),  # small ones share segments of 2 MiB
        ([1.5], 20, 1.5),  # up to 10 MiB: a segment of 20 MiB
        ([5, 5, 5, 3.5], 20, 18.5),
        ([5, 5, 5, 4], 20, 20),  # 1 MiB would be left: too little to be split off
        ([9.5, 9.5, 1.5], 40, 9.5 + 10.5 + 1.5),  # so the second has 10.5
        ([11.0], 12, 12.0),  # of its own, up to 2 MiB rounded; 1 MiB is left, which is not split off
        ([12, 12, "-a", 14], 38, 26),  # the freed 12 MiB do not hold 14
        ([12, 16, "-a", "-b", 11.5], 28, 12),  # the smallest that is large enough, whole
        ([30, "-a", 12, 12], 30, 24),  # split; what is left serves the next
        ([5, 5, 5, 5, "-b", "-c", 9.5], 20, 5 + 10 + 5),  # freed neighbours join
        ([5, 5, 5, 5, "-a", "-c", 9.5], 40, 10 + 9.5),  # others do not
    ],
    ids=str,
)
def test_segments_blocks_and_neighbours(steps: list[float | str], reserved: float, used: float) -> None:
    pool, _ = played(steps)
    assert (pool.reserved / MIB, pool.used / MIB) == (reserved, used)
    assert pool.retries == 0


def test_a_full_device_gives_whole_free_segments_back() -> None:
    pool, _ = played([12, 12, 4, "-a", "-b", 24], capacity=50 * MIB)
    assert (pool.reserved / MIB, pool.retries) == (20 + 24, 1)  # 12 + 12 + 20 + 24 do not fit: both free ones go, that of the 4 stays


def test_everything_freed_is_one_block_per_segment() -> None:
    pool, _ = played([5, 5, 5, 0.5, 0.25, 3, "-b", "-d", "-a", "-f", "-c", "-e"])
    assert pool.used == 0 and sorted(block.size / MIB for block in pool.unused()) == [2, 20]


def test_the_report_names_rounding_and_cached_blocks(cli: Cli) -> None:
    answer = cli("run", "--json", "--set", "devices=32")
    memory = json.loads(answer.out)["memory"]
    r = memory["reserved"]
    assert r["reserved_bytes"] == memory["peak_bytes"] + r["rounding_bytes"] + r["cached_bytes"]
    assert r["cached_bytes"] > 0 <= r["rounding_bytes"] < 512 * 10_000 and r["retries"] == 0
    assert r["reserved_bytes"] % (2 * MIB) == 0  # segments


def test_only_gpus_have_it(cli: Cli) -> None:
    from tests.docs.test_examples import EXAMPLES

    memory = json.loads(cli("run", str(EXAMPLES / "gemma2-9b-tpu.yaml"), "--json").out)["memory"]
    assert memory["reserved"] is None
