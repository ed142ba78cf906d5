"""The layouts that lowering is judged on, as run files, and what the tests read off a Workload."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from parasim.config import build
from parasim.config.plan import Plan
from parasim.lowering import lower
from parasim.program.ops import P2P, Collective, Op
from parasim.program.workload import Program, Workload, buffer_bytes

SEQUENCE, HIDDEN = 16, 32
TOKENS = 2 * SEQUENCE  # tokens of a microbatch of two sequences
LLAMA = {"kind": "transformer", "layers": 6, "hidden": HIDDEN, "heads": 8, "kv_heads": 4, "ffn": 96, "vocab": 64}
GPT = {
    "kind": "transformer", "layers": 6, "hidden": HIDDEN, "heads": 8, "vocab": 64, "activation": "gelu", "norm": "layer_norm", "bias": True,
    "positions": "learned", "max_positions": 32, "tied": True,
}  # fmt: skip
MLP = {"kind": "mlp", "layers": 6, "hidden": HIDDEN, "ffn": 64}
MODELS = {"llama": LLAMA, "llama-tied": LLAMA | {"tied": True}, "gpt": GPT, "gpt-untied": GPT | {"tied": False}, "mlp": MLP}


def keys(
    model: str, *, tp: int = 1, pp: int = 1, dp: int = 1, m: int = 4, micro: int = 2, sp: bool = False, data: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """A run file with `m` microbatches of `micro` sequences per replica."""
    out: dict[str, Any] = {
        "model": MODELS[model],
        "cluster": "h100-hgx-ib400",
        "devices": tp * pp * dp,
        "batch": {"global": m * micro * dp, "micro": micro, "sequence": SEQUENCE},
        "parallel": {"tp": tp, "pp": pp, "dp": dp},
    }
    out |= {"tensor": {"sequence_parallel": True}} if sp else {}
    return out | ({"dp": data} if data else {}) | more


def lowered(model: str, **layout: Any) -> tuple[Plan, Workload]:
    """The plan and its verified Workload."""
    plan = build(keys(model, **layout)).plan
    return plan, lower(plan)


def ops(program: Program) -> list[Op]:
    """Every op of a step, in order."""
    return [op for call in program.calls for op in program.bodies[call.body]]


def collectives(program: Program, group: str) -> list[tuple[str, int]]:
    """(op, bytes of the larger buffer) of every collective of a group in a step."""
    mine = [o for o in ops(program) if isinstance(o, Collective) and o.group == group]
    return [(o.op, max(program.nbytes(o.reads), program.nbytes(o.writes))) for o in mine]


def counted(program: Program, group: str) -> Counter[tuple[str, int]]:
    """How often a step has each (op, bytes)."""
    return Counter(collectives(program, group))


def messages(program: Program) -> list[int]:
    """Bytes of every message sent in a step."""
    return [buffer_bytes(program.buffers[m.buffer.name]) for o in ops(program) if isinstance(o, P2P) for m in o.sends]


def held(program: Program, category: str, *, persistent: bool = True) -> int:
    """Bytes of the buffers of a category that live through the step."""
    return sum(buffer_bytes(b) for b in program.buffers.values() if b.category == category and b.persistent == persistent)


def kept(program: Program, layer: int) -> int:
    """Bytes of a layer's activations that the forward of microbatch 0 leaves for its backward."""
    r = program.resolved
    calls = [c.body.rstrip("!") for c in program.calls]
    after, before = np.flatnonzero(r.call == calls.index("F0"))[-1], np.flatnonzero(r.call == calls.index("B0"))[0]
    last = np.maximum.reduceat(r.last_users, r.last_start[:-1])
    alive = (r.generation_microbatch == 0) & (r.birth <= after) & (last >= before)
    names = [r.buffers[b] for b in r.generation_buffer[alive]]
    return sum(program.sizes[n] for n in names if n.startswith(f"L{layer}.") and program.buffers[n].category == "activations")
