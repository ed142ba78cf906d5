"""
The four-row comparison
=======================

The table that the lectures announce and do not print: what each kind of parallelism sends, cuts, and spends of the batch. Computed from four runs of one
model on eight GPUs, not typed.
"""

import parasim as ps
from beside import Table, beside

model = {"kind": "transformer", "layers": 16, "hidden": 4096, "heads": 32, "vocab": 8192, "activation": "gelu"}
keys = {"model": model, "cluster": "b200-hgx-ib400", "devices": 8, "batch": {"global": 8, "micro": 1, "sequence": 4096}}
layouts = {
    "data, ZeRO-1": {"zero": {"stage": 1}},
    "FSDP (ZeRO-3)": {"zero": {"stage": 3}},
    "pipeline": {"parallel": {"pp": 8}},
    "tensor and sequence": {"parallel": {"tp": 8}, "tensor": {"sequence_parallel": True}},
}
found = {name: ps.simulate_run(ps.build({**keys, **more})) for name, more in layouts.items()}
one = ps.simulate_run(ps.build({**keys, "devices": 1, "batch": {"global": 1, "micro": 1, "sequence": 4096}})).report.memory.peak.by_category
weights = one["parameters"]


def row(name):
    report, layout = found[name].report, found[name].run.plan.layout
    part = report.memory.peak.by_category
    sends = sum(report.comm_bytes.values())
    return [
        name,
        f"{sends / weights:.2f} x parameters" if "dat" in name or "FS" in name else f"{sends / 1e9:.2f} GB of activations",
        f"parameters / {weights / part['parameters']:.1f}",
        f"optimizer / {one['optimizer'] / part['optimizer']:.1f}",
        f"activations / {one['activations'] / part['activations']:.1f}",
        layout.degrees.dp * max(layout.batch.microbatches if layout.degrees.pp > 1 else 1, 1),
        f"{100 * report.bubble_makespan:.0f} %",
    ]


Table(("", "sends per rank and step", "heaviest rank holds", "", "", "sequences it needs", "not computing"), [row(name) for name in layouts])

# %%
# Two and three times the parameters for ZeRO-1 and 3; nothing of the batch for tensor parallelism:

beside(
    ("ZeRO-1 sends, over 7/8", 2, found["data, ZeRO-1"].report.comm_bytes["dp"] / weights / (7 / 8)),
    ("FSDP sends, over 7/8", 3, found["FSDP (ZeRO-3)"].report.comm_bytes["dp"] / weights / (7 / 8)),
    ("tensor: replicas", 1, found["tensor and sequence"].run.plan.layout.degrees.dp),
    rel=0.02,
)
