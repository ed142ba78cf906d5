"""Trees between servers as pipelines of chunks: how large NCCL makes them, and what filling the pipeline takes (planner.yaml, `chunks`).

A tree's buffer goes over channels, chunk behind chunk; a hop waits for a whole chunk, so that the first one takes every hop's time and the
others follow at the pace of the slowest hop. A channel has a fixed number of places for chunks: no more travel until one has come and the
place is free again, there and back. NCCL shrinks the chunks of small buffers so that the pipeline fills (src/enqueue.cc), down to a floor, and gives
small buffers fewer channels: as many as have so many bytes each as its threads take up at once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .group import Group
from .planner import SIMPLE, Facts, channels, tables


class Pipeline(NamedTuple):
    """A tree over `servers` of `members` each, `inside` and `across` hops in a row.

    `width` chunks cross a hop at once: one per channel, and per member where switches reduce. `rate` bytes/s of a channel inside a server;
    `hop` seconds that the first byte takes between servers.
    """

    algorithm: str
    servers: int
    members: int
    inside: int
    across: int
    width: int
    rate: float
    hop: float

    def used(self, nbytes: float, protocol: str) -> int:
        """Channels that a buffer of `nbytes` goes over, 1 to `width`; with nvls-tree all of them."""
        part = tables()["chunks"]["part"][protocol]
        return self.width if self.algorithm == "nvls-tree" else max(1, min(self.width, int(nbytes // part)))

    def chunk(self, nbytes: float, protocol: str) -> float:
        """Bytes of a chunk of a buffer of `nbytes`."""
        rules, used = tables()["chunks"], self.used(nbytes, protocol)
        size: float = rules["bytes"][protocol]
        if self.algorithm == "nvls-tree":
            size = rules["nvls"]["few" if self.servers < rules["nvls"]["many_servers"] else "many"]
            for times, floor in rules["nvls"]["least"]:
                size = floor if nbytes < times * self.width * size and size > floor else size
        else:
            for times, floor in rules["least"].get(protocol, ()):
                while nbytes / (used * size) < times * self._depth(protocol) and size > floor:
                    size /= 2
        return float(min(size, nbytes / used))

    def _depth(self, protocol: str) -> float:
        levels = int(math.log2(self.servers))
        return self.members - 1 + levels if protocol == SIMPLE else (1 + levels + 0.1 * self.members) / self.members

    def filling(self, nbytes: float, protocol: str, per_byte: float, more: float) -> float:
        """Seconds beyond nbytes x per_byte until the last chunk has come; `more` seconds that a hop between servers takes by this protocol.

        Where channels are fewer than NICs, the others idle and the bytes move `slower`.
        """
        if not nbytes:
            return 0.0
        rules, used = tables()["chunks"], self.used(nbytes, protocol)
        slower = max(1.0, self.width / (used * rules["per_nic"]))
        chunk = self.chunk(nbytes, protocol)
        stage = chunk * used * per_byte * slower
        inside = stage if self.algorithm == "nvls-tree" else chunk / self.rate
        turn = (rules["ways"] * (self.hop + more) + stage) / rules["places"]
        rest = (nbytes / (chunk * used) - 1) * max(0.0, turn - stage)
        return float(self.inside * inside + (self.across - 1) * stage + rest + nbytes * per_byte * (slower - 1))


def pipeline(algorithm: str, steps: int, across: int, group: Group, facts: Facts | None) -> Pipeline | None:
    """The pipeline of a tree of `steps` hops, `across` of them between servers; None where the profile does not say how its NCCL plans."""
    if facts is None:
        return None
    first, second = group.blocks()[:2]
    members = facts.ranks // facts.servers
    width = channels(facts) * (members if algorithm == "nvls-tree" else 1)
    rate = float(tables()["generations"][facts.generation]["tree"][0]) * 1e9
    return Pipeline(algorithm, facts.servers, members, steps - across, across, width, rate, group.hop(first[0], second[0]))
