"""The steps pass: two steps where the end of one lies under the beginning of the next, so that the distance between their ends is the step time.

Today for the parameter gather of ZeRO-1 and 2 under the next forward (Megatron-LM's overlap-param-gather). Ranks of a pipeline meet before
the optimizer, as they do for the norm of all gradients: without that, the next step would begin in the bubble of this one.
"""

from __future__ import annotations

from ..program.ops import COMPUTE, Label, Op
from .draft import Draft, collective
from .post_validation import validated
from .shards import REDUCE, SUMS, steps


def twice(draft: Draft) -> None:
    """Call everything again as the next step, where the Workload has two; post-validation has made them already, without a barrier."""
    if steps(draft.layout) == 1 or validated(draft):
        return
    if draft.layout.degrees.pp > 1:
        meet: Op = collective(Label("S"), "barrier", "pp", (), (), COMPUTE, after=(REDUCE, SUMS), axis="pp")
        draft.bodies["step"] = [meet, *draft.bodies["step"]]
    draft.calls += [c._replace(step=1) for c in draft.calls]
