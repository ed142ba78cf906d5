"""Files about real machines as clusters.

Formats: the matrix and its legend as `nvidia-smi topo -m` prints them (NVIDIA); the elements and attributes that NCCL writes to
NCCL_TOPO_DUMP_FILE and reads back (NVIDIA/nccl, src/graph/xml.cc, version 1); topology.conf(5) of Slurm (SchedMD), whose example is tree.conf.
"""

import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from parasim import documents
from parasim.errors import Malformed, Unparsable
from parasim.topology.importers import import_cluster
from parasim.topology.importers.slurm_conf import Token, hostlist
from parasim.topology.loader import accelerators, load_cluster

DATA = Path(__file__).parents[1] / "data" / "topology"
FILES = sorted(path.name for path in DATA.iterdir())


def hops(cluster, a, b):
    return [(link.kind, link.bandwidth) for link in (cluster.links[i] for i in cluster.route(a, b))]


@pytest.mark.parametrize("name", FILES)
def test_an_imported_mapping_is_a_cluster_file(name, tmp_path):
    found = import_cluster(DATA / name)
    path = tmp_path / "cluster.yaml"
    documents.write(found.mapping, path)
    assert load_cluster(path, 1).links == found.cluster.links
    assert found.cluster.accelerator.name in accelerators()
    assert all(found.cluster.route(a, b) for a, b in combinations(found.cluster.devices[:10], 2))


def test_a_matrix_with_18_nvlinks_to_every_peer_is_a_switch():
    found = import_cluster(DATA / "h100-8gpu-8nic.txt")
    cluster = found.cluster
    assert (cluster.accelerator.name, len(cluster.devices)) == ("h100-sxm", 8)
    assert hops(cluster, "GPU0", "GPU7") == [("scale_up", 450e9)] * 2  # 18 x 25 GB/s; a GPU has no 7 x 18 links
    assert Counter(cluster.nodes.values()) == {"gpu": 8, "nic": 8, "pcie": 8, "cpu": 2, "switch": 1}
    beside = {link.b for link in cluster.links if link.a == "NIC5"}
    assert beside == {link.b for link in cluster.links if link.a == "GPU5" and link.kind == "pcie"}  # PIX: one PCIe switch
    assert "the matrix names no GPU: 18 NVLinks each, taken for h100-sxm" in found.notes


def test_the_matrix_of_a_dgx_1_is_the_hybrid_cube_mesh():
    imported = import_cluster(DATA / "dgx1-v100.txt").cluster
    built = load_cluster("v100-dgx1-ib100", 8)
    assert imported.accelerator.name == "v100-sxm-16"
    for a, b in combinations(range(8), 2):
        there = hops(built, f"node0.gpu{a}", f"node0.gpu{b}")
        assert hops(imported, f"GPU{a}", f"GPU{b}") == there
    assert {link.bandwidth for link in imported.links if link.kind == "pcie"} == {15.75e9}  # PCIe 3 x16


def test_the_matrix_of_a_pcie_box_has_two_sockets():
    cluster = import_cluster(DATA / "rtx4090-4gpu.txt", accelerator="rtx-4090").cluster
    assert hops(cluster, "GPU0", "GPU1") == [("pcie", 31e9)] * 2
    assert [kind for kind, _ in hops(cluster, "GPU0", "GPU3")] == ["pcie", "host", "pcie"]


def test_lines_of_launchers_and_of_nccl_between_the_rows_are_passed_over(tmp_path):
    plain = (DATA / "h100-8gpu-8nic.txt").read_text().splitlines()
    noise = "gpu-7:1734:1801 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.7<0>"
    mixed = [line for row in plain for line in (f"[1,0]<stdout>:{row}", f"[1,3]<stdout>:{row}", noise)]
    path = tmp_path / "log.txt"
    path.write_text("\n".join(["mpirun --tag-output nvidia-smi topo -m", *mixed]))
    assert import_cluster(path).cluster.links == import_cluster(DATA / "h100-8gpu-8nic.txt").cluster.links
    path.write_text("\n".join(f"{rank}: {row}" for row in plain for rank in (2, 0)))
    assert import_cluster(path).cluster.links == import_cluster(DATA / "h100-8gpu-8nic.txt").cluster.links


