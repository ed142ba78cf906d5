"""verify in a copy of this process, on another core, while this one goes on."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..errors import InvalidProgram
from .checks import require_sound, verify
from .digest import Body, Form
from .workload import Workload

PATIENCE = 60.0  # seconds
GLANCE = 0.001  # seconds


@contextmanager
def verified(workload: Workload) -> Iterator[None]:
    """What is inside runs while a copy of this process verifies `workload`; where none can be had it is verified before.

    Raises InvalidProgram, at the end and in place of an error from inside, where `verify` objects.
    """
    copy = _copy(workload)
    if copy is None:
        require_sound(workload)
    try:
        yield
    except Exception:
        _wait(copy, workload)
        raise
    except BaseException:
        _end(copy)
        raise
    _wait(copy, workload)


def _copy(workload: Workload) -> int | None:
    """The number of a copy of this process that ends with 0 where `verify` finds nothing. What simulation needs as well is derived before."""
    if not hasattr(os, "fork") or (os.cpu_count() or 1) < 2:
        return None
    known: dict[Form, tuple[Body, ...]] = {}
    try:
        for program in workload.programs:
            program.resolve(known)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which numpy may have: the copy uses none
            copy = os.fork()
    except (InvalidProgram, OSError):
        return None
    if copy:
        return copy
    code = 1
    with suppress(BaseException):
        code = int(bool(verify(workload)))
    os._exit(code)


def _wait(copy: int | None, workload: Workload) -> None:
    """Verify here what the copy did not find sound in time."""
    until = time.monotonic() + PATIENCE
    while copy is not None and time.monotonic() < until:
        ended, status = os.waitpid(copy, os.WNOHANG)
        if ended:
            if status:
                require_sound(workload)
            return
        time.sleep(GLANCE)
    if copy is not None:
        _end(copy)
        require_sound(workload)


def _end(copy: int | None) -> None:
    if copy is not None:
        with suppress(OSError):
            os.kill(copy, signal.SIGKILL)
            os.waitpid(copy, 0)
