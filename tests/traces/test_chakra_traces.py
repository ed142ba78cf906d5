"""Chakra execution traces: the bytes of the format, what goes out and comes back, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import parasim as ps
from parasim.calibrating import calibrate_files
from parasim.cost.profile import load_profile
from parasim.errors import Malformed, ParasimError, Refused, Unparsable
from parasim.traces.chakra import read_chakra
from parasim.traces.chakra_export import write_chakra
from parasim.traces.chakra_files import cycle, read_nodes, write_nodes
from parasim.traces.chakra_schema import COLLECTIVE, COMPUTE, NODE_TYPES, RECEIVE, SEND, GlobalMetadata, Node
from parasim.traces.shares import Simulated

from ..conftest import Cli

KEYS = {
    "model": {"kind": "transformer", "name": "small", "layers": 4, "hidden": 1024, "heads": 8, "ffn": 4096, "vocab": 1024},
    "cluster": "h100-hgx-ib400",
    "profile": "h100-megatron",
    "devices": 16,
    "batch": {"global": 16, "micro": 1, "sequence": 1024},
    "parallel": {"tp": 2, "pp": 2},
    "zero": {"stage": 1},
}


def simulated(**more: object) -> Simulated:
    result = ps.simulate_run(ps.build({**KEYS, **more}))
    return Simulated(result.run, result.workload.bound, result.timeline)


@pytest.fixture(scope="module")
def run() -> Simulated:
    return simulated()


# ---- the format


def test_the_bytes_are_those_of_the_published_schema(tmp_path: Path) -> None:
    """mlcommons/chakra, schema/protobuf/et_def.proto: id 1, name 2, type 3 (COMP_NODE 4), data_deps 5, duration_micros 7, attr 10; an attribute's name
    1, int64_val 9; the version of GlobalMetadata 1. Messages stand behind their length. Written out by hand from the wire format of protobuf."""
    node = Node(id=1, name="mm", type=COMPUTE, data_deps=[0], duration_micros=300)
    node.attr.add(name="num_ops", int64_val=5)
    other = Node(id=0, name="x", type=COMPUTE)
    write_nodes(tmp_path / "a.et", "0.0.4", [other, node])
    metadata = b"\x07\x0a\x050.0.4"
    first = b"\x05" + b"\x12\x01x" + b"\x18\x04"  # id 0 is the default, which is not written
    second = b"\x08\x01" + b"\x12\x02mm" + b"\x18\x04" + b"\x2a\x01\x00" + b"\x38\xac\x02" + b"\x52\x0b" + b"\x0a\x07num_ops" + b"\x48\x05"
    assert (tmp_path / "a.et").read_bytes() == metadata + first + bytes([len(second)]) + second
    found = read_nodes(tmp_path / "a.et")
    assert [(n.id, n.name, n.waits_for, n.seconds, dict(n.attributes)) for n in found] == [
        (0, "x", (), 0.0, {}), (1, "mm", (0,), 300e-6, {"num_ops": 5})
    ]  # fmt: skip


def test_a_chain_of_five_thousand(tmp_path: Path) -> None:
    nodes = [Node(id=i, name="k", type=COMPUTE, data_deps=[i - 1] if i else [], duration_micros=2) for i in range(5000)]
    assert write_nodes(tmp_path / "a.et", "0.0.4", reversed(nodes)) == 5000
    found = read_nodes(tmp_path / "a.et")
    assert len(found) == 5000 and sum(n.seconds for n in found) == pytest.approx(5000 * 2e-6)


def test_a_circle_is_named_as_a_path(tmp_path: Path, cli: Cli) -> None:
    names = {0: "linear", 1: "all_reduce", 2: "adam", 3: "zero"}
    edges = {0: [], 1: [3, 0], 2: [1], 3: [2]}
    write_nodes(tmp_path / "a.et", "0.0.4", [Node(id=i, name=n, type=COMPUTE, data_deps=edges[i]) for i, n in names.items()])
    with pytest.raises(Refused, match=r"wait for each other: 1 \(all_reduce\) -> 3 \(zero\) -> 2 \(adam\) -> 1 \(all_reduce\)"):
        read_nodes(tmp_path / "a.et")
    answer = cli("calibrate", "chakra", tmp_path / "a.et", "--cluster", "h100-hgx-ib400", "--out", tmp_path / "p.yaml")
    assert answer.code == 1 and "1 (all_reduce) -> 3 (zero)" in answer.err and not (tmp_path / "p.yaml").exists()


def test_a_long_circle_is_found_without_recursion(tmp_path: Path) -> None:
    write_nodes(tmp_path / "a.et", "0.0.4", [Node(id=i, type=COMPUTE, ctrl_deps=[(i + 1) % 5000]) for i in range(5000)])
    with pytest.raises(Refused, match=r"0 -> 1 -> 2 .* 4988 more .* 4999 -> 0"):
        read_nodes(tmp_path / "a.et")
    assert cycle({}) == []


def whole(tmp_path: Path) -> bytes:
    nodes = [Node(id=i, name="kernel", type=COMPUTE, data_deps=[i - 1] if i else [], duration_micros=7) for i in range(40)]
    write_nodes(tmp_path / "whole.et", "0.0.4", nodes)
    return (tmp_path / "whole.et").read_bytes()


def refused_files(content: bytes) -> list[tuple[bytes, str]]:
    metadata = b"\x07\x0a\x050.0.4"
    return [
        (b"", "is empty"),
        (content[:-3], r"byte \d+: is cut off.* message 40 has \d+ bytes, \d+ are left"),
        (content[: len(metadata) + 1], r"byte 8: is cut off"),
        (b'{"traceEvents": []}', "looks like JSON"),
        (b"\x1f\x8b\x08\x00", "is compressed"),
        (b"PK\x03\x04 a zip, of a timeline for example", "no GlobalMetadata|is no|is cut off"),
        (b"\xff" * 40, "byte 0: is cut off, or no Chakra"),
        (metadata + b"\x04\x08\x01\x12\x09", "byte 8: is no Node"),
        (metadata + b"\x02\x08\x01", "node 1 has no type of the schema"),
        (metadata + b"\x02\x18\x04" * 2, "two nodes have the id 0"),
        (metadata + b"\x05\x18\x04\x2a\x01\x09", "waits for node 9, which is not in the file"),
    ]


@pytest.mark.parametrize("k", range(11))
def test_what_is_cut_or_foreign_is_refused_with_one_message(tmp_path: Path, cli: Cli, k: int) -> None:
    content, said = refused_files(whole(tmp_path))[k]
    (tmp_path / "bad.et").write_bytes(content)
    with pytest.raises(Unparsable, match=said):
        read_nodes(tmp_path / "bad.et")
    if k in (1, 5):
        answer = cli("calibrate", "chakra", tmp_path / "bad.et", "--cluster", "h100-hgx-ib400", "--out", tmp_path / "p.yaml")
        assert answer.code == 3 and answer.err.count("\n") == 1 and "bad.et" in answer.err


def test_a_missing_file_and_two_of_one_rank(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match=r"nothing.et: cannot be read"):
        read_nodes(tmp_path / "nothing.et")
    whole(tmp_path)
    for name in ("a.3.et", "b.3.et"):
        (tmp_path / name).write_bytes((tmp_path / "whole.et").read_bytes())
    with pytest.raises(Refused, match=r"b.3.et: is a trace of rank 3, and so is"):
        read_chakra([tmp_path / "a.3.et", tmp_path / "b.3.et"])


def test_attributes_of_every_kind_and_fields_that_are_not_known(tmp_path: Path) -> None:
    """Field 3 + 2 k is a value, 4 + 2 k a list; field 11 of a Node (storage) is passed over."""
    node = Node(id=0, name="x", type=NODE_TYPES.index("METADATA_NODE"))
    node.attr.add(name="a", sint32_val=-5)
    node.attr.add(name="b").bool_list.values.extend([True, False])
    node.attr.add(name="c", bytes_val=b"\x00\xff")
    content = node.SerializeToString() + b"\x5a\x02\x08\x01"
    metadata = GlobalMetadata(version="0.0.4").SerializeToString()
    (tmp_path / "a.et").write_bytes(bytes([len(metadata)]) + metadata + bytes([len(content)]) + content)
    (found,) = read_nodes(tmp_path / "a.et")
    assert dict(found.attributes) == {"a": -5, "b": [True, False], "c": b"\x00\xff"}


# ---- out and in again


def test_counts_out_are_counts_in(run: Simulated, tmp_path: Path) -> None:
    written = write_chakra(run, tmp_path / "step")
    assert [p.name for p in written.paths] == [f"step.{r}.et" for r in range(16)]
    found = read_chakra(written.paths)
    assert sum(map(len, found.nodes.values())) == written.nodes
    for rank, nodes in found.nodes.items():
        program, part = run.workload.program_of(rank), run.part(rank)
        ops = [program.resolved.op(i) for i in range(len(part))]
        kinds = [NODE_TYPES[n.type] for n in nodes]
        assert kinds.count("COMM_COLL_NODE") == sum(type(op).__name__ == "Collective" for op in ops)
        messages = [op for op in ops if type(op).__name__ == "P2P"]
        assert (kinds.count("COMM_SEND_NODE"), kinds.count("COMM_RECV_NODE")) == (sum(len(o.sends) for o in messages), sum(len(o.recvs) for o in messages))
        # seconds of the kernels are those of the ops they are of; transfers theirs
        for code, name in ((COMPUTE, "Compute"), (COLLECTIVE, "Collective")):
            lasts = sum(float(part.end[i] - part.start[i]) for i, op in enumerate(ops) if type(op).__name__ == name)
            assert sum(n.seconds for n in nodes if n.type == code) == pytest.approx(lasts, rel=1e-9)


def test_what_waits_for_what_is_in_the_file(run: Simulated, tmp_path: Path) -> None:
    """No node starts before what it waits for has ended, by the times of the simulation."""
    written = write_chakra(run, tmp_path / "step", [5])
    nodes = read_nodes(written.paths[0])
    started = {}
    for node, message in zip(nodes, raw(written.paths[0]), strict=True):
        started[node.id] = message.start_time_micros
    ends = {n.id: started[n.id] + n.seconds * 1e6 for n in nodes}
    late = [(n.word, i) for n in nodes for i in n.waits_for if ends[i] > started[n.id] + 1]  # whole microseconds
    assert not late
    assert max(ends.values()) == pytest.approx(run.part(5).end.max() * 1e6, abs=1)


def raw(path: Path) -> list[Node]:
    from parasim.traces.chakra_files import _messages

    return [Node.FromString(content) for _, content in list(_messages(path, path.read_bytes()))[1:]]


def test_ends_of_messages_name_each_other(run: Simulated, tmp_path: Path) -> None:
    found = read_chakra(write_chakra(run, tmp_path / "step").paths)
    ends: dict[int, list[tuple[int, int, int, int]]] = {SEND: [], RECEIVE: []}
    for rank, nodes in found.nodes.items():
        for node in (n for n in nodes if n.type in ends):
            key = tuple(node.attributes[k] for k in ("comm_src", "comm_dst", "comm_tag", "comm_size"))
            assert key[0 if node.type == SEND else 1] == rank
            ends[node.type].append(key)
    assert ends[SEND] and sorted(ends[SEND]) == sorted(ends[RECEIVE])
    # 1024 tokens of 1024 elements of bf16 between the stages
    assert {key[3] for key in ends[SEND]} == {1024 * 1024 * 2}


def test_groups_and_bytes_of_collectives(run: Simulated, tmp_path: Path) -> None:
    written = write_chakra(run, tmp_path / "step")
    groups = json.loads(written.groups.read_text())
    assert (0, 1) in map(tuple, groups.values()) and list(groups) == [str(i) for i in range(len(groups))]
    found = read_chakra(written.paths)
    row = next(t for t in found.transfers if t.op == "all_reduce" and t.ranks == 2)
    # tp 2: the sums behind attention and feed-forward, 1024 tokens of 1024 elements of bf16; pairs of neighbours
    assert row.nbytes == 1024 * 1024 * 2 and (0, 1) in row.groups and len(row.groups) == 8
    assert all(call.complete for call in found.traces.calls)
    assert str(row.nbytes) in str(found) and "16 ranks" in str(found)


def test_kernels_become_the_profile_that_timed_them(run: Simulated, tmp_path: Path) -> None:
    """A profile of efficiencies alone comes back: products and attention reach what the simulation let them reach."""
    numbers = {k: {"value": v, "unit": "1", "source": "test", "status": "assumed"} for k, v in EFFICIENCIES.items()}
    from parasim import documents

    documents.write({"name": "given", "backend": "nccl", "numbers": numbers}, tmp_path / "given.yaml")
    written = write_chakra(simulated(profile=str(tmp_path / "given.yaml")), tmp_path / "step", [0])
    said = calibrate_files("chakra", written.paths, "h100-hgx-ib400", tmp_path / "back.yaml")
    back = load_profile(tmp_path / "back.yaml")
    # small products are bound by memory on a roofline, which only lowers what they reach
    assert back.get("compute.memory_efficiency") == pytest.approx(0.5, rel=0.02)
    assert back.get("compute.matmul_efficiency") == pytest.approx(0.25, rel=1e-3)
    assert back.get("compute.attention_grad_efficiency") == pytest.approx(0.125, rel=1e-3)
    assert "products (GEMM)" in said and "COMM_SEND_NODE" in said


EFFICIENCIES = {
    "compute.matmul_efficiency": 0.25,
    "compute.attention_efficiency": 0.25,
    "compute.attention_grad_efficiency": 0.125,
    "compute.memory_efficiency": 0.5,
}


def test_the_command_writes_every_rank(tmp_path: Path, cli: Cli) -> None:
    text = "model: {kind: mlp, layers: 2, hidden: 64}\ncluster: h100-hgx-ib400\ndevices: 4\nbatch: {global: 4}\nparallel: {pp: 2}\n"
    (tmp_path / "run.yaml").write_text(text)
    answer = cli("export", "chakra", tmp_path / "run.yaml", "--out", tmp_path / "t.et")
    assert answer.code == 0 and "t.0.et to t.3.et" in answer.out
    assert sorted(p.name for p in tmp_path.glob("t.*")) == ["t.0.et", "t.1.et", "t.2.et", "t.3.et", "t.groups.json"]
    assert cli("export", "chakra", tmp_path / "run.yaml", "--out", tmp_path / "u", "--rank", 9).code == 2
    assert cli("export", "chakra", tmp_path / "timeline.npz", "--out", tmp_path / "u").code == 2


def test_too_many_nodes_are_refused_before_anything_is_written(run: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parasim.traces.chakra_export.MOST_NODES", 100)
    with pytest.raises(ParasimError, match="give --rank for one file"):
        write_chakra(run, tmp_path / "step")
    assert not list(tmp_path.iterdir())
