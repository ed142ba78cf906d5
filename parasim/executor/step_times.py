"""Steps of a Workload of one rank, run on one device from its own kernels: seconds of the step and of every op, and the peak of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..program.ops import Compute
from ..program.workload import Workload
from ..timeline import COMPUTE
from .execution import Execution, Settings

CUDA: Any = torch.cuda
HEAD = 2  # numbers of a sample before the ops: seconds of the step, peak bytes (0: not known)


class Step:
    """One Workload, set up when it is first run; its tensors go with it, so that it does not count in the memory of the next."""

    def __init__(self, workload: Workload, device: torch.device, timeout: float) -> None:
        self.workload, self.device, self.timeout = workload, device, timeout

    @property
    def ops(self) -> list[Compute]:
        """The Compute ops in the order of a sample."""
        resolved = self.workload.bound.program_of(0).resolved
        return [op for op in (resolved.op(i) for i in range(len(resolved))) if isinstance(op, Compute)]

    def sample(self) -> list[float]:
        """Seconds of a step after one that warms up, the most bytes that were allocated meanwhile (GPU; else 0), and the seconds of every Compute op."""
        cuda = self.device.type == "cuda"
        execution = Execution(self.workload, Settings("numeric", self.timeout))
        if cuda:
            CUDA.synchronize(self.device)
            CUDA.reset_peak_memory_stats(self.device)
        timeline = execution.run(2)
        most = float(CUDA.max_memory_allocated(self.device)) if cuda else 0.0
        rows = timeline.ops[timeline.ops["kind"] == COMPUTE]
        return [timeline.makespan, most, *(float(x) for x in rows["end"] - rows["start"])]


def seconds_of_ops(samples: Sequence[Sequence[float]]) -> Any:
    """float[repetitions, ops]"""
    return np.array([s[HEAD:] for s in samples], dtype=np.float64)
