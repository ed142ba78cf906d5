"""The numeric proof: a layout run on real processes must train to the parameters of one process on the whole batch.

Deep residual MLPs, and transformers whose key-value heads are copied, are compared with plain autograd; other transformers, for which every kernel
is checked against autograd, with the same Program on one rank per replica. Each in fp64 after two Adam steps. A Program that lost one reduction must fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import typer

from parasim.errors import Failed, Malformed, Refused
from parasim.lowering import lower
from parasim.model.spec import Mlp, Transformer
from parasim.parallel.heads import kv_copies
from parasim.program.ops import Collective, Compute, Kernel, Op
from parasim.program.workload import Program, Workload

from .numeric_cases import CASES, ROWS, Case

TOLERANCE = 1e-9
STEPS = 2
TOGETHER = 16  # cases that one world of processes runs, one after the other
Change = Callable[[Workload], Workload]
Distance = tuple[float, str, list[str]]


@dataclass(frozen=True)
class Proof:
    """The largest difference of any parameter on any rank, where it is, and what was left in the buffers that should be empty."""

    case: str
    worst: float
    where: str
    left: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Within the tolerance, nothing left behind."""
        return self.worst <= TOLERANCE and not self.left


def _as_it_is(workload: Workload) -> Workload:
    return workload


def prove(name: str, change: Change = _as_it_is, timeout: float = 60.0) -> Proof:
    """Run a case, its Workload changed by `change`, against its reference. Raises Failed where a rank dies or is late."""
    (proof,) = proofs([(name, change)], timeout)
    if isinstance(proof, Failed):
        raise proof
    return proof


def proofs(asked: Sequence[tuple[str, Change]], timeout: float = 60.0) -> list[Proof | Failed]:
    """Run cases against their references, as many as TOGETHER in one world of processes; `timeout` (seconds) is for each. Where a rank of such a world
    dies or is late, its cases run again, each in a world of its own, so that the one that failed is known."""
    workloads = [change(lower(CASES[name].plan())) for name, change in asked]
    references = _references([CASES[name] for name, _ in asked], timeout)
    out: dict[int, Proof | Failed] = {}
    for places in _worlds(workloads):
        found = _ran(places, workloads, references, timeout)
        if isinstance(found, Failed):
            retried = {i: _ran([i], workloads, references, timeout) if len(places) > 1 else found for i in places}
            out |= {i: one if isinstance(one, Failed) else _proof(asked[i][0], one[0]) for i, one in retried.items()}
        else:
            out |= {i: _proof(asked[i][0], ranks) for i, ranks in zip(places, found, strict=True)}
    return [out[i] for i in range(len(asked))]


def _worlds(workloads: Sequence[Workload]) -> Iterator[list[int]]:
    """The places of the workloads that run in one world of processes, one after the other."""
    sizes: dict[int, list[int]] = {}
    for i, workload in enumerate(workloads):
        sizes.setdefault(workload.world, []).append(i)
    for places in sizes.values():
        yield from (places[at : at + TOGETHER] for at in range(0, len(places), TOGETHER))


def _ran(places: Sequence[int], workloads: Sequence[Workload], references: Sequence[Any], timeout: float) -> list[list[Distance]] | Failed:
    """Per workload what every rank found."""
    from parasim.executor.launch import spawn
    from parasim.executor.reference import distances

    mine = [(workloads[i], references[i]) for i in places]
    try:
        ranks = spawn(distances, mine[0][0].world, mine, STEPS, timeout=timeout * len(mine))
    except Failed as failed:
        return failed
    return [[rank[k] for rank in ranks] for k in range(len(mine))]


def _proof(name: str, ranks: Sequence[Distance]) -> Proof:
    worst, where = max((difference, f"{buffer} on rank {r}") for r, (difference, buffer, _) in enumerate(ranks))
    return Proof(name, worst, where, tuple(left for _, _, names in ranks for left in names))


def _references(cases: Sequence[Case], timeout: float) -> list[dict[str, Any]]:
    """Full parameters after the steps, as numpy arrays by name, of every case; equal trainings are run once."""
    keys = [repr((case.model, case.alone(), case.plan().layout if _copied(case) else "")) for case in cases]
    first = dict(zip(keys, cases, strict=True))
    executed = {key: lower(case.alone().plan()) for key, case in first.items() if not isinstance(case.model, Mlp) and not _copied(case)}
    found = {key: _trained_here(case) for key, case in first.items() if key not in executed} | _trained_by_ranks(executed, timeout)
    return [found[key] for key in keys]


def _copied(case: Case) -> bool:
    return kv_copies(case.model, case.plan().layout) > 1


def _trained_here(case: Case) -> dict[str, Any]:
    from parasim.executor.reference import MlpSizes, train

    from .autograd import trained_by_autograd

    if isinstance(case.model, Transformer):
        return trained_by_autograd(case.model, case.plan().layout, STEPS)
    assert isinstance(case.model, Mlp)
    sizes = MlpSizes(case.model.layers, case.model.hidden, case.model.ffn, ROWS, case.microbatches, case.degrees.dp)
    return {name: t.numpy() for name, t in train(sizes, STEPS).items()}


