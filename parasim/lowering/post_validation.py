"""The post-validation pass (Qi et al. 2023, arXiv 2401.10241, section 4): a stage steps without waiting for the whole pipeline, and checks later.

Clipping by the global norm and the test for overflow need every pipeline rank. Instead of a barrier, each rank adds its squared norm to what comes
from the rank before it, sends the sum on and steps at once. The full sum travels back from the last rank during the warm-up of the next step,
where it is checked before the first forward whose work a correction would have to throw away. That check never fails here: a correction is not
modelled. The Workload has two steps, so that the second shows the period; norms are summed along the pipeline only, not over tp or dp.
"""

from __future__ import annotations

from ..model.spec import Fixed
from ..program.ops import P2P, Compute, DType, Kernel, Label, Msg, Op, Ref
from ..program.workload import Call
from .draft import Draft, compute
from .pairs import parts
from .shards import STEP

STREAM, PARTIAL, FULL, CHECK = "pp.validate", Ref("norm.partial"), Ref("norm.full"), "check"


def post_validation(draft: Draft) -> None:
    """Sums in the optimizer step, a second step, and a check in its warm-up."""
    if not validated(draft):
        return
    for name in (PARTIAL.name, FULL.name):
        draft.buffer(name, (1,), "buffers", dtype="fp64" if draft.layout.precision == "fp64" else "fp32")
    body = draft.bodies["step"]
    update = next(i for i, op in enumerate(body) if _updates(draft, op))
    draft.bodies["step"] = [*body[:update], *_summed(draft, body[update:]), *body[update:]]
    draft.bodies[CHECK] = _checked(draft)
    again = [call._replace(step=1) for call in draft.calls]
    again.insert(_before(draft), Call(CHECK, (), 1))
    draft.calls = draft.calls + again


def validated(draft: Draft) -> bool:
    """Is there a pipeline, and does it step before it is validated?"""
    return draft.layout.pipeline.optimizer == "post-validation" and draft.layout.degrees.pp > 1


def _updates(draft: Draft, op: Op) -> bool:
    """Does an op touch parameters or the state of the optimizer?"""
    return isinstance(op, Compute) and any(draft.buffers[r.name].category in ("parameters", "optimizer") for r in (*op.reads, *op.writes))


def _summed(draft: Draft, updates: list[Op]) -> list[Op]:
    """The sum so far from the rank before, this rank's gradients added (those that the updates read and nothing among them made), sent on."""
    made = {r for op in updates for r in op.writes}
    reads = dict.fromkeys(r for op in updates if isinstance(op, Compute) for r in op.reads)
    zeroed = {r for op in updates if isinstance(op, Compute) and not op.reads for r in op.writes}
    gradients = tuple(r for r in reads if (r not in made or r in zeroed) and draft.buffers[r.name].category not in ("parameters", "optimizer"))
    first = draft.rank == 0
    fixed = isinstance(draft.plan.model, Fixed)
    kernel = ("delay", (0.0,)) if fixed else ("squared_norm", ())
    dtype: DType = draft.layout.precision if fixed else draft.buffers[gradients[0].name].dtype
    total = Kernel(kernel[0], (() if first else (PARTIAL,)) + gradients, (PARTIAL,), kernel[1], dtype)
    ops: list[Op] = [] if first else [_message(draft, PARTIAL, -1, sending=False)]
    ops.append(Compute(label=Label(STEP), stream="compute", kernels=(total,)))
    return ops if draft.rank == draft.layout.degrees.pp - 1 else [*ops, _message(draft, PARTIAL, 1, sending=True)]


def _checked(draft: Draft) -> list[Op]:
    """The full sum from the rank behind, passed on, and looked at in no time."""
    last = draft.rank == draft.layout.degrees.pp - 1
    full = PARTIAL if last else FULL
    ops: list[Op] = [] if last else [_message(draft, FULL, 1, sending=False)]
    if draft.rank:
        ops.append(_message(draft, full, -1, sending=True))
    return [*ops, compute(Label(STEP), "delay", (full,), (), draft.layout.precision, dims=(0.0,))]


def _message(draft: Draft, buffer: Ref, offset: int, *, sending: bool) -> P2P:
    """One end of a message of a few bytes; the way up and the way back are channels of their own."""
    upward = (offset > 0) == sending
    messages = (Msg(buffer, f"pp{offset:+d}", "norm" if upward else "norm.back"),)
    label = Label("send" if sending else "recv", axis="pp")
    return P2P(label=label, stream=STREAM, sends=messages if sending else (), recvs=() if sending else messages)


def _before(draft: Draft) -> int:
    """Where the check stands: before the forward 2 (p - 1 - r), or the last one of the warm-up of the first stage that runs, if that is earlier."""
    actions = [(i, parts(call.body)) for i, call in enumerate(draft.calls) if parts(call.body)]
    warm = next(n for n, (_, slots) in enumerate(actions) if slots != actions[0][1])
    return actions[min(2 * (draft.layout.degrees.pp - 1 - draft.rank), warm - 1)][0]
