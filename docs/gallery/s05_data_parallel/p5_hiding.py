"""
Enough tokens hide the gradients
================================

The backward of a device with T tokens takes 4 P T / C seconds, its gradients 2 * 2 P / W to reduce: they hide from T = C / W tokens on, 2,198 on NVLink
4, 19,780 on one 400 Gb/s card, 2,473 where whole servers drive eight.
"""

import parasim as ps
from beside import beside

model = {"kind": "transformer", "layers": 8, "hidden": 8192, "heads": 64, "vocab": 1024, "activation": "gelu"}


def hidden_from(devices, per_node, bandwidth):
    """Tokens per device from which less than 2 % of the reduction is exposed, and the curve of exposed shares."""
    cluster = {"name": "c", "accelerator": "h100-sxm", "node": {"count": 1, "devices": devices, "scale_up": {"kind": "switch", "bandwidth": bandwidth}}}
    run = ps.build(
        {"model": model, "cluster": cluster, "devices": devices, "batch": {"global": devices, "micro": 1, "sequence": 512}, "dp": {"bucket": "100 MB"}}
    )
    curve = []
    for tokens in (512, 1024, 2048, 4096, 8192, 16384, 32768):
        times = ps.simulate_run(ps.vary(run, [f"batch.sequence={tokens}"])).report.times
        curve.append((tokens, times.exposed["dp"] / (times.exposed["dp"] + times.overlapped["dp"])))
    return curve


curves = {"NVLink 4, 450 GB/s": hidden_from(64, 64, "450 GB/s"), "one card, 50 GB/s": hidden_from(64, 1, "50 GB/s")}
figure = ps.plots.curves(curves, "tokens per device", "exposed share of the reduction", "when gradients hide under the backward", logx=True)

chip = ps.load_cluster("h100-hgx-ib400", 8).accelerator.peak("bf16")
beside(
    ("NVLink 4, tokens", 2198, chip / 450e9),
    ("one card, tokens", 19780, chip / 50e9),
    ("eight rails, tokens", 2472, chip / 400e9),
    ("exposed at 1,024 tokens, NVLink", (0.3, 0.8), dict(curves["NVLink 4, 450 GB/s"])[1024]),
    ("exposed at 4,096 tokens, NVLink", (0.0, 0.15), dict(curves["NVLink 4, 450 GB/s"])[4096]),
    ("exposed at 32,768 tokens, one card", (0.0, 0.15), dict(curves["one card, 50 GB/s"])[32768]),
    head=("", "lectures", "parasim"),
)
