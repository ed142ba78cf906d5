"""Transfers that hung or held each other up in other programs, rebuilt by hand: the same program gives both verdicts, by how transfers are queued."""

from __future__ import annotations

import numpy as np
import pytest
from hand import collective, network, recv, run, send, times, work, workload

from parasim.errors import Deadlock
from parasim.program.checks import verify
from parasim.program.ops import COMPUTE, P2P, Label, Msg, Op, Ref
from parasim.program.workload import Workload
from parasim.schedules import Action, ScheduleInput, orders_of, singles
from parasim.topology.builders import ideal


def locally_batched(schedule: str, p: int, m: int, v: int) -> Workload:
    """Every rank by itself: what an action made leaves in one batch with what the next action needs, and the rank waits for both."""
    orders = {r: list(singles(order)) for r, order in orders_of(schedule, ScheduleInput(p, m, v)).items()}
    last = p * v - 1
    names = {f"{a.kind}{a.stage}.{a.microbatch}" for order in orders.values() for a in order}

    def source(a: Action) -> str:
        """The message that an action needs."""
        stage = a.stage - 1 if a.kind == "F" else a.stage + 1
        return f"{a.kind}{stage}.{a.microbatch}" if 0 <= stage <= last else ""

    def there(a: Action) -> str:
        """The message that an action makes."""
        return f"{a.kind}{a.stage}.{a.microbatch}" if 0 <= (a.stage + 1 if a.kind == "F" else a.stage - 1) <= last else ""

    bodies: list[list[Op]] = []
    for r, order in orders.items():
        body: list[Op] = []
        for before, a in zip([None, *order], [*order, None], strict=True):
            sends = (Msg(Ref(there(before)), f"to{(r + (1 if before.kind == 'F' else -1)) % p}", there(before)),) if before and there(before) else ()
            recvs = (Msg(Ref(source(a)), f"to{(r - (1 if a.kind == 'F' else -1)) % p}", source(a)),) if a and source(a) else ()
            if sends or recvs:
                body.append(P2P(label=Label("x", 0, axis="pp"), stream=COMPUTE, sends=sends, recvs=recvs))
            if a:
                body.append(work(1.0, f"{a.kind}{a.stage}.{a.microbatch}", reads=(source(a),) if source(a) else ()))
        bodies.append(body)
    return workload(bodies, dict.fromkeys(sorted(names), 1))


def test_batches_made_with_local_knowledge_cross_where_stages_interleave() -> None:
    """1F1B may wait for {send F, receive B} as one batch, its neighbour is in the mirrored one. With two stages per rank the batches of four ranks
    wait for each other in a circle; the transfers that lowering places for all ranks together do not (test_no_schedule_deadlocks_by_itself)."""
    assert run(locally_batched("1f1b", 4, 4, 1), ideal(4, 0.0, 1e9)).makespan > 0
    assert verify(locally_batched("interleaved-1f1b", 4, 8, 2))
    with pytest.raises(Deadlock):
        run(locally_batched("interleaved-1f1b", 4, 8, 2), ideal(4, 0.0, 1e9))


def ring(order: dict[int, tuple[str, ...]]) -> Workload:
    """Four ranks exchange with both neighbours by single blocking messages."""

    def op(r: int, what: str) -> Op:
        way, _, where = what.partition(" ")
        other = (r + (1 if where == "next" else -1)) % 4
        name = f"{r}>{other}" if way == "send" else f"{other}>{r}"
        return send(name, f"to{other}", COMPUTE) if way == "send" else recv(name, f"to{other}", COMPUTE)

    names = [f"{r}>{(r + d) % 4}" for r in range(4) for d in (1, -1)]
    return workload([[work(0.0, *(n for n in names if n[0] == str(r))), *(op(r, what) for what in order[r % 2])] for r in range(4)], dict.fromkeys(names, 1))


def test_a_ring_of_blocking_messages_needs_odd_and_even() -> None:
    """All send to the previous rank first: nobody receives. Odd ranks receive first: done."""
    same = ("send prev", "recv prev", "send next", "recv next")
    turned = ("recv next", "send next", "recv prev", "send prev")
    with pytest.raises(Deadlock):
        run(ring({0: same, 1: same}), ideal(4, 0.0, 1.0))
    assert verify(ring({0: same, 1: same}))
    assert run(ring({0: same, 1: turned}), ideal(4, 0.0, 1.0)).makespan == 4.0  # four messages of 1 byte at 1 byte/s, one after the other


def test_communicators_that_are_made_in_another_order_on_each_rank() -> None:
    """Making the communicator of two ranks blocks both until the other is there too. Three ranks that begin with different partners never get
    past it; in one order for all they do."""
    pairs = {"a": [[0, 1]], "b": [[1, 2]], "c": [[0, 2]]}
    crossed = (("a", "c"), ("b", "a"), ("c", "b"))

    def made(order: tuple[tuple[str, ...], ...]) -> Workload:
        return workload([[collective("all_reduce", g, f"p.{g}") for g in mine] for mine in order], {f"p.{g}": 1 for g in pairs}, pairs)

    assert verify(made(crossed))
    with pytest.raises(Deadlock):
        run(made(crossed), ideal(3, 0.0, 1.0))
    assert run(made(tuple(tuple(sorted(mine)) for mine in crossed)), ideal(3, 0.0, 1.0)).makespan > 0


@pytest.mark.parametrize(("stream", "end"), [("net", 14.0), ("pp", 5.0)])
def test_a_pending_receive_holds_up_the_exchange_inside_a_forward(stream: str, end: float) -> None:
    """Rank 1 posts the receive of what rank 0 sends at 10 s. On the stream of the exchange among experts that waits for it, on both; on one of
    its own the forward of both (1 s, an exchange of 4 B among two at 1 B/s with half of it staying at home, 2 s, then 2 s) is over after 5 s."""
    net = network(2, [("d0", "d1", 1.0)])

    def forward(r: int) -> list[Op]:
        return [work(1.0, "p.in"), collective("all_to_all", "ep", "p.in", "net"), work(2.0, f"out{r}", reads=("p.in",))]

    first: list[Op] = [*forward(0), work(10.0, "x", stream="other"), send("x", "to1", "pp.send")]
    t = run(workload([first, [recv("x", "to0", stream), *forward(1)]], {"p.in": 4, "x": 0, "out0": 1, "out1": 1}, {"ep": np.array([[0, 1]])}), net)
    assert times(t, 1, 3)[2] == pytest.approx(end)
