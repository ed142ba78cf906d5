"""
1F1B: the same bubble, less memory
==================================

1F1B starts a backward as soon as it can. The step takes as long as GPipe's, but rank r holds p - r microbatches at most instead of all of them.
"""

import parasim as ps
from beside import beside

gpipe, drawn_gpipe = ps.time_schedule("gpipe", 4, 16)
one, drawn_one = ps.time_schedule("1f1b", 4, 16)
upper = ps.plots.gantt(drawn_gpipe, title="gpipe")
lower = ps.plots.gantt(drawn_one, title="1f1b")

# %%

beside(
    ("makespan, 1F1B over GPipe", 1.0, one.makespan / gpipe.makespan),
    ("in flight, GPipe", [16, 16, 16, 16], list(gpipe.peak_inflight)),
    ("in flight, 1F1B", [4, 3, 2, 1], list(one.peak_inflight)),
)
