"""Processes for a run: local ones that this process starts and outlives, or the ones that torchrun started."""

from __future__ import annotations

import datetime
import multiprocessing
import multiprocessing.connection
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..errors import Failed, Malformed, ParasimError, Refused

C10D: Any = dist  # its stores are exported without saying so
BACKENDS = ("gloo", "nccl")


@dataclass(frozen=True)
class Outcome:
    """What one process ended with: its value, or what went wrong ("" if nothing did)."""

    value: Any = None
    error: str = ""


def outcomes(function: Callable[..., Any], world: int, *args: Any, timeout: float = 60.0, enter: Callable[[int], None] | None = None) -> list[Outcome]:
    """Run `function(*args)` in `world` local processes joined by gloo, and wait at most `timeout` seconds for all of them.

    `function`, `args` and the values are pickled, and so is `enter`, which a process calls with its rank before anything else: to join another
    network than loopback. No process is left when this returns: one that does not end in time is killed.
    """
    context = multiprocessing.get_context("forkserver")
    used = {getattr(f, "func", f).__module__ for f in (function, enter) if f is not None} - {"__main__"}  # imported once, by the one that forks
    context.set_forkserver_preload(["torch", "torch.distributed", "parasim.executor.reference", *sorted(used)])
    deadline = time.monotonic() + timeout
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe() for _ in range(world)]
        processes = [
            context.Process(target=_child, args=(pipes[r][1], function, r, world, str(Path(folder) / "store"), timeout, enter, args), daemon=True)
            for r in range(world)
        ]
        try:
            for process in processes:
                process.start()
            for _, theirs in pipes:
                theirs.close()
            return _collect([mine for mine, _ in pipes], processes, deadline, timeout)
        finally:
            for mine, _ in pipes:
                mine.close()
            for process in processes:
                process.join(1.0)
                if process.is_alive():
                    process.kill()
                    process.join()


def _collect(connections: list[Any], processes: list[Any], deadline: float, timeout: float) -> list[Outcome]:
    found: dict[int, Outcome] = {}
    while len(found) < len(connections) and time.monotonic() < deadline:
        waiting = [c for r, c in enumerate(connections) if r not in found]
        for ready in multiprocessing.connection.wait(waiting, max(0.0, deadline - time.monotonic())):
            rank = connections.index(ready)
            try:
                found[rank] = connections[rank].recv()
            except EOFError:
                processes[rank].join(1.0)
                found[rank] = Outcome(error=f"died with exit code {processes[rank].exitcode}")
    return [found.get(r, Outcome(error=f"did not end within {timeout:g} s")) for r in range(len(connections))]


def _child(
    connection: Any,
    function: Callable[..., Any],
    rank: int,
    world: int,
    store: str,
    timeout: float,
    enter: Callable[[int], None] | None,
    args: tuple[Any, ...],
) -> None:
    if enter is not None:
        enter(rank)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    try:
        limit = datetime.timedelta(seconds=timeout)
        dist.init_process_group("gloo", rank=rank, world_size=world, store=C10D.FileStore(store, world), timeout=limit)
        outcome = Outcome(function(*args))
    except ParasimError as error:
        outcome = Outcome(error=str(error))
    except Exception as error:
        outcome = Outcome(error=f"{type(error).__name__}: {error}")
    connection.send(outcome)
    connection.poll(timeout)  # stay until everybody has answered: leaving closes connections that others still use
    os._exit(0)


def spawn(function: Callable[..., Any], world: int, *args: Any, timeout: float = 60.0, enter: Callable[[int], None] | None = None) -> list[Any]:
    """The values of `outcomes`, in rank order. Raises Failed with every rank's error if one failed."""
    if world < 1:
        raise Malformed(f"ranks={world} must be at least 1")
    ended = outcomes(function, world, *args, timeout=timeout, enter=enter)
    wrong = [f"rank {r}: {o.error}" for r, o in enumerate(ended) if o.error]
    if wrong:
        raise Failed("\n".join(wrong))
    return [o.value for o in ended]


def _meet(backend: str, timeout: float) -> None:
    """Find the other processes; torch's own time-out does not bound a connection to a listener that never answers, a thread does."""
    wrong: list[Exception] = []

    def meet() -> None:
        try:
            dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout))
        except Exception as error:
            wrong.append(error)

    thread = threading.Thread(target=meet, daemon=True)
    thread.start()
    thread.join(2 * timeout)
    if thread.is_alive():
        where = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
        raise Failed(f"the processes did not find each other within {2 * timeout:g} s at {where}")
    if wrong:
        raise Failed(f"the processes did not find each other: {str(wrong[0]).splitlines()[0]}") from wrong[0]


@contextmanager
def joined(backend: str, timeout: float) -> Iterator[None]:
    """Inside: a process group, the one that is there already or one made from torchrun's environment (which is left at the end)."""
    if backend not in BACKENDS:
        raise Malformed(f"backend={backend} must be one of {', '.join(BACKENDS)}")
    if dist.is_initialized():
        yield
        return
    if "RANK" not in os.environ:
        raise Refused("execute needs its processes: start it with torchrun --nproc_per_node N -m parasim execute RUN.yaml")
    if backend == "nccl":
        if not torch.cuda.is_available():
            raise Refused("backend=nccl needs CUDA devices, and none is available; use gloo")
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    _meet(backend, timeout)
    with _terminable():
        yield
    dist.barrier()
    dist.destroy_process_group()


@contextmanager
def _terminable() -> Iterator[None]:
    """Inside, SIGTERM is an error like a lost connection: torchrun sends it to the other ranks when one dies, and they have much to tell."""

    def raise_(number: int, frame: object) -> None:
        raise RuntimeError("SIGTERM: another rank ended")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, raise_)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
