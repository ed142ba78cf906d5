"""
How well-known models were laid out
===================================

One run file each, as far as reports say. ``parasim run`` takes any of them; here they are loaded and checked, and two are simulated.
"""

from pathlib import Path

import parasim as ps
from beside import Table, beside

examples = next(p for p in (Path("../examples"), Path("../../examples"), Path("docs/examples")) if p.is_dir())
names = ("olmo-7b-fsdp", "deepseek-llm-67b", "deepseek-v3-2048", "yi-34b", "llama3-405b-8192", "mixtral-8x7b-ep8", "gemma2-9b-tpu")
runs = {name: ps.load(examples / f"{name}.yaml") for name in names}
Table(
    ("", "devices", "tp", "cp", "ep", "pp", "dp", "ZeRO", "schedule", "order"),
    [
        (
            n,
            r.devices,
            *(getattr(r.plan.layout.degrees, a) for a in ("tp", "cp", "ep", "pp", "dp")),
            r.plan.layout.zero.stage,
            r.plan.layout.pipeline.schedule if r.plan.layout.degrees.pp > 1 else "",
            ", ".join(r.plan.layout.degrees.order),
        )
        for n, r in runs.items()
    ],
)

# %%
# World sizes are products of the axes; experts re-tile data-parallel ranks:

v3, llama = runs["deepseek-v3-2048"].plan.layout.degrees, runs["llama3-405b-8192"].plan.layout.degrees
beside(
    ("Llama 3 405B, first stage: devices", 8192, llama.tp * llama.cp * llama.pp * llama.dp),
    ("DeepSeek-V3: devices", 2048, v3.tp * v3.pp * v3.dp),
    ("DeepSeek-V3: servers that a group of experts covers", 8, v3.ep // 8),
    ("DeepSeek-V3: replicas of an expert", 2, v3.dp // v3.ep),
    ("Llama 3: order of the axes", ["tp", "cp", "pp", "dp"], [a for a in llama.order if a != "ep"]),
)

# %%

olmo = ps.simulate_run(runs["olmo-7b-fsdp"])
print(f"{olmo.run.name}: {olmo.report.step_time:.2f} s, MFU {100 * olmo.report.mfu:.1f} %")
