"""
Many devices are easy to occupy and hard to use
===============================================

Llama 3 8B with 4 million tokens per step on 16 to 1,024 H100. The batch stays, so every device gets less of it.
"""

import parasim as ps

run = ps.build(
    {
        "model": "llama3-8b",
        "cluster": "h100-hgx-ib400",
        "profile": "h100-megatron",
        "devices": 16,
        "batch": {"global": 512, "micro": 1, "sequence": 8192},
        "parallel": {"tp": 2, "pp": 1},
        "zero": {"stage": 1},
        "recompute": "selective",
    }
)
reports = [ps.simulate_run(ps.vary(run, [f"devices={n}"])).report for n in (16, 32, 64, 128, 256, 512, 1024)]
figure = ps.plots.scaling(reports, "Llama 3 8B, 4 million tokens per step")

# %%
# Where a step goes sums to the step, on every number of devices:

for r in reports:
    assert abs(r.times.compute + r.times.idle + sum(r.times.exposed.values()) - r.step_time) < 1e-9 * r.step_time
    print(f"{r.world:5} devices: {r.step_time:.3f} s, exposed dp {100 * r.times.exposed['dp'] / r.step_time:.1f} %")
