"""
Slices of the batch, copies of the model
========================================

The demonstration of the lectures: an MLP of four layers of 1,024, a batch of 128 on four ranks. Every rank takes 32 rows, computes gradients of its own,
and the average of all is what every copy steps with. (parasim trains such programs on real processes and compares every parameter with one process on
the whole batch: ``python -m validation numeric``.)
"""

import parasim as ps
from beside import beside
from parasim.program.ops import Collective

mlp = {"kind": "mlp", "layers": 2, "hidden": 1024, "ffn": 1024}  # a layer of parasim's MLP is two matrices
run = ps.build(
    {"model": mlp, "cluster": "h100-hgx-ib400", "devices": 4, "batch": {"global": 128, "micro": 32}, "precision": "fp32", "dp": {"mode": "per-parameter"}}
)
result = ps.simulate_run(run)
figure = ps.plots.gantt(result.timeline, title="MLP, data parallel over four ranks")

# %%
# Four reductions, between backward and optimizer; each moves 2 (n-1)/n of a matrix:

program = result.workload.programs[0]
reductions = [op for body in program.bodies.values() for op in body if isinstance(op, Collective)]
layout = run.plan.layout
beside(
    ("parameters", 4_194_304, round(result.report.memory.peak.by_category["parameters"] / 4)),
    ("rows of a rank", 32, layout.batch.global_ // layout.degrees.dp),
    ("all-reduces of a step", 4, sum(op.op == "all_reduce" for op in reductions)),
    ("bytes sent per rank", 25_165_824, result.report.comm_bytes["dp"]),
)

# %%
# The batch limits data parallelism: more copies than examples is an answer of its own.

from parasim.errors import InvalidLayout

try:
    ps.build({"model": mlp, "cluster": "h100-hgx-ib400", "devices": 256, "batch": {"global": 128, "micro": 1}, "precision": "fp32"})
except InvalidLayout as answer:
    print(answer)
