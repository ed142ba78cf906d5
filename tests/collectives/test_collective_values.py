"""What collectives do to values, and the benchmark arithmetic, against worked four-rank examples."""

import json
from pathlib import Path

import numpy as np
import pytest

from parasim.collectives import reference
from parasim.collectives.plan import plan, seconds
from parasim.collectives.table import busbw_factor
from parasim.cost.profile import datasheet
from parasim.errors import Malformed
from parasim.topology.loader import load_cluster

LINES = (Path(__file__).parents[1] / "data" / "collectives.jsonl").read_text().splitlines()
CASES = {case["id"]: case for case in map(json.loads, LINES)}


def arrays(case):
    return [np.array(x) for x in case["inputs"]["inputs"]]


def run(case):
    """The reference's answer for a worked example."""
    inputs = case["inputs"]
    op, n, root = inputs.get("op"), inputs["ranks"], inputs.get("root", 0)
    if "ops" in inputs:
        return reference.all_gather(reference.reduce_scatter(arrays(case)))
    if op in ("broadcast", "scatter"):
        return getattr(reference, op)(np.array(inputs["input_on_root"]), n)
    if op == "all_to_all":
        out = reference.all_to_all(arrays(case), inputs.get("splits"))
        return reference.all_to_all(out) if inputs.get("repeat") == 2 else out
    if op == "gather":
        return reference.gather(arrays(case), root)[root]
    if op == "reduce":
        return reference.reduce(arrays(case), root, inputs["reduce_op"])[root]
    extra = (inputs["reduce_op"],) if "reduce_op" in inputs else ()
    return getattr(reference, op)(arrays(case), *extra)


VALUES = [name for name, case in CASES.items() if name.startswith("coll-") and ("inputs" in case["inputs"] or "input_on_root" in case["inputs"])]


def test_the_examples_cover_every_op():
    ops = {CASES[name]["inputs"].get("op") for name in VALUES}
    assert {"broadcast", "scatter", "gather", "reduce", "all_gather", "reduce_scatter", "all_reduce", "all_to_all"} <= ops


@pytest.mark.parametrize("name", VALUES)
def test_worked_examples(name):
    got = run(CASES[name])
    expected = CASES[name]["expected"]
    assert [np.asarray(x).tolist() for x in got] == expected if isinstance(got, list) else got.tolist() == expected


def test_only_the_root_of_a_reduce_is_defined():
    assert [x is None for x in reference.reduce([np.ones(1)] * 3, root=1)] == [True, False, True]


def test_uneven_lengths_and_unknown_reductions_are_malformed():
    with pytest.raises(Malformed, match="length 5 is not a multiple of 4 ranks; pad it to 8"):
        reference.scatter(np.arange(5), 4)
    with pytest.raises(Malformed, match="reduce='mean' is unknown; one of sum, avg, max, min"):
        reference.all_reduce([np.ones(1)], "mean")


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("wire-ring")])
def test_wire_bytes_of_rings(name):
    case = CASES[name]["inputs"]
    cluster = load_cluster({"accelerator": "h100-sxm", "node": {"devices": 4, "scale_up": {"bandwidth": "50 GB/s", "latency": "1 s"}}}, 4)
    made = plan(case["op"], case["S_bytes"], cluster.devices, cluster, datasheet(), "ring")
    assert made.wire_bytes_per_rank == pytest.approx(CASES[name]["expected"]["bytes"], rel=1e-9)
    assert sum(p.latency for p in made.phases) == pytest.approx(CASES[name]["expected"]["steps"], rel=1e-9)  # 1 s per step


def test_wire_bytes_of_all_to_all():
    cluster = load_cluster("h100-hgx-ib400", 4)
    case = CASES["wire-all-to-all"]
    made = plan("all_to_all", case["inputs"]["S_bytes_per_rank"], cluster.devices[:4], cluster, datasheet())
    assert made.wire_bytes_per_rank == pytest.approx(case["expected"], rel=1e-9)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if name.startswith("bench-") and "duration_s" in case["inputs"]])
def test_effective_bandwidths(name):
    case = CASES[name]["inputs"]
    algbw = case["elements"] * case["dtype_bytes"] / case["duration_s"]
    assert algbw * busbw_factor(case["op"], case["ranks"]) / 1e9 == pytest.approx(CASES[name]["expected"], rel=1e-6)


def test_factors_of_all_reduce():
    for ranks, factor in CASES["bench-factor-table"]["expected"].items():
        assert busbw_factor("all_reduce", int(ranks)) == pytest.approx(factor, rel=1e-9)


def test_busbw_is_independent_of_ranks_only_when_bandwidth_bound():
    cluster = load_cluster("h100-hgx-ib400", 8)

    def spread(nbytes):
        rates = []
        for n in range(2, 9):
            time = seconds(plan("all_reduce", nbytes, cluster.devices[:n], cluster, datasheet(), "ring"), cluster, datasheet())
            rates.append(nbytes / time * busbw_factor("all_reduce", n))
        return max(rates) / min(rates)

    assert spread(2**30) - 1 < CASES["bench-independent-of-n"]["expected"]
    assert spread(2**13) > 2


def test_ring_and_two_phases_send_the_same():
    cluster = load_cluster("h100-hgx-ib400", 8)
    case = CASES["bench-algorithms-same-busbw"]
    size, expected = case["inputs"]["S_bytes"], case["expected"]
    made = {op: plan(op, size, cluster.devices, cluster, datasheet(), "ring") for op in ("all_reduce", "reduce_scatter", "all_gather")}
    assert made["all_reduce"].wire_bytes_per_rank == pytest.approx(expected["ring"], rel=1e-9)
    both = made["reduce_scatter"].wire_bytes_per_rank + made["all_gather"].wire_bytes_per_rank
    assert both == pytest.approx(expected["rs_plus_ag"], rel=1e-9)
