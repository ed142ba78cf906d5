"""Clusters from catalog names, files and mappings; what is refused and how it is said."""

import time

import pytest

from parasim.errors import Malformed, Refused, Unparsable
from parasim.topology.loader import accelerators, catalog, load_cluster

NODE = {"devices": 8, "scale_up": {"kind": "switch", "bandwidth": "450 GB/s", "latency": "1 us"}}
RAILS = {"kind": "rail-fat-tree", "bandwidth": "400 Gb/s", "latency": "2 us"}


def test_every_cluster_of_the_catalog_loads_and_has_a_summary():
    assert {"h100-hgx-ib400", "a100-hgx-ib200", "ethernet-100g", "loopback"} <= set(catalog())
    for name in catalog():
        assert len(load_cluster(name, 5).devices) >= 5


def test_every_number_of_the_catalog_has_a_source_and_a_status():
    for name in catalog():
        for key, number in load_cluster(name, 2).description.items():
            if not isinstance(number, str) and number.value:
                assert number.source != "written in the cluster file", (name, key)
                assert number.status in ("datasheet", "fitted", "assumed")
    for accelerator in accelerators().values():
        for number in (*accelerator.peak_flops.values(), accelerator.memory, accelerator.memory_bandwidth):
            assert number.source != "written in the cluster file", accelerator.name


def test_h100_port_is_450_gigabytes_per_second_and_its_nic_400_gigabits():
    cluster = load_cluster("h100-hgx-ib400", 16)
    inside = [cluster.links[i] for i in cluster.route("node0.gpu0", "node0.gpu1")]
    across = [cluster.links[i] for i in cluster.route("node0.gpu0", "node1.gpu0")]
    assert [(link.kind, link.bandwidth) for link in inside] == [("scale_up", 450e9)] * 2  # 18 NVLinks of 25 GB/s
    assert [link.kind for link in across] == ["nic", "leaf", "leaf", "nic"]
    assert {link.bandwidth for link in across} == {50e9}  # 400 Gb/s / 8
    assert sum(link.latency for link in across) == 2e-6  # the file's NIC to NIC latency


def test_nvlink_over_nic_is_nine_on_h100_and_twelve_on_a100():
    for name, ratio in (("h100-hgx-ib400", 9.0), ("a100-hgx-ib200", 12.0), ("b200-hgx-ib400", 18.0)):  # 450/50, 300/25, 900/50 GB/s
        cluster = load_cluster(name, 16)
        port = {link.kind: link.bandwidth for link in cluster.links}
        assert port["scale_up"] / port["nic"] == pytest.approx(ratio, rel=1e-12)


def test_peaks_of_accelerators():
    h100, a100 = accelerators()["h100-sxm"], accelerators()["a100-sxm-80"]
    assert (h100.peak("bf16"), h100.memory.value, h100.memory_bandwidth.value) == (989e12, 80e9, 3.35e12)  # NVIDIA H100 datasheet
    assert (a100.peak("bf16"), a100.peak("fp32"), a100.peak("tf32")) == (312e12, 19.5e12, 156e12)  # NVIDIA A100 datasheet
    with pytest.raises(Refused, match=r"precision=fp8 has no peak on accelerator a100-sxm-80; known: bf16, fp16, fp32, fp64, tf32"):
        a100.peak("fp8")


def test_count_auto_fills_whole_nodes():
    assert len(load_cluster("h100-hgx-ib400", 9).devices) == 16
    assert load_cluster("h100-hgx-ib400", 9).devices[8] == "node1.gpu0"
    assert len(load_cluster("loopback", 3).devices) == 3


def test_one_node_needs_no_scale_out_but_two_do():
    spec = {"accelerator": "h100-sxm", "node": NODE}
    assert len(load_cluster(spec, 8).devices) == 8
    with pytest.raises(Refused, match=r"scale_out=null is missing: 16 devices need more than one node of 8"):
        load_cluster(spec, 16)


def test_more_devices_than_there_are_is_refused_with_both_numbers():
    spec = {"accelerator": "h100-sxm", "node": NODE | {"count": 2}, "scale_out": RAILS}
    with pytest.raises(Refused, match=r"devices=17 is more than cluster inline has; at most 16"):
        load_cluster(spec, 17)


