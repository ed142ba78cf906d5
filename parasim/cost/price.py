"""What a price is: FLOPs and bytes as functions of a kernel, and what those functions read of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from ..errors import InvalidProgram, Violation
from ..program.ops import DTYPE_BYTES, Kernel

Kind = Literal["matmul", "attention", "memory", "time", "link", "host", "view"]
STATISTIC = DTYPE_BYTES["fp32"]


class Price(NamedTuple):
    """FLOPs and bytes of a kernel, which efficiency its FLOPs run at, and how many kernels of the device it is."""

    flops: Callable[[Kernel], float]
    bytes: Callable[[Kernel], float]
    kind: Kind
    launches: Callable[[Kernel], float] = lambda kernel: 1.0


def dims(kernel: Kernel) -> tuple[float, ...]:
    """The kernel's dims as numbers, negative ones as 0. Raises `InvalidProgram` for a dim that is still the name of a load table."""
    named = [d for d in kernel.dims if isinstance(d, str)]
    if named:
        rule = "must be a number to be priced: resolve it from the load table first"
        raise InvalidProgram([Violation(f"kernel {kernel.name} dims", str(named[0]), rule)])
    return tuple(max(float(d), 0.0) for d in kernel.dims)


def width(kernel: Kernel) -> int:
    """Bytes of an element."""
    return DTYPE_BYTES[kernel.dtype]


def accumulates(kernel: Kernel) -> bool:
    """Does it read what it writes?"""
    return any(ref in kernel.reads for ref in kernel.writes)
