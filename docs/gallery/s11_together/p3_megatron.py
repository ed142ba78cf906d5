"""
From 1.7 billion to a thousand billion
======================================

The table of Megatron-LM (Narayanan et al. 2021): tensor parallelism grows to 8 and stops, the pipeline grows from there, data parallelism gets what is
left. "40 to 52 % of peak" counts what is computed again; model FLOPs are three quarters of that.
"""

import parasim as ps
from beside import Table, beside

#            layers, hidden, heads, tp, pp, GPUs, batch, parameters in 1e9
table = [
    (24, 2304, 24, 1, 1, 32, 512, 1.7),
    (30, 3072, 32, 2, 1, 64, 512, 3.6),
    (36, 4096, 32, 4, 1, 128, 512, 7.5),
    (40, 6144, 48, 8, 1, 256, 1024, 18.4),
    (48, 8192, 64, 8, 2, 512, 1536, 39.1),
    (60, 10240, 80, 8, 4, 1024, 1792, 76.1),
    (80, 12288, 96, 8, 8, 1536, 2304, 145.6),
    (96, 16384, 128, 8, 16, 1920, 2160, 310.1),
    (105, 20480, 128, 8, 35, 2520, 2520, 529.6),
    (128, 25600, 160, 8, 64, 3072, 3072, 1008.0),
]


def build(layers, hidden, heads, tp, pp, devices, batch, micro=1):
    model = {"kind": "transformer", "layers": layers, "hidden": hidden, "heads": heads, "vocab": 51200, "activation": "gelu", "bias": True, "tied": True}
    model |= {"positions": "learned", "max_positions": 2048}
    keys = {"model": model, "cluster": "a100-hgx-ib200", "stack": "megatron-2021", "profile": "a100-megatron", "devices": devices}
    return ps.build({**keys, "batch": {"global": batch, "micro": micro, "sequence": 2048}, "parallel": {"tp": tp, "pp": pp}})


from parasim.model.layers import parameters

runs = [build(*row[:7]) for row in table]
sizes = [parameters(run.plan.model) / 1e9 for run in runs]
assert all(abs(size / row[7] - 1) < 0.03 for size, row in zip(sizes, table, strict=True))
Table(
    ("parameters, 1e9", "GPUs", "tensor", "pipeline", "data"),
    [(round(s, 1), r.devices, *(getattr(r.plan.layout.degrees, a) for a in ("tp", "pp", "dp"))) for s, r in zip(sizes, runs, strict=True)],
)

# %%

beside(("data parallel, row by row", [32, 32, 32, 32, 32, 32, 24, 15, 9, 6], [run.plan.layout.degrees.dp for run in runs]))

# %%
# Utilisation of the first four, with the fitted profile (steps of this table took part in the fit; microbatches are not published row by row, 4 is
# taken here):

rows = []
for row, published in zip(table[:4], (0.44, 0.44, 0.46, 0.43), strict=True):
    report = ps.simulate_run(build(*row[:7], micro=4)).report
    rows.append((f"{row[7]:g} billion, {row[5]} GPUs: with recomputation", (0.38, 0.54), report.hfu, f"{report.mfu:.3f}", f"{published:.2f}"))
beside(*rows, head=("share of 312 TFLOP/s", "range of the table", "parasim", "model FLOPs", "published"))
