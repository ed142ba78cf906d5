"""Double binary tree (Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009), as in NCCL.

Two trees, each on half of the bytes; who is inner in one is a leaf of the other, so that every port carries 2S at most in each direction. All hops
are pipelined: t = 2 ceil(log2 n) a + 2S/B over n >= 4 ranks of one server. Over several servers the trees join the servers and the members of
a server form a chain, one channel per rail. `chain` keeps the members of a single server in a chain too, as NCCL does: 2(n-1) hops, 2S(n-1)/(nB).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise

from .group import Group, Round
from .messages import Message, Schedule, Steps, even, together

Parents = Mapping[int, int]


def all_reduce(group: Group) -> list[Round]:
    """Up the trees and down again."""
    blocks = group.blocks()
    return _up_and_down(group, blocks if len(blocks) > 1 else [[m] for m in group.members])


def chain(group: Group) -> list[Round]:
    """As `all_reduce`, with a chain even inside a single server."""
    return _up_and_down(group, group.blocks())


def broadcast(group: Group) -> list[Round]:
    """Down both trees over the members, S/2 each; the root is their head: ceil(log2 n) hops, S over the ports of inner members."""
    flows, deepest, depth = [], 0.0, 0
    for tree in _rooted(group):
        flows += [(group.members[up], group.members[child], 0.5) for child, up in tree.items()]
        seconds, hops = _deepest(group, group.members, tree)
        deepest, depth = max(deepest, seconds), max(depth, hops)
    return [Round(depth, deepest, group.loads(flows), (group.size - 1) / group.size)]


def reduce(group: Group) -> list[Round]:
    """Up both trees over the members, S/2 each."""
    down = broadcast(group)[0]
    flows = [(group.members[child], group.members[up], 0.5) for tree in _rooted(group) for child, up in tree.items()]
    return [down._replace(weights=group.loads(flows))]


def trees(m: int) -> tuple[dict[int, int], dict[int, int]]:
    """child -> parent of both trees over m places.

    The first has place 0 as its root with one child and its leaves at odd places, depth ceil(log2 m); the second is its mirror image where m is
    even and shifted by one place where m is odd, so that the leaves change.
    """
    first = {place: _parent(place, m) for place in range(1, m)}
    move = [m - 1 - i for i in range(m)] if m % 2 == 0 else [(i + 1) % m for i in range(m)]
    return first, {move[child]: move[up] for child, up in first.items()}


def _parent(place: int, m: int) -> int:
    """Clear the lowest set bit and set the next one; where that is beyond m places, clear it only."""
    bit = place & -place
    up = (place ^ bit) | (bit << 1)
    return up if up < m else place ^ bit


def _up_and_down(group: Group, blocks: list[list[str]]) -> list[Round]:
    """2 x (chain inside + depth of the tree) steps in a row."""
    channels = min(len(block) for block in blocks)
    flows: Counter[tuple[str, str]] = Counter()
    deepest, steps, across = 0.0, 0, 0
    for channel in range(channels):
        chains = _chains(blocks, channel)
        heads = [chain[-1] for chain in chains]
        edges = [pair for chain in chains for pair in pairwise(chain)]
        hops = iter(group.hops(edges))
        inside = max(sum(islice(hops, len(chain) - 1)) for chain in chains)
        flows.update(edges + edges)
        for parents in trees(len(blocks)):
            flows.update((heads[child], heads[up]) for child, up in parents.items())
            climb, depth = _deepest(group, heads, parents)
            deepest = max(deepest, 2 * (inside + climb))
            steps, across = max(steps, 2 * (depth + max(map(len, chains)) - 1)), max(across, 2 * depth)
    half = 1 / channels / 2  # what one count stands for: a tree carries half of its channel's part, a chain both halves
    loads = group.loads((*way, times * half) for (a, b), times in flows.items() for way in ((a, b), (b, a)))
    servers = len({group.cluster.node_of[block[0]] for block in blocks})
    return [Round(steps, deepest, loads, 2 * half * flows.total() / group.size, across=across if servers > 1 else 0)]


def _chains(blocks: Sequence[list[str]], channel: int) -> list[list[str]]:
    """The members of every server in a chain that ends at the one whose rail the channel uses."""
    return [block[channel + 1 :] + block[: channel + 1] for block in blocks]


def _deepest(group: Group, heads: Sequence[str], parents: Parents) -> tuple[float, int]:
    """Seconds and hops of the longest way to the root of a tree."""
    known: dict[int, tuple[float, int]] = {}
    edges = dict(zip(parents, group.hops([(heads[place], heads[up]) for place, up in parents.items()]), strict=True))

    def climb(place: int) -> tuple[float, int]:
        if place not in parents:
            return 0.0, 0
        if place not in known:
            seconds, hops = climb(parents[place])
            known[place] = seconds + edges[place], hops + 1
        return known[place]

    ways = [climb(place) for place in range(len(heads))]
    return max(seconds for seconds, _ in ways), max(hops for _, hops in ways)


def _rooted(group: Group) -> list[dict[int, int]]:
    """Two trees over the places of the members with the root of the collective as head of both: place 0 of trees over the others hangs below it."""
    n = group.size
    others = [(group.root + i) % n for i in range(1, n)]
    return [{**{others[c]: others[up] for c, up in tree.items()}, others[_top(tree)]: group.root} for tree in _balanced(n - 1)]


def _balanced(m: int) -> list[dict[int, int]]:
    """In-order binary tree over m places without a head of its own, depth floor(log2 m), and its mirror (m even) or shift (m odd)."""
    first = {place - 1: up - 1 for place, up in ((p, _parent(p, m + 1)) for p in range(1, m + 1)) if up}
    move = [m - 1 - i for i in range(m)] if m % 2 == 0 else [(i + 1) % m for i in range(m)]
    return [first, {move[child]: move[up] for child, up in first.items()}]


def _top(tree: Parents) -> int:
    return next(iter(set(tree.values()) - tree.keys()), 0)


# ---- the same as messages


def all_reduce_messages(group: Group) -> Schedule:
    """Keys (channel, tree)."""
    blocks = group.blocks()
    return _up_and_down_messages(group, blocks if len(blocks) > 1 else [[m] for m in group.members])


def chain_messages(group: Group) -> Schedule:
    """Keys (channel, tree)."""
    return _up_and_down_messages(group, group.blocks())


def broadcast_messages(group: Group) -> Schedule:
    """Keys (0, tree)."""
    parts = [_down(up_steps(tree, range(group.size), ((0, t),))) for t, tree in enumerate(_rooted(group))]
    return Schedule(together(*parts), even((0, t) for t in range(2)))


def reduce_messages(group: Group) -> Schedule:
    """Keys (0, tree)."""
    parts = [up_steps(tree, range(group.size), ((0, t),)) for t, tree in enumerate(_rooted(group))]
    return Schedule(together(*parts), even((0, t) for t in range(2)))


def up_steps(parents: Parents, heads: Sequence[int], keys: tuple[tuple[int, ...], ...]) -> Steps:
    """Sums to the root of a tree, the deepest level first; `heads` are the places of the tree's nodes."""
    depth: dict[int, int] = {}
    for place in parents:
        at, depth[place] = place, 0
        while at in parents:
            at, depth[place] = parents[at], depth[place] + 1
    levels = sorted(set(depth.values()), reverse=True)
    return [[Message(heads[c], heads[parents[c]], keys, True) for c in parents if depth[c] == level] for level in levels]


def _down(up: Steps) -> Steps:
    """Copies from the root: the way of a sum, backwards."""
    return [[Message(m.target, m.source, m.keys) for m in step] for step in reversed(up)]


def _up_and_down_messages(group: Group, blocks: list[list[str]]) -> Schedule:
    place = {m: i for i, m in enumerate(group.members)}
    channels, parts = min(len(block) for block in blocks), []
    for channel in range(channels):
        chains = [[place[m] for m in chain] for chain in _chains(blocks, channel)]
        for t, tree in enumerate(trees(len(blocks))):
            keys = ((channel, t),)
            inside = together(*([[Message(a, b, keys, True)] for a, b in pairwise(chain)] for chain in chains))
            up = [*inside, *up_steps(tree, [chain[-1] for chain in chains], keys)]
            parts.append([*up, *_down(up)])
    return Schedule(together(*parts), even((channel, t) for channel in range(channels) for t in range(2)))
