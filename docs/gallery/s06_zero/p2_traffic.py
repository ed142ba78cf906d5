"""
What ZeRO sends
===============

Stage 1 and 2 send as much as plain data parallelism, stage 3 half as much again: 2, 2, 2 and 3 times the parameters. That holds for one microbatch and
equal dtypes. With eight accumulated microbatches stage 2 reduces every time (m + 1) and stage 3 gathers and reduces every time (3 m); with fp32
gradients stage 1 sends *less* than an all-reduce of them.
"""

import parasim as ps
from beside import Table, beside

model = {
    "kind": "fixed",
    "layers": 4,
    "forward": "1 ms",
    "input_grad": "1 ms",
    "weight_grad": "1 ms",
    "optimizer": "0 s",
    "boundary": "0 B",
    "parameters": 7.5e9,
}
cluster = {"name": "c", "accelerator": "b300-sxm", "node": {"count": 1, "devices": 64, "scale_up": {"kind": "switch", "bandwidth": "200 GB/s"}}}
run = ps.build({"model": model, "cluster": cluster, "devices": 64, "batch": {"global": 64, "micro": 1}})
share = 63 / 64


def sent(*settings):
    """Bytes that a rank sends in a step, in sizes of the bf16 parameters, by stage; (n-1)/n taken out."""
    return [ps.simulate_run(ps.vary(run, [f"zero.stage={stage}", *settings])).report.comm_bytes["dp"] / 15e9 / share for stage in range(4)]


beside(
    ("one microbatch, stages 0 to 3", [2, 2, 2, 3], sent()),
    ("eight microbatches", [2, 2, 9, 24], sent("batch.global=512")),
    head=("in sizes of the parameters", "should be", "parasim"),
    rel=1e-6,
)

# %%
# In bytes: 7.5 billion parameters, 64 ranks. (fp32 gradients: 59.1, 44.3 and 59.1 GB for stages 0, 1 and 3.)

plain, fp32 = sent(), sent("optimizer.gradient_dtype=fp32")
beside(
    *((f"fp32 gradients, stage {i}, GB", due, 15 * share * fp32[i]) for i, due in ((0, 59.0625), (1, 44.296875), (3, 59.0625))),
    *((f"bf16 gradients, stage {i}, GB", due, 15 * share * plain[i]) for i, due in ((0, 29.53125), (3, 44.296875))),
)

# %%
# So far nothing looked at layers: a transformer and an MLP of the same size send the same. What differs from model parallelism is what travels.

Table(
    ("", "what travels", "activations per device"),
    [
        ("ZeRO-3, FSDP", "parameters: 3 times, every step", "whole"),
        ("pipeline", "activations: b s h per boundary", "those of its layers"),
        ("tensor", "activations: 8 b s h (t-1)/t per layer", "cut"),
    ],
)
