"""Two levels: inside every server, then between servers on all rails at once, then inside again.

With g members per server, m servers, ports B1 inside and B2 between: t = 2S(g-1)/(g B1) + 2(S/g)(m-1)/(m B2) plus 2(g-1) and 2(m-1) steps.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import Refused, Violation
from . import ring
from .group import Algorithm, Group, Round


def all_reduce(group: Group) -> list[Round]:
    """Reduce-scatter inside, all-reduce of S/g on each rail, all-gather inside."""
    g = len(group.blocks()[0])
    return [*_inside(group, 1.0, ring.reduce_scatter), *_between(group, 1 / g, ring.all_reduce), *_inside(group, 1.0, ring.all_gather)]


def all_gather(group: Group) -> list[Round]:
    """All-gather of S/g on each rail, then of the whole inside."""
    g = len(group.blocks()[0])
    return [*_between(group, 1 / g, ring.all_gather), *_inside(group, 1.0, ring.all_gather)]


def reduce_scatter(group: Group) -> list[Round]:
    """Reduce-scatter of the whole inside, then of S/g on each rail."""
    g = len(group.blocks()[0])
    return [*_inside(group, 1.0, ring.reduce_scatter), *_between(group, 1 / g, ring.reduce_scatter)]


def _inside(group: Group, share: float, run: Algorithm) -> list[Round]:
    return _together(group, group.blocks(), share, run)


def _between(group: Group, share: float, run: Algorithm) -> list[Round]:
    blocks = group.blocks()
    sizes = {len(block) for block in blocks}
    if len(sizes) > 1:
        rule = f"needs equally many members on every server, not {min(sizes)} to {max(sizes)}"
        raise Refused([Violation("algorithm", "hierarchical", rule, "take ring or direct")])
    return _together(group, [list(rail) for rail in zip(*blocks, strict=True)], share, run)


def _together(group: Group, parts: list[list[str]], share: float, run: Algorithm) -> list[Round]:
    """`run` on every part at the same time, each on `share` of the buffer."""
    if len(parts[0]) == 1:
        return []
    rounds = [run(replace(group, members=tuple(part), rings=(tuple(part),), root=0)) for part in parts]
    out = []
    for same in zip(*rounds, strict=True):
        weights: dict[int, float] = {}
        for done in same:
            for link, weight in done.weights.items():
                weights[link] = weights.get(link, 0.0) + weight * share
        out.append(Round(same[0].steps, max(done.latency for done in same), weights, same[0].sent * share))
    return out
