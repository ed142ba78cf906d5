"""Kernels that a sweep of one device times, each torch's own form of a kernel that has a price: products, attention, memory, optimizer, launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from ..program.ops import DType, Kernel, Ref
from .context import TORCH_DTYPES
from .kernels_dense import NORM_EPSILON
from .single import host_seconds_of, seconds_of

ATEN: Any = torch.ops.aten  # its forms with `out` write where they are told: memory that is new has to be found and cleared first
LAUNCH, HOST_LAUNCH = "launch", "host launch"  # the cases without a kernel
LAUNCH_KEYS = {LAUNCH: "compute.kernel_launch", HOST_LAUNCH: "compute.host_launch"}
LAUNCHES = 200  # in a row: fewer than a GPU's queue takes
SHORT, CALLS = 0.02, 50  # seconds: of what is shorter so many calls, at most, are timed together


@dataclass(frozen=True)
class Sizes:
    """What is swept: products (rows, inner, columns), attention (batch, sequence, heads, width), (rows, columns) for memory, parameters for Adam."""

    products: tuple[tuple[int, int, int], ...]
    attention: tuple[tuple[int, int, int, int], ...]
    memory: tuple[tuple[int, int], ...]
    parameters: tuple[int, ...]


TINY = Sizes(((64, 64, 64), (128, 128, 128)), ((1, 64, 2, 32),), ((256, 256),), (1 << 14,))
SMALL = Sizes(  # one thread of a processor; operands of what is bound by memory are larger than its caches
    ((512, 512, 512), (512, 512, 2048), (1024, 1024, 1024), (512, 2048, 512)),
    ((1, 512, 8, 64), (1, 1024, 8, 64)),
    ((4096, 2048), (8192, 2048)),
    (1 << 22,),
)
LARGE = Sizes(  # a GPU
    ((2048, 4096, 4096), (4096, 4096, 4096), (4096, 4096, 14336), (4096, 14336, 4096), (8192, 8192, 8192), (8192, 4096, 32768)),
    ((4, 2048, 32, 128), (1, 4096, 32, 128), (1, 8192, 32, 128)),
    ((8192, 4096), (16384, 4096), (16384, 8192)),
    (1 << 26, 1 << 27),
)
SETS = {"tiny": TINY, "small": SMALL, "large": LARGE}


@dataclass(frozen=True)
class Case:
    """A kernel as it is priced (None: a launch) and how one sample of it is taken: seconds of one call."""

    kernel: Kernel | None
    sample: Callable[[], float]


def cases(sizes: Sizes, dtype: DType, device: torch.device) -> dict[str, Case]:
    """Every case by name. Operands are made when a case is first sampled, and dropped after."""
    out: dict[str, Case] = {}

    def add(name: str, reads: str, writes: str, dims: tuple[int, ...], make: Make, *shape: int) -> None:
        kernel = Kernel(name, _refs(reads), _refs(writes), dims, "fp32" if name == "adam" else dtype)
        label = "x".join(map(str, shape))
        out[f"{name} {label}"] = Case(kernel, partial(_sample, device, partial(make, device, TORCH_DTYPES[kernel.dtype], shape)))

    for r, i, c in sizes.products:
        add("linear", "x w", "y", (r, i, c), _product, r, i, c)
    for b, s, h, d in sizes.attention:
        add("attention", "qkv", "o lse", (b, s, h, h, d), _attention, b, s, h, d)
        add("attention_grad", "do qkv o lse", "dqkv", (b, s, h, h, d), _attention_grad, b, s, h, d)
    for r, c in sizes.memory:
        add("gelu", "x", "y", (r, c), _gelu, r, c)
        add("layer_norm", "x w b", "y", (r, c), _layer_norm, r, c)
        add("residual_add", "a b", "c", (r, c), _residual_add, r, c)
    for n in sizes.parameters:
        add("adam", "p g m v", "p m v", (n,), _adam, n)
    one = torch.zeros(1, device=device)
    launched = partial(one.add_, 1.0)
    out[LAUNCH] = Case(None, partial(seconds_of, device, launched, LAUNCHES))
    if device.type == "cuda":
        out[HOST_LAUNCH] = Case(None, partial(host_seconds_of, device, launched, LAUNCHES))
    return out


def _refs(names: str) -> tuple[Ref, ...]:
    return tuple(Ref(name, 0) for name in names.split())


Work = Callable[[], object]
Shape = tuple[int, ...]
Make = Callable[[torch.device, torch.dtype, Shape], Work]


def _sample(device: torch.device, make: Callable[[], Work]) -> float:
    """Seconds of one call of what `make` gives, after one that warms up; more calls where one is short."""
    work = make()
    work()
    once = seconds_of(device, work, 1)
    return seconds_of(device, work, max(1, min(CALLS, int(SHORT / max(once, SHORT / CALLS)))))


def _product(device: torch.device, dtype: torch.dtype, shape: Shape) -> Work:
    rows, inner, columns = shape
    x, w, y = (_rand(device, dtype, *s) for s in ((rows, inner), (inner, columns), (rows, columns)))
    return partial(torch.mm, x, w, out=y)


def _heads(device: torch.device, dtype: torch.dtype, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    batch, sequence, heads, width = shape
    q, k, v = (_rand(device, dtype, batch, heads, sequence, width) for _ in range(3))
    return q, k, v


def _attention(device: torch.device, dtype: torch.dtype, shape: Shape) -> Work:
    return partial(F.scaled_dot_product_attention, *_heads(device, dtype, shape), is_causal=True)


def _attention_grad(device: torch.device, dtype: torch.dtype, shape: Shape) -> Work:
    q, k, v = (x.requires_grad_() for x in _heads(device, dtype, shape))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return partial(torch.autograd.grad, out, (q, k, v), torch.randn_like(out), retain_graph=True)


def _gelu(device: torch.device, dtype: torch.dtype, shape: Shape) -> Work:
    return partial(ATEN.gelu.out, _rand(device, dtype, *shape), approximate="tanh", out=_rand(device, dtype, *shape))


def _layer_norm(device: torch.device, dtype: torch.dtype, shape: Shape) -> Work:
    x, w, b = (_rand(device, dtype, *s) for s in (shape, shape[1:], shape[1:]))
    y, mean, rstd = ATEN.native_layer_norm(x, shape[1:], w, b, NORM_EPSILON)
    return partial(ATEN.native_layer_norm.out, x, shape[1:], w, b, NORM_EPSILON, out0=y, out1=mean, out2=rstd)


def _residual_add(device: torch.device, dtype: torch.dtype, shape: Shape) -> Work:
    a, b, c = (_rand(device, dtype, *shape) for _ in range(3))
    return partial(torch.add, a, b, out=c)


def _adam(device: torch.device, dtype: torch.dtype, shape: Shape) -> Work:
    p = _rand(device, dtype, *shape).requires_grad_()
    p.grad = torch.randn_like(p)
    optimizer: Any = torch.optim.Adam([p], fused=True)
    return cast(Work, optimizer.step)


def _rand(device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, device=device, dtype=dtype)


def measures(found: Mapping[str, Case]) -> dict[str, Callable[[], list[float]]]:
    """The cases as a Journal collects them: one number a sample."""
    return {name: partial(_alone, case.sample) for name, case in found.items()}


def _alone(sample: Callable[[], float]) -> list[float]:
    return [sample()]
