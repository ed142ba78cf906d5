"""
The bars of ZeRO
================

The picture that everyone shows: 7.5 billion parameters on 64 GPUs, 16 bytes each: 2 for the bf16 weight, 2 for its gradient, 12 for Adam (an fp32 copy
and two moments). Each stage shares out one part more.
"""

import parasim as ps
from beside import beside

model = {
    "kind": "fixed",
    "layers": 4,
    "forward": "1 ms",
    "input_grad": "1 ms",
    "weight_grad": "1 ms",
    "optimizer": "0 s",
    "boundary": "0 B",
    "parameters": 7.5e9,
}
cluster = {"name": "c", "accelerator": "b300-sxm", "node": {"count": 1, "devices": 64, "scale_up": {"kind": "switch", "bandwidth": "200 GB/s"}}}
run = ps.build({"model": model, "cluster": cluster, "devices": 64, "batch": {"global": 64, "micro": 1}})
state = []
for stage in range(4):
    peak = ps.simulate_run(ps.vary(run, [f"zero.stage={stage}"])).report.memory.peak.by_category
    state.append({part: peak[part] / 1e9 for part in ("parameters", "gradients", "optimizer")})

totals = [sum(parts.values()) for parts in state]
beside(
    *((f"stage {i}, GB", due, total) for i, (due, total) in enumerate(zip((120, 31.4, 16.6, 1.9), totals, strict=True))),
    rel=0.02,
    head=("", "lectures", "parasim"),
)

# %%
# As bars, and in symbols: 16, then 4 + 12/N, 2 + 14/N and 16/N bytes per parameter.

from matplotlib.figure import Figure

from parasim.plots.style import CATEGORY_COLOURS, bare

figure = Figure(figsize=(8, 2.8), layout="constrained")
axes = figure.subplots()
for part in state[0]:
    left = [sum(row[p] for p in list(row)[: list(row).index(part)]) for row in state]
    axes.barh([f"stage {i}" for i in range(4)], [row[part] for row in state], left=left, color=CATEGORY_COLOURS[part], label=part)
for i, total in enumerate(totals):
    axes.annotate(f"{total:.1f} GB", (total, i), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8)
axes.invert_yaxis()
axes.legend(fontsize=8, frameon=False)
axes.set_xlabel("GB per device")
bare(axes, keep=("bottom", "left"))

symbols = (16, 4 + 12 / 64, 2 + 14 / 64, 16 / 64)
beside(*((f"stage {i}, bytes per parameter", due, 1e9 * total / 7.5e9) for i, (due, total) in enumerate(zip(symbols, totals, strict=True))))
