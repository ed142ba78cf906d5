"""What a traced kernel does, by its name: a product, attention, a transfer, or work that is bound by memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..cost.kineto import OPS
from ..cost.pricing import PRICES
from ..errors import Refused
from ..program.ops import DTYPE_BYTES
from ..provenance import Number
from ..topology.cluster import Accelerator

KernelKind = Literal["matmul", "attention", "memory", "transfer"]
WORDS: Mapping[str, str] = {"matmul": "products (GEMM)", "attention": "attention", "memory": "bound by memory", "host": "on the host", "time": "given times"}
TRANSFER = re.compile(r"^(ncclDevKernel|ncclKernel|nccl:|gloo:|c10d::)|^(all_reduce|all_gather|reduce_scatter|all_to_all|broadcast)\b")
ATTENTION = re.compile(r"flash|fmha|scaled_dot_product|attention|attn|mem_eff", re.IGNORECASE)
PRODUCT = re.compile(r"gemm|cublas|cutlass|wgmma|xmma|nvjet|splitk|^aten::(mm|addmm|bmm|baddbmm|matmul|linear|_scaled_mm|mv|addmv|dot)$", re.IGNORECASE)
# Names of NCCL's kernels (ncclDevKernel_AllReduce_Sum_bf16_RING_LL) and of gloo's records (gloo:all_reduce) -> ops
NAMED = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "alltoall": "all_to_all", "sendrecv": "messages"}
NAMED |= {"broadcast": "broadcast", "reduce": "reduce", "send": "messages", "recv": "messages"}
DTYPES = {"bfloat16": "bf16", "half": "fp16", "float": "fp32", "double": "fp64", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8"}


@dataclass(frozen=True)
class Timed:
    """Calls of a kernel that were timed together: FLOPs and bytes where they are known (0: not), the dtype of a product ("": not known)."""

    kind: str
    name: str
    seconds: float
    flops: float = 0.0
    nbytes: float = 0.0
    dtype: str = ""


def kind_of(name: str) -> KernelKind:
    """The kind of a kernel of a GPU, of an op of torch, or of a kernel of a Program."""
    if name in PRICES:
        kind = PRICES[name].kind
        return kind if kind in ("matmul", "attention") else "memory"
    if TRANSFER.search(name):
        return "transfer"
    if ATTENTION.search(name):
        return "attention"
    return "matmul" if PRODUCT.search(name) else "memory"


def transfer_op(name: str, said: object = None) -> str:
    """The collective that a kernel belongs to, by torch's field "Collective name" (`said`) or its own name; `messages` for sends and receives."""
    word = str(said).lower() if said else ""
    if word in OPS:
        return OPS[word]
    letters = re.sub(r"[^a-z]", "", (word or name).lower().removeprefix("nccldevkernel").removeprefix("ncclkernel").removeprefix("nccl"))
    return next((op for key, op in NAMED.items() if key in letters), "other transfers")


def dtype_of(torch_name: object) -> str:
    """bf16 of c10::BFloat16; "" for one that parasim has no word for."""
    word = str(torch_name).removeprefix("c10::").lower()
    return DTYPES.get(word, word if word in DTYPE_BYTES else "")


def fitted(kernels: Sequence[Timed], accelerator: Accelerator, source: str) -> tuple[dict[str, Number], list[str]]:
    """Fractions of the datasheet's rates that traced kernels reach, and lines that say so.

    Of each kind, all FLOPs (bytes for what is bound by memory) at the peak over all seconds: what keeps the total of a step. Kernels without them,
    or of a dtype without a peak, are left out and counted.
    """
    numbers: dict[str, Number] = {}
    lines = []
    for kind, key in (("matmul", "compute.matmul_efficiency"), ("attention", "compute.attention_efficiency"), ("memory", "compute.memory_efficiency")):
        for grad in (False, True) if kind == "attention" else (None,):
            mine = [k for k in kernels if k.kind == kind and (grad is None or _backward(k.name) == grad)]
            told = [(k, ideal) for k in mine if (ideal := _ideal(k, accelerator)) > 0 and k.seconds > 0]
            seconds = sum(k.seconds for k in mine)
            if not mine:
                continue
            name = WORDS[kind] + (" backward" if grad else "")
            lines.append(f"{name:24} {len(mine):8} kernels {seconds:12.6f} s")
            if not told:
                lines[-1] += "   (no FLOPs, bytes or peak to compare with)"
                continue
            spread = [ideal / k.seconds for k, ideal in told]
            value = sum(ideal for _, ideal in told) / sum(k.seconds for k, _ in told)
            low, high = np.percentile(spread, [10, 90])
            key = "compute.attention_grad_efficiency" if grad else key
            text = f"{source}: {len(told)} kernels, 10th to 90th percentile {low:.3g} to {high:.3g}"
            numbers[key] = Number(float(f"{value:.4g}"), "1", text, "fitted")
            lines[-1] += f"   {value:6.1%} of the peak of {accelerator.name} ({low:.0%} to {high:.0%})"
    return numbers, lines


def _backward(name: str) -> bool:
    return bool(re.search(r"_grad|backward|bwd", name, re.IGNORECASE))


def _ideal(kernel: Timed, accelerator: Accelerator) -> float:
    """Seconds on the datasheet, 0 where that is not known."""
    if kernel.kind == "memory":
        return kernel.nbytes / accelerator.memory_bandwidth.value
    try:
        return kernel.flops / accelerator.peak(kernel.dtype) if kernel.flops and kernel.dtype else 0.0
    except Refused:
        return 0.0
