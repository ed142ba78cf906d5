"""
The phase diagram of tokens per chip
====================================

From the book on scaling for TPUs: a 4 x 4 x 4 block of v5p, feed-forward of 32,768. FSDP over three axes is bound by compute from 850 tokens per chip on;
FSDP mixed with tensor parallelism from about 400; below that nothing on this mesh is.
"""

from math import sqrt

import parasim as ps
from beside import beside

chip = ps.load_cluster("tpu-v5p", 64)
compute = chip.accelerator.peak("bf16")
w = 2 * 90e9  # the book's figure for both directions of an axis
alpha, f, n = compute / w, 32768, 64
tokens = [50, 100, 200, 400, 800, 1600, 3200]
fsdp = [(t, alpha / 3 / t) for t in tokens]
mixed = [(t, sqrt(4 * alpha**2 / (2 * f) / t)) for t in tokens]
tensor = [(t, n * alpha / 3 / f) for t in tokens]
thresholds = {"FSDP over three axes": alpha / 3, "FSDP and tensor parallel": 4 * alpha**2 / (2 * f)}
figure = ps.plots.phases(
    {"FSDP over three axes": fsdp, "mixed": mixed, "tensor parallel over all": tensor}, thresholds, "4 x 4 x 4 TPU v5p, feed-forward 32,768"
)
beside(*zip(thresholds, (850, 396.9), thresholds.values(), strict=True), rel=0.005, head=("tokens per chip", "book", "parasim"))

# %%
# And what the engine says of FSDP on such a block: the share of a step that communication is exposed falls through that threshold.

model = {"kind": "mlp", "layers": 8, "hidden": 8192, "ffn": 32768}
run = ps.build(
    {"model": model, "cluster": "tpu-v5p", "profile": "tpu", "devices": 64, "batch": {"global": 64, "micro": 1}, "zero": {"stage": 3, "prefetch": 2}}
)
exposed = []
for t in (128, 256, 512, 1024, 2048):
    report = ps.simulate_run(ps.vary(run, [f"batch.global={64 * t}", f"batch.micro={t}"])).report
    exposed.append((t, report.times.exposed["dp"] / report.step_time))
simulated = ps.plots.curves({"exposed": exposed}, "tokens per chip", "exposed share of the step", "FSDP of an MLP on 64 TPU v5p", logx=True)
beside(("exposed at 256 tokens", (0.4, 0.9), dict(exposed)[256]), ("exposed at 2,048 tokens", (0, 0.15), dict(exposed)[2048]))
