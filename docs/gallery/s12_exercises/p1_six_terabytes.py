"""
Exercise 2: six terabytes on 512 H100
=====================================

A model whose state is 6 TB, 512 H100, 4 million tokens per step in sequences of 8,192. Tensor parallel 8, ZeRO-1; which pipeline? The shape (116 layers
of 16,384) is an assumption that gives the 375 billion parameters.
"""

import parasim as ps
from beside import beside

params, layers, h, s = 375e9, 116, 16384, 8192


def states(pp):
    """Bytes of state per device under ZeRO-1, from a model of given size; and the bubble of the pipeline."""
    model = {
        "kind": "fixed",
        "layers": pp,
        "forward": "1 ms",
        "input_grad": "1 ms",
        "weight_grad": "1 ms",
        "optimizer": "0 s",
        "boundary": "1 MB",
        "parameters": params / 8,
    }
    cluster = {"name": "c", "accelerator": "b300-sxm", "node": {"count": 1, "devices": 64, "scale_up": {"kind": "switch", "bandwidth": "450 GB/s"}}}
    keys = {"model": model, "cluster": cluster, "devices": 64, "batch": {"global": 512, "micro": 1}, "parallel": {"pp": pp}, "zero": {"stage": 1}}
    peak = ps.simulate_run(ps.build(keys)).report.memory.peak.by_category
    bubble = ps.time_schedule("1f1b", pp, 512 * pp // 64)[0].bubble_over_ideal
    return sum(peak[c] for c in ("parameters", "gradients", "optimizer")) / 1e9, bubble


rows = []
for pp, due, bubble in ((2, 102.5, 0.0625), (4, 55.66, 0.09375), (8, 32.23, 0.109375), (16, 20.51, 0.1171875)):
    gigabytes, over = states(pp)
    rows += [
        (f"pipeline {pp}: GB of state", due, gigabytes, "fits in 80 GB" if gigabytes < 80 else "does not fit"),
        (f"pipeline {pp}: bubble", bubble, over, ""),
    ]
beside(*rows, head=("", "exercise", "parasim", ""))

# %%
# Memory binds first: a pipeline of 4, and activations that are recomputed. Then the batch: m = 8 p microbatches, so that the bubble tends to 1/8 whatever
# p. Bandwidth is last. Tensor parallelism sends 1.88 GB per layer and microbatch, 4.18 ms against 21.7 ms of compute:

volume = 8 * 1 * s * h * 7 / 8 * 2
flops = (72 * s * h * h + 12 * s * s * h) / 8
beside(
    ("GB per layer and microbatch", 1.879, volume / 1e9),
    ("ms on NVLink", 4.176, 1e3 * volume / 450e9),
    ("share of compute", 0.1926, volume / 450e9 / (flops / 989e12)),
)

# %%
# The whole thing as runs: pipelines of 4 and 8 with full recomputation.

model = {"kind": "transformer", "name": "375B", "layers": layers, "hidden": h, "heads": 128, "vocab": 32000, "activation": "gelu"}
keys = {"model": model, "cluster": "h100-hgx-ib400", "profile": "h100-megatron", "devices": 512, "zero": {"stage": 1}, "recompute": "full"}
keys |= {"tensor": {"sequence_parallel": True}}  # what is kept of a layer is its input, an eighth of it on each device
reports = []
for pp, ends in ((4, None), (8, [14, *[15] * 6, 12])):
    pipeline = {} if ends is None else {"pipeline": {"layers": ends}}
    run = ps.build({**keys, "batch": {"global": 512, "micro": 1, "sequence": s}, "parallel": {"tp": 8, "pp": pp}, **pipeline})
    reports.append((f"pipeline {pp}", ps.simulate_run(run).report))
for name, report in reports:
    print(f"{name}: {report.step_time:.1f} s, MFU {100 * report.mfu:.1f} %, {report.memory.peak.nbytes / 1e9:.1f} GB, fits: {report.memory.fits}")
figure = ps.plots.bars(
    [
        (name, {"compute": r.times.compute, **{f"exposed {a}": v for a, v in r.times.exposed.items()}, "bubble": r.times.idle}, r.memory.fits)
        for name, r in reports
    ]
)
