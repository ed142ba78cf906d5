"""Slow ranks, weak and failed links and nodes, and other placements, from the run file to the report."""

import json

import pytest

RUN = """\
model: {kind: fixed, layers: 1, forward: 20 ms, input_grad: 40 ms, weight_grad: 40 ms, parameters: 142857143}
cluster: {name: eight, accelerator: h100-sxm, node: {devices: 8, scale_up: {kind: switch, bandwidth: 50 GB/s, latency: 0 s}}}
devices: 8
batch: {global: 8, micro: 1}
dp: {mode: flat}
"""
RAILS = """\
model: {kind: fixed, layers: 2, forward: 1 us, input_grad: 1 us, weight_grad: 1 us, parameters: 500000000}
cluster: {name: rails, accelerator: h100-sxm, node: {count: 4, devices: 2, scale_up: {kind: switch, bandwidth: 400 GB/s, latency: 0 s}},
  scale_out: {kind: rail-fat-tree, nic_per_device: 1, bandwidth: 50 GB/s, latency: 0 s}}
devices: 8
batch: {global: 4, micro: 1}
dp: {mode: flat}
parallel: {tp: 1, pp: 2, dp: 4, order: [pp, tp, cp, ep, dp]}
"""


@pytest.fixture
def run(cli, tmp_path):
    def go(text, *more):
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return cli("run", path, "--json", *more)

    return go


@pytest.mark.parametrize("fold", [(), ("--no-fold",)], ids=["folded", "unfolded"])
def test_seven_ranks_wait_for_the_slow_one(run, fold):
    """100 ms on 7 ranks, 150 ms on rank 3, an all-reduce of 2 (7/8) S / B = 10 ms (S = 2 B x 142857143): 160 ms, 50 ms idle on 7 ranks."""
    report = json.loads(run(RUN + "perturb: [{rank: 3, slowdown: 1.5}]\n", *fold).out)
    assert report["step_time_s"] == pytest.approx(0.160, rel=1e-6)
    assert report["time_s"]["idle"] == pytest.approx(7 / 8 * 0.050, rel=1e-6)
    (first, *others) = report["blame"]
    assert (first["rank"], first["waiting_ranks"], others) == (3, 7, [])
    assert first["idle_s"] == pytest.approx(0.050, rel=1e-6)
    assert first["total_rank_s"] == pytest.approx(7 * 0.050, rel=1e-6)
    assert report["straggler"] == {"rank": 3, "stage": 0, "compute_s": pytest.approx(0.15), "others_compute_s": pytest.approx(0.1)}


def test_the_text_names_who_is_waited_for(cli, tmp_path):
    (tmp_path / "run.yaml").write_text(RUN + "perturb: [{rank: 3, slowdown: 1.5}]\n")
    text = cli("run", tmp_path / "run.yaml", "--out", tmp_path / "out").out
    assert "rank 3 computes 50.0 % longer than the other ranks of stage 0" in text
    assert "rank 3: 7 ranks idle for it, up to 50 ms each" in text


def test_one_gpu_of_many_that_is_a_fifth_slower_is_named(cli):
    # the datasheet profile slows no compute beside transfers: seconds are those of the kernels alone
    report = json.loads(cli("run", "--json", "--set", "perturb=[{rank: 13, slowdown: 1.2}]", "--set", "profile=datasheet").out)
    assert report["straggler"]["rank"] == 13
    assert report["straggler"]["compute_s"] / report["straggler"]["others_compute_s"] == pytest.approx(1.2, rel=1e-6)
    others = report["straggler"]["compute_s"] - report["straggler"]["others_compute_s"]
    first = report["blame"][0]
    assert first["rank"] == 13 and 0 < first["idle_s"] <= others * (1 + 1e-9) and first["waiting_ranks"] > 1


def test_nobody_is_blamed_where_nobody_waits(run):
    report = json.loads(run(RUN).out)
    assert report["step_time_s"] == pytest.approx(0.110, rel=1e-6)
    assert report["blame"] == [] and report["straggler"] is None


def test_a_weak_link_slows_the_ring_by_its_factor(run):
    """Every ring of the all-reduce crosses the port of gpu 2: at a quarter of its bandwidth 40 ms instead of 10."""
    report = json.loads(run(RUN + "perturb: [{link: node0.gpu2, bandwidth: 0.25}]\n").out)
    assert report["step_time_s"] == pytest.approx(0.140, rel=1e-6)


