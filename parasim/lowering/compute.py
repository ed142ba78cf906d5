"""The compute pass: the model's own kernels, one per op, whole shapes, one body per phase and stage. Knows the model, no parallel axis.

Each stage gets forward ops (phase F) and backward ops (phases I and W, interleaved as frameworks run them: the weight gradient of a
linear layer right after its input gradient). F{s}, and of I{s}, W{s} and the fused B{s} those that are called, are cut from those two lists.
"""

from __future__ import annotations

from ..model.spec import Fixed, Mlp, Transformer
from ..program.ops import Label, Op, Ref
from .draft import Draft, Stage, grad, relabel
from .draft import compute as kernel_op
from .transformer import TransformerWriter
from .vocabulary import apart


def compute(draft: Draft) -> None:
    """Write the bodies of every stage of this rank."""
    model, called = draft.plan.model, {call.body for call in draft.calls}
    for stage in draft.stages:
        match model:
            case Transformer():
                forward, backward = TransformerWriter(draft, model, stage).ops()
            case Mlp():
                forward, backward = _mlp(draft, model, stage)
            case Fixed():
                forward, backward = _fixed(draft, model, stage)
        s = stage.number
        draft.bodies[f"F{s}"] = forward
        draft.bodies |= {f"{k}{s}": [o for o in backward if o.label.phase == k] for k in "IW" if f"{k}{s}" in called}
        if f"B{s}" in called:
            draft.bodies[f"B{s}"] = [relabel(o, "B") for o in backward]
    if draft.layout.vocabulary_parts > 1 and isinstance(model, Transformer):
        apart(draft, model)


def _mlp(draft: Draft, model: Mlp, stage: Stage) -> tuple[list[Op], list[Op]]:
    """x + gelu(x W1) W2 per layer; a mean squared error on the last stage, scaled by the global batch."""
    layout, dtype = draft.layout, draft.layout.precision
    rows, h, f = layout.batch.micro * layout.batch.sequence, model.hidden, model.ffn
    forward: list[Op] = []
    backward: list[Op] = []
    x = draft.activation(f"L{stage.first}.input", (rows, h), rows=True)
    if stage.number == 0:
        forward.append(kernel_op(Label("F", stage.number, 0), "sample", (), (x,), dtype, role="input"))
    for n in range(stage.first, stage.last):
        name = f"L{n}"
        label = {k: Label(k, stage.number, 0, n) for k in "FIW"}
        w1, w2 = draft.parameter(f"{name}.fc1.weight", (h, f), cut=1), draft.parameter(f"{name}.fc2.weight", (f, h), cut=0)
        up, act = draft.activation(f"{name}.fc1.out", (rows, f), cut=1), draft.activation(f"{name}.act.out", (rows, f), cut=1)
        down = draft.activation(f"{name}.fc2.out", (rows, h), rows=True)
        branch = draft.buffer(f"{name}.branch.grad", (rows, h), "activations", rows=True)
        y = draft.activation(f"L{n + 1}.input", (rows, h), rows=True)
        forward += [
            kernel_op(label["F"], "linear", (x, w1), (up,), dtype, role="column"),
            kernel_op(label["F"], "gelu", (up,), (act,), dtype),
            kernel_op(label["F"], "linear", (act, w2), (down,), dtype, role="row"),
            kernel_op(label["F"], "residual_add", (x, down), (y,), dtype),
        ]
        backward = [
            kernel_op(label["I"], "linear_input_grad", (grad(y), w2), (grad(act),), dtype, role="row"),
            kernel_op(label["W"], "linear_weight_grad", (act, grad(y), grad(w2)), (grad(w2),), dtype, role="row"),
            kernel_op(label["I"], "gelu_grad", (grad(act), up), (grad(up),), dtype),
            kernel_op(label["I"], "linear_input_grad", (grad(up), w1), (branch,), dtype, role="column"),
            kernel_op(label["W"], "linear_weight_grad", (x, grad(up), grad(w1)), (grad(w1),), dtype, role="column"),
            kernel_op(label["I"], "residual_add", (grad(y), branch), (grad(x),), dtype),
            *backward,
        ]
        x = y
    if stage.number == draft.total_stages - 1:
        label_f = Label("F", stage.number, 0)
        target = draft.buffer("target", (rows, h), "buffers", rows=True)
        loss = draft.buffer("loss", (1,), "buffers")
        scale = float(layout.batch.global_ * layout.batch.sequence * h)
        forward += [
            kernel_op(label_f, "sample", (), (target,), dtype, role="target"),
            kernel_op(label_f, "mean_squared_error", (x, target), (loss, grad(x)), dtype, dims=(scale,)),
        ]
    return forward, backward


def _fixed(draft: Draft, model: Fixed, stage: Stage) -> tuple[list[Op], list[Op]]:
    """Delays of the given seconds; parameters are spread over the layers, the remainder over the first ones."""
    forward: list[Op] = []
    backward: list[Op] = []

    def boundary(n: int) -> Ref:
        draft.buffer(f"L{n}.input.grad", (model.boundary,), "activations", dtype="uint8")
        return draft.buffer(f"L{n}.input", (model.boundary,), "activations", dtype="uint8")

    base, extra = divmod(model.parameters, model.layers)
    for n in range(stage.first, stage.last):
        weight = draft.parameter(f"L{n}.weight", (base + (n < extra),))
        x, y = boundary(n), boundary(n + 1)
        label = {k: Label(k, stage.number, 0, n) for k in "FIW"}
        above = y if n == model.layers - 1 else grad(y)
        dtype = draft.layout.precision
        saved = (draft.buffer(f"L{n}.saved", (model.saved,), "activations", dtype="uint8"),) if model.saved else ()
        forward.append(kernel_op(label["F"], "delay", (weight, *((x,) if n else ())), (y, *(() if n else (x,)), *saved), dtype, dims=(model.forward,)))
        backward = [
            kernel_op(label["I"], "delay", (above, weight, x), (grad(x),), dtype, dims=(model.input_grad,)),
            kernel_op(label["W"], "delay", (above, x, *saved, grad(weight)), (grad(weight),), dtype, dims=(model.weight_grad,)),
            *backward,
        ]
    return forward, backward
