"""
The critical batch
==================

Below it gradients are noise that a larger batch averages away; above it more examples hardly save steps. Steps 1 + Bc / B, examples 1 + B / Bc, in the
least there could be: at the critical batch both are 2.
"""

import parasim as ps
from beside import beside
from parasim.plan.batch import examples_to_target, most_devices, steps_to_target, useful_speedup

sizes = (0.25, 0.5, 1, 2, 4)
steps = [(b, steps_to_target(b, 1, 1)) for b in sizes]
examples = [(b, examples_to_target(b, 1, 1)) for b in sizes]
figure = ps.plots.curves(
    {"steps": steps, "examples": examples}, "batch, in critical batches", "over the least there could be", "what a larger batch buys and costs", logx=True
)

beside(
    ("steps at the critical batch", 2, dict(steps)[1]),
    ("examples there", 2, dict(examples)[1]),
    ("steps at a quarter", 5, dict(steps)[0.25]),
    ("examples at four times", 5, dict(examples)[4]),
    ("eight times the devices and the batch, from Bc on: faster by", 1.778, useful_speedup(1, 8, 1)),
)

# %%
# Who spends it: data parallelism a sequence per rank, a pipeline a microbatch per stage, tensor parallelism nothing. 4 million tokens are 512 sequences:

beside(
    ("devices, data parallel only", 512, most_devices(512)),
    ("devices, with tensor parallel 8", 4096, most_devices(512, tp=8)),
    ("with a pipeline of 8 too", 4096, most_devices(512, tp=8, pp=8)),
)
