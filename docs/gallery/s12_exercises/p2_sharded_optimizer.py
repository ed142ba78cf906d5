"""
Exercise 4: sharding the optimizer
==================================

Two ranks, fp32: 4 bytes of weights, 4 of gradients and 8 of Adam per parameter. Sharing the moments out leaves 12 of 16. A wrapper that all-reduces
gradients and then broadcasts parameters sends three times the parameters; a real stage 1 reduce-scatters and gathers, twice.
"""

import parasim as ps
from beside import beside

model = {"kind": "transformer", "name": "xl", "layers": 48, "hidden": 1600, "heads": 25, "ffn": 6400, "vocab": 10000}
keys = {"model": model, "cluster": "h100-hgx-ib400", "devices": 2, "batch": {"global": 2, "micro": 1, "sequence": 512}, "precision": "fp32"}
whole, shared = (ps.simulate_run(ps.build({**keys, "zero": {"stage": stage}})) for stage in (0, 1))


def per_parameter(result):
    part = result.report.memory.peak.by_category
    n = part["parameters"] / 4
    return [part[c] / n for c in ("parameters", "gradients", "optimizer")]


n = whole.report.memory.peak.by_category["parameters"] / 4
beside(
    ("parameters", 1_998_235_200, round(n)),
    ("not shared: weights, gradients, Adam", [4, 4, 8], per_parameter(whole)),
    ("shared over two", [4, 4, 4], per_parameter(shared)),
    ("GB, not shared", 31.97, 16 * n / 1e9),
    ("GB, shared", 23.98, sum(per_parameter(shared)) * n / 1e9),
    ("sent, in sizes of the parameters over (n-1)/n", 2, shared.report.comm_bytes["dp"] / (4 * n) / 0.5),
    rel=5e-3,
)

# %%
# Where it stands during the step:

figure = ps.plots.memory(shared.timeline, ranks=[0], title="ZeRO-1 over two ranks, fp32")
