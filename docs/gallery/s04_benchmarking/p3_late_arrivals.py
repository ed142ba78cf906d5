"""
Warm up, synchronise, then the barrier
======================================

Four ranks arrive at an all-reduce of one millisecond 0, 1, 2 and 3 ms late. Each measures from its own arrival: 4, 3, 2 and 1 ms. So one synchronises the
device (the clock should not start while kernels still run) and only then meets at a barrier, throws the first calls away and averages over ranks.
"""

import parasim as ps
from beside import beside

cluster = {"name": "four", "accelerator": "h100-sxm", "node": {"count": 1, "devices": 4, "scale_up": {"kind": "switch", "bandwidth": "150 GB/s"}}}
model = {
    "kind": "fixed",
    "layers": 1,
    "forward": "1 ms",
    "input_grad": "0 s",
    "weight_grad": "0 s",
    "optimizer": "0 s",
    "parameters": 50_000_000,
    "boundary": "0 B",
}
late = [{"rank": r, "slowdown": 1.0 + r} for r in (1, 2, 3)]
keys = {"model": model, "cluster": cluster, "devices": 4, "batch": {"global": 4, "micro": 1}, "perturb": late, "dp": {"mode": "flat"}}
result = ps.simulate_run(ps.build(keys), fold=False)
figure = ps.plots.gantt(result.timeline, ranks=range(4), title="late arrivals")
measured = [round(1e3 * (result.report.step_time - 1e-3 * (1 + r)), 6) for r in range(4)]
beside(("each rank measures, ms", [4.0, 3.0, 2.0, 1.0], measured), rel=1e-6)
