"""
The size of a bucket: a U
=========================

Small buckets pay an overhead each; a large one cannot start before much of the backward is done, and its last one is exposed. With s bytes, algorithm
bandwidth w and overhead o per call, n buckets leave s / (n w) + n o exposed: least at n = sqrt(s / (w o)), of sqrt(s w o) bytes each.
"""

from math import sqrt

import parasim as ps
from beside import beside

layers, s, w, o = 400, 7_992_940_800, 200e9, 5e-5
cluster = {
    "name": "two",
    "accelerator": "h100-sxm",
    "node": {"count": 1, "devices": 2, "scale_up": {"kind": "switch", "bandwidth": "200 GB/s", "latency": "25 us"}},
}
model = {
    "kind": "fixed",
    "layers": layers,
    "forward": "0 s",
    "input_grad": "0 s",
    "weight_grad": f"{1e6 * s / w / layers} us",
    "optimizer": "0 s",
    "boundary": "0 B",
    "parameters": s // 2,
}
run = ps.build({"model": model, "cluster": cluster, "devices": 2, "batch": {"global": 2, "micro": 1}})


def exposed(nbytes):
    return ps.simulate_run(ps.vary(run, [f"dp.bucket={nbytes} B"])).report.times.exposed["dp"]


best = sqrt(s * w * o)
sizes = [s // n for n in (400, 200, 100, 50, 28, 14, 7, 4, 2, 1)]
points = [(float(size), exposed(size)) for size in sizes]
figure = ps.plots.bucket_sweep(points, best=(best, 2 * sqrt(s * o / w)), title="8 GB of gradients, 200 GB/s, 50 us per bucket")

# %%
# The engine knows nothing of the formula:

low = min(points, key=lambda p: p[1])
beside(
    ("best number of buckets", 28.27, s / best),
    ("best bucket, MB", 282.7, best / 1e6),
    ("exposed with 28 buckets, ms", 2.827, 1e3 * dict(points)[float(s // 28)]),
    ("with 200", 10.2, 1e3 * dict(points)[float(s // 200)]),
    ("with 4", 10.19, 1e3 * dict(points)[float(s // 4)]),
    ("with 1", 40.01, 1e3 * dict(points)[float(s)]),
    ("least of those drawn, MB", 285.5, low[0] / 1e6),
    rel=0.01,
    head=("", "closed form", "parasim"),
)
