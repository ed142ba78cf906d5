"""
419 interruptions in 54 days
============================

Llama 3's log of failures: 148 of 419 unplanned interruptions were GPUs (35.3 %; the report prints 30.1 %), 32 maintenance. One interruption every 3.1
hours on 16,384 devices, a checkpoint every 19 minutes at a minute each. Fewer devices fail less often, in proportion.
"""

from math import sqrt

import parasim as ps
from beside import beside

run = ps.build(
    {
        "model": "llama3-8b",
        "cluster": "h100-hgx-ib400",
        "devices": 16,
        "batch": {"global": 16, "micro": 1, "sequence": 8192},
        "zero": {"stage": 3},
        "recompute": "full",
    }
)
mtbf = 54 * 86400 / 419
found = ps.goodput(run, mtbf=f"{mtbf} s", checkpoint="60 s", restart="300 s", detection="0 s", silent="0", interval="young")
beside(
    ("share of GPUs, unplanned", 0.3532, 148 / 419),
    ("share of maintenance", 0.07637, 32 / 419),
    ("mean time between failures, h", 3.093, mtbf / 3600),
    ("of one device, h", 50677, mtbf / 3600 * 16384),
    ("checkpoint every, s", 1156, found.row.interval),
    ("by Young's formula", sqrt(2 * 60 * mtbf), found.row.interval),
    ("lost, first order 0.131", (0.11, 0.14), 1 - found.row.fraction),
)

# %%
# Goodput over the mean time between failures:

curve = ps.goodput(run, checkpoint="60 s", restart="300 s").curve
figure = ps.plots.curves(
    {"training": [(row.mtbf / 3600, row.fraction) for row in curve]}, "hours between failures", "share of time that trains", "goodput", logx=True
)

# %%
# One slow rank of 64 sets the pace of all:

slow = {
    "model": "llama3-8b",
    "cluster": "h100-hgx-ib400",
    "devices": 64,
    "batch": {"global": 64, "micro": 1, "sequence": 8192},
    "zero": {"stage": 1},
    "recompute": "selective",
}
plain = ps.simulate_run(ps.build(slow)).report
late = ps.simulate_run(ps.build({**slow, "perturb": [{"rank": 3, "slowdown": 1.1}]})).report
beside(("step over that without", 1.1, late.step_time / plain.step_time), rel=0.02)
