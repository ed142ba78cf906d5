"""render leaves nothing out: calls, ops, references, dims and buffers are counted back from the text."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from random_programs import programs

from parasim.config import build
from parasim.lowering import lower
from parasim.program.ops import P2P, Collective, Compute
from parasim.program.text import describe, render
from parasim.program.workload import Program, buffer_bytes

FORM = {"model": {"kind": "transformer", "layers": 2, "hidden": 16, "heads": 4, "ffn": 32, "vocab": 64}, "cluster": "h100-hgx-ib400", "devices": 8}


def sections(text: str) -> dict[str, list[str]]:
    """The lines of each body and of `buffers`, by title."""
    out: dict[str, list[str]] = {}
    for block in text.split("\n\n")[1:]:
        title, *lines = block.splitlines()
        if title.endswith(":"):
            out[title[:-1]] = lines
    return out


def check(program: Program) -> None:
    text = render(program)
    calls = text.splitlines()[0].removeprefix("calls: ").split()
    assert calls == [f"{c.body}({','.join(map(str, c.microbatches))})" if c.microbatches else c.body for c in program.calls]
    blocks = sections(text)
    for name, body in program.bodies.items():
        assert len(blocks[name]) == len(body)
        for op, line in zip(body, blocks[name], strict=True):
            assert f"[{op.stream}]" in line and line.strip().startswith(op.label.phase)
            reads, writes = re.fullmatch(r".*?\] .*: (.*) -> (.*?)(?:  .*)?", line).groups()  # type: ignore[union-attr]
            assert (reads.split(), writes.split()) == tuple(
                [r.name + {-1: "", 0: "[i]", 1: "[j]"}[r.slot] for r in refs] or ["-"] for refs in (op.reads, op.writes)
            )
            assert all(fence in line.split("after ")[-1] for fence in op.after)
            assert not op.window or f"window {op.window}" in line
            if isinstance(op, Compute):
                assert all(f"{k.name}({', '.join(map(str, k.dims))})" in line for k in op.kernels)
            elif isinstance(op, Collective):
                assert f"{op.op} {op.group}" in line
            else:
                assert len(re.findall(r"(?:send|recv) \S+ (?:to|from) \S+ on ", line)) == len(op.sends) + len(op.recvs)
    rows = [line.split() for line in blocks["buffers"]]
    assert [row[0] for row in rows] == [f"{name}:" for name in program.buffers]
    assert sum(int(row[-2]) for row in rows) == sum(map(buffer_bytes, program.buffers.values()))
    assert sum("persistent" in row for row in rows) == sum(b.persistent for b in program.buffers.values())


@settings(max_examples=40, deadline=None, derandomize=True)
@given(programs(written_first=False))
def test_random_programs_are_shown_whole(program: Program) -> None:
    check(program)


@pytest.mark.parametrize("comm", ["async", "blocking"])
def test_lowered_programs_are_shown_whole(comm: str) -> None:
    keys: dict[str, Any] = FORM | {"batch": {"global": 8, "sequence": 8}, "parallel": {"tp": 2, "pp": 2}, "pipeline": {"comm": comm}, "zero": {"stage": 1}}
    for program in lower(build(keys).plan).programs:
        check(program)


def test_what_a_flat_shard_is_made_of_and_how_a_collective_cuts_are_shown() -> None:
    keys: dict[str, Any] = FORM | {"batch": {"global": 8, "sequence": 8}, "zero": {"stage": 1}, "parallel": {"tp": 2}, "tensor": {"sequence_parallel": True}}
    program = lower(build(keys).plan).programs[0]
    text = render(program)
    assert sum(" of " in line for line in sections(text)["buffers"]) == sum(bool(b.of) for b in program.buffers.values()) > 0
    cut = [op for body in program.bodies.values() for op in body if isinstance(op, Collective) and op.dim is not None]
    assert sum(" dim 0" in line for body in program.bodies for line in sections(text)[body]) == len(cut) > 0


def test_describe_names_microbatch_layer_and_stream() -> None:
    keys: dict[str, Any] = FORM | {"batch": {"global": 8, "sequence": 8}, "parallel": {"tp": 2, "pp": 2}}
    program = lower(build(keys).plan).programs[1]
    body = program.bodies["F1"]
    assert describe(next(o for o in body if isinstance(o, Collective)), (3,)) == "1F3 layer 1 all_reduce tp [compute]"
    message = next(o for b in program.bodies.values() for o in b if isinstance(o, P2P))
    assert describe(message, (3,)) == "1recv3 recv L1.input from pp-1 on F0 [pp.recv.F0]"
