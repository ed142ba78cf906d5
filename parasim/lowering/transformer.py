"""Kernels of one stage of a dense decoder transformer: pre-norm blocks, packed qkv, gelu or gated MLP.

Sources: GPT-3 (Brown et al. 2020, arXiv 2005.14165, section 2.1), Llama 3 (Grattafiori et al. 2024, arXiv 2407.21783, table 3). Dropout stands
where Megatron-LM has it: after the embedding, on the attention probabilities and on both branches before they are added.
"""

from __future__ import annotations

from dataclasses import replace

from ..model.spec import Transformer
from ..program.ops import Compute, DType, Label, Op, Ref
from .attention import attention_core
from .draft import Draft, Stage, grad
from .draft import compute as kernel_op

TIED = "embedding"  # the group of ranks that hold copies of a tied embedding


class TransformerWriter:
    """Writes the forward and backward ops of one stage; `rows` = tokens of a microbatch."""

    def __init__(self, draft: Draft, model: Transformer, stage: Stage) -> None:
        self.draft, self.model, self.stage = draft, model, stage
        batch = draft.layout.batch
        self.batch, self.sequence = batch.micro, batch.sequence
        self.rows, self.h = batch.micro * batch.sequence, model.hidden
        self.dtype: DType = draft.layout.precision
        self.scale = float(batch.global_ * batch.sequence)
        self.qkv_columns = (model.heads + 2 * model.kv_heads) * model.head_dim
        self.gate = 2 if model.activation == "swiglu" else 1
        self.forward: list[Op] = []
        self.backward: list[Op] = []  # of the layer being written, in execution order

    def ops(self) -> tuple[list[Op], list[Op]]:
        """(forward, backward) of the stage in execution order."""
        backward: list[Op] = []
        stage = self.stage
        x = self.hidden(f"L{stage.first}.input")
        if stage.first == 0:
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

    def norm(self, layer: int, prefix: str, x: Ref, out: Ref, dx: Ref) -> list[Op]:
        """Forward of a norm; returns its backward, which reads the gradient of `out` and writes `dx`."""
        kind = self.model.norm
        weight = self.draft.parameter(f"{prefix}.weight", (self.h,))
        weights = (weight, self.draft.parameter(f"{prefix}.bias", (self.h,))) if kind == "layer_norm" else (weight,)
        self.share(weights)
        self.add_forward(layer, kind, (x, *weights), (out,))
        grads = tuple(grad(w) for w in weights)
        return [
            self.op("I", layer, f"{kind}_input_grad", (grad(out), x, weight), (dx,)),
            self.op("W", layer, f"{kind}_weight_grad", (grad(out), x, *grads), grads),
        ]

    def share(self, weights: tuple[Ref, ...]) -> None:
        """Replicated weights whose gradients come from this rank's rows only under sequence parallelism."""
        if self.draft.layout.tensor.sequence_parallel:
            self.draft.shared |= {w.name: "tp" for w in weights}

    def linear(self, layer: int, prefix: str, x: Ref, out: Ref, dx: Ref, shape: tuple[int, int], role: str) -> list[Op]:
        """Forward of a linear layer (a row-parallel one leaves its bias to the addition that follows); returns its backward."""
        weight = self.draft.parameter(f"{prefix}.weight", shape, cut=1 if role == "column" else 0)
        bias: tuple[Ref, ...] = ()
        if self.model.bias:
            bias = (self.draft.parameter(f"{prefix}.bias", (shape[1],), cut=0 if role == "column" else None),)
            if role == "row":
                self.share(bias)
        self.add_forward(layer, "linear", (x, weight, *(bias if role == "column" else ())), (out,), role=role)
        ops: list[Op] = [
            self.op("I", layer, "linear_input_grad", (grad(out), weight), (dx,), role=role),
            self.op("W", layer, "linear_weight_grad", (x, grad(out), grad(weight)), (grad(weight),), role=role),
        ]
        return ops + [self.op("W", layer, "bias_grad", (grad(out), grad(b)), (grad(b),)) for b in bias]

    def residual(self, layer: int, a: Ref, b: Ref, out: Ref, prefix: str, backward: list[Op]) -> list[Op]:
        """out = a + b (+ bias), the branch b dropped out of if asked; returns `backward`, of the linear layer that made b, reading its gradient."""
        bias = (Ref(f"{prefix}.bias"),) if self.model.bias else ()
        if not self.draft.layout.kernels.dropout:
            self.add_forward(layer, "residual_add", (a, b, *bias), (out,))
            return [rename_reads(o, {grad(b): grad(out)}) for o in backward]  # the gradient of a branch is that of the sum
        mask = self.draft.buffer(f"{prefix}.mask", (self.rows, self.h), "activations", dtype="uint8", rows=True)
        self.add_forward(layer, "dropout_add", (a, b, *bias), (out, mask))
        return [self.op("I", layer, "dropout_grad", (grad(out), mask), (grad(b),)), *backward]

    def layer(self, n: int, x: Ref) -> Ref:
        """One block: x + proj(attention(norm(x))), then + fc2(act(fc1(norm(.))))."""
        p = f"L{n}"
        middle, y = self.hidden(f"{p}.middle"), self.hidden(f"L{n + 1}.input")
        attention = self.attention(n, x, middle)
        mlp = self.mlp(n, middle, y)
        self.backward = mlp + attention
        return y

    def attention(self, n: int, x: Ref, middle: Ref) -> list[Op]:
        p, m, d = f"L{n}", self.model, self.draft
        normed, out = self.hidden(f"{p}.norm1.out"), self.hidden(f"{p}.proj.out")
        branch = d.buffer(f"{p}.norm1.input.grad", (self.rows, self.h), "activations", rows=True)
        qkv = d.activation(f"{p}.qkv.out", (self.rows, self.qkv_columns), cut=1)
        core = d.activation(f"{p}.attention.out", (self.rows, m.heads * m.head_dim), cut=1)
        dims = (self.batch, self.sequence, m.heads, m.kv_heads, m.head_dim)
        norm = self.norm(n, f"{p}.norm1", x, normed, branch)
        qkv_back = self.linear(n, f"{p}.qkv", normed, qkv, grad(normed), (self.h, self.qkv_columns), "column")
        rotary_back: list[Op] = []
        if m.positions == "rotary":
            rotated = d.activation(f"{p}.rotary.out", (self.rows, self.qkv_columns), cut=1)
            self.add_forward(n, "rotary", (qkv,), (rotated,), dims)
            rotary_back = [self.op("I", n, "rotary_grad", (grad(rotated),), (grad(qkv),), dims)]
            qkv = rotated
        core_back = attention_core(self, n, qkv, core, dims)
        proj_back = self.linear(n, f"{p}.proj", core, out, grad(core), (m.heads * m.head_dim, self.h), "row")
        proj_back = self.residual(n, x, out, middle, f"{p}.proj", proj_back)
        add_back = [self.op("I", n, "residual_add", (grad(middle), branch), (grad(x),))]
        return proj_back + core_back + rotary_back + qkv_back + norm + add_back

    def mlp(self, n: int, x: Ref, y: Ref) -> list[Op]:
        p, m, d = f"L{n}", self.model, self.draft
        normed, out = self.hidden(f"{p}.norm2.out"), self.hidden(f"{p}.fc2.out")
        branch = d.buffer(f"{p}.norm2.input.grad", (self.rows, self.h), "activations", rows=True)
        up = d.activation(f"{p}.fc1.out", (self.rows, self.gate * m.ffn), cut=1)
        act = d.activation(f"{p}.act.out", (self.rows, m.ffn), cut=1)
        norm = self.norm(n, f"{p}.norm2", x, normed, branch)
        up_back = self.linear(n, f"{p}.fc1", normed, up, grad(normed), (self.h, self.gate * m.ffn), "column")
        self.add_forward(n, m.activation, (up,), (act,))
        act_back = [self.op("I", n, f"{m.activation}_grad", (grad(act), up), (grad(up),))]
        down_back = self.linear(n, f"{p}.fc2", act, out, grad(act), (m.ffn, self.h), "row")
        down_back = self.residual(n, x, out, y, f"{p}.fc2", down_back)
        add_back = [self.op("I", n, "residual_add", (grad(y), branch), (grad(x),))]
        return down_back + act_back + up_back + norm + add_back

    def embedding(self, x: Ref) -> None:
        m, d = self.model, self.draft
        tokens = d.buffer("tokens", (self.batch, self.sequence), "activations", dtype="int32")
        weights = [d.parameter("embedding.weight", (m.vocab, self.h), cut=0)]
        if m.positions == "learned":
            weights.append(d.parameter("positions.weight", (m.max_positions, self.h)))
        self.tie()
        self.add_forward(-1, "sample", (), (tokens,), (m.vocab,), role="input")
        grads = tuple(grad(w) for w in weights)
        out, drop = (self.hidden("embedding.out"), True) if d.layout.kernels.dropout else (x, False)
        self.add_forward(-1, "embedding", (tokens, *weights), (out,), role="row")
        self.backward = [self.op("W", -1, "embedding_weight_grad", (tokens, grad(out), *grads), grads, role="row")]
        if drop:
            mask = d.buffer("embedding.mask", (self.rows, self.h), "activations", dtype="uint8", rows=True)
            self.add_forward(-1, "dropout", (out,), (x, mask))
            self.backward.insert(0, self.op("I", -1, "dropout_grad", (grad(x), mask), (grad(out),)))

    def head(self, x: Ref) -> None:
        m, d = self.model, self.draft
        normed = self.hidden("final_norm.out")
        norm = self.norm(-1, "final_norm", x, normed, grad(x))
        name = "embedding.weight" if m.tied else "head.weight"
        weight = d.parameter(name, (m.vocab, self.h), cut=0)
        self.tie()
        logits = d.buffer("logits", (self.rows, m.vocab), "buffers", cut=1)
        dlogits = d.buffer("logits.grad", (self.rows, m.vocab), "buffers", cut=1)
        labels = d.buffer("labels", (self.rows,), "buffers", dtype="int32")
        stats = d.buffer("loss.stats", (1, self.rows, 3), "buffers", dtype="fp32" if self.dtype in ("bf16", "fp16") else self.dtype)
        loss = d.buffer("loss", (1,), "buffers", dtype=d.buffers[stats.name].dtype)
        self.add_forward(-1, "head", (normed, weight), (logits,), role="column")
        self.add_forward(-1, "sample", (), (labels,), (m.vocab,), role="target")
        self.add_forward(-1, "cross_entropy_stats", (logits, labels), (stats,))
        self.add_forward(-1, "cross_entropy", (stats,), (loss,), (self.scale,))
        self.backward = [
            self.op("I", -1, "cross_entropy_grad", (logits, labels, stats), (dlogits,), (self.scale,)),
            self.op("I", -1, "head_input_grad", (dlogits, weight), (grad(normed),), role="column"),
            self.op("W", -1, "head_weight_grad", (normed, dlogits, grad(weight)), (grad(weight),), role="column"),
            *norm,
        ]

    def tie(self) -> None:
        """A tied embedding on two ranks needs its gradient summed over both holders."""
        if self.model.tied and self.draft.ranks_of_stage[0] != self.draft.ranks_of_stage[-1]:
            self.draft.shared["embedding.weight"] = TIED


def rename_reads(op: Op, names: dict[Ref, Ref]) -> Op:
    """The same op reading other buffers."""
    assert isinstance(op, Compute)
    return replace(op, kernels=tuple(replace(k, reads=tuple(names.get(r, r) for r in k.reads)) for k in op.kernels))