ROWS = (DATA / "rtx4090-4gpu.txt").read_text().splitlines()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (ROWS[:4], ":4: the matrix ends here: 2 of 5 rows are missing (GPU3, NIC0)"),
        ([*ROWS[:3], ROWS[3][:16]], ":4:16: row GPU2 has 3 of 5 entries: the line is cut short"),
        ([*ROWS[:2], ROWS[2].replace("PHB", "PIB"), *ROWS[3:]], ":3:6: GPU1 to GPU0 is 'PIB'; known: X, NV#, PIX, PXB, PHB, NODE, SYS"),
        ([*ROWS[:2], ROWS[2].replace("PHB", "PIX"), *ROWS[3:]], ":3:6: GPU1 to GPU0 is PIX, but GPU0 to GPU1 on line 2 is PHB"),
        ([*ROWS[:2], ROWS[1], *ROWS[2:]], ":3:1: row GPU0 is there twice, first on line 2"),
        ([*ROWS[:1], "\x1b[4m" + ROWS[1].replace("PHB", "PHX"), *ROWS[2:]], ":2:14: GPU0 to GPU1 is 'PHX'"),  # terminal escapes count as columns
        (["hello"], ":1: no line with the columns GPU0, GPU1"),
        (ROWS[:1], ":1: the matrix ends here: 5 of 5 rows are missing"),
    ],
)
def test_a_matrix_that_cannot_be_read_is_refused_with_the_line(tmp_path, lines, words):
    path = tmp_path / "matrix.txt"
    path.write_text("\n".join(lines))
    with pytest.raises(Unparsable) as caught:
        import_cluster(path, "nvidia-smi")
    assert f"{path}{words}" in str(caught.value)


def test_nvlinks_to_nvswitches_add_up_to_one_port():
    found = import_cluster(DATA / "h200-4gpu.xml")
    cluster = found.cluster
    assert cluster.accelerator.name == "h200-sxm"  # PCI device 0x2335
    assert hops(cluster, "node0.gpu0", "node0.gpu3") == [("scale_up", 450e9)] * 2  # 4 + 5 + 5 + 4 links of 25 GB/s
    assert {link.bandwidth for link in cluster.links if "mlx5" in link.a} == {50e9}  # 400000 Mb/s, its slot carries 63 GB/s
    between = {link.bandwidth for link in cluster.links if link.kind == "host"}
    assert between == {40e9}  # Intel model 207 (Emerald Rapids) in NCCL's topo.h
    assert found.notes == ()


def test_nvlinks_to_gpus_join_them_and_unknown_slots_are_eight_gigatransfers():
    found = import_cluster(DATA / "a100-pcie-pairs.xml")
    cluster = found.cluster
    assert cluster.accelerator.name == "a100-pcie-80"
    assert hops(cluster, "node0.gpu0", "node0.gpu1") == [("scale_up", 300e9)]  # 12 x 25 GB/s
    assert hops(cluster, "node0.gpu0", "node0.gpu2") == [("pcie", 16 * 0.984e9), ("host", 16e9), ("pcie", 16 * 0.984e9)]
    assert {link.bandwidth for link in cluster.links if "eth0" in link.a} == {12.5e9}
    assert found.notes == ("some PCIe links have no known link_speed: taken for 8 GT/s, as NCCL does",)


def test_two_hosts_of_one_dump_share_their_nvlink_network(tmp_path):
    """A dump of a rack (MNNVL): the same NVSwitch target everywhere, one host_hash per server."""
    nvlink = '<nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>'
    gpu = f'<pci busid="{{bus}}" class="0x030200" device="0x2941"><gpu dev="0" sm="100" rank="{{rank}}">{nvlink}</gpu></pci>'
    cpu = '<cpu host_hash="0x{host}" numaid="0" arch="arm64">{inner}</cpu>'
    text = "".join(cpu.format(host=i, inner=gpu.format(bus=f"000{i}:01:00.0", rank=i)) for i in range(2))
    path = tmp_path / "rack.xml"
    path.write_text(f'<system version="1">{text}</system>')
    cluster = import_cluster(path).cluster
    assert cluster.accelerator.name == "gb200"
    assert hops(cluster, "node0.gpu0", "node1.gpu0") == [("scale_up", 900e9)] * 2  # 18 x 50 GB/s
    assert set(cluster.node_of.values()) == {"node0"}


