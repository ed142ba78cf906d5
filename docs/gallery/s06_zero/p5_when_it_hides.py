"""
"Communication hides almost entirely"
=====================================

Only with enough tokens. FSDP moves three sizes of the parameters per step; they hide under compute from C / W (n-1)/n tokens per device on: 1,923 on
eight GPUs of one server, 2,434 on 64 servers with eight rails, 19,741 with one card.
"""

import parasim as ps
from beside import beside

model = {"kind": "transformer", "layers": 8, "hidden": 8192, "heads": 64, "vocab": 1024, "activation": "gelu"}
keys = {"model": model, "cluster": "h100-hgx-ib400", "devices": 8, "batch": {"global": 8, "micro": 1, "sequence": 512}, "zero": {"stage": 3, "prefetch": 2}}
run = ps.build(keys)


def exposed(devices):
    points = []
    for tokens in (512, 1024, 2048, 4096, 8192):
        report = ps.simulate_run(ps.vary(run, [f"batch.sequence={tokens}", f"devices={devices}", f"batch.global={devices}"])).report
        points.append((tokens, report.times.exposed["dp"] / report.step_time))
    return points


curves = {"8 H100": exposed(8), "512 H100, eight rails": exposed(512)}
figure = ps.plots.curves(curves, "tokens per device", "exposed share of the step", "when FSDP hides", logx=True)
c, w = 989e12, 450e9
beside(
    ("8 GPUs, tokens", 1923, c / w * 7 / 8),
    ("512 GPUs on eight rails", 2434, c / 400e9 * 63 / 64),
    ("one card", 19741, c / 50e9 * 511 / 512),
    ("exposed at 512 tokens, 8 GPUs", (0.3, 0.8), curves["8 H100"][0][1]),
    ("exposed at 8,192 tokens, 8 GPUs", (0, 0.1), curves["8 H100"][-1][1]),
    head=("", "lectures", "parasim"),
)
