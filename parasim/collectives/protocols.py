"""What starting a collective costs beyond moving its bytes at full rate, by each protocol of NCCL: LL, LL128 and Simple."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..cost.profile import Profile
from .chunks import Pipeline, pipeline
from .group import Group, Round
from .planner import LL, LL128, SIMPLE, Facts, Middle, channels, facts_of, middle, reach


class Start(NamedTuple):
    """What a call costs alone on the network (s): `call` once, `latency` of its messages in a row, `per_byte` at full rate, and its protocols.

    Small messages go by a protocol of short latencies and dear bytes: they take `small` more per byte. Large ones go by one of full rate
    and long latencies, which take `large` seconds more; of the first byte's time `hides` seconds at most pass while bytes move, `overlap` times
    as long as these move. Where a receiver grants messages, the small ones between servers wait too, `grant` per byte up to `hides`: it, or
    what `small` is beyond twice the bytes, the longer of the two.
    LL128, in the middle, takes `middle` seconds more and `middle_cost` more per byte. A tree between servers is a `pipe` of chunks, where a hop
    between servers takes `across` seconds more by LL128 and by Simple than by LL. The protocol asked for holds, else the cheaper one of small
    and large. Up to `short` bytes the call costs `short_call` more.
    """

    call: float
    latency: float
    per_byte: float
    small: float | None = None
    grant: float = 0.0
    large: float = 0.0
    overlap: float = 0.0
    hides: float = 0.0
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
        small = (self.small or 0.0) * (self.pipe.width / self.pipe.used(nbytes, LL) if self.pipe else 1.0)
        doubled = min(small, self.per_byte)
        waits = max(nbytes * (small - doubled), min(nbytes * self.grant, self.hides))
        return self.latency + nbytes * doubled + waits + self._filling(nbytes, LL, 0.0)

    def _middle(self, nbytes: float) -> float:
        return self.latency + self.middle + nbytes * self.middle_cost + self._filling(nbytes, LL128, self.across[0])

    def _large(self, nbytes: float) -> float:
        hidden = min(self.hides, self.overlap * nbytes * self.per_byte)
        return self.latency + self.large - hidden + self._filling(nbytes, SIMPLE, self.across[1])

    def _filling(self, nbytes: float, protocol: str, more: float) -> float:
        return self.pipe.filling(nbytes, protocol, self.per_byte, more) if self.pipe else 0.0

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
    overlap, hides = _hidden(op, at, rounds, latency + large, across * crossing, profile)
    facts = facts_of(group.members, group.cluster, profile) if across else None
    pipe = pipeline(algorithm, steps, across, group, facts) if algorithm in ("tree", "nvls-tree") else None
    small, grant = _dearer(at, per_byte, rounds, group, facts, profile)
    if pipe is not None and small is None and algorithm == "tree" and profile.get("planner.ll_share", 0.0):
        small = 0.0
    more = middle(algorithm)
    share = profile.get("planner.ll128_share", 0.0)
    if facts is not None and share:
        share = min(share, per_byte * reach(op, algorithm, LL128, facts))
    extra = _beyond_small(more, steps, across, per_byte, share)
    dearer = (more.across if more else 0.0, crossing)
    return Start(call, latency, per_byte, small, grant, large, overlap, hides, short, short_call, *extra, pipe, dearer)


def _beyond_small(more: Middle | None, steps: int, across: int, per_byte: float, share: float) -> tuple[float, float]:
    """Seconds more by LL128 than by LL, and more per byte than at full rate, of which it reaches `share`, as NCCL's own tables have it."""
    if more is None or not share:
        return 0.0, 0.0
    return more.call + more.step * (steps - across) + more.across * across, per_byte * (1 / share - 1)


def _dearer(at: str, per_byte: float, rounds: Sequence[Round], group: Group, facts: Facts | None, profile: Profile) -> tuple[float | None, float]:
    """Seconds more per byte by the protocol for small messages, and those that a receiver's grants of messages of 1/n take.

    Between servers of which the profile knows how lines pass: twice the bytes, or the lines of what is sent over all channels. Else dearer
    bytes and, where a message passes whole from server to server, each hop's.
    """
    cost, hop, lines = (profile.get(f"{at}.{key}", 0.0) for key in ("small_message_cost", "hop_bandwidth", "line_bandwidth"))
    hops = (sum(r.across for r in rounds) or sum(r.steps for r in rounds)) / hop if hop else 0.0
    if lines and facts is not None:
        return max(per_byte, sum(r.sent for r in rounds) / (lines * channels(facts)) - per_byte), hops / group.size
    return cost * per_byte + hops if cost or hop else None, 0.0


def _hidden(op: str, at: str, rounds: Sequence[Round], whole: float, crossings: float, profile: Profile) -> tuple[float, float]:
    """Seconds of start-up that pass per second in which bytes move, and how many at most: all of the algorithm's or of the op's, else its `crossings`."""
    if all(r.hidden for r in rounds):
        return 1.0, whole
    if not any(r.across for r in rounds):
        return 0.0, 0.0
    between, any_step = profile.get(f"{at}.hidden_latency", 0.0), profile.get(f"collective.{op}.hidden_latency", 0.0)
    return (between, crossings) if between else (any_step, whole if any_step else crossings)
