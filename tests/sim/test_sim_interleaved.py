"""Two simulations in one process, one begun before the other is over: each says what it says alone."""

from __future__ import annotations

import numpy as np

from parasim.config import build
from parasim.lowering import lower
from parasim.report import summarize
from parasim.sim.engine import Engine
from parasim.sim.record import record
from parasim.timeline import Timeline

RUN = {
    "model": {"kind": "transformer", "layers": 4, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 128, "vocab": 128},
    "cluster": "h100-hgx-ib400",
    "devices": 16,
    "batch": {"global": 32, "micro": 1, "sequence": 32},
    "parallel": {"tp": 2, "pp": 2},
}


def columns(t: Timeline) -> list[bytes]:
    return [np.ascontiguousarray(column).tobytes() for column in (t.ops, t.flows, t.memory, t.edges, t.representative)]


def test_interleaved_simulations_do_not_meet() -> None:
    runs = [build(RUN | {"perturb": [{"rank": 3, "slowdown": 1.2}]}), build(RUN | {"zero": {"stage": 1}})]
    engines = [Engine(lower(r.plan), r.cluster, r.profile, folding=True) for r in runs]
    for engine in engines:
        engine.run()
    together = [record(engine) for engine in engines]
    for run, timeline in zip(runs, together, strict=True):
        alone = Engine(lower(run.plan), run.cluster, run.profile, folding=True)
        alone.run()
        again = record(alone)
        assert columns(timeline) == columns(again)
        assert summarize(timeline, run).to_json() == summarize(again, run).to_json()