XML = (DATA / "h200-4gpu.xml").read_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n".join(XML.splitlines()[:9]), ":9:70: not valid XML: no element found; <gpu> of line 5 is not closed"),
        (XML.replace('version="1"', 'version="2"', 1), ":1:18: version 2 of the topology; version 1 is known"),
        (XML.replace(' busid="0000:18:00.0"', "", 1), ":4:7: <pci> has no busid; it has: class, vendor"),
        (XML.replace('count="4"', 'count="four"', 1), ":6:48: <nvlink> has count='four', which is no number"),
        (XML.replace('name="mlx5_1"', 'name="mlx5_0"'), ":29:11: <net> mlx5_0 is there twice"),
        ('<system version="1">\n<cpu numaid="0"/>\n</system>', ":1:1: no <gpu> in any <cpu>: there is no device"),
        (
            XML.replace('device="0x2335"', 'device="0xffff"').replace('sm="90"', 'sm="7"'),
            ":5:26: GPU with device 0xffff and sm 7 is not known; give accelerator=",
        ),
        (XML.replace(' speed="400000"', '\nspeed="fast"', 1), ":15:8: <net> has speed='fast', which is no number"),
        (XML.replace('count="4"', 'count="inf"', 1), ":6:48: <nvlink> has count='inf', which is no finite number"),
        ("<graphs/>", ":1: no <system>: is this what NCCL wrote"),
    ],
)
def test_a_dump_that_cannot_be_read_is_refused_with_the_line(tmp_path, text, words):
    path = tmp_path / "topo.xml"
    path.write_text(text)
    with pytest.raises(Unparsable) as caught:
        import_cluster(path, "nccl-xml")
    assert f"{path}{words}" in str(caught.value)


