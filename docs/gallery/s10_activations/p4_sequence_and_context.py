"""
Sequence parallelism and ring attention
=======================================

Sequence parallelism replaces every all-reduce by a reduce-scatter and an all-gather, and cuts what norms and residuals keep. Context parallelism cuts the
sequence everywhere: keys and values travel round a ring in c - 1 steps while attention works on what is there.
"""

from collections import Counter

import parasim as ps
from beside import beside
from parasim.program.ops import Collective

model = {"kind": "transformer", "layers": 2, "hidden": 4096, "heads": 32, "kv_heads": 8, "vocab": 1024}


def of_a_layer(**more):
    """Collectives of tp in the forward and backward of one more layer."""

    def count(layers):
        keys = {
            "model": {**model, "layers": layers},
            "cluster": "h100-hgx-ib400",
            "devices": 8,
            "batch": {"global": 1, "micro": 1, "sequence": 8192},
            "parallel": {"tp": 8},
        }
        program = ps.lower(ps.build({**keys, **more}).plan).programs[0]
        ops = [op for call in program.calls for op in program.bodies[call.body] if isinstance(op, Collective)]
        return Counter(f"{op.label.phase} {op.op}" for op in ops if op.label.axis == "tp")

    return count(3) - count(2)


plain, sequence = of_a_layer(tensor={"sequence_parallel": False}), of_a_layer(tensor={"sequence_parallel": True})
beside(
    ("plain, forward: all-reduces", 2, plain["F all_reduce"]),
    ("plain, backward", 2, plain["B all_reduce"]),
    ("sequence parallel, forward: gathers and reduce-scatters", [2, 2], [sequence["F all_gather"], sequence["F reduce_scatter"]]),
    ("all-reduces left in the forward", 0, sequence["F all_reduce"]),
)

# %%
# Ring attention over eight ranks, 131,072 tokens, keys and values of 8 heads of 128: seven steps of 67 MB per layer and forward; the backward sends them
# again, and their gradients.


def ring(layers):
    keys = {
        "model": {**model, "layers": layers},
        "cluster": "h100-hgx-ib400",
        "devices": 8,
        "batch": {"global": 1, "micro": 1, "sequence": 131072},
        "parallel": {"cp": 8},
    }
    return ps.simulate_run(ps.build(keys))


two, three = ring(2), ring(3)
per_layer = three.report.comm_bytes["cp"] - two.report.comm_bytes["cp"]
figure = ps.plots.gantt(two.timeline, ranks=[0, 1], title="ring attention over eight ranks")
beside(("bytes of one step", 67_108_864, per_layer / 3 / 7), ("exposed share of the step", (0, 0.05), two.report.times.exposed["cp"] / two.report.step_time))

# %%
# Chunks in order would be unfair under a causal mask: with four ranks the last works on seven times the pairs of the first. In zig-zag, chunks r and
# 2c - 1 - r together, all are equal, and so are the compute times here.

c = 4
pairs = [(r + 1) ** 2 - r**2 for r in range(c)]
compute = {r: sum(float(op["end"] - op["start"]) for op in two.timeline.of(r) if op["kind"] == 0) for r in range(8)}
beside(
    ("in order, last over first", 7.0, pairs[-1] / pairs[0]),
    ("zig-zag, compute of the slowest over the fastest", 1.0, max(compute.values()) / min(compute.values())),
)
