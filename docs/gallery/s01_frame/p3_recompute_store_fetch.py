"""
Recompute, store, or fetch from another device
==============================================

A layer of GPT-3 175B under tensor parallel 8 keeps 107 MB of activations per device and microbatch (sequence parallel, no attention scores). To have
them in the backward one can read them from the device's memory, ask another device for them, or compute them again.
"""

import parasim as ps
from beside import beside

h100 = ps.load_cluster("h100-hgx-ib400", 16)
s, h, t = 2048, 12288, 8
nbytes = 34 * s * h / t
flops = (24 * s * h * h + 4 * s * s * h) / t

seconds = {
    "read from memory": nbytes / h100.accelerator.memory_bandwidth.value,
    "fetch over NVLink": ps.time_collective(h100, "broadcast", [0, 1], int(nbytes), algorithm="direct")[0]["time_s"],
    "compute again": flops / h100.accelerator.peak("bf16"),
    "fetch over the network card": ps.time_collective(h100, "broadcast", [0, 8], int(nbytes), algorithm="direct")[0]["time_s"],
}
assert list(seconds.values()) == sorted(seconds.values())
lectures = (0.03193, 0.2377, 0.9641, 2.139)
beside(
    *((name, due, 1e3 * value) for (name, value), due in zip(seconds.items(), lectures, strict=True)), rel=0.02, head=("milliseconds", "lectures", "parasim")
)
