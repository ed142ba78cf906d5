"""Applying the commands of a layout on this machine, and entering a namespace. Everything lives in the lab's own mount of /run/netns."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parasim.errors import Failed

from .networks import Network
from .shaping import SYSCTL, Batch, layout

NETNS = Path("/run/netns")
CLONE_NEWNET = 0x40000000  # linux/sched.h
PRIORITY = 5  # of SCHED_RR
LIMIT = 20.0  # seconds for one call of ip or tc


@contextmanager
def laid_out(network: Network, *, shaped: bool = True) -> Iterator[None]:
    """Inside, the network exists. Raises Failed with the command that did not work."""
    try:
        for batch in layout(network, shaped=shaped):
            apply(batch)
        for host in network.hosts:
            settings = [f"{key}={value}" for key, value in SYSCTL.items()]
            call(["ip", "netns", "exec", host.name, "sysctl", "-qw", *settings])
        yield
    finally:
        for space in sorted(p.name for p in NETNS.iterdir()):
            subprocess.run(["ip", "netns", "del", space], capture_output=True, timeout=LIMIT)


def apply(batch: Batch) -> None:
    """Run one batch. Raises Failed naming its first wrong line."""
    where = ["-n", batch.namespace] if batch.namespace else []
    call([batch.tool, *where, "-b", "-"], "\n".join(batch.lines) + "\n")


def call(command: list[str], text: str = "") -> str:
    """The output of a command. Raises Failed with what it said."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Failed(f"{' '.join(command)}: {'; '.join(said[:3]) or f'exit code {done.returncode}'}")
    return done.stdout


def enter(name: str) -> None:
    """Move this thread, and what it starts from now on, into the namespace called `name`."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(NETNS / name, "rb") as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), name)


def real_time() -> None:
    """This process, and the threads it starts, before all ordinary ones: a thread of gloo that waits for another's time slice is 4 ms late."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
