"""
8 b s h (t-1)/t
===============

The volume per layer that the lectures give has no unit and no pass. It is *elements*, forward and backward: four all-reduces of b s h, each of 2 (t-1)/t.
In bf16 the forward alone sends as many *bytes*; with full recomputation there are six all-reduces.
"""

import parasim as ps
from beside import beside

b, s, h, t = 1, 8192, 16384, 8
model = {"kind": "transformer", "hidden": h, "heads": 128, "vocab": 1024, "activation": "gelu"}


def per_layer(**more):
    """Bytes that a rank sends for one more layer, and its report."""

    def report(layers):
        keys = {
            "model": {**model, "layers": layers},
            "cluster": "h100-hgx-ib400",
            "devices": 8,
            "batch": {"global": b, "micro": b, "sequence": s},
            "parallel": {"tp": t},
        }
        return ps.simulate_run(ps.build({**keys, "tensor": {"sequence_parallel": False}, **more})).report

    one, two = report(2), report(3)
    return two.comm_bytes["tp"] - one.comm_bytes["tp"], two.times.compute - one.times.compute, two.times.exposed["tp"] - one.times.exposed["tp"]


plain, again, sequence = per_layer(), per_layer(recompute="full"), per_layer(tensor={"sequence_parallel": True})
volume = 8 * b * s * h * (t - 1) / t
beside(
    ("elements, forward and backward", 939_524_096, plain[0] / 2),
    ("with full recomputation, over without", 1.5, again[0] / plain[0]),
    ("with sequence parallelism, over without", 1.25, sequence[0] / plain[0]),
    ("milliseconds on NVLink 4", 4.176, 1e3 * plain[2]),
    ("on NVLink 5", 2.088, 1e3 * volume * 2 / 900e9),
    ("on one 400 Gb/s card", 37.58, 1e3 * volume * 2 / 50e9),
    rel=0.02,
)

# %%
# Compute of a layer on one of eight GPUs at the datasheet's peak: the lectures count full attention, 72 b s h^2 (1 + s/6h). parasim's tiled attention is
# causal and computes half of the pairs; norms, residuals, GeLU and the layer's share of Adam come on top.

beside(("full attention, ms", 21.68, 1e3 * (72 * b * s * h * h + 12 * b * s * s * h) / t / 989e12), ("parasim, ms", (20, 30), 1e3 * plain[1]))