def test_devices_of_a_node_need_a_link():
    with pytest.raises(Refused, match=r"node.scale_up=null is missing: 2 devices of a node have no link"):
        load_cluster({"accelerator": "h100-sxm", "node": {"devices": 2}, "scale_out": RAILS}, 2)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("h100-hgx-ib40", "no catalog name and no path; nearest: h100-hgx-ib400"),
        ({"accelerator": "h10-sxm", "node": NODE}, "nearest: h100-sxm"),
        ({"accelerator": "h100-sxm"}, "needs either node"),
        ({"accelerator": "h100-sxm", "node": {"devices": 8, "scale_up": {"bandwith": "1 GB/s"}}}, "bandwith: unknown key; nearest: bandwidth"),
        ({"accelerator": "h100-sxm", "node": {"devices": 8, "scale_up": {"bandwidth": 450}}}, "450 has no unit"),
        ({"accelerator": "h100-sxm", "node": {"devices": 8, "scale_up": {"bandwidth": "450 GB"}}}, "a bandwidth needs /s: 450 GB/s"),
        ({"accelerator": "h100-sxm", "node": {"devices": 8, "scale_up": {"bandwidth": "0 GB/s"}}}, "must be above 0"),
        ({"accelerator": "h100-sxm", "node": {"devices": 0}}, "0 is no count; auto, or a whole number of 1 or more"),
        ({"accelerator": "h100-sxm", "node": NODE, "scale_out": {"kind": "torus"}}, "kind torus: one of rail-fat-tree, fat-tree, ethernet"),
        ({"accelerator": "h100-sxm", "node": NODE, "price": "2 GB"}, "price: 2 GB is a size"),
        ({"accelerator": "h100-sxm", "nodes": [{"id": "a", "kind": "gpu"}], "links": [{"a": "a", "b": "z", "bandwidth": "1 GB/s"}]}, "'z' is no id"),
        ({"accelerator": "h100-sxm", "nodes": [{"id": "a", "kind": "gpu"}] * 2, "links": []}, "nodes[1].id: 'a' is there twice"),
    ],
)
def test_malformed_clusters_are_named(spec, words):
    with pytest.raises(Malformed) as caught:
        load_cluster(spec, 2)
    assert words in str(caught.value)


def test_a_count_that_is_refused_is_named_without_a_unit():
    chip = {"name": "x", "kind": "tpu", "peak_flops": {"bf16": "1 TFLOP/s"}, "memory": "32 GB", "memory_bandwidth": "1 TB/s", "matrix_unit": -128}
    with pytest.raises(Malformed, match=r"accelerator\.matrix_unit: must be above 0$"):
        load_cluster({"base": "tpu-v6e", "accelerator": chip}, 2)


def test_all_faults_of_a_file_come_at_once_with_their_places(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text("accelerator: h100-sxm\nnode:\n  devices: 8\n  scale_up:\n    bandwith: 1 GB/s\n    latency: 3\n")
    with pytest.raises(Malformed) as caught:
        load_cluster(path, 2)
    lines = str(caught.value).splitlines()
    assert f"{path}:5:5: node.scale_up.bandwith: unknown key; nearest: bandwidth; known: bandwidth, kind, latency, reduces" in lines
    assert any(line.startswith(f"{path}:6:5: node.scale_up.latency: 3 has no unit") for line in lines)
    assert any(line.startswith(f"{path}:4:3: node.scale_up.bandwidth: is missing") for line in lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cluster.yaml: the file is empty"),
        ("# nothing\n", "cluster.yaml: the file is empty"),
        ("node: [1, 2\n", ":2:1: not valid YAML: it ends too early"),
        ("- 1\n", ":1:1: must hold a mapping of keys to values, not a list"),
        ("a: \x01", "not valid YAML"),
    ],
)
def test_unparsable_files_have_a_place(tmp_path, text, words):
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(Unparsable) as caught:
        load_cluster(path, 2)
    assert f"{path}" in str(caught.value)
    assert words in str(caught.value)


def test_a_missing_file_is_malformed(tmp_path):
    with pytest.raises(Malformed, match=r"none\.yaml: no such file"):
        load_cluster(tmp_path / "none.yaml", 2)


def test_nics_per_device_must_come_out_whole():
    spec = {"accelerator": "h100-sxm", "node": NODE, "scale_out": RAILS | {"nic_per_device": 0.3}}
    with pytest.raises(Refused, match=r"scale_out.nic_per_device=0.3 times node.devices=8 must be a whole number of NICs"):
        load_cluster(spec, 8)


def test_building_is_fast():
    load_cluster("h100-hgx-ib400", 8)
    for devices, limit in ((64, 0.05), (2048, 1.0)):
        best = min(_timed(devices) for _ in range(3))
        assert best < limit, f"{devices} devices took {best:.3f} s"


def _timed(devices):
    start = time.perf_counter()
    load_cluster("h100-hgx-ib400", devices)
    return time.perf_counter() - start
