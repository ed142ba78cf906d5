"""
Pipelines tolerate slow links
=============================

A stage boundary passes b s h numbers forward and as many back: 268 MB each way for one sequence of 8,192 tokens and hidden 16,384. Tensor parallel 8
moves 49 times as much in the 14 layers of such a stage. So one puts pipelines across slow links: here the network cards get ten times slower.
"""

import parasim as ps
from beside import beside

model = {"kind": "transformer", "layers": 16, "hidden": 8192, "heads": 64, "vocab": 8192, "activation": "gelu"}
keys = {"model": model, "devices": 16, "batch": {"global": 16, "micro": 1, "sequence": 4096}, "recompute": "full"}


def step(parallel, slower, order=("tp", "cp", "ep", "dp", "pp")):
    cluster = {"base": "h100-hgx-ib400", "scale_out": {"bandwidth": f"{400 / slower} Gb/s"}}
    return ps.simulate_run(ps.build({**keys, "cluster": cluster, "parallel": {**parallel, "order": list(order)}})).report.step_time


pipeline = step({"tp": 8, "pp": 2}, 10) / step({"tp": 8, "pp": 2}, 1)
tensor = step({"tp": 16}, 10) / step({"tp": 16}, 1)
data = step({"tp": 8, "dp": 2}, 10) / step({"tp": 8, "dp": 2}, 1)
beside(
    ("pipeline across servers: step times", (1.0, 1.3), pipeline),
    ("data parallel across servers", (1.05, 6), data),
    ("tensor parallel across servers", (4, 10), tensor),
    head=("cards ten times slower", "between", "parasim"),
)

# %%
# The bytes of a boundary:

b, s, h, t, layers = 1, 8192, 16384, 8, 14
run = ps.build(
    {
        "model": {**model, "hidden": h, "heads": 128, "layers": 2},
        "cluster": "h100-hgx-ib400",
        "devices": 16,
        "batch": {"global": 1, "micro": 1, "sequence": s},
        "parallel": {"tp": 8, "pp": 2},
        "recompute": "full",
    }
)
sent = ps.simulate_run(run).report.comm_bytes["pp"] * 2  # a rank of the first stage sends forward, one of the second back
beside(("MB forward and back", 536.870912, sent / 1e6), ("tensor over pipeline, bytes", 49, layers * 8 * b * s * h * (t - 1) / t / (2 * b * s * h)), rel=1e-6)