def test_a_failed_nic_reroutes_over_its_neighbour(run):
    """The two rings of dp (stages 0, 1 on rails 0, 1) share a NIC of node 1 when the other fails: half the bandwidth for both, at least."""
    whole = json.loads(run(RAILS).out)["step_time_s"]
    less = json.loads(run(RAILS + "perturb: [{link: node1.nic0, failed: true}]\n").out)["step_time_s"]
    assert less == pytest.approx(2 * whole, rel=0.01)


def test_a_group_that_is_cut_off_is_named(run):
    text = RUN + "perturb: [{link: node0.gpu2, failed: true}]\n"
    answer = run(text)
    assert answer.code == 1
    assert "group dp of ranks 0, 1, 2, 3, 4, 5, 6, 7 is partitioned (all_reduce)" in answer.err
    assert run(text, "--no-fold").code == 1


def test_a_failed_node_with_ranks_is_an_answer_and_a_spare_one_is_not_missed(run):
    answer = run(RAILS + "perturb: [{node: 1, failed: true}]\n")
    assert answer.code == 1
    assert "perturb[0].node=1 failed and holds ranks 2-3" in answer.err
    spare = RAILS.replace("count: 4", "count: 5") + "placement: [0-1, 4-9]\nperturb: [{node: 1, failed: true}]\n"
    assert json.loads(run(spare).out)["step_time_s"] == pytest.approx(json.loads(run(RAILS).out)["step_time_s"], rel=1e-9)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("perturb: [{link: node0.gpu9, bandwidth: 0.5}]", ["run.yaml:6:18: perturb[0].link", "nearest: node0.gpu"]),
        ("perturb: [{rank: 8, slowdown: 2}]", ["perturb[0].rank: 8 is no rank of this run; legal: 0 to 7"]),
        ("perturb: [{node: 4, failed: true}]", ["perturb[0].node: 4 is no node of cluster eight; known: node0"]),
        ("perturb: [{rank: 1, failed: true}]", ["{rank: 1, failed: true} is no perturbation; write {rank: 3, slowdown: 1.5}"]),
        ("perturb: [{link: node0.gpu1, bandwidth: 2}]", ["bandwidth: 2 is more than all of it"]),
        ("placement: roundrobin", ["placement: 'roundrobin' is no placement, did you mean 'round-robin'?"]),
        ("placement: [0-6]", ["lists 7 devices; devices=8 ranks need 8"]),
        ("placement: [0-6, 3]", ["placement: a device is there twice; 0 to 7, once each"]),
        ("placement: [0-6, x]", ["'x' is no device; write whole numbers from 0 and ranges"]),
    ],
)
def test_what_is_not_there_is_told_at_its_place(run, more, words):
    answer = run(RUN + more + "\n")
    assert answer.code == 2
    for word in words:
        assert word in answer.err


def test_placement_decides_which_groups_cross_the_network(run):
    """Two stages of four replicas: node by node with pp fastest, dp crosses (4 ranks, 2 (3/4) S / 50 GB/s). Round robin: ranks 0, 2, 4, 6 of
    stage 0 sit on nodes 0, 2, 0, 2: rings of two NICs a node. A list that puts a stage on two whole nodes does the same."""
    by_node = json.loads(run(RAILS).out)["step_time_s"]
    assert by_node == json.loads(run(RAILS + "placement: [0-7]\n").out)["step_time_s"] == json.loads(run(RAILS + "placement: by-node\n").out)["step_time_s"]
    robin = json.loads(run(RAILS + "placement: round-robin\n").out)["step_time_s"]
    listed = json.loads(run(RAILS + "placement: [0, 2, 4, 6, 1, 3, 5, 7]\n").out)["step_time_s"]
    assert robin == listed < by_node


def test_unequal_servers_are_bound_by_the_uplink(run):
    """4 + 6 GPUs behind one NIC of 50 GB/s each: one ring of 10, 2 (9/10) S / 50 GB/s with S = 1 GB."""
    text = """\
model: {kind: fixed, layers: 1, forward: 0 s, input_grad: 0 s, weight_grad: 0 s, parameters: 500000000}
cluster: {name: two, accelerator: h100-sxm, node: {devices: [4, 6], scale_up: {kind: switch, bandwidth: 450 GB/s, latency: 0 s}},
  scale_out: {kind: ethernet, bandwidth: 400 Gb/s, latency: 0 s}}
devices: 10
batch: {global: 10, micro: 1}
dp: {mode: flat}
"""
    report = json.loads(run(text).out)
    assert report["time_s"]["exposed"]["dp"] == pytest.approx(2 * 0.9 * 1e9 / 50e9, rel=1e-6)
