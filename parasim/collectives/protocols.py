"""What starting a collective costs beyond moving its bytes at full rate, by each protocol of NCCL: LL, LL128 and Simple."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..cost.profile import Profile
from .chunks import Pipeline, pipeline
from .group import Group, Round
from .planner import LL, LL128, SIMPLE, Middle, facts_of, middle


class Start(NamedTuple):
    """What a call costs alone on the network (s): `call` once, `latency` of its messages in a row, `per_byte` at full rate, and its protocols.

    Small messages go by a protocol of short latencies and dear bytes: they take `small` more per byte. Large ones go by one of full rate
    and long latencies, which take `large` seconds more; what passes of them while bytes move is `overlap` times as long as these move.
    LL128, in the middle, takes `middle` seconds more and `middle_cost` more per byte; on a ring a hop's chunk fills as small messages do, until
    the latency of large ones is reached. A tree between servers is a `pipe` of chunks, where a hop between servers takes `across` seconds more
    by LL128 and by Simple than by LL. The protocol asked for holds, else the cheaper one of small and large. Up to `short` bytes the call costs
    `short_call` more.
    """

    call: float
    latency: float
    per_byte: float
    small: float | None = None
    large: float = 0.0
    overlap: float = 0.0
    short: float = 0.0
    short_call: float = 0.0
    middle: float = 0.0
    middle_cost: float = 0.0
    pipe: Pipeline | None = None
    across: tuple[float, float] = (0.0, 0.0)

    def started(self, nbytes: float) -> float:
        """Seconds of the call's own."""
        return self.call + (self.short_call if nbytes <= self.short else 0.0)

    def waiting(self, nbytes: float, protocol: str = "") -> float:
        """Seconds of latency that do not pass while bytes move at full rate, by `protocol` or by the better one."""
        if protocol in (LL, LL128):
            return self._small(nbytes) if protocol == LL else self._middle(nbytes)
        return self._large(nbytes) if protocol == SIMPLE or self.small is None else min(self._large(nbytes), self._small(nbytes))

    def _small(self, nbytes: float) -> float:
        filling = self.pipe.filling(nbytes, LL, self.per_byte, 0.0) if self.pipe else 0.0
        return self.latency + nbytes * (self.small or 0.0) + filling

    def _middle(self, nbytes: float) -> float:
        rest = max(0.0, self.large - self.overlap * nbytes * self.per_byte)
        filling = self.pipe.filling(nbytes, LL128, self.per_byte, self.across[0]) if self.pipe else min(nbytes * (self.small or 0.0), rest)
        return self.latency + self.middle + nbytes * self.middle_cost + filling

    def _large(self, nbytes: float) -> float:
        filling = self.pipe.filling(nbytes, SIMPLE, self.per_byte, self.across[1]) if self.pipe else 0.0
        return max(0.0, self.latency + self.large - self.overlap * nbytes * self.per_byte) + filling

    def seconds(self, nbytes: float, protocol: str = "") -> float:
        """The whole call, alone on the network."""
        return self.started(nbytes) + self.waiting(nbytes, protocol) + nbytes * self.per_byte


def start_of(op: str, algorithm: str, rounds: Sequence[Round], latency: float, per_byte: float, group: Group, profile: Profile) -> Start:
    """By the profile's numbers of the op and the algorithm; `latency` (s) of the links in a row, `per_byte` seconds of a byte of the buffer."""
    at = f"algorithm.{algorithm}"
    call = profile.get(f"collective.{op}.latency", 0.0) + profile.get(f"{at}.latency", 0.0)
    short, short_call = 0.0, 0.0
    if op == "all_to_all":
        peers = group.size - min(map(len, group.blocks()))
        call += profile.get("p2p.post", 0.0) * peers
        short, short_call = profile.get("p2p.short_bytes", 0.0) * group.size, profile.get("p2p.short_post", 0.0) * peers
    steps, across = sum(r.steps for r in rounds), sum(r.across for r in rounds)
    crossing = profile.get(f"{at}.large_message_latency", 0.0)
    large = steps * profile.get(f"{at}.large_step_latency", 0.0) + across * crossing
    overlap = 1.0 if all(r.hidden for r in rounds) else _hidden(op, at, profile) if across else 0.0
    between = algorithm in ("tree", "nvls-tree") and across
    pipe = pipeline(algorithm, steps, across, group, facts_of(group.members, group.cluster, profile)) if between else None
    small = _dearer(at, per_byte, across or steps, profile)
    if pipe is not None and small is None and algorithm == "tree" and profile.get("planner.ll_share", 0.0):
        small = 0.0
    more = middle(algorithm)
    extra = _beyond_small(more, steps, across, per_byte, profile)
    return Start(call, latency, per_byte, small, large, overlap, short, short_call, *extra, pipe, (more.across if more else 0.0, crossing))


def _beyond_small(more: Middle | None, steps: int, across: int, per_byte: float, profile: Profile) -> tuple[float, float]:
    """Seconds more by LL128 than by LL, and more per byte than at full rate, as NCCL's own tables have it."""
    share = profile.get("planner.ll128_share", 0.0)
    if more is None or not share:
        return 0.0, 0.0
    return more.call + more.step * (steps - across) + more.across * across, per_byte * (1 / share - 1)


def _dearer(at: str, per_byte: float, hops: int, profile: Profile) -> float | None:
    """Seconds more per byte by the protocol for small messages: dearer bytes and, where a message passes whole from server to server, each hop's."""
    cost, hop = profile.get(f"{at}.small_message_cost", 0.0), profile.get(f"{at}.hop_bandwidth", 0.0)
    return cost * per_byte + (hops / hop if hop else 0.0) if cost or hop else None


def _hidden(op: str, at: str, profile: Profile) -> float:
    """Seconds of start-up that pass per second in which bytes move: the algorithm's, else the op's."""
    return profile.get(f"{at}.hidden_latency", 0.0) or profile.get(f"collective.{op}.hidden_latency", 0.0)
