"""
The cliff of tensor parallelism
===============================

The bars that everyone shows: throughput per GPU hardly suffers up to 8 (10 to 12 %) and falls beyond the server, by 42 % at 16 and 65 % at 32. Here
layers of 8,192 on as many H100 as they are cut into, with the fitted profile. On a rack of 72 GPUs in one NVLink domain eight is no magic number.

parasim falls less at 16 than the lectures' bars do. The mechanisms that it knows are latency, products that get small, and no sums in the switch across
servers; whole servers still drive eight cards, so that bandwidth alone is no cliff. Layouts with tensor parallelism across servers are in none of the
fits.
"""

import parasim as ps
from beside import beside

model = {"kind": "transformer", "layers": 8, "hidden": 8192, "heads": 64, "vocab": 51200, "activation": "gelu"}


def reports(cluster):
    keys = {
        "model": model,
        "cluster": cluster,
        "profile": "h100-megatron",
        "devices": 1,
        "batch": {"global": 4, "micro": 4, "sequence": 4096},
        "recompute": "full",
    }
    out = []
    for tp in (1, 2, 4, 8, 16, 32):
        run = ps.build({**keys, "devices": tp, "parallel": {"tp": tp}, "tensor": {"sequence_parallel": tp > 1}})
        out.append((f"tp {tp}", ps.simulate_run(run).report))
    return out


servers = reports("h100-hgx-ib400")
figure = ps.plots.cliff(servers, "H100 servers of eight")
rack = reports({"base": "nvl72-ib400", "accelerator": "h100-sxm"})
other = ps.plots.cliff(rack, "the same GPUs, 72 in one NVLink domain")


def loss(rows, a, b):
    rates = {name: report.tokens_per_s / report.world for name, report in rows}
    return 1 - rates[f"tp {b}"] / rates[f"tp {a}"]


beside(
    ("loss from 4 to 8", (0.05, 0.25), loss(servers, 4, 8)),
    ("loss from 8 to 16, servers of eight", (0.15, 0.6), loss(servers, 8, 16)),
    ("loss from 16 to 32", (0.2, 0.7), loss(servers, 16, 32)),
    ("loss from 8 to 16, one domain of 72", (0.0, 0.25), loss(rack, 8, 16)),
    head=("throughput per GPU", "between", "parasim"),
)

# %%
# Communication (t-1)/t over compute 1/t grows as t - 1. On datasheet numbers, where nothing but bandwidth counts, and without sums in the switch:


def ratio(tp):
    keys = {
        "model": model,
        "cluster": {"base": "nvl72-ib400", "node": {"scale_up": {"reduces": None}}},
        "devices": tp,
        "batch": {"global": 4, "micro": 4, "sequence": 4096},
        "parallel": {"tp": tp},
    }
    return ps.simulate_run(ps.build({**keys, "recompute": "full"})).report.comm_bytes["tp"] * tp


beside(*((f"tp {tp} over tp 2", float(tp - 1), ratio(tp) / ratio(2)) for tp in (2, 4, 8, 16)), rel=0.02)
