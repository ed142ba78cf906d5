"""The torch.distributed back end: runs a Workload on real processes. Importing this package does not import torch; `execute` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InvalidProgram, MissingExtra
from ..program.checks import verify
from ..program.workload import Workload
from ..timeline import Timeline

if TYPE_CHECKING:
    from typing import Literal

    from .payloads import Durations


def require_torch() -> None:
    """Raises MissingExtra, which names the command that installs it, where torch is not there."""
    try:
        import torch.distributed  # noqa: F401
    except ImportError:
        raise MissingExtra("torch", "torch") from None


def execute(
    workload: Workload,
    backend: str = "gloo",
    compute: Literal["numeric", "sleep", "matmul"] = "numeric",
    *,
    steps: int = 1,
    timeout: float = 60.0,
    durations: Durations | None = None,
) -> Timeline:
    """Run `workload` on this process group (or on the processes that torchrun started) and return the measured Timeline of all ranks.

    `compute`: `numeric` trains on real tensors, `matmul` multiplies matrices of the kernels' dims, `sleep` sleeps `durations`: a function
    (rank, op) -> seconds, or seconds by instance number. The last two move real tensors of the right size. The Workload is run `steps`
    times; the Timeline is that of the run of median length, the first left out if there are several. Every wait ends after `timeout` seconds.

    Raises InvalidProgram for a Workload that `verify` refuses, Refused where the number of processes is wrong, Interrupted (a Failed) where a
    rank died or was late: it names rank and op, and carries what was measured.
    """
    violations = verify(workload)
    if violations:
        raise InvalidProgram(violations)
    require_torch()
    from .execution import Execution, Settings
    from .launch import joined

    with joined(backend, timeout):
        return Execution(workload, Settings(compute, timeout, durations)).run(steps)


__all__ = ["execute", "require_torch"]
