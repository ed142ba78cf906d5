"""
The backward in two halves
==========================

The gradient of the input is waited for by the stage before, that of the weights by nobody: it can fill holes. Forward, I and W of one unit each, four
ranks, 16 microbatches: 57 units with 1F1B, 51 with ZB-H1, 48 from the first to the last op of a rank with ZB-H2.
"""

import parasim as ps
from beside import beside

reports, drawn = {}, {}
for name in ("1f1b", "zb-h1", "zb-h2", "zb-v"):
    reports[name], drawn[name] = ps.time_schedule(name, 4, 16)
first, second, third, fourth = (ps.plots.gantt(timeline, title=name) for name, timeline in drawn.items())

# %%

big = {name: ps.time_schedule(name, 8, 32)[0].makespan for name in ("1f1b", "zb-h1")}
beside(
    ("1f1b", 57, reports["1f1b"].makespan),
    ("zb-h1", 51, reports["zb-h1"].makespan),
    ("zb-h2, span of rank 0", 48, reports["zb-h2"].rank_end[0] - reports["zb-h2"].rank_start[0]),
    ("gain of zb-h1 at 8 ranks, 32 microbatches", 0.1359, big["1f1b"] / big["zb-h1"] - 1),
)
