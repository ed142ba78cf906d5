"""Which gradients are reduced together, and where in a body they are final. Found from what ops write, never from names of layers.

`bucketed` follows torch's DistributedDataParallel: gradients in the order in which they become final (the order its buckets are rebuilt in
after the first step), a bucket is closed when it has reached its cap, and the first cap of a stage is smaller so that reduction starts early.
Under ZeRO-3 the parameters of a layer go together, as FSDP wraps them, or each by itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..program.ops import DTYPE_BYTES, Op
from .draft import Draft
from .shards import Bucket, by_parameter, elements, stage

Final = tuple[int, str]  # position in a body, parameter


def finals(draft: Draft, key: str) -> list[Final]:
    """The parameters whose gradients body `key` writes, each at the position of its last write, in that order."""
    gradients = {f"{n}.grad": n for n in draft.parameters}
    last: dict[str, int] = {}
    for i, op in enumerate(draft.bodies.get(key, ())):
        for ref in op.writes:
            if ref.name in gradients:
                last.pop(gradients[ref.name], None)
                last[gradients[ref.name]] = i
    return [(i, n) for n, i in last.items()]


def last_calls(draft: Draft) -> dict[int, list[Final]]:
    """The calls in which gradients become final for the step: by number of the call, what is final there."""
    ends = {call.body: i for i, call in enumerate(draft.calls)}
    by_body = {key: finals(draft, key) for key in ends}
    last: dict[str, int] = {}
    for key, i in sorted(ends.items(), key=lambda end: end[1]):
        last |= {n: i for _, n in by_body[key]}
    return {i: [(at, n) for at, n in by_body[draft.calls[i].body] if last[n] == i] for i in sorted(set(last.values()))}


class Filling:
    """Hands out buckets, numbered in the order they are made; a parameter gets one only once."""

    def __init__(self, draft: Draft) -> None:
        self.draft, self.buckets = draft, list[Bucket]()
        self.of: dict[str, Bucket] = {}
        self.alone = _in_several_stages(draft) if stage(draft.layout) >= 2 else set()
        self.layers = _layers(draft) if stage(draft.layout) == 3 else {}

    def add(self, names: Iterable[str]) -> Bucket:
        """One bucket of all `names`."""
        names = tuple(names)
        bucket = Bucket(len(self.buckets), names, self.draft.shared.get(names[0], ""), spread(self.draft, names[0]))
        self.buckets.append(bucket)
        self.of |= dict.fromkeys(names, bucket)
        return bucket

    def fill(self, names: Iterable[str]) -> None:
        """Buckets for those of `names` that have none yet, in their order: together only what is summed over the same groups, in the same stage."""
        groups: dict[tuple[object, ...], list[str]] = {}
        for n in names:
            if n not in self.of:
                key = (self.draft.shared.get(n, ""), spread(self.draft, n), n if n in self.alone else "", self.layers.get(n, -1))
                groups.setdefault(key, []).append(n)
        for group in groups.values():
            for part in self._cut(group):
                self.add(part)

    def _cut(self, names: list[str]) -> list[list[str]]:
        data = self.draft.layout.data
        alone = by_parameter(self.draft.layout)
        if not alone and (self.layers or data.mode == "flat"):
            return [names]
        if alone or data.mode in ("naive", "per-parameter"):
            return [[n] for n in names]
        parts: list[list[str]] = [[]]
        size, cap = 0, min(data.first, data.bucket)
        for n in names:
            if parts[-1] and size >= cap:
                parts.append([])
                size, cap = 0, data.bucket
            parts[-1].append(n)
            size += gradient_bytes(self.draft, n)
        return parts


def spread(draft: Draft, name: str) -> bool:
    """Is this a parameter of experts that are spread over ep?"""
    return name in draft.experts and draft.layout.degrees.ep > 1


def gradient_bytes(draft: Draft, name: str) -> int:
    """Bytes of a parameter's gradient on this rank."""
    return elements(draft, name) * DTYPE_BYTES[draft.buffers[f"{name}.grad"].dtype]


def _in_several_stages(draft: Draft) -> set[str]:
    """Parameters whose gradients more than one stage of this rank writes (a tied embedding under V placement): reduced on their own."""
    stages: dict[str, set[int]] = {}
    for body in draft.bodies.values():
        for op in body:
            for ref in op.writes:
                stages.setdefault(ref.name, set()).add(op.label.stage)
    return {n for n in draft.parameters if len(stages.get(f"{n}.grad", ())) > 1}


def _layers(draft: Draft) -> dict[str, int]:
    """The number of the run of forward ops of one layer that first reads each parameter."""
    parameters, found, run = set(draft.parameters), dict[str, int](), 0
    for s in draft.stages:
        before: Op | None = None
        for op in draft.bodies[f"F{s.number}"]:
            run += before is None or op.label.layer != before.label.layer
            before = op
            found = {r.name: run for r in op.reads if r.name in parameters} | found
    return found
