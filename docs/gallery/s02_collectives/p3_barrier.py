"""
A barrier leaves when the last one arrives
==========================================

Four ranks reach a collective after 0, 1, 3 and 2.5 seconds. Nobody leaves before three seconds; the others have waited. So it is with every collective,
and this is why a rank that arrives early measures a longer one.
"""

import parasim as ps
from beside import beside

arrivals = (0.0, 1.0, 3.0, 2.5)
cluster = {"name": "four", "accelerator": "h100-sxm", "node": {"count": 1, "devices": 4, "scale_up": {"kind": "switch", "bandwidth": "450 GB/s"}}}
model = {"kind": "fixed", "layers": 1, "forward": "1 s", "input_grad": "0 s", "weight_grad": "0 s", "optimizer": "0 s", "parameters": 4, "boundary": "0 B"}
slow = [{"rank": r, "slowdown": a} for r, a in enumerate(arrivals) if a > 1]
keys = {"model": model, "cluster": cluster, "devices": 4, "batch": {"global": 4, "micro": 1}, "perturb": slow}
result = ps.simulate_run(ps.build(keys), fold=False)
waited = [round(float(result.report.step_time - max(a, 1.0)), 6) for a in arrivals]
figure = ps.plots.gantt(result.timeline, ranks=range(4), title="an all-reduce of next to nothing")

# %%
# The clock of the last one decides (ranks 0 and 1 both take a second here, as nothing is faster than nominal):

beside(("leaves at, s", 3.0, result.report.step_time), ("waits of ranks, s", [2.0, 2.0, 0.0, 0.5], waited))
