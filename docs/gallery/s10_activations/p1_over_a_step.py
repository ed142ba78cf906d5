"""
Memory over a step
==================

Activations grow through the forward and shrink through the backward, while gradients come. Memory is a straight line in the layers done, so that a peak
*within* the backward needs something temporary or layers of unequal size: here the logits and their gradient, and gradients that stay.
"""

import parasim as ps
from beside import beside

keys = {"model": "llama3-8b", "cluster": "b200-hgx-ib400", "devices": 8, "batch": {"global": 8, "micro": 1, "sequence": 8192}, "zero": {"stage": 1}}
result = ps.simulate_run(ps.build(keys))
figure = ps.plots.memory(result.timeline, ranks=[0], title="Llama 3 8B, one device of eight")

# %%

timeline, peak = result.timeline, result.report.memory.peak
ops = timeline.of(0)
backward = ops[ops["phase"] == timeline.phases.index("B")]
beside(
    ("peak, after the start of the backward (1: yes)", 1, int(peak.time >= backward["start"].min())),
    ("sum of its parts over the peak", 1.0, sum(peak.by_category[c] for c in peak.by_category if c != "host") / peak.nbytes),
)

# %%
# The largest tensors at that instant:

for name, nbytes in peak.largest:
    print(f"{name:32} {nbytes / 1e6:8.1f} MB")
