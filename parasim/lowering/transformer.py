"""Kernels of one stage of a dense decoder transformer: blocks with norms before or after each branch, packed qkv, plain or gated MLP.

Sources: GPT-3 (Brown et al. 2020, arXiv 2005.14165, section 2.1), Llama 3 (Grattafiori et al. 2024, arXiv 2407.21783, table 3). Dropout stands
where Megatron-LM has it: after the embedding, on the attention probabilities and on both branches before they are added.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

from ..model.spec import Transformer
from ..parallel.heads import kv_copies
from ..parallel.vocabulary import padded_vocabulary
from ..program.ops import Compute, DType, Label, Op, Ref, replace
from .activations import activated
from .attention import attention_core, packed_qkv
from .context import sequence_cut
from .draft import PIPELINE, TIED, Draft, Stage, grad
from .draft import compute as kernel_op
from .experts import expert_layer
from .latent import latent_qkv
from .loss import loss

Branch = Callable[[int, Ref, Ref, Ref], list[Op]]  # layer, input, its gradient, output -> backward


class TransformerWriter:
    """Writes the forward and backward ops of one stage; `rows` = tokens of a microbatch on one rank of cp."""

    def __init__(self, draft: Draft, model: Transformer, stage: Stage) -> None:
        self.copies = kv_copies(model, draft.layout)
        self.draft, self.stage = draft, stage
        self.model = dataclasses.replace(model, kv_heads=model.kv_heads * self.copies)  # as many as tensor parallelism sees: copies count
        batch = draft.layout.batch
        self.batch, self.sequence = batch.micro, batch.sequence // draft.layout.degrees.cp
        self.rows, self.h, self.vocabulary = self.batch * self.sequence, model.hidden, padded_vocabulary(model, draft.layout)
        self.parts = draft.layout.vocabulary_parts
        self.dtype: DType = draft.layout.precision
        self.scale = float(batch.global_ * batch.sequence)
        self.forward: list[Op] = []
        self.backward: list[Op] = []  # of the layer being written, in execution order

    def ops(self) -> tuple[list[Op], list[Op]]:
        """(forward, backward) of the stage in execution order."""
        backward: list[Op] = []
        stage = self.stage
        x = self.hidden(f"L{stage.first}.input")
        if stage.number == 0:
            self.embedding(x)
            backward = self.take()
        for n in range(stage.first, stage.last):
            x = self.layer(n, x)
            backward = self.take() + backward
        if stage.number == self.draft.total_stages - 1:
            self.head(x)
            backward = self.take() + backward
        return self.forward, backward

    def take(self) -> list[Op]:
        """The backward ops written since the last call."""
        taken, self.backward = self.backward, []
        return taken

    def hidden(self, name: str) -> Ref:
        """A hidden-wide activation (rows, hidden)."""
        return self.draft.activation(name, (self.rows, self.h), rows=True)

    def op(
        self, phase: str, layer: int, kernel: str, reads: tuple[Ref, ...], writes: tuple[Ref, ...], dims: tuple[int | float, ...] = (), role: str = ""
    ) -> Compute:
        return kernel_op(Label(phase, self.stage.number, 0, layer), kernel, reads, writes, self.dtype, dims=dims, role=role)

    def add_forward(self, layer: int, kernel: str, reads: tuple[Ref, ...], writes: tuple[Ref, ...], dims: tuple[int | float, ...] = (), role: str = "") -> None:
        self.forward.append(self.op("F", layer, kernel, reads, writes, dims, role))

    def norm(self, layer: int, prefix: str, x: Ref, out: Ref, dx: Ref, width: int = 0, kind: str = "") -> list[Op]:
        """Forward of a norm (the model's, over hidden, unless said); returns its backward, which reads the gradient of `out` and writes `dx`."""
        names = {"all": ("weight", "bias"), "scale": ("weight",), "none": ()}[self.model.norm_weights]
        kind, names = (kind, ("weight",)) if kind else (self.model.norm, names)
        weights = tuple(self.draft.parameter(f"{prefix}.{name}", (width or self.h,)) for name in (names if kind == "layer_norm" else names[:1]))
        self.share(weights)
        self.add_forward(layer, kind, (x, *weights), (out,))
        grads = tuple(grad(w) for w in weights)
        backward: list[Op] = [self.op("I", layer, f"{kind}_input_grad", (grad(out), x, *weights[:1]), (dx,))]
        return backward + ([self.op("W", layer, f"{kind}_weight_grad", (grad(out), x, *grads), grads)] if grads else [])

    def share(self, weights: tuple[Ref, ...]) -> None:
        """Replicated weights whose gradients come from this rank's rows only under sequence parallelism."""
        if self.draft.layout.tensor.sequence_parallel:
            self.draft.shared |= {w.name: "tp" for w in weights}

    def linear(self, layer: int, prefix: str, x: Ref, out: Ref, dx: Ref, shape: tuple[int, int], role: str, biased: bool = False) -> list[Op]:
        """Forward of a linear layer (a row-parallel one leaves its bias to the addition that follows); returns its backward.

        `role` is how tensor parallelism cuts it: by column, by row, or not at all (whole), where every rank works on its own rows.
        """
        weight = self.draft.parameter(f"{prefix}.weight", shape, cut={"column": 1, "row": 0}.get(role))
        bias = (self.draft.parameter(f"{prefix}.bias", (shape[1],), cut=0 if role == "column" else None),) if biased else ()
        self.share(((weight,) if role == "whole" else ()) + (bias if role == "row" else ()))
        return self.product(layer, x, out, dx, (weight,), bias, role)

    def product(self, layer: int, x: Ref, out: Ref, dx: Ref, weights: tuple[Ref, ...], biases: tuple[Ref, ...], role: str) -> list[Op]:
        """The kernels of a linear layer whose `weights` (and `biases`) lie side by side, as one product."""
        dims = (len(weights),) if len(weights) > 1 else ()
        self.add_forward(layer, "linear", (x, *weights, *(biases if role == "column" else ())), (out,), dims, role)
        grads, more = tuple(map(grad, weights)), tuple(map(grad, biases))
        ops: list[Op] = [
            self.op("I", layer, "linear_input_grad", (grad(out), *weights), (dx,), dims, role),
            self.op("W", layer, "linear_weight_grad", (x, grad(out), *grads), grads, dims, role),
        ]
        return ops + ([self.op("W", layer, "bias_grad", (grad(out), *more), more)] if more else [])

    def residual(self, layer: int, a: Ref, b: Ref, out: Ref, prefix: str, backward: list[Op], biased: bool) -> list[Op]:
        """out = a + b (+ bias), the branch b dropped out of if asked; returns `backward`, of what made b, reading its gradient."""
        bias = (Ref(f"{prefix}.bias"),) if biased else ()
        if not self.draft.layout.kernels.dropout:
            self.add_forward(layer, "residual_add", (a, b, *bias), (out,))
            return [rename_reads(o, {grad(b): grad(out)}) for o in backward]  # the gradient of a branch is that of the sum
        mask = self.draft.buffer(f"{prefix}.mask", (self.rows, self.h), "activations", dtype="uint8", rows=True)
        self.add_forward(layer, "dropout_add", (a, b, *bias), (out, mask))
        return [self.op("I", layer, "dropout_grad", (grad(out), mask), (grad(b),)), *backward]

    def layer(self, n: int, x: Ref) -> Ref:
        """One block: x + proj(attention(norm(x))), then + fc2(act(fc1(norm(.)))); norms after the branches where the model has them there."""
        p = f"L{n}"
        middle, y = self.hidden(f"{p}.middle"), self.hidden(f"L{n + 1}.input")
        attention = self.branch(n, 1, x, middle, "proj", self.attention, self.model.biased("out"))
        feed_forward = partial(expert_layer, self) if self.model.sparse(n) else self.mlp
        mlp = self.branch(n, 2, middle, y, "fc2", feed_forward, self.model.biased("down"))
        self.backward = mlp + attention
        return y

    def branch(self, n: int, number: int, x: Ref, y: Ref, last: str, write: Branch, biased: bool) -> list[Op]:
        """y = x + what `write` makes of (the norm of) x, normed after; `last` names its last linear layer. Returns the backward."""
        p, m = f"L{n}", self.model
        branch = self.draft.buffer(f"{p}.norm{number}.input.grad", (self.rows, self.h), "activations", rows=True)
        out = self.hidden(f"{p}.{last}.out")
        source, dsource, norm = x, branch, list[Op]()
        if m.norm_at != "post":
            source = self.hidden(f"{p}.norm{number}.out")
            dsource, norm = grad(source), self.norm(n, f"{p}.norm{number}", x, source, branch)
        backward = write(n, source, dsource, out)
        added = out
        if m.norm_at != "pre":
            added = self.hidden(f"{p}.postnorm{number}.out")
            backward = self.norm(n, f"{p}.postnorm{number}", out, added, grad(out)) + backward
        backward = self.residual(n, x, added, y, f"{p}.{last}", backward, biased)
        return backward + norm + [self.op("I", n, "residual_add", (grad(y), branch), (grad(x),))]

    def attention(self, n: int, x: Ref, dx: Ref, out: Ref) -> list[Op]:
        """Queries, keys and values, the core, the output projection."""
        p, m = f"L{n}", self.model
        qkv, qkv_back = latent_qkv(self, m.latent, n, x, dx) if m.latent else packed_qkv(self, n, x, dx)
        core = self.draft.activation(f"{p}.attention.out", (self.rows, m.heads * m.value_dim), cut=1)
        core_back = attention_core(self, n, qkv, core)
        proj_back = self.linear(n, f"{p}.proj", core, out, grad(core), (m.heads * m.value_dim, self.h), "row", m.biased("out"))
        return proj_back + core_back + qkv_back

    def mlp(self, n: int, x: Ref, dx: Ref, out: Ref) -> list[Op]:
        """Up projection (with its gate), activation, down projection."""
        p, m, d = f"L{n}", self.model, self.draft
        up = d.activation(f"{p}.fc1.out", (self.rows, m.gates * m.ffn), cut=1)
        act = d.activation(f"{p}.act.out", (self.rows, m.ffn), cut=1)
        up_back = self.linear(n, f"{p}.fc1", x, up, dx, (self.h, m.gates * m.ffn), "column", m.biased("up"))
        act_back = activated(self, n, p, up, act)
        down_back = self.linear(n, f"{p}.fc2", act, out, grad(act), (m.ffn, self.h), "row", m.biased("down"))
        return down_back + act_back + up_back

    def table(self, name: str) -> Ref:
        """A parameter with a row for every token, and rows of padding where the vocabulary is padded."""
        weight = self.draft.parameter(name, (self.vocabulary // self.parts, self.h), cut=0)
        for buffer in (weight.name, grad(weight).name):
            shard = ((0, PIPELINE),) if self.parts > 1 else ()
            self.draft.buffers[buffer] = replace(self.draft.buffers[buffer], padding=self.vocabulary - self.model.vocab, shard=shard)
        return weight

    def columns(self, name: str, dtype: DType | None = None) -> Ref:
        """A buffer with a column for every token, of which there are as many as rows of a table."""
        shard = ((1, PIPELINE),) if self.parts > 1 else ()
        return self.draft.buffer(name, (self.rows, self.vocabulary // self.parts), "buffers", dtype=dtype, cut=1, shard=shard)

    def embedding(self, x: Ref) -> None:
        """The first op of the first stage; where all ranks look up, what is left of it there."""
        d, drop = self.draft, self.draft.layout.kernels.dropout
        out = self.hidden("embedding.out") if drop else x
        self.backward = self.lookup(out, grad(out), self.model.positions == "learned") if self.parts == 1 else []
        if drop:
            mask = d.buffer("embedding.mask", (self.rows, self.h), "activations", dtype="uint8", rows=True)
            self.add_forward(-1, "dropout", (out,), (x, mask))
            self.backward.insert(0, self.op("I", -1, "dropout_grad", (grad(x), mask), (grad(out),)))

    def lookup(self, out: Ref, dout: Ref, positions: bool) -> list[Op]:
        """Tokens, and `out` from the tables of tokens and, if asked, of positions; returns the backward, which reads `dout`."""
        m, d = self.model, self.draft
        tokens = d.buffer("tokens", (self.batch, self.sequence), "activations", dtype="int32", shard=sequence_cut(d.layout))
        weights = [self.table("embedding.weight")]
        if positions:
            weights.append(d.parameter("positions.weight", (m.max_positions, self.h)))
        self.tie()
        self.add_forward(-1, "sample", (), (tokens,), (m.vocab,), role="input")
        self.add_forward(-1, "embedding", (tokens, *weights), (out,), role="row")
        grads = tuple(grad(w) for w in weights)
        return [self.op("W", -1, "embedding_weight_grad", (tokens, dout, *grads), grads, role="row")]

    def head(self, x: Ref) -> None:
        """The final norm, and, unless all ranks work on them, logits and loss."""
        normed = self.hidden("final_norm.out")
        norm = self.norm(-1, "final_norm", x, normed, grad(x))
        self.backward = [*(self.output(normed, grad(normed)) if self.parts == 1 else ()), *norm]

    def output(self, normed: Ref, dnormed: Ref) -> list[Op]:
        """Logits and loss of `normed`; returns the backward, which writes `dnormed`."""
        weight = self.table("embedding.weight" if self.model.tied else "head.weight")
        self.tie()
        logits, dlogits = self.columns("logits"), self.columns("logits.grad")
        self.add_forward(-1, "head", (normed, weight), (logits,), role="column")
        return [
            *loss(self, logits),
            self.op("I", -1, "head_input_grad", (dlogits, weight), (dnormed,), role="column"),
            self.op("W", -1, "head_weight_grad", (normed, dlogits, grad(weight)), (grad(weight),), role="column"),
        ]

    def tie(self) -> None:
        """A tied embedding on two ranks needs its gradient summed over both holders."""
        ends = self.draft.ranks_of_stage[0], self.draft.ranks_of_stage[-1]
        if self.model.tied and ends[0] != ends[1] and not self.draft.mirrored and self.parts == 1:  # else each rank holds both ends of what it holds
            self.draft.shared["embedding.weight"] = TIED


def rename_reads(op: Op, names: dict[Ref, Ref]) -> Op:
    """The same op reading other buffers."""
    assert isinstance(op, Compute)
    return replace(op, kernels=tuple(replace(k, reads=tuple(names.get(r, r) for r in k.reads)) for k in op.kernels))
