"""All-to-all with one copy per server: what several members of a server are sent alike crosses the network once and is copied there.

As expert parallelism with node-limited routing dispatches (DeepSeek-V3, arXiv:2412.19437, section 3.2.2): over the network to the member at
the sender's position in the receiver's server, then inside that server. Coming back (combine) it is the mirror image: what the members of a
server owe one receiver is added up there first. Both hops move at once, as a pipeline. With n members, g of them on each
server, and c copies, a member sends (n-g)/n S/c over its port and (g-1)/g S inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .direct import shares_of
from .group import Group, Round
from .messages import Key, Message, Schedule, Steps


class _Hop(NamedTuple):
    """Keys from place to place, over the network or inside a server."""

    source: int
    target: int
    keys: tuple[Key, ...]
    network: bool


def all_to_all(group: Group) -> list[Round]:
    """One round of both hops; on the network each part is 1 / copies of what it is inside (group.copies < 1: copies are added up, combine)."""
    name, sizes, hops = group.members, shares_of(group), list(_hops(group))
    copies = max(group.copies, 1 / group.copies)
    made = group.round([(name[h.source], name[h.target], sum(sizes[k] for k in h.keys) / (copies if h.network else 1.0)) for h in hops])
    slowest = [max(group.hops([(name[h.source], name[h.target]) for h in hops if h.network == network]), default=0.0) for network in (True, False)]
    return [made._replace(steps=sum(t > 0 for t in slowest) or 1, latency=sum(slowest))]


def all_to_all_messages(group: Group) -> Schedule:
    """Keys (from, to), two steps: over the network and inside the server of the receiver, or the other way around."""
    hops = list(_hops(group))
    network: list[Message] = [Message(h.source, h.target, h.keys) for h in hops if h.network]
    inside: list[Message] = [Message(h.source, h.target, h.keys) for h in hops if not h.network]
    steps: Steps = [network, inside] if group.copies >= 1 else [inside, network]
    return Schedule(steps, shares_of(group))


def _hops(group: Group) -> Iterator[_Hop]:
    """Every member to every server, by its position there; then from there to the receivers."""
    place = {m: i for i, m in enumerate(group.members)}
    parts = [[place[m] for m in part] for part in group.blocks()]
    inside: dict[tuple[int, int], list[Key]] = {}
    for part in parts:
        for position, mine in enumerate(part):
            for other in parts:
                for theirs in other:
                    if theirs != mine and other is part:
                        inside.setdefault((mine, theirs), []).append((mine, theirs))
                if other is part:
                    continue
                proxy = other[position % len(other)]
                keys: tuple[Key, ...] = tuple((mine, j) if group.copies >= 1 else (j, mine) for j in other)
                yield _Hop(mine, proxy, keys, True) if group.copies >= 1 else _Hop(proxy, mine, keys, True)
                for j in other:
                    if j != proxy:
                        ends, key = ((proxy, j), (mine, j)) if group.copies >= 1 else ((j, proxy), (j, mine))
                        inside.setdefault(ends, []).append(key)
    for (source, target), held in inside.items():
        yield _Hop(source, target, tuple(held), False)