def test_a_dump_inside_a_log_keeps_its_lines(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("node1:12:34 [0] NCCL INFO Topology:\n\n" + XML + "done\n")
    assert import_cluster(path).cluster.links == import_cluster(DATA / "h200-4gpu.xml").cluster.links
    path.write_text("one\ntwo\n" + "\n".join(XML.splitlines()[:9]))
    with pytest.raises(Unparsable, match=rf"{path}:11:70: not valid XML"):
        import_cluster(path)


def test_the_switches_of_slurm_are_the_tree_above_the_servers():
    found = import_cluster(DATA / "tree.conf")
    cluster = found.cluster
    assert len(cluster.devices) == 18 * 8
    assert [kind for kind, _ in hops(cluster, "dev0.gpu1", "dev5.gpu2")] == ["nic", "leaf", "leaf", "nic"]
    assert hops(cluster, "dev0.gpu0", "dev17.gpu0")[2:4] == [("spine", 6 * 8 * 50e9)] * 2  # 6 nodes of 8 NICs of 400 Gb/s
    narrow = import_cluster(DATA / "tree.conf", oversubscription=4, server="a100-hgx-ib200", devices_per_node=4).cluster
    assert hops(narrow, "dev0.gpu0", "dev17.gpu0")[2] == ("spine", pytest.approx(6 * 4 * 25e9 / 4))
    assert narrow.accelerator.name == "a100-sxm-80"


def test_blocks_of_slurm_are_scale_up_networks():
    cluster = import_cluster(DATA / "block.conf", server="nvl72-ib400", devices_per_node=4).cluster
    assert Counter(cluster.node_of.values()) == {"block1": 8, "block2": 8}
    assert hops(cluster, "rack1-001.gpu0", "rack1-002.gpu3") == [("scale_up", 900e9)] * 2
    assert [kind for kind, _ in hops(cluster, "rack1-001.gpu0", "rack2-001.gpu0")] == ["nic", "leaf", "spine", "spine", "leaf", "nic"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("tux[0-3,12,18-20]", [f"tux{i}" for i in (0, 1, 2, 3, 12, 18, 19, 20)]),  # the expression of topology.conf(5)
        ("n[008-010]", ["n008", "n009", "n010"]),
        ("r[1-2]c[0-1],login", ["r1c0", "r1c1", "r2c0", "r2c1", "login"]),
        ("one", ["one"]),
    ],
)
def test_hostlist_expressions(text, names):
    assert list(hostlist(Token(text, 1, 1), "topology.conf")) == names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SwitchName=s0 Nodes=n[0-3]\nSwitchName=s1 Nodes=n[4-", ":2:25: 'n[4-': the bracket is not closed; is the line cut short?"),
        ("SwitchName=s0 Nodes=n[0-3]\nSwitchName=s1", ":2:14: s1 has neither Switches nor Nodes: is the line cut short?"),
        ("SwitchName=s0 Nodes=n[0-3]\nSwitchName=s1 Nodes=", ":2:21: 'Nodes=': Nodes has no value; is the line cut short?"),
        ("SwitchName=s2 Switches=s[0-1]\nSwitchName=s0 Nodes=n0", ":1:24: s2 is above s1, which no line describes; is the file cut short?"),
        ("SwitchName=s0 Nodes=n[3-0]", ":1:23: 'n[3-0]': '3-0' is no number and no range such as 0-15"),
        ("SwitchName=s0 Nodes=n0 Speed=1", ":1:24: 'Speed=1': Speed is not a key of topology.conf; known: SwitchName"),
        ("SwitchName=s0 Nodes=n0\nSwitchName=s0 Nodes=n1", ":2:12: s0 is there twice, first on line 1"),
        ("SwitchName=s0 Nodes=n0\nSwitchName=s1 Nodes=n0", ":2:21: node n0 is below s1 and s0 (line 1); a tree has one way up"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a", ":1:12: a is below itself"),
        ("# nothing\nNodes=n0", ":2:1: 'Nodes=n0' names no switch and no block"),
        ("SwitchName=s0 \\\n  Nodes=n0 \\", ":2:12: the file ends in a line that goes on (backslash)"),
        ("SwitchName=s0 \\\n   Nodes=n0,n[1-x]", ":2:15: 'n0,n[1-x]': '1-x' is no number and no range"),
        ("SwitchName=s0 Nodes=n[0]]", ":1:25: 'n[0]]': brackets do not match"),
        ("SwitchName=s0 Nodes=n0 Nodes=n1", ":1:24: Nodes is there twice"),
        ("# nothing\n", ":1: no SwitchName and no BlockName: is this a topology.conf?"),
    ],
)
def test_a_topology_conf_that_cannot_be_read_is_refused_with_the_line(tmp_path, text, words):
    path = tmp_path / "topology.conf"
    path.write_text(text)
    with pytest.raises(Unparsable) as caught:
        import_cluster(path, "slurm")
    assert f"{path}{words}" in str(caught.value)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("put", ["", "?", "<"])
def test_a_file_cut_or_garbled_anywhere_is_read_or_refused_with_a_line(name, put, tmp_path):
    """Cut at a place, or with another character there."""
    text = (DATA / name).read_text()
    path = tmp_path / name
    for end in range(0, len(text), max(1, len(text) // 50)):
        path.write_text(text[:end] + put + text[end + 1 :] if put else text[:end] or " ")
        try:
            import_cluster(path)
        except Unparsable as error:
            assert re.match(rf"{path}:\d+:", str(error)) or "the file is empty" in str(error)


def test_wrong_options_are_named(tmp_path):
    with pytest.raises(Malformed, match=r"accelerator='h10-sxm' is not in the catalog; nearest: h100-sxm"):
        import_cluster(DATA / "tree.conf", accelerator="h10-sxm")
    with pytest.raises(Malformed, match=r"oversubscription=0 must be above 0"):
        import_cluster(DATA / "tree.conf", oversubscription=0)
    with pytest.raises(Malformed, match="format='xml' is unknown; nearest: nccl-xml"):
        import_cluster(DATA / "tree.conf", "xml")
    with pytest.raises(Malformed, match="no such file"):
        import_cluster(tmp_path / "none.xml")
    path = tmp_path / "empty.xml"
    path.write_text("")
    with pytest.raises(Unparsable, match=r"empty\.xml: the file is empty"):
        import_cluster(path)
