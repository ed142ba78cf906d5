"""
Exercise 1: the largest model on eight GPUs
===========================================

How many parameters fit on 8 x 80 GB under each stage of ZeRO, with 16 bytes per parameter, and with 12 (gradients and weights in bf16, moments in bf16
too)? The table that the lectures announce and leave empty. Activations are left out, so that A100 and H100 give the same.
"""

import parasim as ps
from beside import beside

model = {"kind": "fixed", "layers": 1, "forward": "1 ms", "input_grad": "1 ms", "weight_grad": "1 ms", "optimizer": "0 s", "boundary": "0 B"}
cluster = {"name": "c", "accelerator": "h100-sxm", "node": {"count": 1, "devices": 8, "scale_up": {"kind": "switch", "bandwidth": "450 GB/s"}}}


def largest(stage, **optimizer):
    """Billions of parameters whose state fills 80 GB: bytes per parameter are asked of a small run."""
    keys = {"model": {**model, "parameters": 8e9}, "cluster": cluster, "devices": 8, "batch": {"global": 8, "micro": 1}, "zero": {"stage": stage}}
    peak = ps.simulate_run(ps.build({**keys, "optimizer": optimizer})).report.memory.peak.by_category
    return 80e9 / (sum(peak[c] for c in ("parameters", "gradients", "optimizer")) / 8e9) / 1e9


beside(
    *((f"16 bytes, stage {stage}", due, largest(stage)) for stage, due in enumerate((5, 14.55, 21.33, 40))),
    *((f"12 bytes, stage {stage}", due, largest(stage, master=False)) for stage, due in enumerate((6.667, 16, 24.62, 53.33))),
    head=("billions of parameters", "should be", "parasim"),
)
