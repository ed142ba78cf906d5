"""verify finds every kind of fault, names it, and never raises; it accepts what lowering makes (tests/lowering has the matrix)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parasim.config import build
from parasim.lowering import lower
from parasim.program.checks import verify
from parasim.program.ops import P2P, Buffer, Collective, Compute, Kernel, Label, Msg, Op, Ref
from parasim.program.workload import Call, Program, Workload

MODEL = {"kind": "transformer", "layers": 4, "hidden": 16, "heads": 4, "ffn": 32, "vocab": 64, "tied": True}


def workload(**more: Any) -> Workload:
    keys: dict[str, Any] = {"model": MODEL, "cluster": "h100-hgx-ib400", "devices": 8, "batch": {"global": 8, "micro": 1, "sequence": 8}}
    keys |= {"parallel": {"tp": 2, "pp": 2, "dp": 2}, "tensor": {"sequence_parallel": True}, "dp": {"mode": "bucketed", "bucket": "1 KiB"}}
    return lower(build(keys | more).plan)


def mutate(w: Workload, c: int, change: Callable[[Program], Program]) -> Workload:
    """The workload with another Program for class `c`."""
    return replace(w, programs=tuple(change(p) if i == c else p for i, p in enumerate(w.programs)))


def with_calls(change: Callable[[list[Call]], list[Call]]) -> Callable[[Program], Program]:
    return lambda p: replace(p, calls=tuple(change(list(p.calls))))


def with_body(name: str, change: Callable[[list[Op]], list[Op]]) -> Callable[[Program], Program]:
    return lambda p: replace(p, bodies={**p.bodies, name: tuple(change(list(p.bodies[name])))})


def without(body: str, nth: int) -> Callable[[list[Call]], list[Call]]:
    """The calls without the nth call of `body`."""

    def change(calls: list[Call]) -> list[Call]:
        calls.remove([c for c in calls if c.body == body][nth])
        return calls

    return change


def found(w: Workload) -> str:
    violations = verify(w)
    assert violations
    return "\n".join(map(str, violations))


def test_lowered_workloads_are_sound() -> None:
    assert verify(workload()) == verify(workload(zero={"stage": 1})) == ()


@pytest.mark.parametrize("comm", ["async", "stream"])
@pytest.mark.parametrize("nth", [0, 2])
def test_a_dropped_send(comm: str, nth: int) -> None:
    w = workload(pipeline={"comm": comm, "schedule": "gpipe"})
    text = found(mutate(w, 0, with_calls(without("send.F0", nth))))
    assert "channel F0=class 0 sends 3 messages to class 1, which receives 4" in text


def test_a_dropped_receive() -> None:
    text = found(mutate(workload(), 1, with_calls(without("recv.F0", 1))))
    assert "channel F0=class 0 sends 4 messages to class 1, which receives 3" in text
    assert "reads L2.input[1] before anything wrote it" in text


def test_microbatches_swapped_on_one_rank() -> None:
    def swap(calls: list[Call]) -> list[Call]:
        return [c._replace(microbatches=tuple({0: 1, 1: 0}.get(m, m) for m in c.microbatches)) for c in calls]

    text = found(mutate(workload(), 0, with_calls(swap)))
    assert "first difference at message 0: [1, 0, 2] against [0, 1, 2]" in text


def test_a_dropped_bucket_reduction() -> None:
    w = workload()
    reductions = [o for o in w.programs[1].bodies["B1!"] if isinstance(o, Collective) and o.group == "dp"]
    assert len(reductions) > 2
    for dropped in reductions:
        text = found(mutate(w, 1, with_body("B1!", lambda ops, dropped=dropped: [o for o in ops if o is not dropped])))  # type: ignore[misc]
        assert all(f"class 1={ref.name} is reduced over dp 0 times in step 0, due once" in text for ref in dropped.reads)


def test_a_bucket_reduced_twice() -> None:
    def twice(ops: list[Op]) -> list[Op]:
        return [o for op in ops for o in ([op, op] if isinstance(op, Collective) and op.group == "dp" else [op])]

    assert "is reduced over dp 2 times in step 0, due once" in found(mutate(workload(), 1, with_body("B1!", twice)))


@pytest.mark.parametrize("zero", [0, 1])
def test_a_reduction_before_its_accumulations(zero: int) -> None:
    def early(ops: list[Op]) -> list[Op]:
        return sorted(ops, key=lambda o: not (isinstance(o, Collective) and o.group == "dp"))

    text = found(mutate(workload(zero={"stage": zero}), 1, with_body("B1!", early)))
    assert "after 3 of 4 accumulations" in text


def test_an_optimizer_step_before_the_last_accumulation() -> None:
    w = workload(devices=1, parallel={}, tensor={}, batch={"global": 4, "micro": 1, "sequence": 8})
    assert verify(w) == ()
    program = w.programs[0]
    last = max(i for i, c in enumerate(program.calls) if c.body.startswith("B"))
    swapped = [*program.calls[:last], program.calls[-1], program.calls[last]]
    text = found(replace(w, programs=(replace(program, calls=tuple(swapped)),)))
    assert "reads L0.qkv.weight.grad after 3 of 4 accumulations" in text


def test_a_reduction_in_an_earlier_microbatch_only() -> None:
    """The variant body with the reductions called one microbatch too early."""

    def change(calls: list[Call]) -> list[Call]:
        backward = [i for i, c in enumerate(calls) if c.body.startswith("B1")]
        bodies = [calls[i].body for i in backward]
        for i, body in zip(backward, [*bodies[:-2], bodies[-1], bodies[-2]], strict=True):
            calls[i] = calls[i]._replace(body=body)
        return calls

    assert "after 3 of 4 accumulations" in found(mutate(workload(), 1, with_calls(change)))


def test_a_stale_read() -> None:
    """Rank 1 computes on an input that comes later; rank 0 reads a gradient it has not received."""

    def late(calls: list[Call]) -> list[Call]:
        i = next(i for i, c in enumerate(calls) if c == Call("recv.F0", (2,)))
        return [*calls[:i], calls[i + 1], calls[i], *calls[i + 2 :]]

    assert "1F2 layer 2" in (text := found(mutate(workload(), 1, with_calls(late)))) and "reads L2.input[2] before anything wrote it" in text


def test_a_weight_gradient_from_another_microbatch() -> None:
    """A backward that names the slot of a microbatch whose forward has not run."""

    def change(calls: list[Call]) -> list[Call]:
        i = next(i for i, c in enumerate(calls) if c.body == "B0")
        calls[i] = Call("B0", (3,))
        return calls

    assert "before anything wrote it" in found(mutate(workload(pipeline={"comm": "stream"}), 0, with_calls(change)))


def test_parameters_that_are_never_gathered() -> None:
    """ZeRO-1 without the gather of a bucket: the next step would run on old parameters."""
    w = workload(zero={"stage": 1})
    gathers = [o for o in w.programs[0].bodies["step"] if isinstance(o, Collective) and o.op == "all_gather"]
    text = found(mutate(w, 0, with_body("step", lambda ops: [o for o in ops if o is not gathers[0]])))
    assert f"{gathers[0].reads[0].name} is written and never read" in text
    drop = with_body("step", lambda ops: [o for o in ops if not (isinstance(o, Collective) and o.op == "all_gather")])
    assert "is written and never read" in found(replace(w, programs=tuple(map(drop, w.programs))))  # by all ranks alike


def test_a_message_of_another_size_at_each_end() -> None:
    def shrink(p: Program) -> Program:
        return replace(p, buffers={**p.buffers, "L2.input": replace(p.buffers["L2.input"], dtype="fp32")})

    assert "channel F0" in found(mutate(workload(), 1, shrink))


# Hand-made pairs of classes


def pair(*bodies: list[Op], **more: Any) -> Workload:
    """One rank per class; body k is rank k's whole program, over microbatches 0 and 1."""
    names = {r.name for body in bodies for op in body for r in (*op.reads, *op.writes)}
    buffers = {n: Buffer(n, (4,), "bf16", "buffers", persistent=n.startswith("p")) for n in names}
    keys = {
        "class_of_rank": np.arange(len(bodies)),
        "groups": {"g": np.arange(len(bodies))[None]},
        "peers": {"+1": np.roll(np.arange(len(bodies)), -1), "-1": np.roll(np.arange(len(bodies)), 1)},
        "coordinates": {},
    }
    programs = tuple(Program(buffers, {"main": tuple(body)}, (Call("main", (0, 1)),)) for body in bodies)
    return Workload(programs=programs, **(keys | more))


