"""Which cases put several flows on one pair of hosts at a time: TCP connections of a pair share it by chance, so these are shown and not judged.

The rule looks at the workload alone: rings of one group name side by side, exchanges between several ranks of two hosts, neighbours in a
pipeline of several ranks of two hosts, and jobs that use the same pair. Transfers of one rank that may meet on a pair are no such case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import permutations

from parasim.program.ops import P2P, Collective
from parasim.program.workload import Workload

from .networks import Network

Pairs = Counter[tuple[str, str]]


def crowded(workload: Workload, network: Network) -> bool:
    """Does one kind of transfer, or do two jobs, put more than one flow on a pair of hosts?"""
    home = network.home
    kinds = list(_flows(workload))
    jobs: dict[str, Pairs] = {}
    for name, ends in kinds:
        pairs: Pairs = Counter((home[a], home[b]) for a, b in ends if home[a] != home[b])
        if any(n > 1 for n in pairs.values()):
            return True
        jobs.setdefault(_job(name), Counter()).update(set(pairs))
    together: Pairs = Counter(pair for used in jobs.values() for pair in used)
    return any(n > 1 for n in together.values())


def _job(name: str) -> str:
    first = name.partition(".")[0]
    return first if first.startswith("job") else ""


def _flows(workload: Workload) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Per kind of transfer its name and the pairs of ranks it connects."""
    seen: dict[tuple[str, bool], None] = {}
    peers: dict[str, None] = {}
    for program in workload.programs:
        for body in program.bodies.values():
            for op in body:
                if isinstance(op, Collective):
                    seen[op.group, op.op == "all_to_all"] = None
                elif isinstance(op, P2P):
                    peers.update((m.peer, None) for m in op.sends)
    for group, exchange in seen:
        rows = [[int(r) for r in row] for row in workload.groups[group]]
        yield group, [pair for row in rows for pair in (permutations(row, 2) if exchange else zip(row, [*row[1:], row[0]], strict=True))]
    for peer in peers:
        yield peer, [(rank, int(to)) for rank, to in enumerate(workload.peers[peer]) if to >= 0]
