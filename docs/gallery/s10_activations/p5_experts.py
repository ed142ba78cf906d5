"""
Experts: sparse, and uneven
===========================

Tokens travel to the ranks that hold their experts and back, twice each per layer. The volume is fixed, the balance is not: the hottest rank sets the pace.
"""

import parasim as ps
from beside import beside

wide = {"kind": "transformer", "hidden": 7168, "heads": 56, "vocab": 1024, "experts": {"count": 64, "topk": 8, "ffn": 2048}}


def sent(layers):
    keys = {
        "model": {**wide, "layers": layers},
        "cluster": "h100-hgx-ib400",
        "devices": 64,
        "batch": {"global": 64, "micro": 1, "sequence": 4096},
        "parallel": {"ep": 64},
    }
    return ps.simulate_run(ps.build(keys)).report.comm_bytes["ep"]


beside(("bytes of one dispatch, 4,096 tokens to 8 of 64 experts", 462_422_016, (sent(2) - sent(1)) / 4), rel=1e-6)

# %%
# Eight experts on eight ranks, one per token: balanced, and by Zipf's law with exponent 1.2. The hottest gets 8 / sum k^-1.2 = 3.43 times its share.

model = {"kind": "transformer", "layers": 2, "hidden": 4096, "heads": 32, "vocab": 1024, "experts": {"count": 8, "topk": 1, "ffn": 16384}}
keys = {"model": model, "cluster": "h100-hgx-ib400", "devices": 8, "batch": {"global": 8, "micro": 1, "sequence": 4096}, "parallel": {"ep": 8}}
even = ps.simulate_run(ps.build(keys))
zipf = ps.simulate_run(ps.build({**keys, "experts": {"load": {"zipf": 1.2}}}))
balanced = ps.plots.gantt(even.timeline, ranks=[0], title="balanced")
uneven = ps.plots.gantt(zipf.timeline, ranks=[0, 3, 7], title="Zipf 1.2")
rows = zipf.workload.loads["experts.arriving"]
four = ps.build(
    {
        **keys,
        "devices": 4,
        "parallel": {"ep": 4},
        "batch": {"global": 4, "micro": 1, "sequence": 4096},
        "model": {**model, "experts": {"count": 4, "topk": 1, "ffn": 16384}},
        "experts": {"load": {"shares": [0.4, 0.3, 0.2, 0.1]}},
    }
)
shares = ps.lower(four.plan).loads["experts.arriving"]
beside(
    ("Zipf 1.2: hottest over mean", 3.429, rows.max() / rows.mean()),
    ("shares 0.4, 0.3, 0.2, 0.1", 1.6, shares.max() / shares.mean()),
    ("the step gets longer by", (1.5, 3.43), zipf.report.step_time / even.report.step_time),
)