def make(name: str, stream: str = "compute") -> Compute:
    return Compute(label=Label("F", 0, 0), stream=stream, kernels=(Kernel("delay", (), (Ref(name, 0),), (1.0,), "bf16"),))


def gather(name: str, op: str = "all_reduce", stream: str = "compute", **more: Any) -> Collective:
    return Collective(label=Label("F", 0, 0), stream=stream, op=op, group="g", reads=(Ref(name),), writes=(Ref(name),), **more)  # type: ignore[arg-type]


def send(name: str, peer: str, channel: str, stream: str = "compute") -> P2P:
    return P2P(label=Label("send", 0, 0), stream=stream, sends=(Msg(Ref(name, 0), peer, channel),))


def recv(name: str, peer: str, channel: str, stream: str = "compute") -> P2P:
    return P2P(label=Label("recv", 0, 0), stream=stream, recvs=(Msg(Ref(name, 0), peer, channel),))


def test_collectives_in_another_order() -> None:
    a, b = gather("p.a"), gather("p.b", "all_gather")
    assert verify(pair([a, b], [a, b])) == ()
    assert "group g stream compute=class 0 issues 2 collectives where class 1 of the same group issues 2, or others" in found(pair([a, b], [b, a]))


def test_one_collective_too_few() -> None:
    a = gather("p.a")
    assert "issues 2 collectives where class 1 of the same group issues 1" in (text := found(pair([a, a], [a])))
    assert "deadlock in a dry run" in text


