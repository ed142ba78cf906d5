"""
Questions from the audience
===========================

Each with what parasim answers.
"""

import parasim as ps
from beside import Table, beside
from parasim.errors import ParasimError

keys = {"model": {"kind": "mlp", "layers": 2, "hidden": 1024}, "cluster": "h100-hgx-ib400", "devices": 4, "batch": {"global": 128, "micro": 32}}


def says(**more):
    """The answer of a run that may be refused."""
    try:
        run = ps.build({**keys, **more})
        return f"legal: dp {run.plan.layout.degrees.dp}, {run.plan.layout.batch.microbatches} microbatches per replica"
    except ParasimError as answer:
        return str(answer).splitlines()[0]


Table(
    ("question", "answer"),
    [
        ("Data parallelism with a batch of 1?", says(batch={"global": 1, "micro": 1})),
        ("Does the batch have to be a multiple of the ranks?", says(batch={"global": 130, "micro": 1})),
        ("Nine GPUs on servers of eight?", says(devices=9, batch={"global": 126, "micro": 14})),
        ("Does it work for transformers?", says(model="llama3-8b", batch={"global": 128, "micro": 1, "sequence": 4096})),
        ("Is a rank a GPU?", f"rank i runs on device i: {ps.load_cluster('h100-hgx-ib400', 8).devices[5]} is rank 5"),
        ("And tensor parallel 3?", says(devices=3, parallel={"tp": 3})),
    ],
)

# %%
# *Why may losses of ranks differ when parameters must not?* Slices of the batch differ, averaged gradients do not, and all copies started equal.
#
# *Is the root of a broadcast fixed?* It is an argument of the call:

import numpy as np

beside(
    (
        "broadcast from rank 2",
        [[7.0, 8.0]] * 4,
        [x.tolist() for x in ps.play_collective("broadcast", [None, None, np.array([7.0, 8.0]), None], "direct", root=2)],
    )
)

# %%
# *Synchronise first, or barrier first?* Synchronise the device, then the barrier: see "Warm up, synchronise, then the barrier".
#
# *What does asynchronous mean?* The call returns, the collective runs on a stream of its own, and one waits before the first use of the buffer. In a
# timeline it stands in a lane under the compute stream. *What is the backward of a gather?* A scatter; of an all-gather a reduce-scatter.
#
# *Does NCCL work across servers?* It finds the topology and picks an algorithm by size; parasim prints which and why:

for size in (8192, 1 << 20, 1 << 30):
    row = ps.time_collective("h100-hgx-ib400", "all_reduce", 64, size, profile="nccl-h100")[0]
    print(f"{size:>12,} B: {row['algorithm']:10} {1e6 * row['time_s']:9.1f} us  {row['reason'][:90]}")

# %%
# *Inference chips, physical limits of chips?* Out of scope: parasim models training steps.
#
# *What stays idle with 1, 4 and 16 microbatches on four ranks?*

beside(*((f"{m} microbatches", 3 / (m + 3), ps.time_schedule("gpipe", 4, m)[0].bubble_makespan) for m in (1, 4, 16)), rel=1e-9)
