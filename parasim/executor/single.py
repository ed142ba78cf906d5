"""One device by itself: which, what it says of itself, how long work on it takes."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

CUDA: Any = torch.cuda
C10D: Any = dist  # its stores are exported without saying so
AHEAD = 1 << 19  # cycles that a GPU is held up, so that the host is ahead with what is timed


def here() -> torch.device:
    """The GPU if torch has one, else the processor."""
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    return processor()


def processor() -> torch.device:
    """The processor, of which torch takes one thread from now on."""
    torch.set_num_threads(1)
    return torch.device("cpu")


def backend_of(device: torch.device) -> str:
    """The backend of torch.distributed that a device's tensors need."""
    return "nccl" if device.type == "cuda" else "gloo"


def machine(device: torch.device) -> dict[str, str]:
    """What samples hang on: torch and the device by name, and how many threads."""
    if device.type == "cuda":
        return {"torch": torch.__version__, "device": str(CUDA.get_device_name(device)), "cuda": str(CUDA.get_device_capability(device))}
    return {"torch": torch.__version__, "device": f"{_processor()}, one thread", "host": platform.node()}


def clocks(device: torch.device) -> str:
    """Clock rates as found, in words; "not known" where the machine does not say."""
    if device.type == "cuda":
        asked = ["nvidia-smi", "--query-gpu=clocks.sm,clocks.mem,clocks.max.sm", "--format=csv,noheader", f"--id={device.index or 0}"]
        try:
            found = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return "not known"
        return f"SM, memory, most of SM: {found}"
    return next((f"{line.split(':')[1].strip()} MHz" for line in _cpuinfo() if line.startswith("cpu MHz")), "not known")


def _processor() -> str:
    names = (line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def memory_bytes(device: torch.device) -> float:
    """Capacity in bytes: of the GPU, or of the host."""
    if device.type == "cuda":
        return float(CUDA.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def seconds_of(device: torch.device, work: Callable[[], object], repeats: int) -> float:
    """Mean seconds of `work` over `repeats` calls back to back: of the device between two events where there is a GPU, else of the clock."""
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(repeats):
            work()
        return (time.perf_counter() - began) / repeats
    first, last = CUDA.Event(enable_timing=True), CUDA.Event(enable_timing=True)
    CUDA._sleep(AHEAD)
    first.record()
    for _ in range(repeats):
        work()
    last.record()
    CUDA.synchronize(device)
    return float(first.elapsed_time(last)) / 1e3 / repeats


def host_seconds_of(device: torch.device, work: Callable[[], object], repeats: int) -> float:
    """Mean seconds of the host for handing `work` to a GPU, which is waited for before and after."""
    CUDA.synchronize(device)
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    taken = (time.perf_counter() - began) / repeats
    CUDA.synchronize(device)
    return taken


@contextmanager
def alone(device: torch.device, timeout: float) -> Iterator[None]:
    """Inside: a process group of this process by itself, with the backend of `device`; the one that is there already if there is one."""
    if dist.is_initialized():
        yield
        return
    if device.type == "cuda":
        CUDA.set_device(device)
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    limit = datetime.timedelta(seconds=timeout)
    dist.init_process_group(backend_of(device), rank=0, world_size=1, store=C10D.HashStore(), timeout=limit)
    try:
        yield
    finally:
        dist.destroy_process_group()
