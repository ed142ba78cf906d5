"""
Columns first, and what has to be summed
========================================

Columns of every layer: each rank computes a part of the output, and an all-gather after every layer makes it whole. Megatron's form cuts the first matrix
by columns and the second by rows: GeLU acts on whole columns, one all-reduce per pair suffices. A row-first cut would need the sum before the GeLU.
"""

from collections import Counter

import parasim as ps
from beside import beside
from parasim.program.ops import Collective

mlp = {"kind": "mlp", "layers": 2, "hidden": 1024, "ffn": 1024}
keys = {"model": mlp, "cluster": "h100-hgx-ib400", "devices": 4, "batch": {"global": 128, "micro": 128}, "precision": "fp32", "parallel": {"tp": 4}}


def collectives(keys):
    """Collectives of a step by op, and bytes sent by a rank."""
    run = ps.build(keys)
    workload = ps.lower(run.plan)
    program = workload.programs[0]
    found = Counter(op.op for call in program.calls for op in program.bodies[call.body] if isinstance(op, Collective))
    return found, ps.simulate_run(run).report


columns, by_columns = collectives({**keys, "tensor": {"style": "all-gather"}})
megatron, by_megatron = collectives({**keys, "tensor": {"sequence_parallel": False}})
beside(
    ("parameters per rank", 1_048_576, by_columns.memory.peak.by_category["parameters"] / 4),
    ("columns: all-gathers forward", 4, columns["all_gather"]),
    ("columns: reductions backward", 4, columns["reduce_scatter"] + columns["all_reduce"]),
    ("columns: bytes sent, 393,216 per gather or reduce-scatter", 10 * 393_216, by_columns.comm_bytes["tp"]),
    ("Megatron: all-reduces forward and back, two blocks", 4, megatron["all_reduce"]),
)

# %%
# In the backward of the column form the gradient of a layer's input is a sum over ranks. Where the input was itself a gathered output a reduce-scatter
# gives each rank its columns; where it is the residual stream, whole on every rank, it takes an all-reduce.
