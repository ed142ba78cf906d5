"""
Twice the parameters, whatever the ranks
========================================

A step of data parallelism sends 2 (n-1)/n bytes per byte of gradients, whatever the number of ranks; compute shrinks, memory for state does not.
"""

import parasim as ps
from beside import beside

run = ps.build({"model": "llama3-8b", "cluster": "b200-hgx-ib400", "devices": 2, "batch": {"global": 64, "micro": 1, "sequence": 2048}})
reports = [ps.simulate_run(ps.vary(run, [f"devices={n}"])).report for n in (2, 4, 8, 16, 32, 64)]
weights = reports[0].memory.peak.by_category["parameters"]
figure = ps.plots.curves(
    {
        "sent, over the size of the gradients": [(r.world, r.comm_bytes["dp"] / weights) for r in reports],
        "compute, over that of two ranks": [(r.world, r.times.compute / reports[0].times.compute) for r in reports],
        "state, over that of two ranks": [(r.world, r.memory.peak.by_category["optimizer"] / reports[0].memory.peak.by_category["optimizer"]) for r in reports],
    },
    "ranks", "ratio", "what grows and what does not", logx=True,
)  # fmt: skip

# %%
# On 64 ranks:

beside(
    ("sent, in sizes of the gradients", 2 * 63 / 64, reports[-1].comm_bytes["dp"] / weights),
    ("state, GB, as on one", 12 * weights / 2 / 1e9, reports[-1].memory.peak.by_category["optimizer"] / 1e9),
    rel=0.02,
)
