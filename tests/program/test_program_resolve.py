"""resolve against its obvious twin: the same waits (as transitive closures), the same lifetimes, the same refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import obvious_resolve as obvious
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import programs

from parasim.errors import InvalidProgram
from parasim.program.edges import Resolved, resolve
from parasim.program.ops import CATEGORIES, Buffer, Compute, Kernel, Label, Ref
from parasim.program.workload import Call, Program, buffer_bytes
from parasim.timeline import Part
from parasim.timeline_columns import Scribe, names

OFTEN = settings(max_examples=70, deadline=None, derandomize=True)


def with_streams(resolved: Resolved) -> list[set[int]]:
    """Edges, and the op before on the same stream."""
    last: dict[int, int] = {}
    out = []
    for i in range(len(resolved)):
        s = int(resolved.stream[i])
        out.append(set(resolved.waits(i)) | ({last[s]} if s in last else set()))
        last[s] = i
    return out


def check_waits(program: Program) -> None:
    resolved = resolve(program)
    assert [resolved.op(i) for i in range(len(resolved))] == [it.op for it in obvious.instances(program)]
    assert obvious.closure(with_streams(resolved)) == obvious.closure(obvious.waits(program))


def check_edges_are_lean(program: Program) -> None:
    """Edges look back, to other streams, once per stream, and never to what an earlier op of this stream already waited for."""
    resolved = resolve(program)
    known: dict[tuple[int, int], int] = {}
    for i in range(len(resolved)):
        mine, seen = int(resolved.stream[i]), set()
        for e in resolved.waits(i):
            other = int(resolved.stream[e])
            assert e < i and other != mine and other not in seen and known.get((mine, other), -1) < e
            seen.add(other)
            known[mine, other] = e


def times(program: Program, data: st.DataObject) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Some run that keeps the waits: integers, so that sums are exact."""
    n = len(resolve(program))
    gaps = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    lasting = data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))
    end: list[int] = []
    start: list[int] = []
    for i, found in enumerate(obvious.waits(program)):
        start.append(max((end[j] for j in found), default=0) + gaps[i])
        end.append(start[i] + lasting[i])
    return np.array(start, dtype=float), np.array(end, dtype=float)


def memory(program: Program, start: np.ndarray[Any, Any], end: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Births and deaths in a Timeline of ops with these seconds."""
    resolved = resolve(program)
    return Part(0, Scribe(*names([program])).script(resolved, np.zeros(len(resolved))), start, start, end).memory()


def check_lifetimes(program: Program, data: st.DataObject) -> None:
    start, end = times(program, data)
    due = []
    for g in obvious.generations(program):
        buffer = program.buffers[g.key[0]]
        size = buffer_bytes(buffer)
        if size and buffer.category in CATEGORIES:
            due.append((float(start[g.birth]) if g.birth >= 0 else -np.inf, buffer.name, float(size)))
            if g.birth >= 0:
                due.append((max(float(end[u]) for u in g.users), buffer.name, -float(size)))
    rows = memory(program, start, end)
    buffers = list(program.buffers)
    assert sorted((float(r["time"]), buffers[r["buffer"]], float(r["delta"])) for r in rows) == sorted(due)
    assert all(CATEGORIES[r["category"]] == program.buffers[buffers[r["buffer"]]].category for r in rows)


@OFTEN
@given(programs(written_first=True))
def test_waits_are_those_of_the_twin(program: Program) -> None:
    check_waits(program)
    check_edges_are_lean(program)


@OFTEN
@given(programs(written_first=True), st.data())
def test_lifetimes_are_those_of_the_twin(program: Program, data: st.DataObject) -> None:
    check_lifetimes(program, data)


@OFTEN
@given(programs(written_first=False), st.data())
def test_reads_before_writes_are_refused_as_the_twin_does(program: Program, data: st.DataObject) -> None:
    try:
        obvious.generations(program)
    except obvious.ReadBeforeWrite as missing:
        with pytest.raises(InvalidProgram) as caught:
            resolve(program)
        if len([k for k in obvious.instances(program)[missing.instance].reads if k[0] == missing.key[0]]) == 1:
            assert "before anything wrote it" in str(caught.value)
    else:
        check_waits(program)
        check_lifetimes(program, data)


def one(reads: tuple[Ref, ...], writes: tuple[Ref, ...], stream: str = "compute", **more: Any) -> Compute:
    return Compute(label=Label("W", 2, 0, 7), stream=stream, kernels=(Kernel("delay", reads, writes, (1.0,), "bf16"),), **more)


X = Buffer("x", (1,), "bf16", "activations")


def test_a_read_before_any_write_names_op_and_buffer() -> None:
    program = Program({"x": X}, {"W2": (one((Ref("x", 0),), ()),)}, (Call("W2", (3,)),))
    with pytest.raises(InvalidProgram, match=r"2W3 layer 7 delay \[compute\] reads x\[3\] before anything wrote it"):
        resolve(program)


def test_an_undeclared_buffer_is_named() -> None:
    program = Program({}, {"W2": (one((), (Ref("nowhere", 0),)),)}, (Call("W2", (3,)),))
    with pytest.raises(InvalidProgram, match="nowhere"):
        resolve(program)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (Program({}, {}, (Call("F9", (0,)),)), "F9"),
        (Program({"x": X}, {"F0": (one((), (Ref("x", 1),)),)}, (Call("F0", (0,)),)), "F0 with 1 "),
        (Program({"x": X}, {"F0": (one((), (Ref("x", 0),), window="w"),)}, (Call("F0", (0,)),)), "window w has no size"),
    ],
    ids=["a call of no body", "a slot beyond the call's microbatches", "a window without a size"],
)
def test_names_without_meaning_are_refused(program: Program, words: str) -> None:
    with pytest.raises(InvalidProgram, match=words):
        resolve(program)


def test_a_program_without_calls_has_its_resident_bytes() -> None:
    program = Program({"p": Buffer("p", (3,), "fp32", "parameters", persistent=True)}, {}, ())
    rows = memory(program, np.zeros(0), np.zeros(0))
    assert [(r["time"], r["delta"]) for r in rows] == [(-np.inf, 12.0)]


def test_a_window_keeps_at_most_k_outputs_alive() -> None:
    """A gathers on one stream, B uses on another: with window 2 the third gather waits for the last use of the first."""
    buffers = {"g": Buffer("g", (1,), "bf16", "gathered")}
    gather, use = one((), (Ref("g", 0),), "dp.gather", window="limit"), one((Ref("g", 0),), ())
    order = [("G", 0), ("G", 1), ("U", 0), ("G", 2), ("U", 1), ("G", 3), ("U", 2), ("U", 3)]
    program = Program(buffers, {"G": (gather,), "U": (use,)}, tuple(Call(b, (m,)) for b, m in order), {"limit": 2})
    resolved = resolve(program)
    assert [resolved.waits(i) for i in (0, 1, 3, 5)] == [[], [], [2], [4]]
