"""
A step as an execution trace, and a profile back from it
========================================================

What a profiler saw of a step can be laid beside a prediction, and tells the rates that it reached. Here a simulated step plays the measured one: it is
written as MLCommons Chakra execution traces, one per rank, and read back.
"""

import tempfile
from pathlib import Path

import parasim as ps
from beside import beside
from parasim.traces.chakra import read_chakra
from parasim.traces.chakra_export import write_chakra
from parasim.traces.kinds import fitted
from parasim.traces.shares import Simulated

model = {"kind": "transformer", "layers": 8, "hidden": 4096, "heads": 32, "vocab": 32000}
keys = {"model": model, "cluster": "h100-hgx-ib400", "devices": 8, "parallel": {"tp": 2, "pp": 2}, "batch": {"global": 8, "sequence": 4096}}
result = ps.simulate_run(ps.build({**keys, "profile": "h100-fsdp"}))
with tempfile.TemporaryDirectory() as folder:
    written = write_chakra(Simulated(result.run, result.workload.bound, result.timeline), Path(folder) / "step")
    traces = read_chakra(written.paths)
print(traces)

# %%
# As many nodes come in as went out. A group of tensor parallelism is two neighbours; the sums behind its layers are 4096 tokens of 4096 numbers of bf16.

sums = next(t for t in traces.transfers if t.op == "all_reduce" and t.nbytes == 4096 * 4096 * 2)
beside(
    ("nodes", written.nodes, sum(map(len, traces.nodes.values()))),
    ("ranks", 8, len(traces.nodes)),
    ("ranks of a group", 2, sums.ranks),
    ("groups", 4, len(sums.groups)),
    head=("", "out", "in"),
)

# %%
# From FLOPs and seconds of the kernels follows which part of the datasheet they reached. It is what the profile of the simulated step says, less what
# transfers beside them, launches and (products) small shapes cost.

numbers, lines = fitted(traces.kernels, result.run.cluster.accelerator, "Chakra")
print("\n".join(lines))
given = result.run.profile.get
memory = given("compute.memory_efficiency") / given("compute.memory_passes")
products = given("compute.matmul_efficiency")
beside(
    ("bound by memory", (0.9 * memory, memory), numbers["compute.memory_efficiency"].value),
    ("products", (0.8 * products, products), numbers["compute.matmul_efficiency"].value),
    head=("part of the peak", "profile", "back from the trace"),
)
