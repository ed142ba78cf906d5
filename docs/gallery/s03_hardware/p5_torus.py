"""
The torus: neighbours only, and no cliff
========================================

On a torus every chip has cables to its neighbours, and nothing else. For rings that is as good as a switch; an all-to-all gets slower with the length of
an axis. "A torus equals a switch" is true of rings only.
"""

import parasim as ps
from beside import beside


def torus(*shape):
    return {"name": "torus", "accelerator": "tpu-v5p", "torus": {"shapes": "x".join(map(str, shape)), "bandwidth": "96 GB/s", "wrap": "all", "latency": "1 us"}}


v = 1_000_000_000
ring = ps.time_collective(torus(16), "all_reduce", 16, v, algorithm="torus")[0]["time_s"]
cube = ps.time_collective(torus(16, 16, 16), "all_reduce", 4096, v, algorithm="torus")[0]["time_s"]
beside(("all-reduce of 1 GB, ring of 16, ms", 10.42 * 15 / 16, 1e3 * ring), ("three axes over one", 1 / 3, cube / ring), rel=0.08)

# %%
# All-to-all against a switch with the same total bandwidth of a chip:

sizes = (4, 8, 16, 32)
ratio = []
for n in sizes:
    switch = {"name": "switch", "accelerator": "tpu-v5p", "node": {"count": 1, "devices": n, "scale_up": {"kind": "switch", "bandwidth": "192 GB/s"}}}
    on_ring = ps.time_collective(torus(n), "all_to_all", n, v)[0]["time_s"]
    ratio.append((n, on_ring / ps.time_collective(switch, "all_to_all", n, v)[0]["time_s"]))
figure = ps.plots.curves({"ring over switch": ratio}, "chips on the axis", "time of an all-to-all, ring over switch", logx=True)
beside(("8 chips", 8 / 4 / (7 / 8), dict(ratio)[8]), ("16 chips", 16 / 4 / (15 / 16), dict(ratio)[16]), rel=0.05)
