"""Islands: what meets the rest only in what runs once is replayed by itself until then, and nothing comes out otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hand import collective, network, recv, run, send, times, work, workload

from parasim.config import build
from parasim.lowering import lower
from parasim.program.ops import Op
from parasim.provenance import Number
from parasim.sim.engine import Engine
from parasim.sim.islands import Islands
from parasim.sim.record import record

TINY: dict[str, Any] = {
    "model": {"kind": "transformer", "layers": 8, "hidden": 256, "heads": 4, "vocab": 512},
    "cluster": "h100-hgx-ib400",
    "devices": 16,
    "batch": {"global": 32, "micro": 1, "sequence": 256},
    "parallel": {"tp": 2, "pp": 4},
    "perturb": [{"rank": 2, "slowdown": 1.5}, {"rank": 3, "slowdown": 1.5}],
}
CASES: dict[str, tuple[dict[str, Any], int]] = {  # and how many islands: pipelines that only add up their gradients, or share more
    "one slow replica": ({}, 2),
    "gradients beside the pipeline": ({"dp": {"mode": "bucketed", "bucket": "1 MB"}}, 2),
    "optimizer states sharded": ({"zero": {"stage": 1}}, 2),
    "weights gathered for every microbatch": ({"zero": {"stage": 3}, "parallel": {"tp": 2, "pp": 1}, "batch": {"global": 32, "micro": 2, "sequence": 256}}, 1),
    "transfers slow compute down": ({}, 2),
    "two chunks": ({"pipeline": {"schedule": "interleaved-1f1b", "chunks": 2}}, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_comes_out_otherwise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a replay island by island against one of all at once."""
    keys, count = CASES[name]
    made = build(TINY | keys)
    w, profile = lower(made.plan), made.profile
    if name == "transfers slow compute down":
        slow = {f"overlap.slowdown.{kind}": Number(x, "1", "made up", "assumed") for kind, x in (("collective", 0.3), ("p2p", 0.2))}
        profile = replace(profile, numbers={**profile.numbers, **slow})
    engine = Engine(w, made.cluster, profile, folding=True)
    engine.run()
    assert len(Islands(engine.ranks).members) == count
    apart = record(engine)
    monkeypatch.setattr(Islands, "members", property(lambda self: [list(self.ranks)]))
    engine = Engine(w, made.cluster, profile, folding=True)
    engine.run()
    whole = record(engine)
    for column in ("ready", "start", "end"):
        np.testing.assert_allclose(apart.ops[column], whole.ops[column], rtol=1e-12, atol=1e-15)
    assert np.sort(apart.flows["bytes"]).tolist() == np.sort(whole.flows["bytes"]).tolist()


def test_islands_wait_at_the_bridge() -> None:
    """Ranks 0 and 1, and 2 and 3, exchange messages; then all reduce. 10 B/s everywhere: 0 works until 1 and its 10 B are there at 2, 1 works 1 s more:
    3; 2 and 3 come to 2 + 1 + 1 = 4. All start at 4."""
    star = network(4, [(f"d{i}", "s", 10.0) for i in range(4)], switches=("s",))

    def pair(a: int, b: int, first: float) -> list[list[Op]]:
        name = f"x{a}"
        return [
            [work(first, name), send(name, f"to{b}"), collective("all_reduce", "all", "p")],
            [recv(name, f"to{a}", stream="compute"), work(1.0, "y", reads=(name,)), collective("all_reduce", "all", "p")],
        ]

    w = workload([*pair(0, 1, 1.0), *pair(2, 3, 2.0)], {"x0": 10, "x2": 10, "y": 1, "p": 40}, groups={"all": [[0, 1, 2, 3]]})
    t = run(w, star, fold=False)
    assert [times(t, r, 2)[0] for r in range(4)] == pytest.approx([1.0, 3.0, 2.0, 4.0])
    assert [times(t, r, 2)[1] for r in range(4)] == pytest.approx([4.0] * 4)
    assert [times(t, r, 2)[2] for r in range(4)] == pytest.approx([4.0 + 2 * 40 * 3 / 4 / 10] * 4)  # a ring of four: 2 S (n - 1) / (n B)
