"""The gather pass: ZeRO-3 (FSDP). Whole parameters live from an all-gather to their last use; it finds uses by what ops read and write.

Placed after everything that moves ops about: where a gather is issued decides how far it runs ahead and how many layers are whole at once.
The gather for a *run* (a stretch of ops that use one unit) is issued where the run `prefetch` before it begins, but not before the run `limit`
before it is over; a fence keeps it from starting earlier than compute gets there, and a window bounds the whole units. The first gather of a
forward has no fence: the host runs ahead. With `reshard_after_forward` off, what the forward gathered stays: for the backward of the same
microbatch or, in a pipeline, for the rest of the step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import InvalidLayout, Violation
from ..program.ops import COMPUTE, Compute, Label, Op, Ref, replace
from .draft import Draft, Gathered, collective
from .recompute import AGAIN
from .shards import GATHER, by_parameter, copy_slices, list_slices, listed, stage, stream
from .transfers import GATE


@dataclass
class Run:
    """A stretch of a body, from position `first` to `last`, whose ops use what is gathered from `shard`."""

    shard: Ref
    first: int
    last: int


def gather(draft: Draft) -> None:
    """Gather before use, in every body that uses whole parameters."""
    if stage(draft.layout) < 3:
        return
    runs = {key: _runs(draft, body) for key, body in draft.bodies.items() if key != "step"}
    if draft.layout.zero.reshard_after_forward:
        for key, mine in runs.items():
            draft.bodies[key] = _with_gathers(draft, draft.bodies[key], mine)
    else:
        _keeping(draft, runs)


def _keeping(draft: Draft, runs: dict[str, list[Run]]) -> None:
    """Variant bodies (`F0^`) that gather what is not whole at that call. Without a pipeline every forward gathers."""
    kept: set[Ref] = set()
    variants: dict[tuple[str, frozenset[Ref]], str] = {}
    for i, call in enumerate(draft.calls):
        mine = runs.get(call.body, [])
        anew = draft.layout.degrees.pp == 1 and _forward(draft.bodies[call.body])
        missing = frozenset(r.shard for r in mine if anew or r.shard not in kept)
        kept |= missing
        if missing:
            key = (call.body, missing)
            if key not in variants:
                variants[key] = call.body + "^" * (1 + sum(body == call.body for body, _ in variants))
                first = {r.shard: r for r in reversed(mine) if r.shard in missing}
                draft.bodies[variants[key]] = _with_gathers(draft, draft.bodies[call.body], sorted(first.values(), key=lambda r: r.first), bounded=False)
            draft.calls[i] = call._replace(body=variants[key])


def _forward(body: list[Op]) -> bool:
    return bool(body) and body[0].label.phase == "F"


def _runs(draft: Draft, body: list[Op]) -> list[Run]:
    """The runs of a body, by their beginning. One unit used again after `limit` others of its kind is gathered again."""
    last: dict[Ref, Run] = {}
    out: list[Run] = []
    for i, op in enumerate(body):
        for name in _used(op):
            if name not in draft.shards:
                continue
            shard, kind = draft.shards[name].shard, draft.shards[name].kind
            run = last.get(shard)
            between = {r.shard for r in out if run and r.first > run.last and r.last < i and _unit(draft, r.shard).kind == kind}
            if run is None or len(between) >= draft.layout.zero.limit:
                last[shard] = run = Run(shard, i, i)
                out.append(run)
            run.last = i
    return out


def _unit(draft: Draft, shard: Ref) -> Gathered:
    return draft.shards[draft.buffers[shard.name].of[0]]


def _used(op: Op) -> Iterable[str]:
    """Parameters that an op reads, or whose gradients it makes: a module is gathered for its backward whatever that reads.

    A weight gradient of its own (phase W of zero-bubble schedules) needs no parameter.
    """
    if not isinstance(op, Compute):
        return ()
    made = () if op.label.phase == "W" else (r.name.removesuffix(".grad") for r in op.writes)
    return (*(r.name for r in op.reads), *made)


def _with_gathers(draft: Draft, body: list[Op], runs: list[Run], *, bounded: bool = True) -> list[Op]:
    """The body with the gathers of its runs, in their order. `bounded`: at most `limit` units of a kind are whole."""
    by_kind: dict[str, list[Run]] = {}
    opening = len(body) > 1 and body[0].label.phase == GATE and body[1].label.phase == AGAIN  # gathers do not wait for the gradient
    for run in runs:
        by_kind.setdefault(_unit(draft, run.shard).kind, []).append(run)
    at: dict[int, list[Op]] = {}
    for kind, mine in by_kind.items():
        for j, run in enumerate(mine):
            position = _position(draft, mine, j, bounded)
            at.setdefault(0 if opening and position == 1 else position, []).extend(_gather(draft, run.shard, kind, bounded, fenced=j > 0 or not _forward(body)))
    return [new for i, op in enumerate(body) for new in (*at.get(i, ()), op)]


def _position(draft: Draft, runs: list[Run], j: int, bounded: bool) -> int:
    """Where the gather of run j is issued: before run j - prefetch, once run j - limit is over."""
    zero = draft.layout.zero
    ahead = zero.prefetch if stream(draft.layout, GATHER) != COMPUTE else 0
    wanted = runs[max(0, j - ahead)].first
    if not bounded:
        return wanted
    over = max((r.last + 1 for r in runs[: max(0, j + 1 - zero.limit)]), default=0)
    if over > runs[j].first:
        turns = max(i - next(k for k, r in enumerate(runs) if r.last >= run.first) + 1 for i, run in enumerate(runs))
        rule = f"is too few: {turns} gathered units are used by turns"
        raise InvalidLayout([Violation("zero.limit", str(zero.limit), rule, f"at least {turns}, or zero.reshard_after_forward=false")])
    return max(wanted, over)


def _gather(draft: Draft, shard: Ref, kind: str, bounded: bool, *, fenced: bool) -> list[Op]:
    """The all-gather of a unit; of a parameter by itself into a list of slices, which are copied one by one."""
    unit = _unit(draft, shard)
    where = stream(draft.layout, GATHER)
    window = ""
    if bounded:
        window = f"{GATHER}.{kind}" if kind else GATHER
        draft.windows[window] = draft.layout.zero.limit
    alone = by_parameter(draft.layout)
    target = tuple(listed(draft, p) for p in unit.parameters) if alone else unit.parameters
    after = (COMPUTE,) if fenced and where != COMPUTE else ()
    moved = collective(Label("G"), "all_gather", unit.group, (shard,), target, where, after=after, axis="dp")
    if not alone:
        return [replace(moved, window=window)]
    host = list_slices(draft)
    return [host, moved, host, copy_slices(draft, zip(target, unit.parameters, strict=True), where, window=window)]
