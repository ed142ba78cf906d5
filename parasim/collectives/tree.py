"""Double binary tree (Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009), as in NCCL.

Two trees over the servers, each on half of the bytes; who is inner in one is a leaf of the other, so that every server sends and receives
2S at most. Inside a server the members form a chain. One channel per rail; all hops are pipelined.
"""

from __future__ import annotations

from itertools import pairwise

from .group import Group, Round


def all_reduce(group: Group) -> list[Round]:
    """Up the trees and down again: 2 x (chain inside + depth of the tree) steps in a row."""
    blocks = group.blocks()
    channels = min(len(block) for block in blocks)
    flows: list[tuple[str, str, float]] = []
    deepest, steps = 0.0, 0
    for channel in range(channels):
        chains = [block[channel + 1 :] + block[: channel + 1] for block in blocks]  # ends at the member whose rail it is
        heads = [chain[-1] for chain in chains]
        inside = max(sum(group.hop(a, b) for a, b in pairwise(chain)) for chain in chains)
        part = 1 / channels
        flows += [(*way, part) for chain in chains for a, b in pairwise(chain) for way in ((a, b), (b, a))]
        for parents in _two_trees(len(blocks)):
            flows += [(*way, part / 2) for child, up in parents.items() for way in _ways(heads[child], heads[up])]
            climb, depth = max((_climb(group, heads, parents, child) for child in parents), default=(0.0, 0))
            deepest = max(deepest, 2 * (inside + climb))
            steps = max(steps, 2 * (depth + max(map(len, chains)) - 1))
    loads = group.loads(flows)
    return [Round(steps, deepest, loads, sum(part for _, _, part in flows) / group.size)]


def _ways(a: str, b: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return (a, b), (b, a)


def _climb(group: Group, heads: list[str], parents: dict[int, int], child: int) -> tuple[float, int]:
    """Seconds and hops from a server to the root of its tree."""
    seconds, hops = 0.0, 0
    while child in parents:
        seconds, hops, child = seconds + group.hop(heads[child], heads[parents[child]]), hops + 1, parents[child]
    return seconds, hops


def _two_trees(m: int) -> list[dict[int, int]]:
    """child -> parent of both trees over m servers: an in-order tree with its leaves at even places, and its mirror or shift."""
    first = _in_order(0, m)
    move = [m - 1 - i for i in range(m)] if m % 2 == 0 else [(i + 1) % m for i in range(m)]
    return [first, {move[child]: move[up] for child, up in first.items()}]


def _in_order(low: int, high: int) -> dict[int, int]:
    """Binary search tree over places low..high-1 whose root splits off the largest power of two; even places are leaves."""
    out: dict[int, int] = {}
    root = _root(low, high)
    for start, stop in ((low, root), (root + 1, high)):
        if start < stop:
            out |= _in_order(start, stop)
            out[_root(start, stop)] = root
    return out


def _root(low: int, high: int) -> int:
    return low + (1 << ((high - low).bit_length() - 1)) - 1
