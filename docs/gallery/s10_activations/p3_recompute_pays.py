"""
Recomputation can pay for itself
================================

A third more FLOPs, and memory for many more microbatches. On a pipeline of 8, going from 8 to 64 microbatches hides so much of the bubble that the work
per microbatch gets cheaper by 1.27 in spite of it.
"""

import parasim as ps
from beside import beside


def per_microbatch(m, recompute):
    """Units of time per microbatch; recomputing repeats the forward in the backward."""
    return ps.time_schedule("1f1b", 8, m, times=(1, 1 + recompute, 1))[0].makespan / m


sizes = (8, 16, 32, 64, 128)
series = {"kept": [(m, per_microbatch(m, 0)) for m in sizes], "recomputed": [(m, per_microbatch(m, 1)) for m in sizes]}
figure = ps.plots.curves(series, "microbatches", "units per microbatch", "pipeline of 8", logx=True)
beside(
    ("8 kept over 64 recomputed", 1.2676, per_microbatch(8, 0) / per_microbatch(64, 1)),
    ("cost of recomputation alone", 4 / 3, per_microbatch(64, 1) / per_microbatch(64, 0)),
)

# %%
# The same third in a whole run: GPT-3 175B's layers, hardware FLOPs with full recomputation over model FLOPs.

model = {"kind": "transformer", "layers": 8, "hidden": 12288, "heads": 96, "vocab": 1024, "activation": "gelu"}
keys = {
    "model": model,
    "cluster": "h100-hgx-ib400",
    "devices": 8,
    "batch": {"global": 1, "micro": 1, "sequence": 2048},
    "parallel": {"tp": 8},
    "recompute": "full",
}
report = ps.simulate_run(ps.build(keys)).report
beside(("hardware over model FLOPs", 4 / 3, report.hardware_flops / report.model_flops), rel=0.01)
