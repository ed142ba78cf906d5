"""
Microbatches fill the bubble
============================

p ranks, m microbatches: the bubble is (p - 1) / m over the ideal, or (p - 1) / (m + p - 1) of the step. Both are in use; parasim prints both.
"""

import parasim as ps
from beside import beside

sizes = (8, 16, 32, 64, 128)
series = {
    name: [(m, ps.time_schedule(name, 8, m, chunks=chunks)[0].bubble_over_ideal) for m in sizes]
    for name, chunks in (("1f1b", None), ("interleaved-1f1b", 2), ("zb-h1", None))
}
figure = ps.plots.bubble(series, ideal=8)

# %%
# GPipe and 1F1B alike:

rows = []
for p, m in ((4, 8), (8, 8), (8, 128), (4, 32), (8, 64), (16, 128)):
    for name in ("gpipe", "1f1b"):
        report, _ = ps.time_schedule(name, p, m)
        rows.append((f"{name}, {p} ranks, {m} microbatches: over the ideal", (p - 1) / m, report.bubble_over_ideal, report.bubble_makespan))
beside(*rows, rel=1e-9, head=("", "(p - 1) / m", "parasim", "of the step"))

# %%
# Why a batch of 8 collapses on a deep pipeline and one of 128 does not: speed over that of as many perfect devices.

depths = (1, 2, 4, 8)
speed = {f"batch {m}": [(p, m / (m + p - 1) if p == 1 else 1 / (1 + ps.time_schedule("1f1b", p, m)[0].bubble_over_ideal)) for p in depths] for m in (8, 128)}
scaling = ps.plots.curves(speed, "pipeline ranks", "share of the ideal speed", "small batches starve deep pipelines", logx=True)
beside(("batch 8, 8 ranks", 0.5333, dict(speed["batch 8"])[8]), ("batch 128, 8 ranks", 0.9481, dict(speed["batch 128"])[8]))
