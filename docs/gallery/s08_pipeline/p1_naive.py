"""
One stage works at a time
=========================

A model cut into stages of consecutive layers. With one microbatch in flight each rank is busy for one part in as many as there are ranks.
"""

import parasim as ps
from beside import beside

report4, timeline = ps.time_schedule("naive", ranks=4, microbatches=2)
report8, _ = ps.time_schedule("naive", ranks=8, microbatches=2)
figure = ps.plots.gantt(timeline, title="naive")

# %%
# The share of time that a rank works, 1 / ranks:

beside(("4 ranks", 1 / 4, 1 - report4.bubble_makespan), ("8 ranks", 1 / 8, 1 - report8.bubble_makespan), rel=1e-9)

# %%
# The demonstration of the lectures, forward only: four ranks, four microbatches, m + p - 1 = 7 stage times, of which each rank idles three.

demo, drawn = ps.time_schedule("gpipe", ranks=4, microbatches=4, times=(1, 0, 0))
picture = ps.plots.gantt(drawn, title="forward only")
beside(("stage times", 7, demo.makespan), ("idle", 3 / 7, demo.bubble_makespan), rel=1e-9)
