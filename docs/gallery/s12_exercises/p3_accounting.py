"""
The assignment: accounting for communication
============================================

126 blocks of two matrices, 16,384 x 53,248: 219.85 billion parameters, 16 bytes each: 3.52 TB, 44 H100 of 80 GB. (41 only if GB are divided by GiB.)
Activations are 17.5 MB per token.
"""

from math import ceil

import parasim as ps
from beside import beside

blocks, d, f = 126, 16384, 53248
model = {"kind": "mlp", "layers": blocks, "hidden": d, "ffn": f}
run = ps.build({"model": model, "cluster": "h100-hgx-ib400", "devices": 64, "batch": {"global": 64, "micro": 1}, "zero": {"stage": 0}})
part = ps.simulate_run(run).report.memory.peak.by_category
state = part["parameters"] + part["gradients"] + part["optimizer"]
p = part["parameters"] / 2
beside(
    ("parameters", 219_848_638_464, round(p)),
    ("state, GB", 3517.6, state / 1e9),
    ("in GiB", 3276, state / 2**30),
    ("H100 of 80 GB", 44, ceil(state / 80e9)),
    ("GB over GiB, the slip", 41, ceil(state / 2**30 / 80)),
    ("activations, bytes per token", 17_547_264, blocks * 2 * (d + f)),
)

# %%
# FSDP over N devices of 95 GB (TPU v5p): (16 P + A/2) / N + A/2, with A the activations of a device. How many devices, by tokens of a device?


def devices(tokens):
    a = 17_547_264 * tokens
    return ceil((16 * p + a / 2) / (95e9 - a / 2))


beside(*((f"{t:,} tokens", due, devices(t)) for t, due in ((0, 38), (512, 39), (1024, 41), (4096, 61))))

# %%
# From how many tokens per chip is a 16 x 4 mesh bound by compute? C = 460 TFLOP/s, W = 180 GB/s per axis, FSDP over 16 on two axes, tensor parallel 4 on
# one: both transfers added up, or the longer of the two; at the best split; and FSDP alone on three axes.

alpha, y = 460e12 / 180e9, 4
added = alpha / (2 * y) / (1 - alpha * y / f)  # alpha / (2 y b) + alpha y / f = 1
beside(
    ("added up, tokens per chip", 395.3, added),
    ("the longer of the two", 319.4, alpha / (2 * y)),
    ("best split", 245.3, 4 * alpha**2 / (2 * f)),
    ("FSDP alone on three axes", 851.9, alpha / 3),
)
