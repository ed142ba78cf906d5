"""
FSDP on a timeline
==================

Four layers, 2 ms forward and 4 ms backward each, gathers and reductions of 1 ms. Parameters of a layer are gathered while the one before it computes,
and freed after use. What sticks out is the first gather and the last reduction: 26 ms; one more gather where the last layer, freed after its forward, is
gathered again at once: 27 ms.
"""

import parasim as ps
from beside import beside

model = {"kind": "fixed", "layers": 4, "forward": "2 ms", "input_grad": "2 ms", "weight_grad": "2 ms", "optimizer": "0 s", "boundary": "0 B", "parameters": 8e8}
cluster = {
    "name": "two",
    "accelerator": "h100-sxm",
    "node": {"count": 1, "devices": 2, "scale_up": {"kind": "switch", "bandwidth": "200 GB/s", "latency": "0 s"}},
}
run = ps.build({"model": model, "cluster": cluster, "devices": 2, "batch": {"global": 2, "micro": 1}, "zero": {"stage": 3}})
again = ps.simulate_run(run)
kept = ps.simulate_run(ps.vary(run, ["zero.reshard_after_forward=false"]))
figure = ps.plots.gantt(again.timeline, title="FSDP, parameters freed after every use")

# %%

beside(
    ("kept after the forward: step, ms", 26, 1e3 * kept.report.step_time),
    ("exposed, ms", 2, 1e3 * kept.report.times.exposed["dp"]),
    ("freed and gathered again: step, ms", 27, 1e3 * again.report.step_time),
    ("exposed, ms", 3, 1e3 * again.report.times.exposed["dp"]),
    rel=1e-6,
)

# %%
# Gathered over the step: never more than the parameters of two layers, and in the backward their gradients on the way out.

memory = ps.plots.memory(again.timeline, ranks=[0])
gathered = again.report.memory.peak.by_category["gathered"] / (2 * 8e8 / 4)
beside(("gathered at the peak, in sizes of a layer", (2, 4), gathered))
