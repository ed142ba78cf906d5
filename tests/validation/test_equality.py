"""What makes the engine fast changes nothing: folded = unfolded, fused = unfused, and no run disturbs another, in this process or another."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from parasim.api import Result, build, simulate_run
from parasim.config import Run
from parasim.errors import Refused
from parasim.lowering import lower
from parasim.sim import simulate
from parasim.timeline import Timeline
from validation.equality import TOLERANCE, both, difference
from validation.random_runs import runs


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(runs((8, 16, 32, 64)))
def test_folding_and_fusing_change_nothing(run: Run) -> None:
    """On every op of every rank, to 1e-9 of the step; `python -m validation equality` draws 200 of them and adds three of 512 devices."""
    assert max(both(run)) <= TOLERANCE, run.source


def test_a_slow_rank_inside_a_tensor_group_is_still_replayed_in_runs() -> None:
    """Its group has two classes from then on, which meet once per run and not once per collective."""
    keys = KEYS | {"model": MODEL | {"heads": 8, "kv_heads": 8}, "parallel": {"tp": 8, "pp": 2}, "perturb": [{"rank": 3, "slowdown": 1.5}]}
    run = build(keys)
    workload = lower(run.plan)
    fast, plain = (simulate(workload, run.cluster, run.profile, fuse=fuse) for fuse in (True, False))
    assert difference(fast, plain) <= TOLERANCE
    assert len(fast.ranks) == 4 and fast.meta["events"] < plain.meta["events"] / 4


def test_a_difference_is_seen() -> None:
    result = simulate_run(build(KEYS))
    late = result.timeline.ops.copy()
    late["start"][7] += 1e-6 * result.timeline.makespan
    moved = Timeline(**{n: late if n == "ops" else getattr(result.timeline, n) for n in Timeline.__dataclass_fields__})
    assert difference(moved, result.timeline) == pytest.approx(1e-6, rel=1e-3)
    with pytest.raises(Refused, match="other ops or bytes"):
        difference(simulate_run(build(KEYS | {"devices": 8})).timeline, result.timeline)


MODEL = {"kind": "transformer", "layers": 4, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 128, "vocab": 128}
KEYS = {"model": MODEL, "cluster": "h100-hgx-ib400", "devices": 16, "batch": {"global": 16, "micro": 1, "sequence": 32}, "parallel": {"pp": 4, "tp": 2}}
OTHER = KEYS | {"parallel": {"pp": 2, "tp": 4}, "zero": {"stage": 2}, "perturb": [{"rank": 3, "slowdown": 1.5}]}


def digest(result: Result, folder: Path) -> str:
    """Of the bytes of the report, without provenance and clocks, and of the saved timeline."""
    report = result.report.to_json()
    del report["provenance"]
    report["engine"] = {k: v for k, v in report["engine"].items() if not k.endswith("_s")}
    result.timeline.save(folder / "t.npz")
    return hashlib.sha256(json.dumps(report).encode() + (folder / "t.npz").read_bytes()).hexdigest()


def test_simulations_that_interleave_do_not_meet(tmp_path: Path) -> None:
    """Four threads that change places every 10 us, two runs each of two kinds."""
    alone = [digest(simulate_run(build(keys)), tmp_path) for keys in (KEYS, OTHER)]
    assert alone[0] != alone[1]
    found: dict[int, Result] = {}
    threads = [threading.Thread(target=lambda i=i: found.update({i: simulate_run(build((KEYS, OTHER)[i % 2]))})) for i in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert [digest(found[i], tmp_path) for i in range(4)] == alone * 2


@pytest.mark.processes
def test_another_process_finds_the_same_bytes(tmp_path: Path) -> None:
    """With other hashes of strings and other addresses."""
    root = Path(__file__).parents[2]
    code = "import sys; from pathlib import Path; from tests.validation import test_equality as t; "
    code += "print(t.digest(t.simulate_run(t.build(t.OTHER)), Path(sys.argv[1])))"
    environment = {**os.environ, "PYTHONHASHSEED": "11", "PYTHONPATH": str(root)}
    out = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=root, env=environment, check=False)
    assert out.stdout.strip() == digest(simulate_run(build(OTHER)), tmp_path), out.stderr
