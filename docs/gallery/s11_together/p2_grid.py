"""
Eight by eight
==============

A rule of thumb that has stood for years: tensor parallelism up to the size of the fast domain, then a pipeline (or ZeRO-3) until the states fit, then data
parallelism with what is left; accumulate where the batch is small. The classic picture behind it: 162 billion parameters on 64 A100, every way to split
64 into tensor times pipeline.
"""

import parasim as ps
from beside import beside

model = {"kind": "transformer", "layers": 32, "hidden": 20480, "heads": 128, "vocab": 51200, "activation": "gelu"}
keys = {
    "model": model,
    "cluster": "a100-hgx-ib200",
    "profile": "a100-megatron",
    "devices": 64,
    "batch": {"global": 32, "micro": 1, "sequence": 2048},
    "recompute": "full",
}
grid = [(4, 16), (8, 8), (16, 4), (32, 2)]
reports = [(f"{tp} x {pp}", ps.simulate_run(ps.build({**keys, "parallel": {"tp": tp, "pp": pp}})).report) for tp, pp in grid]
figure = ps.plots.cliff(reports, "162B on 64 A100, tensor x pipeline, batch 32")
best = max(reports, key=lambda row: row[1].mfu)[0]
beside(("best split", "8 x 8", best))

# %%
# And with a large batch, which fills the bubble of a deep pipeline:

large = [
    (f"{tp} x {pp}", ps.simulate_run(ps.build({**keys, "batch": {"global": 128, "micro": 1, "sequence": 2048}, "parallel": {"tp": tp, "pp": pp}})).report)
    for tp, pp in grid[1:3]
]
beside(("best of 8 x 8 and 16 x 4, batch 128", "8 x 8", max(large, key=lambda row: row[1].mfu)[0]))
