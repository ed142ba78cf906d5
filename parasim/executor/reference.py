"""The numeric proof: what one process gets that trains the deep residual MLP on the whole batch with plain autograd, and how far a rank is from it.

Arrays cross between processes as numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ..errors import Malformed
from ..program.workload import Program, Workload
from .context import Context
from .execution import Execution
from .initial import held, trained_buffers
from .kernels_state import adam_step, initial_value, sample_rows


@dataclass(frozen=True)
class MlpSizes:
    """The job: `rows` of one microbatch, `microbatches` per replica and step, `replicas` of data parallelism."""

    layers: int
    hidden: int
    ffn: int
    rows: int
    microbatches: int
    replicas: int


def train(sizes: MlpSizes, steps: int) -> dict[str, Tensor]:
    """Full parameters by name after `steps` Adam steps in fp64; the same start, data and loss scale as the executed Program.

    Per layer x + gelu(x W1) W2; the loss is the sum of squared differences over (global rows x hidden).
    """
    shapes = {}
    for n in range(sizes.layers):
        shapes[f"L{n}.fc1.weight"] = (sizes.hidden, sizes.ffn)
        shapes[f"L{n}.fc2.weight"] = (sizes.ffn, sizes.hidden)
    parameters = {name: initial_value(name, shape) for name, shape in shapes.items()}
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in parameters.items()}
    for step in range(steps):
        gradients = _gradients(sizes, parameters, step)
        for name, p in parameters.items():
            parameters[name], *state = adam_step(p, gradients[name], *moments[name], Context({}, {}, step))
            moments[name] = (state[0], state[1])
    return parameters


def _gradients(sizes: MlpSizes, parameters: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
    def batch(role: str) -> Tensor:
        where = [(d, m) for d in range(sizes.replicas) for m in range(sizes.microbatches)]
        return torch.cat([sample_rows(role, step, d, m, (sizes.rows, sizes.hidden)) for d, m in where])

    leaves = {name: p.clone().requires_grad_() for name, p in parameters.items()}
    x, target = batch("input"), batch("target")
    for n in range(sizes.layers):
        x = x + F.gelu(x @ leaves[f"L{n}.fc1.weight"], approximate="tanh") @ leaves[f"L{n}.fc2.weight"]
    loss = ((x - target) ** 2).sum() / x.numel()
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def trained(workloads: Sequence[Workload], steps: int) -> list[dict[str, NDArray[Any]]]:
    """In a process group: this rank's persistent buffers after `steps` training steps, a multiple of those of the Workload, of one after the other."""
    out = []
    for workload in workloads:
        execution = Execution(workload)
        execution.train(steps)
        out.append({name: t.numpy() for name, t in execution.tensors.items()})
    return out


def distances(cases: Sequence[tuple[Workload, Mapping[str, NDArray[Any]]]], steps: int) -> list[tuple[float, str, list[str]]]:
    """In a process group: per Workload and reference `worst_difference` of this rank after `steps` training steps, and the buffers that should have
    died and did not."""
    out = []
    for workload, reference in cases:
        execution = Execution(workload)
        execution.train(steps)
        full = {name: torch.from_numpy(a) for name, a in reference.items()}
        out.append((*worst_difference(execution.tensors, execution.program, execution.context, full), execution.left_behind()))
    return out


def worst_difference(tensors: Mapping[str, Tensor], program: Program, context: Context, reference: Mapping[str, Tensor]) -> tuple[float, str]:
    """Largest absolute difference between a rank's parameters (whole, cut or flat shards) and the reference, and the buffer it is in.

    `tensors` are the rank's persistent buffers by name. Raises Malformed where the rank holds parameters the reference does not know.
    """
    worst, where = 0.0, ""
    for name, parts in trained_buffers(program).items():
        unknown = [p for p in parts if p not in reference]
        if unknown:
            raise Malformed(f"buffer {name} holds {unknown[0]}, which the reference does not train")
        difference = float((tensors[name].double() - held(context, name, parts, reference)).abs().max())
        if difference >= worst:
            worst, where = difference, name
    if not where:
        raise Malformed("the Program holds no parameters")
    return worst, where
