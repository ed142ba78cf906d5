"""Islands: ranks that meet the rest only in what runs once, such as the sum of gradients at the end of a step.

Until a rank reaches a collective that joins islands (a *bridge*), nothing that other islands do can change what it does: no message, no collective
and no link is common. So every island is replayed by itself up to its first bridge, where few ranks and events are at hand at a time, and all
of them together from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .ranks import Rank
from .steps import Move, Route


class Use(NamedTuple):
    """Who takes part in a transfer and which link colours it loads; `once`: a collective that every rank runs once."""

    ranks: tuple[int, ...]
    links: tuple[int, ...]
    once: bool


@dataclass
class Islands:
    """`home[rank]` names the island of every simulated rank."""

    ranks: Sequence[Rank]
    home: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.home = {rank.rank: rank.rank for rank in self.ranks}
        uses = list(self._uses())
        for use in uses:
            if not use.once:
                self._join(use.ranks)
        while self._shared(uses):
            pass
        self.home = {r: self._find(r) for r in self.home}

    @property
    def members(self) -> list[list[Rank]]:
        """The ranks of every island."""
        found: dict[int, list[Rank]] = {}
        for rank in self.ranks:
            found.setdefault(self.home[rank.rank], []).append(rank)
        return list(found.values())

    def joins(self, ranks: Iterable[int]) -> bool:
        """Are they of several islands?"""
        return len({self.home[r] for r in ranks}) > 1

    def _shared(self, uses: Sequence[Use]) -> bool:
        """Join what shares a link, but for islands that a collective joins anyway. Was anything joined?"""
        owner: dict[int, int] = {}
        joined = False
        for across in (False, True):
            for use in uses:
                met = {self._find(r) for r in use.ranks}
                for link in use.links if (len(met) > 1) is across else ():
                    user = owner.get(link) if across else owner.setdefault(link, use.ranks[0])
                    if user is not None and self._find(user) not in met:
                        self._join((user, use.ranks[0]))
                        met, joined = {self._find(r) for r in use.ranks}, True
        return joined

    def _find(self, r: int) -> int:
        home = self.home
        while home[r] != r:
            home[r] = r = home[home[r]]
        return r

    def _join(self, ranks: tuple[int, ...]) -> None:
        first = self._find(ranks[0])
        for r in ranks[1:]:
            self.home[self._find(r)] = first

    def _uses(self) -> Iterator[Use]:
        """Every transfer of every simulated rank, once."""
        seen: set[tuple[int, bool]] = set()
        often: dict[int, dict[str, bool]] = {}
        for rank in self.ranks:
            if id(rank.program) not in often:
                calls = Counter(call.body for call in rank.program.calls)
                often[id(rank.program)] = {name: calls[name] > 1 for name in rank.steps}
            for name, body in rank.steps.items():
                repeated = often[id(rank.program)][name]
                for _, route, messages, *_ in body:
                    if route is not None and (id(route), repeated) not in seen:
                        seen.add((id(route), repeated))
                        yield Use(route.present, _links(route.moves), once=not repeated)
                    for m in messages:
                        yield Use(m.ends, _links(m.moves), once=False)


def _links(moves: Sequence[Move]) -> tuple[int, ...]:
    return tuple({link for move in moves if move.path is not None for link in move.path.loads})


def bridges(islands: Islands, ranks: Iterable[Rank], sets: Mapping[tuple[int, ...], int]) -> tuple[frozenset[int], frozenset[int]]:
    """The numbers of those that meet for collectives that join islands: of replayed ones, and of runs that several classes of ranks run together."""
    if len(set(islands.home.values())) < 2:
        return frozenset(), frozenset()
    routes: dict[int, Route] = {s.meeting: s.route for rank in ranks for body in rank.steps.values() for s in body if s.route is not None}
    return (
        frozenset(number for number, route in routes.items() if islands.joins(route.present)),
        frozenset(number for present, number in sets.items() if islands.joins(present)),
    )
