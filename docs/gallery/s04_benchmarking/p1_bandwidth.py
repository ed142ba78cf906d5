"""
100 million numbers on four ranks
=================================

The lectures time an all-reduce of 100 million fp32 numbers on four GPUs: about 1.6 ms, about 400 GB/s. The two agree to rounding only: 2 (n-1)/n times
400 MB over 1.6 ms are 375 GB/s, over 1.5 ms 400.
"""

import parasim as ps
from beside import beside

row = ps.time_collective("h100-hgx-ib400", "all_reduce", 4, 400_000_000, profile="nccl-h100")[0]
half = ps.time_collective("h100-hgx-ib400", "reduce_scatter", 4, 400_000_000, profile="nccl-h100")[0]
beside(
    ("formula at 1.6 ms, GB/s", 375, 400e6 * 2 * 3 / 4 / 1.6e-3 / 1e9),
    ("formula at 1.5 ms, GB/s", 400, 400e6 * 2 * 3 / 4 / 1.5e-3 / 1e9),
    ("time with the fitted profile, ms", (1.4, 1.8), 1e3 * row["time_s"]),
    ("bus bandwidth, GB/s", (340, 420), row["busbw_Bps"] / 1e9),
    ("reduce-scatter over all-reduce, time", (0.45, 0.55), half["time_s"] / row["time_s"]),
    head=("", "lectures", "parasim"),
)

# %%
# The factor tends to 2 with more ranks; taking 2 is wrong by 1 / (n - 1):

ranks = (2, 3, 4, 6, 8)
rows = [ps.time_collective("h100-hgx-ib400", "all_reduce", n, 10**9)[0] for n in ranks]
beside(
    *((f"{r['ranks']} ranks", 2 * (r["ranks"] - 1) / r["ranks"], r["busbw_Bps"] / r["algbw_Bps"], 1 / (r["ranks"] - 1)) for r in rows),
    head=("", "2 (n-1)/n", "parasim", "error of taking 2"),
)
