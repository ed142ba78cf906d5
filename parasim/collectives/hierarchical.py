"""Two levels: inside every server, then between servers on all rails at once, then inside again.

With g members per server, m servers, ports B1 inside and B2 between: t = 2S(g-1)/(g B1) + 2(S/g)(m-1)/(m B2) plus 2(g-1) and 2(m-1) steps when
the phases follow each other, as here by default. `pipelined` cuts the buffer into chunks that follow each other through the phases: the
slowest of the links holds up the middle, max instead of sum, after a fill and before a drain of one chunk per phase.
Inside, rings or a reducing switch (NVLS); between, rings, double trees or reducing switches (SHARP).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import Refused, Violation
from . import in_network, ring, tree
from .group import Algorithm, Group, Round
from .messages import Keys, Message, Plotter, Schedule, Steps, even, together

CHUNKS = 8


def all_reduce(group: Group) -> list[Round]:
    """Reduce-scatter inside, all-reduce of S/g on each rail, all-gather inside; rings."""
    return _flat(_three(group, ring.reduce_scatter, ring.all_reduce, ring.all_gather))


def pipelined(group: Group) -> list[Round]:
    """As `all_reduce` in CHUNKS chunks that follow each other through the three phases."""
    return _chunked([_sum(stage) for stage in _three(group, ring.reduce_scatter, ring.all_reduce, ring.all_gather) if stage])


def tree_between(group: Group) -> list[Round]:
    """Rings inside, double trees between."""
    return _flat(_three(group, ring.reduce_scatter, tree.all_reduce, ring.all_gather))


def nvls_ring(group: Group) -> list[Round]:
    """The switch reduces and copies inside, rings between: S(1+1/g)/B1, then 2(S/g)(m-1)/(m B2)."""
    return _flat(_switched(group, ring.all_reduce))


def nvls_tree(group: Group) -> list[Round]:
    """The switch reduces and copies inside, double trees between (NCCL's NVLSTree).

    One pipeline of small chunks: t = max(S(1+1/g)/B1, 2S/(g B2)), or S/(g B2) on two servers, after 2 steps inside and twice the tree's depth.
    """
    return [_sum(_flat(_switched(group, tree.all_reduce)))]


def nvls_sharp(group: Group) -> list[Round]:
    """Switches reduce and copy inside and between: S(1+1/g)/B1, then (S/g)/B2."""
    return _flat(_switched(group, in_network.sharp))


def all_gather(group: Group) -> list[Round]:
    """All-gather of S/g on each rail, then of the whole inside."""
    return [*_between(group, 1 / _width(group), ring.all_gather), *_inside(group, 1.0, ring.all_gather)]


def reduce_scatter(group: Group) -> list[Round]:
    """Reduce-scatter of the whole inside, then of S/g on each rail."""
    share = 1 / _width(group)
    return [*_inside(group, 1.0, ring.reduce_scatter), *_between(group, share, ring.reduce_scatter)]


def all_gather_overlapped(group: Group) -> list[Round]:
    """As `all_gather` in one pipeline of small chunks: a byte enters every server once, and goes round inside while others come.

    t = max(S(g-1)/(g B1), (S/g)(m-1)/(m B2)), where a ring over all members has (S/g)(gm-1)/(gm B2).
    """
    return [_sum(all_gather(group))]


def reduce_scatter_overlapped(group: Group) -> list[Round]:
    """The reverse of `all_gather_overlapped`."""
    return [_sum(reduce_scatter(group))]


def rails_of(group: Group) -> list[list[str]]:
    """The members by position in their server. Raises `Refused` unless all servers hold equally many."""
    parts = group.blocks()
    sizes = {len(block) for block in parts}
    if len(sizes) > 1:
        rule = f"needs equally many members on every server, not {min(sizes)} to {max(sizes)}"
        raise Refused([Violation("algorithm", "hierarchical", rule, "take ring or direct")])
    return [list(rail) for rail in zip(*parts, strict=True)]


def _width(group: Group) -> int:
    return len(rails_of(group))


def _three(group: Group, scatter: Algorithm, between: Algorithm, gather: Algorithm) -> list[list[Round]]:
    share = 1 / _width(group)
    return [_inside(group, 1.0, scatter), _between(group, share, between), _inside(group, 1.0, gather)]


def _switched(group: Group, between: Algorithm) -> list[list[Round]]:
    """Both stages inside at once, since one loads the ports upwards and the other downwards, then the stage between."""
    share, parts = 1 / _width(group), group.blocks()
    inside = in_network.all_reduces(group, parts) if len(parts[0]) > 1 else []
    return [inside, _between(group, share, between)]


def _flat(stages: Sequence[Sequence[Round]]) -> list[Round]:
    return [part for stage in stages for part in stage]


def _inside(group: Group, share: float, run: Algorithm) -> list[Round]:
    return _together(group, group.blocks(), share, run)


def _between(group: Group, share: float, run: Algorithm) -> list[Round]:
    return _together(group, rails_of(group), share, run)


def _together(group: Group, parts: list[list[str]], share: float, run: Algorithm) -> list[Round]:
    """`run` on every part at the same time, each on `share` of the buffer."""
    if len(parts[0]) == 1:
        return []
    done = [run(replace(group, members=tuple(part), rings=(tuple(part),), root=0)) for part in parts]
    return [_merge(same, share / len(parts), share) for same in zip(*done, strict=True)]


def _merge(same: Sequence[Round], mean: float, share: float) -> Round:
    """Rounds that run side by side; `mean` is what one of them counts in the mean over the members."""
    weights: dict[int, float] = {}
    for one in same:
        for link, weight in one.weights.items():
            weights[link] = weights.get(link, 0.0) + weight * share
    return Round(same[0].steps, max(one.latency for one in same), weights, sum(one.sent for one in same) * mean, across=same[0].across)


def _sum(stage: Sequence[Round]) -> Round:
    """Rounds of one stage as one."""
    weights: dict[int, float] = {}
    for one in stage:
        for link, weight in one.weights.items():
            weights[link] = weights.get(link, 0.0) + weight
    steps, across = sum(one.steps for one in stage), sum(one.across for one in stage)
    return Round(steps, sum(one.latency for one in stage), weights, sum(one.sent for one in stage), across=across)


def _chunked(stages: Sequence[Round]) -> list[Round]:
    """Chunks through stages: the first stage alone, the first two, ..., all of them for most of the bytes, ..., the last alone.

    The latency of a stage passes when its first chunk enters.
    """
    k = len(stages)
    active = [(range(j + 1), 1) for j in range(k - 1)] + [(range(k), CHUNKS - k + 1)] + [(range(j, k), 1) for j in range(1, k)]
    out = []
    for j, (on, chunks) in enumerate(active):
        part = _sum([stages[i] for i in on])
        weights = {link: weight * chunks / CHUNKS for link, weight in part.weights.items()}
        first = stages[j] if j < k else None
        out.append(Round(first.steps if first else 0, first.latency if first else 0.0, weights, part.sent * chunks / CHUNKS))
    return out


# ---- the same as messages


def all_reduce_messages(group: Group) -> Schedule:
    """Keys (server, rail)."""
    return _three_messages(group, ring.reduce_scatter_messages, ring.all_reduce_messages, ring.all_gather_messages)


def tree_between_messages(group: Group) -> Schedule:
    """Keys (rail, part of the tree's)."""
    return _three_messages(group, ring.reduce_scatter_messages, tree.all_reduce_messages, ring.all_gather_messages)


def nvls_ring_messages(group: Group) -> Schedule:
    """Keys (rail, part of the ring's)."""
    return _three_messages(group, in_network.reduce_scatter_messages, ring.all_reduce_messages, in_network.all_gather_messages)


def nvls_tree_messages(group: Group) -> Schedule:
    """Keys (rail, part of the tree's)."""
    return _three_messages(group, in_network.reduce_scatter_messages, tree.all_reduce_messages, in_network.all_gather_messages)


def nvls_sharp_messages(group: Group) -> Schedule:
    """Keys (rail, 0)."""
    return _three_messages(group, in_network.reduce_scatter_messages, in_network.sharp_messages, in_network.all_gather_messages)


def all_gather_messages(group: Group) -> Schedule:
    """Keys (owner,)."""
    owners, rails = _places(group, group.blocks()), _places(group, rails_of(group))
    between = together(*(ring.gather_steps(rail, [((i,),) for i in rail]) for rail in rails))
    inside = together(*(ring.gather_steps(block, [tuple((i,) for i in rail) for rail in rails]) for block in owners))
    return Schedule(between + inside, even((i,) for i in range(group.size)))


def reduce_scatter_messages(group: Group) -> Schedule:
    """Keys (owner,)."""
    owners, rails = _places(group, group.blocks()), _places(group, rails_of(group))
    inside = together(*(ring.scatter_steps(block, [tuple((i,) for i in rail) for rail in rails]) for block in owners))
    between = together(*(ring.scatter_steps(rail, [((i,),) for i in rail]) for rail in rails))
    return Schedule(inside + between, even((i,) for i in range(group.size)))


def _three_messages(group: Group, scatter: Plotter, between: Plotter, gather: Plotter) -> Schedule:
    """The schedules of all servers, of all rails, of all servers; the keys are (rail, *key of the rail's own schedule)."""
    blocks, rails = group.blocks(), rails_of(group)
    plots = [_part(group, rail, between) for rail in rails]
    keys = {(r, *key): size / len(rails) for r, plot in enumerate(plots) for key, size in plot.sizes.items()}
    of_rail = [tuple(k for k in keys if k[0] == r) for r in range(len(rails))]
    hub = group.size  # switches: first those of the servers, then those of the rails

    def inside(plotter: Plotter) -> Steps:
        if len(rails) == 1:
            return []
        return together(*(_renamed(group, block, _part(group, block, plotter).steps, hub + b, of_rail) for b, block in enumerate(blocks)))

    switches = [max([m.target for step in plot.steps for m in step], default=0) - len(blocks) + 1 for plot in plots]
    firsts = [hub + len(blocks) + sum(max(0, s) for s in switches[:r]) for r in range(len(rails))]
    middle = together(*(_renamed(group, rail, plots[r].steps, firsts[r], None, r) for r, rail in enumerate(rails)))
    return Schedule(inside(scatter) + middle + inside(gather), keys)


def _part(group: Group, part: Sequence[str], plotter: Plotter) -> Schedule:
    if len(part) == 1:
        return Schedule([], even([(0,)]))
    return plotter(replace(group, members=tuple(part), rings=(tuple(part),), root=0))


def _renamed(group: Group, part: Sequence[str], steps: Steps, hub: int, of_rail: Sequence[Keys] | None, rail: int = 0) -> Steps:
    """Messages of a part of the group among the places of the whole; a server's key (owner, ...) means all keys of that rail."""
    place = {m: i for i, m in enumerate(group.members)}

    def at(i: int) -> int:
        return place[part[i]] if i < len(part) else hub + i - len(part)

    def named(keys: Keys) -> Keys:
        return tuple(k for key in keys for k in of_rail[key[0]]) if of_rail is not None else tuple((rail, *key) for key in keys)

    return [[Message(at(m.source), at(m.target), named(m.keys), m.adds) for m in step] for step in steps]


def _places(group: Group, parts: Sequence[Sequence[str]]) -> list[list[int]]:
    place = {m: i for i, m in enumerate(group.members)}
    return [[place[m] for m in part] for part in parts]
