"""
34 s b h, and the square
========================

Activations of a GPT layer in 16 bits: s b h (34 + 5 a s / h) bytes. Tensor parallelism cuts all but 10 of them, sequence parallelism those too;
selective recomputation (or a tiled kernel) removes the square. The engine counts buffers and knows no formula.
"""

import parasim as ps
from beside import beside

shapes = {"22B": (6144, 64, 4), "175B": (12288, 96, 1), "530B": (20480, 128, 1), "1T": (25600, 160, 1)}
forms = {
    "tensor": (False, "none"),
    "and sequence": (True, "none"),
    "tensor, selective": (False, "selective"),
    "all three": (True, "selective"),
    "full": (False, "full"),
}
s, t = 2048, 8


def layer_bytes(h, a, b, sequence, recompute):
    """Bytes that one more layer keeps on a device."""

    def kept(layers):
        model = {
            "kind": "transformer",
            "layers": layers,
            "hidden": h,
            "heads": a,
            "vocab": 51200,
            "activation": "gelu",
            "bias": True,
            "positions": "learned",
            "max_positions": s,
        }
        keys = {
            "model": model,
            "cluster": "a100-hgx-ib200",
            "devices": t,
            "batch": {"global": b, "micro": b, "sequence": s},
            "parallel": {"tp": t},
            "precision": "fp16",
        }
        more = {"kernels": {"attention": "unfused", "dropout": True}, "tensor": {"sequence_parallel": sequence}, "recompute": recompute}
        return ps.simulate_run(ps.build({**keys, **more})).report.memory.peak.by_category["activations"]

    return kept(3) - kept(2)


def formula(h, a, b):
    x = 5 * a * s / h
    return {"tensor": 10 + (24 + x) / t, "and sequence": (34 + x) / t, "tensor, selective": 10 + 24 / t, "all three": 34 / t, "full": 2}


rows = []
for name, (h, a, b) in shapes.items():
    for form, (sequence, recompute) in forms.items():
        due = s * b * h * formula(h, a, b)[form]
        rows.append(
            (f"{name}, {form}", round(due), round(layer_bytes(h, a, b, sequence, recompute)), f"{100 * due / (s * b * h * formula(h, a, b)['tensor']):.1f} %")
        )
beside(*rows, rel=1e-9, head=("bytes per layer", "formula", "parasim", "of tensor alone"))
