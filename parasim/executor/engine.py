"""One rank: a thread per stream that runs its ops in list order; an event per op that another stream waits for; every wait bounded."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import Failed
from ..program.edges import Resolved
from ..program.ops import P2P, Collective, Compute, Op, Ref
from ..program.workload import Workload
from .context import Context
from .payloads import Payload
from .record import Times
from .transfers import Communicators, exchange, transfer

CUDA: Any = torch.cuda
STOPPED = "another rank failed"
SLICE = 0.2  # seconds between two looks at whether somebody failed, while waiting for an event


def brief(error: Exception) -> str:
    """An error of a rank in a line: torch's place in its own source and its advice are left out."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    text = re.sub(r"^\[\S+:\d+\] ", "", text).split(". This ")[0]
    return text if isinstance(error, (RuntimeError, Failed)) else f"{type(error).__name__}: {text}"


class _Stopped(Exception):
    """Another stream failed first."""


@dataclass
class Failure:
    """The first error of a rank: the instance that met it and what it said."""

    instance: int
    message: str


class Rank:
    """Runs one rank's Program again and again. `failed()` is set by the first stream thread that meets an error, or by `stop`."""

    def __init__(
        self,
        workload: Workload,
        rank: int,
        resolved: Resolved,
        context: Context,
        payload: Payload,
        communicators: Communicators,
        timeout: float,
        device: torch.device,
    ) -> None:
        self.workload, self.rank, self.resolved, self.context = workload, rank, resolved, context
        self.payload, self.communicators, self.timeout = payload, communicators, timeout
        self.device = device
        self.times: Times = np.full((len(resolved), 3), np.nan)
        self.failure: Failure | None = None
        self._by_stream: list[list[int]] = [[] for _ in resolved.streams]
        for i, stream in enumerate(resolved.stream):
            self._by_stream[int(stream)].append(i)
        self._now: dict[int, int] = {}  # first instance of a stream -> the instance it is at
        self._over = threading.Event()
        self._lock = threading.Lock()

    def run(self, zero: float, step: int, poll: Callable[[], bool]) -> None:
        """One repetition, with times relative to `zero` (CLOCK_MONOTONIC). Ends early, with `failure` set or `poll()` true, on an error.

        `step` is the number of the first training step; `poll` says whether another rank has failed.
        """
        self.times = np.full((len(self.resolved), 3), np.nan)
        self.payload.reset()
        self._done = {int(e): threading.Event() for e in self.resolved.edges}
        self._zero, self._step, self._over = zero, step, threading.Event()
        threads = [threading.Thread(target=self._stream, args=(ops,), daemon=True) for ops in self._by_stream if ops]
        self._running = len(threads)
        for thread in threads:
            thread.start()
        while threads and not self._over.wait(SLICE):
            if poll():
                self.stop(STOPPED)
                return

    def stop(self, reason: str) -> None:
        """Make all streams end at their next wait; one that is inside a transfer or asleep is left behind."""
        self._fail(min(self._now.values(), default=0), reason)

    def text(self, i: int) -> str:
        """Instance i with the ranks it meets."""
        op, peers = self.resolved.op(i), self.workload.peers
        words = self.resolved.text(i)
        if isinstance(op, Collective):
            return f"{words} of ranks {[int(r) for r in self.workload.members(self.rank, op.group)]}"
        if isinstance(op, P2P):
            return f"{words} with ranks {sorted({int(peers[m.peer][self.rank]) for m in (*op.sends, *op.recvs)})}"
        return words

    def current(self) -> list[str]:
        """What every stream is at."""
        return [self.text(i) for i in sorted(self._now.values())]

    def _fail(self, i: int, message: str) -> None:
        with self._lock:
            self.failure = self.failure or Failure(i, message)
        self._over.set()

    def _stream(self, mine: list[int]) -> None:
        cuda = self.device.type == "cuda"
        i = mine[0]
        try:
            with torch.cuda.stream(CUDA.Stream(self.device)) if cuda else contextlib.nullcontext():
                time.sleep(max(0.0, self._zero - time.monotonic()))
                for i in mine:
                    self._now[mine[0]] = i
                    self._op(i)
        except _Stopped:
            return
        except Exception as error:
            self._fail(i, brief(error))
        else:
            with self._lock:
                self._now.pop(mine[0], None)
                self._running -= 1
            if self._running == 0:
                self._over.set()

    def _op(self, i: int) -> None:
        for j in self.resolved.waits(i):
            self._wait(i, j)
        if self.failure:
            raise _Stopped
        times, op = self.times[i], self.resolved.op(i)
        times[0] = time.monotonic() - self._zero
        self.payload.begin(i)
        times[1] = time.monotonic() - self._zero
        self._perform(i, op)
        if self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        times[2] = time.monotonic() - self._zero
        self.payload.end(i)
        if i in self._done:
            self._done[i].set()

    def _wait(self, i: int, j: int) -> None:
        end = time.monotonic() + self.timeout
        while not self._done[j].wait(SLICE):
            if self.failure:
                raise _Stopped
            if time.monotonic() > end:
                raise Failed(f"waited {self.timeout:g} s for {self.text(j)}")

    def _perform(self, i: int, op: Op) -> None:
        microbatches = self.resolved.microbatches(i)
        match op:
            case Compute():
                step = self._step + self.resolved.program.calls[int(self.resolved.call[i])].step
                self.payload.compute(i, op, self.context.at(step, microbatches))
            case Collective():
                communicator = self.communicators.collective[op.group, op.stream]

                def move(x: torch.Tensor, out: torch.Tensor | None, splits: Any) -> torch.Tensor:
                    return transfer(op, x, communicator, out, splits)

                self.payload.collective(i, op, communicator.size, move)
            case P2P():
                self._exchange(i, op, microbatches)

    def _exchange(self, i: int, op: P2P, microbatches: tuple[int, ...]) -> None:
        def microbatch(ref: Ref) -> int:
            return microbatches[ref.slot] if ref.slot >= 0 else -1

        arrived = exchange(
            op,
            self.rank,
            self.workload,
            self.communicators,
            microbatch,
            lambda ref: self.payload.outgoing(i, ref),
            lambda ref: self.payload.incoming(i, ref),
        )
        for m, tensor in arrived:
            self.payload.deliver(i, m.buffer, tensor)
