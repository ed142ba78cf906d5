"""The torus algorithms as messages: what the chips of a block hand to their neighbours, step by step."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import TYPE_CHECKING

from . import direct
from .group import Group
from .messages import Key, Message, Schedule, Steps, backwards, together
from .torus import Block, find

if TYPE_CHECKING:
    import networkx as nx

Place = tuple[int, ...]


def all_gather(group: Group) -> Schedule:
    """Keys (owner, order, half): each order of the axes gathers its part; at an even ring's last step one half comes each way."""
    block = find(group)
    parts = [_gather_order(group, block, o, order) for o, order in enumerate(block.orders)]
    return Schedule(together(*parts), _owned(group, block))


def reduce_scatter(group: Group) -> Schedule:
    """All-gather backwards."""
    gathered = all_gather(group)
    return Schedule(backwards(gathered.steps), gathered.sizes)


def all_reduce(group: Group) -> Schedule:
    """Reduce-scatter, then all-gather."""
    gathered = all_gather(group)
    return Schedule(backwards(gathered.steps) + gathered.steps, gathered.sizes)


def all_to_all(group: Group) -> Schedule:
    """Keys (from, to, half): axis after axis, one hop per step, the short way around; at half of an even ring one half goes each way."""
    if group.shares is not None:
        return direct.all_to_all_messages(group)
    block, n = find(group), group.size
    place, at = _places(group, block)
    sizes: dict[Key, float] = {(i, j, h): 1 / (2 * n) for i in range(n) for j in range(n) for h in range(2)}
    here = {key: at[key[0]] for key in sizes}
    steps: Steps = []
    for axis in block.axes:
        while True:
            moves: dict[tuple[Place, Place], list[Key]] = {}
            for key, spot in here.items():
                step = _toward(block, axis, spot, at[key[1]], at[key[0]], key[2])
                if step:
                    moves.setdefault((spot, _moved(block, axis, spot, step)), []).append(key)
            if not moves:
                break
            steps.append([Message(place[a], place[b], tuple(keys)) for (a, b), keys in moves.items()])
            here.update((key, b) for (_, b), keys in moves.items() for key in keys)
    return Schedule(steps, sizes)


def broadcast(group: Group) -> Schedule:
    """Keys (tree,): spanning trees that share no link, one per cable of the root."""
    block = find(group)
    trees = spanning_trees([(a, b) for axis in block.axes for _, x, y in block.cables(axis) for a, b in ((x, y), (y, x))], group.root_member)
    place = {m: i for i, m in enumerate(group.members)}
    parts = [[[Message(place[a], place[b], ((t,),))] for a, b in tree] for t, tree in enumerate(trees)]
    return Schedule(together(*parts), {(t,): 1 / len(trees) for t in range(len(trees))})


def scatter(group: Group) -> Schedule:
    """Keys (owner,): end to end, over the ways that `torus.scatter` prices."""
    return direct.scatter_messages(group)


def gather(group: Group) -> Schedule:
    """Keys (owner,): end to end, over the ways that `torus.gather` prices."""
    return direct.gather_messages(group)


def spanning_trees(edges: Iterable[tuple[str, str]], root: str) -> list[list[tuple[str, str]]]:
    """As many spanning trees out of `root` as edges leave it, none sharing an edge; edges in an order that grows the tree.

    They exist where every node can be reached over that many disjoint ways (Edmonds 1973); a tree grows by any edge whose loss leaves one way
    less to every node (Lovász, "On two minimax theorems in graph", 1976).
    """
    import networkx as nx

    rest: nx.DiGraph[str] = nx.DiGraph()
    rest.add_edges_from(edges, capacity=1)
    trees = []
    for left in range(rest.out_degree(root) - 1, -1, -1):
        tree: list[tuple[str, str]] = []
        inside = {root}
        while len(inside) < len(rest):
            a, b = next((a, b) for a in sorted(inside) for b in sorted(rest.adj[a]) if b not in inside and _spared(rest, a, b, root, left))
            rest.remove_edge(a, b)
            tree.append((a, b))
            inside.add(b)
        trees.append(tree)
    return trees


def _spared(rest: nx.DiGraph[str], a: str, b: str, root: str, left: int) -> bool:
    """Can every node still be reached over `left` disjoint ways without the edge from `a` to `b`?"""
    from networkx import maximum_flow_value

    rest.remove_edge(a, b)
    fine = left == 0 or all(maximum_flow_value(rest, root, v) >= left for v in rest if v != root)
    rest.add_edge(a, b, capacity=1)
    return fine


def _gather_order(group: Group, block: Block, o: int, order: tuple[int, ...]) -> Steps:
    """One order's part: axis after axis, every chip passes on what came from behind."""
    place, at = _places(group, block)
    held: dict[Place, set[int]] = {spot: {i} for i, spot in at.items()}
    steps: Steps = []
    for axis in order:
        start = {spot: frozenset(owners) for spot, owners in held.items()}
        n = block.sizes[axis]
        for s in range(1, (n // 2 if block.rings[axis] else n - 1) + 1):
            step = []
            for spot, (half, sign) in product(held, enumerate((1, -1))):
                source = _moved(block, axis, spot, -sign * (s - 1))
                target = _moved(block, axis, spot, sign)
                if source in start and target in start:
                    halves = (half,) if block.rings[axis] and 2 * s == n else (0, 1)
                    step.append(Message(place[spot], place[target], tuple((i, o, h) for i in sorted(start[source]) for h in halves)))
            steps.append(step)
        for spot in held:
            held[spot] = {i for k in range(n) for i in start[(*spot[:axis], k, *spot[axis + 1 :])]}
    return steps


def _owned(group: Group, block: Block) -> dict[Key, float]:
    return {(i, o, h): part / (2 * group.size) for i in range(group.size) for o, part in enumerate(block.parts) for h in range(2)}


def _places(group: Group, block: Block) -> tuple[dict[Place, int], dict[int, Place]]:
    """Position in the group by coordinates, and the other way round."""
    position = {m: i for i, m in enumerate(group.members)}
    place = {spot: position[name] for spot, name in block.chips.items()}
    return place, {i: spot for spot, i in place.items()}


def _moved(block: Block, axis: int, spot: Place, by: int) -> Place:
    """The place `by` further along an axis; on a line possibly none of the block's."""
    value = spot[axis] + by
    return (*spot[:axis], value % block.sizes[axis] if block.rings[axis] else value, *spot[axis + 1 :])


def _toward(block: Block, axis: int, spot: Place, end: Place, start: Place, half: int) -> int:
    """The next step (1, -1 or 0) along an axis of what goes from `start` to `end`."""
    if spot[axis] == end[axis]:
        return 0
    n, up = block.sizes[axis], end[axis] - start[axis]
    if not block.rings[axis]:
        return 1 if up > 0 else -1
    up %= n
    return (1 if half == 0 else -1) if 2 * up == n else 1 if 2 * up < n else -1
