"""What must hold of a table before it is timed. Violations are data; each names rank, stage and microbatch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from ..errors import Violation
from .actions import Action, Kind, Order, Orders, singles
from .placement import BIDIRECTIONAL, LOOP, PLACEMENTS, VEE, Placement
from .table import Table, Transfer

Work = tuple[int, int]  # stage, microbatch


def violations(table: Table, placement: Placement | None = None) -> tuple[Violation, ...]:
    """Every rule that a table breaks, the simplest first: the later ones are only asked of a table that keeps the earlier ones.

    Each (stage, microbatch) has one F and one B, or one I and one W, all on the rank of its placement (given, or the one that fits best);
    I before W, F before both; a SEND after its producer and a RECV before its consumer, paired; no cycle of waits. Numbers have no gaps.
    """
    orders = table.orders
    for rule in (_numbers, lambda o: _placed(o, placement), _counted, _ordered):
        found = tuple(rule(orders))
        if found:
            return found
    return tuple(_transfers(table)) or tuple(_cycle(orders))


def sizes(orders: Orders) -> tuple[int, int]:
    """(stages, microbatches) of some orders: the highest stage, and how many forwards most stages have."""
    actions = [a for order in orders.values() for a in singles(order)]
    forwards = Counter(a.stage for a in actions if a.kind == "F")
    usual = Counter(forwards.values()).most_common()
    return 1 + max((a.stage for a in actions), default=-1), max((n for n, times in usual if times == usual[0][1]), default=0)


def placement_of(orders: Orders) -> Placement:
    """The placement that leaves the fewest actions on a wrong rank."""
    stages, _ = sizes(orders)
    fitting = [p for p in PLACEMENTS if p.stages(len(orders), max(1, stages // len(orders))) == stages]
    return min(fitting or [LOOP], key=lambda p: len(list(_placed(orders, p))))


def _violation(rank: int, action: Action | Transfer, rule: str, legal: str = "") -> Violation:
    return Violation(f"rank {rank}", str(action), f"(stage {action.stage}, microbatch {action.microbatch}) {rule}", legal)


def _actions(orders: Orders) -> Iterator[tuple[int, Action]]:
    return ((rank, action) for rank in sorted(orders) for action in singles(orders[rank]))


def _numbers(orders: Orders) -> Iterator[Violation]:
    """Stages 0 to a multiple of the ranks, every one with microbatches 0 to m - 1."""
    ranks, (stages, microbatches) = len(orders), sizes(orders)
    used = {a.stage for _, a in _actions(orders)}
    for rank in sorted(orders):
        if not orders[rank]:
            yield Violation(f"rank {rank}", "an empty row", "has no computation", "every rank holds a stage")
    for stage in range(stages):
        if stage not in used:
            yield Violation(f"stage {stage}", "no action", f"is missing, but there is a stage {stages - 1}", "number the stages from 0 without a gap")
    if stages % ranks:
        yield Violation("stages", str(stages), f"must be a multiple of the {ranks} ranks (rows)", "every rank holds as many stages")
    for rank, a in _actions(orders):
        if a.microbatch < microbatches:
            continue
        yield _violation(rank, a, f"is of a microbatch out of range: stages have {microbatches} forwards", f"legal: 0 to {microbatches - 1}")
        there = {b.microbatch for b in singles(orders[rank]) if (b.kind, b.stage) == ("F", a.stage)}
        missing = min(set(range(microbatches)) - there, default=None)
        if a.kind == "F" and missing is not None:
            late = Action("B", a.stage, missing)
            yield _violation(rank, late, f"comes before {late._replace(kind='F')} on stage {a.stage}: there is no such F")


def _placed(orders: Orders, placement: Placement | None) -> Iterator[Violation]:
    ranks, (_, microbatches) = len(orders), sizes(orders)
    due = placement or placement_of(orders)
    names = ", ".join(p.name for p in (LOOP, VEE, BIDIRECTIONAL))
    for rank, action in _actions(orders):
        right = due.rank(action.stage, action.microbatch, ranks, microbatches)
        if right != rank:
            yield _violation(rank, action, f"is on the wrong rank: stage {action.stage} of placement {due.name} is on rank {right}", f"placements: {names}")


def _counted(orders: Orders) -> Iterator[Violation]:
    stages, microbatches = sizes(orders)
    count: dict[Work, Counter[Kind]] = defaultdict(Counter)
    ranks: dict[Work, int] = {}
    for rank, a in _actions(orders):
        count[a.stage, a.microbatch][a.kind] += 1
        ranks[a.stage, a.microbatch] = rank
    for stage in range(stages):
        for i in range(microbatches):
            n, rank = count[stage, i], ranks.get((stage, i), -1)
            where = f"rank {rank}" if rank >= 0 else f"stage {stage}"
            work = f"stage {stage}, microbatch {i}"
            if n["F"] != 1:
                yield Violation(where, work, f"has {n['F']} forwards ({stage}F{i}), due once")
            if (n["B"], n["I"], n["W"]) not in ((1, 0, 0), (0, 1, 1)):
                rule = f"has {n['B']} B, {n['I']} I and {n['W']} W"
                yield Violation(where, work, rule, f"due: one {stage}B{i}, or one {stage}I{i} and one {stage}W{i}")


def _ordered(orders: Orders) -> Iterator[Violation]:
    for rank in sorted(orders):
        seen: set[Action] = set()
        for a in singles(orders[rank]):
            for earlier in {"F": "", "W": "FI"}.get(a.kind, "F"):
                if a._replace(kind=earlier) not in seen:  # type: ignore[arg-type]
                    yield _violation(rank, a, f"comes before {a._replace(kind=earlier)} on stage {a.stage}", "legal: F, then I, then W")  # type: ignore[arg-type]
            seen.add(a)


def _makers(order: Order) -> dict[tuple[str, int, int], int]:
    """Where in a list (B stands for I too) every F and backward is."""
    return {("F" if a.kind == "F" else "B", a.stage, a.microbatch): at for at, cell in enumerate(order) for a in singles([cell]) if a.kind != "W"}


def _transfers(table: Table) -> Iterator[Violation]:
    """Every message that a stage needs from another rank has one SEND after its producer and one RECV before its consumer, and there is no other."""
    if not table.has_transfers:
        return
    steps, (stages, _) = table.steps, sizes(table.orders)
    computed = {rank: {key: at for at, cell in enumerate(row) if not isinstance(cell, Transfer) for key in _makers([cell])} for rank, row in steps.items()}
    home = {(key[1], key[2]): rank for rank, keys in computed.items() for key in keys}
    due = {
        (way, kind, stage, i): rank
        for (stage, i), rank in home.items()
        for way, kind, other in (("SEND", "F", stage + 1), ("RECV", "F", stage - 1), ("SEND", "B", stage - 1), ("RECV", "B", stage + 1))
        if 0 <= other < stages and home[other, i] != rank
    }
    seen: set[Transfer] = set()
    for rank, row in steps.items():
        for at, t in enumerate(row):
            if not isinstance(t, Transfer):
                continue
            if due.get(t) != rank:
                yield _violation(rank, t, "is no message between neighbouring stages on two ranks", f"legal stages: 0 to {stages - 1}")
            elif t in seen:
                yield _violation(rank, t, "is there twice")
            elif (t.way == "SEND") != (computed[rank][t.kind, t.stage, t.microbatch] < at):
                made = f"{t.stage}{t.kind}{t.microbatch}"
                yield _violation(rank, t, f"comes before {made}, which makes it" if t.way == "SEND" else f"comes after {made}, which needs it")
            seen.add(t)
    for (way, kind, stage, i), rank in due.items():
        missing = Transfer(way, kind, stage, i)  # type: ignore[arg-type]
        if missing not in seen:
            other = missing._replace(way="RECV" if way == "SEND" else "SEND", stage=missing.target if way == "SEND" else missing.source)
            yield _violation(rank, missing, f"is missing: {'its partner' if other in seen else 'and so'} is {other}{'' if other in seen else ', too'}")


def waits(orders: Orders) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """(a, b): cell a = (rank, place) cannot start before cell b has ended, across ranks or stages."""
    at = {key: (rank, place) for rank, order in orders.items() for key, place in _makers(order).items()}
    last = max((stage for _, stage, _ in at), default=0)
    for (kind, stage, i), cell in at.items():
        for needed in [("F", stage - 1, i)] if kind == "F" else [("B", stage + 1, i)]:
            if 0 <= needed[1] <= last and at[needed] != cell:
                yield cell, at[needed]


def _cycle(orders: Orders) -> Sequence[Violation]:
    sorter: TopologicalSorter[tuple[int, int]] = TopologicalSorter()
    for cell, needed in waits(orders):
        sorter.add(cell, needed)
    for rank, order in orders.items():
        for place in range(1, len(order)):
            sorter.add((rank, place), (rank, place - 1))
    try:
        sorter.prepare()
        return ()
    except CycleError as e:
        knot: list[tuple[int, int]] = e.args[1][:0:-1]  # each before the one that it waits for
    text = ", ".join(f"rank {rank} at {orders[rank][place]}" for rank, place in knot)
    return (Violation("cycle", text, "wait for each other in a circle: this order cannot be run", "each waits for the next one named, the last for the first"),)
