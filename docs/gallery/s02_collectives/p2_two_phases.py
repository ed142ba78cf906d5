"""
An all-reduce is a reduce-scatter and an all-gather
===================================================

Check your understanding: where does the 2 in the bandwidth formula of an all-reduce come from? From two phases, each of which sends (n-1)/n of the
buffer per rank; not from sending and receiving.
"""

import numpy as np

import parasim as ps
from beside import beside

size = 400_000_000
sent = {op: ps.time_collective("h100-hgx-ib400", op, 4, size, algorithm="ring")[0] for op in ("all_reduce", "reduce_scatter", "all_gather")}
beside(
    ("all-reduce sends, MB", 600, sent["all_reduce"]["wire_bytes_per_rank"] / 1e6),
    ("reduce-scatter sends, MB", 300, sent["reduce_scatter"]["wire_bytes_per_rank"] / 1e6),
    ("all-gather sends, MB", 300, sent["all_gather"]["wire_bytes_per_rank"] / 1e6),
    ("time of both over the all-reduce", 1.0, (sent["reduce_scatter"]["time_s"] + sent["all_gather"]["time_s"]) / sent["all_reduce"]["time_s"]),
)

# %%
# The values are the same too:

rows = [np.arange(4.0) + r for r in range(4)]
parts = ps.play_collective("reduce_scatter", rows, "ring")
beside(("reduce-scatter, then all-gather", [6, 10, 14, 18], ps.play_collective("all_gather", parts, "ring")[0].tolist()))

# %%
# Other algorithms send as much, or a little more: eight ranks, 400 MB.

names = {"ring": 700, "halving-doubling": 700, "tree": 700}
beside(
    *((n, due, ps.time_collective("h100-hgx-ib400", "all_reduce", 8, size, algorithm=n)[0]["wire_bytes_per_rank"] / 1e6) for n, due in names.items()),
    head=("MB sent per rank", "2 (n-1)/n", "parasim"),
)
