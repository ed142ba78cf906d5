"""
A model that one device cannot hold
===================================

A thousand billion parameters: 2 TB of bf16 weights, 16 TB with gradients and Adam's state. How many accelerators of 192 GB does it take to hold them,
and what does parasim say of a run on one?
"""

from math import ceil

import parasim as ps
from beside import beside
from parasim.errors import DoesNotFit

model = {
    "kind": "transformer",
    "name": "1T",
    "layers": 128,
    "hidden": 25600,
    "heads": 160,
    "vocab": 51200,
    "activation": "gelu",
    "positions": "learned",
    "max_positions": 2048,
}
chip = {"name": "b200-192", "kind": "gpu", "peak_flops": {"bf16": "2250 TFLOP/s"}, "memory": "192 GB", "memory_bandwidth": "8 TB/s"}
cluster = {"name": "one", "accelerator": chip, "node": {"count": 1, "devices": 1, "scale_up": {"kind": "switch", "bandwidth": "900 GB/s"}}}
run = ps.build({"model": model, "cluster": cluster, "devices": 1, "batch": {"global": 1, "micro": 1, "sequence": 2048}, "recompute": "full"})
result = ps.simulate_run(run)

state = {c: result.report.memory.peak.by_category[c] for c in ("parameters", "gradients", "optimizer")}
beside(
    ("weights, TB", 2, state["parameters"] / 1e12),
    ("all state, TB", 16, sum(state.values()) / 1e12),
    ("devices for the weights", 11, ceil(state["parameters"] / 192e9)),
    ("devices for the state", 84, ceil(1e12 * 16 / 192e9)),
    rel=0.02,
)

# %%
# A run that does not fit is an answer, exit code 1 on the command line. The message names what is largest:

from parasim.api import require_fit

try:
    require_fit(result)
except DoesNotFit as answer:
    print(answer)
