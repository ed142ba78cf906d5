"""Which ops take a time that nothing else can change, and who runs them together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import nan

from .fold import Fold
from .ranks import Rank
from .steps import Route, Step
from .traffic import is_message

MESSAGES = -1  # a user of links: any message, which may meet others


class Known:
    """Over all simulated `ranks`. `sets` numbers the ranks that meet for such collectives, from 1."""

    def __init__(self, ranks: Mapping[int, Rank], fold: Fold, *, fusing: bool) -> None:
        self.ranks, self.fold, self.fusing = ranks, fold, fusing
        self.sets: dict[tuple[int, ...], int] = {}
        self._links: dict[int, tuple[int, ...]] = {}
        self._users = self._used() if fusing else {}
        self._routes: dict[tuple[int, int], tuple[float, int]] = {}

    def of(self, body: Sequence[Step]) -> tuple[list[float], list[int]]:
        """Per step the seconds it takes (nan: unknown beforehand), and the number of the set of ranks that meet for it (0: like ones only)."""
        seconds, sets = [nan] * len(body), [0] * len(body)
        for i, (price, route, messages, _, user, _, _) in enumerate(body if self.fusing else ()):
            if route is not None:
                seconds[i], sets[i] = self._collective(route, user)
            elif not messages:
                seconds[i] = price
        return seconds, sets

    def _used(self) -> dict[int, set[int]]:
        """Who uses each link colour: those that meet for collectives on one stream, by number, and messages."""
        users: dict[int, set[int]] = defaultdict(set)
        routes = {(id(s.route), s.user): s for rank in self.ranks.values() for body in rank.steps.values() for s in body if s.route is not None}
        for step in routes.values():
            assert step.route is not None
            for link in self._of(step.route):
                users[link].add(step.user)
        for (kind, _), loads in self.fold.loads.items():
            if isinstance(kind, tuple) and is_message(kind[0]):
                for link in loads:
                    users[link].add(MESSAGES)
        return users

    def _of(self, route: Route) -> tuple[int, ...]:
        """The link colours of a route."""
        if id(route) not in self._links:
            self._links[id(route)] = tuple({link for move in route.moves for link in self.fold.loads[move.loads]})
        return self._links[id(route)]

    def _collective(self, route: Route, user: int) -> tuple[float, int]:
        key = id(route), user
        if key not in self._routes:
            self._routes[key] = self._alone(route, user)
        return self._routes[key]

    def _alone(self, route: Route, user: int) -> tuple[float, int]:
        """Seconds of a collective whose links nobody else uses, and the set of its classes, which must run one Program."""
        if any(self._users[link] != {user} for link in self._of(route)):
            return nan, 0
        seconds = sum(move.seconds for move in route.moves)
        if len(route.present) == 1:
            return seconds, 0
        if len({self.ranks[r].c for r in route.present}) > 1:
            return nan, 0
        return seconds, self.sets.setdefault(route.present, len(self.sets) + 1)
