"""
Training over the internet
==========================

Links of 100 ms: pipelines pay a latency for every boundary on the way down and up, GPipe 2 (p - 1) of them. 1F1B has no slack in its steady state and pays
2 (p - 1) m / p + 2 (p - 2) of them: 1.4 against 12.4 units at 8 ranks, 64 microbatches and a tenth of a unit per message.
"""

import parasim as ps
from beside import beside


def extra(name, c):
    return ps.time_schedule(name, 8, 64, comm=c)[0].makespan - ps.time_schedule(name, 8, 64)[0].makespan


costs = (0.0, 0.05, 0.1, 0.2, 0.4)
series = {name: [(c, ps.time_schedule(name, 8, 64, comm=c)[0].makespan) for c in costs] for name in ("gpipe", "1f1b", "zb-h1")}
figure = ps.plots.curves(series, "units per message", "step (units)", "8 ranks, 64 microbatches")
beside(("GPipe: extra units", 1.4, extra("gpipe", 0.1)), ("1F1B: extra units", 12.4, extra("1f1b", 0.1)), rel=1e-6)