def _trained_by_ranks(executed: Mapping[str, Workload], timeout: float) -> dict[str, dict[str, Any]]:
    from parasim.executor.launch import spawn
    from parasim.executor.reference import trained

    keys, workloads = list(executed), list(executed.values())
    out: dict[str, dict[str, Any]] = {}
    for places in _worlds(workloads):
        mine = [workloads[i] for i in places]
        found = spawn(trained, mine[0].world, mine, STEPS, timeout=timeout * len(mine))[0]
        out |= {keys[i]: one for i, one in zip(places, found, strict=True)}
    return out


# ---- corrupted Programs


def without_one(workload: Workload, wanted: Callable[[Op], bool]) -> Workload:
    """The Workload without the first op that is `wanted` in every Program. Raises Refused where there is none."""
    programs = tuple(_without_one(p, wanted) for p in workload.programs)
    return replace(workload, programs=programs)


def _without_one(program: Program, wanted: Callable[[Op], bool]) -> Program:
    for name, body in program.bodies.items():
        for i, op in enumerate(body):
            if wanted(op):
                return replace(program, bodies={**program.bodies, name: (*body[:i], *body[i + 1 :])})
    raise Refused("the Program has no such op")


def _reduction(op: Op) -> bool:
    return isinstance(op, Collective) and op.op in ("all_reduce", "reduce_scatter")


def _gather(op: Op) -> bool:
    return isinstance(op, Collective) and op.op == "all_gather"


def _replicas(op: Op) -> bool:
    return isinstance(op, Collective) and op.group == "dp.replica"


def _over(group: str, op: Op) -> bool:
    return isinstance(op, Collective) and op.op == "all_reduce" and op.group == group and op.label.phase == "S"


def _sum(op: Op) -> bool:
    return isinstance(op, Compute) and op.kernels[0].name == "accumulate"


def local_gradients(workload: Workload) -> Workload:
    """The first reduce-scatter of every Program replaced by a slice of the rank's own gradients: what a reduction over the wrong group leaves."""

    def changed(op: Op) -> Op:
        if not (isinstance(op, Collective) and op.op == "reduce_scatter"):
            return op
        return Compute(label=op.label, stream=op.stream, after=op.after, kernels=(Kernel("flat_slice", op.reads, op.writes, (), "fp64"),))

    programs = []
    for program in workload.programs:
        name = next(n for n, body in program.bodies.items() if any(changed(o) is not o for o in body))
        programs.append(replace(program, bodies={**program.bodies, name: tuple(map(changed, program.bodies[name]))}))
    return replace(workload, programs=tuple(programs))


CONTROLS: dict[str, tuple[str, Change]] = {
    "dp2-flat without a reduction": ("dp2-flat", partial(without_one, wanted=_reduction)),
    "dp2-bucketed without a reduction": ("dp2-bucketed", partial(without_one, wanted=_reduction)),
    "dp2-zero1 without a parameter gather": ("dp2-zero1", partial(without_one, wanted=_gather)),
    "dp2-zero2 without a parameter gather": ("dp2-zero2", partial(without_one, wanted=_gather)),
    "dp2-zero2 without a microbatch's sum": ("dp2-zero2", partial(without_one, wanted=_sum)),
    "dp2-zero3 with gradients of one rank": ("dp2-zero3", local_gradients),
    "gpt-tp2-sp without the sum of the norms' gradients": ("gpt-tp2-sp", partial(without_one, wanted=partial(_over, "tp"))),
    "llama-tp2-dp2-zero3-sp without the sum of a norm's gradient": ("llama-tp2-dp2-zero3-sp", partial(without_one, wanted=partial(_over, "tp"))),
    "llama-tp4-copied-kv without the sum of the copies": ("llama-tp4-copied-kv", partial(without_one, wanted=partial(_over, "tp.kv"))),
    "gpt-pp2 without the sum of the tied embedding": ("gpt-pp2", partial(without_one, wanted=partial(_over, "embedding"))),
    "dp4-zero3-hsdp without a sum of replicas": ("dp4-zero3-hsdp", partial(without_one, wanted=_replicas)),
}


def _judged(names: Sequence[str]) -> Iterator[tuple[str, Proof, bool]]:
    """(title, proof, as it should be) of the cases, then of the controls that must not hold."""
    cases = [(name, (name, _as_it_is), True) for name in names]
    controls = [(title, asked, False) for title, asked in CONTROLS.items() if asked[0] in names]
    every = [*cases, *controls]
    for part in (every[at : at + TOGETHER] for at in range(0, len(every), TOGETHER)):
        for (title, _, right), proof in zip(part, proofs([asked for _, asked, _ in part]), strict=True):
            if isinstance(proof, Failed):
                raise proof
            yield title, proof, proof.holds is right


def numeric(case: Annotated[list[str] | None, typer.Option(help="Cases to run (repeatable); all if none is given.")] = None) -> None:
    """Train small models on real processes and compare every parameter with one process on the whole batch."""
    names = case or list(CASES)
    unknown = [n for n in names if n not in CASES]
    if unknown:
        raise Malformed(f"case={unknown[0]} must be one of {', '.join(CASES)}")
    missed = 0
    for title, proof, right in _judged(names):
        missed += not right
        left = f", left behind: {', '.join(proof.left)}" if proof.left else ""
        typer.echo(f"{'ok  ' if right else 'MISS'} {title:36s} largest difference {proof.worst:.1e} ({proof.where}){left}")
    if missed:
        raise Refused(f"{missed} of the proofs missed: a layout must be within {TOLERANCE:g}, a corrupted Program must not")
