"""
More chunks per rank
====================

Interleaving gives each rank v chunks of consecutive layers: the bubble is divided by v, messages are multiplied by it.
"""

import parasim as ps
from beside import beside

found = {v: ps.time_schedule("interleaved-1f1b" if v > 1 else "1f1b", 8, 64, chunks=v)[0] for v in (1, 2, 4)}
_, drawn = ps.time_schedule("interleaved-1f1b", 4, 8, chunks=2)
figure = ps.plots.gantt(drawn, title="interleaved-1f1b, two chunks")
beside(
    *((f"{v} chunks", 7 / (64 * v), report.bubble_over_ideal) for v, report in found.items()),
    rel=1e-9,
    head=("bubble over the ideal", "(p - 1) / (v m)", "parasim"),
)