def test_collectives_with_another_root() -> None:
    assert found(pair([gather("p.a", "broadcast", root=0)], [gather("p.a", "broadcast", root=1)]))


def test_crossed_blocking_sends() -> None:
    """Both ranks send before they receive, each blocking: the order of pytorch issue 172668."""
    first = [make("x"), send("x", "+1", "up"), recv("y", "+1", "down")]
    crossed = [make("y"), send("y", "-1", "down"), recv("x", "-1", "up")]
    text = found(pair(first, crossed))
    assert "rank 0=0send0 send x to +1 on up [compute] can never start or end" in text
    assert "rank 1=0send0 send y to -1 on down [compute] can never start or end" in text
    assert verify(pair(first, [crossed[0], crossed[2], crossed[1]])) == ()  # receive first
    other_stream = [make("y"), send("y", "-1", "down", "pp.send"), recv("x", "-1", "up")]
    assert verify(pair(first, other_stream)) == ()  # the send does not block


def test_a_deadlock_of_two_streams_and_two_ranks() -> None:
    """Rank 0 waits for its receive on one stream before the collective, rank 1 sends only after that collective."""
    zero = [recv("x", "+1", "up", "pp"), gather("p.a", stream="pp")]
    one = [gather("p.a", stream="pp"), make("x", "pp"), send("x", "-1", "up", "pp")]
    text = found(pair(zero, one))
    assert "rank 0=0recv0" in text and "rank 1=0F0 all_reduce g [pp]" in text


def test_messages_of_a_channel_are_first_in_first_out() -> None:
    x, y = Ref("x", 0), Ref("y", 1)
    ups = [P2P(label=Label("send"), stream="compute", sends=(Msg(r, "+1", "up"),)) for r in (x, y)]
    downs = [P2P(label=Label("recv"), stream="compute", recvs=(Msg(r, "-1", "up"),)) for r in (x, y)]
    makes = [make("x"), Compute(label=Label("F"), stream="compute", kernels=(Kernel("delay", (), (y,), (1.0,), "bf16"),))]
    assert verify(pair([*makes, *ups], downs)) == ()
    assert "channel up" in found(pair([*makes, *ups], downs[::-1]))


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (lambda w: replace(w, peers={}), "+1"),
        (lambda w: replace(w, peers={"+1": np.array([-1, -1]), "-1": np.array([1, 0])}), "+1"),
        (lambda w: replace(w, peers={"+1": np.array([7, 0]), "-1": np.array([1, 0])}), "+1"),
        (lambda w: replace(w, groups={}), "group g"),
        (lambda w: replace(w, groups={"g": np.array([[0]])}), "group g"),
        (lambda w: replace(w, class_of_rank=np.array([0, 2])), "class 2"),
    ],
    ids=["no such peers", "peer -1", "peer beyond the world", "no such group", "rank in no group", "no such class"],
)
def test_names_that_resolve_to_nothing_are_violations(broken: Callable[[Workload], Workload], words: str) -> None:
    sound = pair([make("x"), send("x", "+1", "up"), gather("p.a")], [recv("x", "-1", "up"), gather("p.a")])
    assert verify(sound) == ()
    assert words in found(broken(sound))


def test_an_unknown_buffer_is_a_violation_and_no_exception() -> None:
    w = pair([make("x")], [make("x")])
    assert "buffer x is used but not declared" in found(mutate(w, 1, lambda p: replace(p, buffers={})))
    assert "no body" in found(mutate(w, 1, lambda p: replace(p, calls=(Call("other"),))))
