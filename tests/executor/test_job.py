"""The slept job: its share of communication, and that prediction and run are of the same ops."""

from __future__ import annotations

import numpy as np
import pytest

from parasim.cost.profile import Profile, save_profile
from parasim.errors import Malformed
from parasim.lowering import lower
from parasim.provenance import Number
from parasim.sim import simulate
from parasim.timeline import COMPUTE
from validation.job import JOBS, SHARE, communication_share, job, job_run, judge, start_errors


@pytest.fixture
def profile(tmp_path):
    """About what a small machine reaches: 2 GB/s of the file, half of it reached."""
    numbers = {
        key: Number(value, unit, "a test", "assumed")
        for key, value, unit in (
            ("collective.all_reduce.bandwidth_factor", 0.5, "1"),
            ("p2p.bandwidth_factor", 0.5, "1"),
            ("compute.op_overhead", 2e-4, "s"),
        )
    }
    path = tmp_path / "profile.yaml"
    save_profile(Profile("small", "gloo", numbers), path)
    return path


@pytest.mark.parametrize("name", list(JOBS))
def test_the_jobs_communicate_enough_to_mean_something(name, profile):
    run = job_run(name, profile)
    timeline = simulate(lower(run.plan), run.cluster, run.profile)
    assert SHARE[0] <= communication_share(timeline) <= SHARE[1]


def test_the_share_is_a_union(profile):
    run = job_run("dp4-bucketed", profile)
    timeline = simulate(lower(run.plan), run.cluster, run.profile)
    ops = timeline.of(0)
    moved = ops[ops["kind"] != COMPUTE]
    assert (moved["start"][1:] >= moved["end"][:-1]).all()  # one stream: nothing overlaps, so the union is the sum
    assert communication_share(timeline) == pytest.approx(float((moved["end"] - moved["start"]).sum()) / timeline.makespan)


def test_an_unknown_case_is_malformed():
    with pytest.raises(Malformed, match="case=nope must be one of pp4-1f1b, dp4-bucketed"):
        job(["nope"])


@pytest.mark.processes
def test_a_job_is_predicted_first_and_compared_op_by_op(profile, tmp_path):
    pytest.importorskip("torch")
    verdict = judge("pp4-1f1b", profile, tmp_path, runs=1)
    written = [(tmp_path / f"pp4-1f1b-{side}.npz").stat().st_mtime for side in ("predicted", "measured")]
    assert written[0] < written[1]
    for column in ("rank", "op", "kind", "stream", "phase", "microbatch", "bytes"):
        assert np.array_equal(verdict.predicted.ops[column], verdict.measured.ops[column]), column
    assert len(list(start_errors(verdict))) == 4
    assert verdict.measured_step > 11 * 0.04  # (m + p - 1) = 11 slots of F + B = 40 ms at least
