"""
DualPipe
========

Microbatches enter from both ends, and a forward of one direction overlaps a backward of the other, so that all-to-alls of experts hide. Its bubble is
(p/2 - 1)(FB + B - 3W) against (p - 1)(F + B) of 1F1B: 6 units against 21 at p = 8, F = W = 1, B = 2. It costs parameters of two stages per rank.
"""

import parasim as ps
from beside import beside

p, m = 8, 20
report, timeline = ps.time_schedule("dualpipe", p, m)
plain, _ = ps.time_schedule("1f1b", p, m)
figure = ps.plots.gantt(timeline, title="dualpipe, 8 ranks")
vee, drawn = ps.time_schedule("dualpipe-v", p // 2, m)
picture = ps.plots.gantt(drawn, title="dualpipe-v, 4 ranks")

# %%
# Idle time per rank:

idle = report.bubble_span * (report.rank_end[0] - report.rank_start[0])
beside(("1F1B: idle units", 21, plain.makespan - 3 * m), ("DualPipe: idle units", 6, report.makespan - 3 * m), rel=1e-6)
