"""
Naive, flat, overlapped, in buckets
===================================

The exercise improves a first version of distributed data parallelism step by step: one reduction per tensor after the backward; one for all of them;
one per tensor while the backward still runs; buckets. Two GPUs, 2 billion fp32 gradients in 435 tensors, 200 GB/s, 50 us per call; forward 30 ms and
backward 60 ms are given.
"""

import parasim as ps
from beside import Table, beside

tensors, nbytes = 435, 7_992_940_800
cluster = {
    "name": "two",
    "accelerator": "h100-sxm",
    "node": {"count": 1, "devices": 2, "scale_up": {"kind": "switch", "bandwidth": "200 GB/s", "latency": "25 us"}},
}
model = {"kind": "fixed", "layers": tensors, "forward": f"{30e3 / tensors} us", "input_grad": f"{30e3 / tensors} us", "weight_grad": f"{30e3 / tensors} us"}
model |= {"optimizer": "0 s", "parameters": nbytes // 4, "boundary": "0 B"}
run = ps.build({"model": model, "cluster": cluster, "devices": 2, "batch": {"global": 2, "micro": 1}, "precision": "fp32"})
ways = {"naive": ["dp.mode=naive"], "flat": ["dp.mode=flat"], "per tensor, overlapped": ["dp.mode=per-parameter"], "buckets of 280 MB": ["dp.bucket=280 MB"]}
results = {name: ps.simulate_run(ps.vary(run, settings)) for name, settings in ways.items()}
naive, flat, overlapped, buckets = (ps.plots.gantt(r.timeline, ranks=[0], title=name) for name, r in results.items())

# %%
# Exposed communication falls in this order; naive minus flat is (tensors - 1) times the overhead:

exposed = {name: r.report.times.exposed["dp"] for name, r in results.items()}
assert list(exposed.values()) == sorted(exposed.values(), reverse=True)
beside(
    ("naive, ms", 61.71, 1e3 * exposed["naive"]),
    ("flat, ms", 40.01, 1e3 * exposed["flat"]),
    ("difference, ms", 21.7, 1e3 * (exposed["naive"] - exposed["flat"])),
)

# %%

steps = {name: r.report.step_time for name, r in results.items()}
Table(("", "step, ms", "exposed, ms", "share of the step"), [(n, 1e3 * steps[n], 1e3 * exposed[n], f"{100 * exposed[n] / steps[n]:.1f} %") for n in results])
