"""Seconds of kernels and ops on an accelerator, from their prices and the numbers of a profile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ..errors import Refused, Violation
from ..program.ops import Compute, Kernel, Op
from .device import Device
from .price import Kind, Price, dims, width
from .pricing import PRICES
from .products import SHAPES, filled
from .products import reached as fraction
from .profile import Profile

EFFICIENCY: Mapping[Kind, str] = {"matmul": "compute.matmul_efficiency", "attention": "compute.attention_efficiency"}
SORTED = ("permute", "permute_grad", "combine", "combine_grad")


def _host_rate(kind: Kind, accelerator: Device) -> float:
    """Bytes per second of the link to the host, or of its memory. Raises `Refused` for an accelerator without these numbers."""
    number = accelerator.host_link if kind == "link" else accelerator.host_memory_bandwidth
    if number is None:
        rule = "needs host_link and host_memory_bandwidth of the accelerator, which its file does not have"
        raise Refused([Violation("offload", "true", rule, "add them to the accelerator, or leave offload out")])
    return number.value


def _efficiency(kernel: Kernel, price: Price, accelerator: Device, profile: Profile) -> float:
    """Fraction of the peak of its dtype that a product or tiled attention reaches."""
    get = profile.get
    reached = get(EFFICIENCY[price.kind], get("compute.matmul_efficiency"))
    unit = None if accelerator.matrix_unit is None else accelerator.matrix_unit.value
    if price.kind == "attention":
        reached = get("compute.attention_grad_efficiency", reached) if kernel.name.endswith("_grad") else reached
        _, sequence, _, _, width, *_ = dims(kernel)
        reached *= filled(width, unit)
        return reached * sequence / (sequence + get("compute.attention_start")) if sequence else reached
    reached = get("compute.fp8_efficiency", reached) if kernel.dtype == "fp8" else reached
    count = accelerator.multiprocessors
    shape = SHAPES[kernel.name](dims(kernel))
    reached *= filled(shape.n, unit) * filled(shape.k, unit)
    return reached * fraction(shape, None if count is None else count.value, get("compute.product_start"), get("compute.tile_cost"))


def _moved(kernel: Kernel, price: Price, profile: Profile) -> float:
    """Bytes that a kernel bound by memory moves: `compute.memory_passes` times the least of them, and w r c for each of `compute.sort_passes`."""
    nbytes = price.bytes(kernel)
    if kernel.name in SORTED:
        rows, columns, _ = dims(kernel)
        nbytes += profile.get("compute.sort_passes") * width(kernel) * rows * columns
    return profile.get("compute.memory_passes") * nbytes


def seconds(kernel: Kernel, accelerator: Device, profile: Profile) -> float:
    """Seconds of one kernel: the longer of FLOPs at the reached rate and bytes at the reached bandwidth, plus the launches.

    A `delay` takes the seconds it names; one of several `parts` its share of the seconds of them all.
    Raises `Refused` for a dtype, or numbers of the host, that the accelerator does not have.
    """
    price = PRICES[kernel.name]
    if kernel.parts > 1:
        rows, *rest = dims(kernel)
        return seconds(replace(kernel, dims=(rows * kernel.parts, *rest), parts=1), accelerator, profile) / kernel.parts
    if price.kind == "time":
        return dims(kernel)[0]
    if price.kind == "view":
        return 0.0
    if price.kind in ("link", "host"):
        return price.bytes(kernel) / _host_rate(price.kind, accelerator) + profile.get("compute.kernel_launch")
    nbytes = _moved(kernel, price, profile) if price.kind == "memory" else price.bytes(kernel)
    moving = nbytes / (accelerator.memory_bandwidth.value * profile.get("compute.memory_efficiency"))
    work = price.flops(kernel)
    computing = work / (accelerator.peak(kernel.dtype) * _efficiency(kernel, price, accelerator, profile)) if work else 0.0
    return max(computing, moving) + price.launches(kernel) * profile.get("compute.kernel_launch")


def host_launch(profile: Profile, tp: int, pp: int, devices: int, servers: int) -> float:
    """Seconds of the host per kernel: more where tensor-parallel groups span servers, as the host carries their messages beside it, and where pipelines
    of such groups do, whose hosts then serve both kinds of messages."""
    between = tp * servers > devices
    shared = tp if tp > 1 and pp > 1 and servers > 1 else 0
    return profile.get("compute.host_launch") + between * profile.get("compute.host_launch_between") + shared * profile.get("compute.host_launch_shared")


def body_seconds(body: Iterable[Op], kernel_seconds: Callable[[Kernel], float], profile: Profile, launch: float) -> list[float]:
    """Seconds of every op of a body, 0 for transfers: those of its kernels and `compute.op_overhead`, and what the device waits for the host.

    The host starts a body with the device and runs ahead of it, `launch` seconds per kernel or transfer; the device ends no op before the host
    has handed over its last kernel. So a body takes at least what the host takes for it, and short kernels hide behind long ones before them.
    """
    overhead, host, device, out = profile.get("compute.op_overhead"), 0.0, 0.0, []
    for op in body:
        if not isinstance(op, Compute):
            host += launch
            out.append(0.0)
            continue
        times = [kernel_seconds(kernel) for kernel in op.kernels]
        host += launch * sum(t > 0 for t in times)
        ends = max(device + overhead + sum(times), host)
        out.append(ends - device)
        device = ends
    return out
