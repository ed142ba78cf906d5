"""Which ranks were simulated for which, and why classes were split."""

from __future__ import annotations

import numpy as np

from ..timeline import Timeline


def explain(timeline: Timeline) -> str:
    """One line per fold class with its members as ranges, then the reason of every split."""
    lines = [f"{len(timeline.ranks)} of {len(timeline.representative)} ranks simulated"]
    for rank in timeline.ranks:
        members = np.nonzero(timeline.representative == rank)[0].tolist()
        lines.append(f"rank {rank} stands for {len(members)}: {ranges(members)}")
    return "\n".join([*lines, *(f"split: {reason}" for reason in timeline.meta.get("folding", ()))])


def ranges(numbers: list[int]) -> str:
    """Ascending numbers as ranges: 0-7, 16."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
