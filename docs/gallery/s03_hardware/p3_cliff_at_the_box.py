"""
The cliff at the box
====================

An all-reduce of 1 GB over 2 to 64 H100. With one GPU of every server the fall is the ratio of NVLink to the network card; whole servers drive eight
cards at once and lose little. A group of nine on servers of eight has one member outside, and everything passes through its one card.
"""

import parasim as ps
from beside import beside

GB = 1_000_000_000
whole = [(n, ps.time_collective("h100-hgx-ib400", "all_reduce", n, GB)[0]["busbw_Bps"] / 1e9) for n in (2, 4, 8, 16, 32, 64)]
single = [(n, ps.time_collective("h100-hgx-ib400", "all_reduce", [8 * i for i in range(n)], GB)[0]["busbw_Bps"] / 1e9) for n in (2, 4, 8, 16, 32, 64)]
rack = [(n, ps.time_collective("nvl72-ib400", "all_reduce", n, GB, algorithm="ring")[0]["busbw_Bps"] / 1e9) for n in (2, 4, 8, 16, 32, 64)]
figure = ps.plots.curves(
    {"H100, whole servers": whole, "H100, one GPU per server": single, "NVL72 rack": rack}, "ranks", "bus bandwidth (GB/s)", "all-reduce of 1 GB", logx=True
)

# %%
# Nine ranks against eight:


def seconds(cluster, n):
    return ps.time_collective(cluster, "all_reduce", n, GB, algorithm="ring")[0]["time_s"]


beside(
    ("H100 servers: 9 ranks over 8", 9.14, seconds("h100-hgx-ib400", 9) / seconds("h100-hgx-ib400", 8)),
    ("NVL72: 9 ranks over 8", 1.016, seconds("nvl72-ib400", 9) / seconds("nvl72-ib400", 8)),
    ("one GPU per server: fall", 9.0, dict(whole)[2] / dict(single)[2]),
    rel=0.02,
)
