"""
Independent of world size and topology?
=======================================

Bus bandwidth is meant to be a number of the hardware alone. It is, where bandwidth binds: 1 GiB inside one server. For 8 KiB latency decides, and the
number falls with the ranks.
"""

import parasim as ps
from beside import beside

ranks = range(2, 9)
large = [(n, ps.time_collective("h100-hgx-ib400", "all_reduce", n, 1 << 30, algorithm="ring", profile="nccl-h100")[0]["busbw_Bps"] / 1e9) for n in ranks]
small = [(n, ps.time_collective("h100-hgx-ib400", "all_reduce", n, 8192, algorithm="ring", profile="nccl-h100")[0]["busbw_Bps"] / 1e9) for n in ranks]
figure = ps.plots.curves({"1 GiB": large, "8 KiB": small}, "ranks", "bus bandwidth (GB/s)", "rings in one H100 server", logy=True)


def spread(points):
    values = [v for _, v in points]
    return max(values) / min(values) - 1


beside(("spread at 1 GiB", (0, 0.1), spread(large)), ("fall at 8 KiB, times", (1.2, 10), 1 + spread(small)))
