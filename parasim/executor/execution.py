"""Running a Workload in an initialised process group: common start, repetitions, gathering, and how a failure ends all ranks with names."""

from __future__ import annotations

import json
import platform
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import Failed, Malformed, Refused
from ..program.edges import Resolved
from ..program.workload import Program, Workload
from ..timeline import Timeline
from .context import context_of
from .engine import STOPPED, Rank, brief
from .payloads import Durations, Numeric, Payload, Shadow, multiplying, sleeping
from .record import Times, timeline
from .transfers import connect

C10D: Any = dist  # its stores are exported without saying so
LEAD = 0.03  # seconds between agreeing on a start and the start
GRACE = 2.0  # seconds a failed rank waits for the reports of the others


@dataclass(frozen=True)
class Settings:
    """How to run. `timeout` bounds every wait, in seconds; `durations` gives the seconds that `sleep` sleeps."""

    compute: Literal["numeric", "sleep", "matmul"] = "numeric"
    timeout: float = 60.0
    durations: Durations | None = None


class Interrupted(Failed):
    """A run that ended early; `timeline` holds what the ranks that still answered had measured in that repetition."""

    def __init__(self, message: str, timeline: Timeline) -> None:
        super().__init__(message)
        self.timeline = timeline


class Execution:
    """One rank of a run: connected once, run as often as wanted. Every rank makes one and calls `run` the same number of times."""

    def __init__(self, workload: Workload, settings: Settings = Settings()) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        if world != workload.world:
            raise Refused(f"world size={world} must equal the {workload.world} ranks of the workload; start {workload.world} processes")
        torch.set_num_threads(1)
        self.workload, self.settings, self.steps_done = workload.bound, settings, 0  # numeric runs have rows of their own
        if settings.compute != "numeric":
            workload = workload.bound
        self._rank, self._store = rank, C10D.PrefixStore("parasim", C10D.distributed_c10d._get_default_store())
        device = _device(rank)
        resolved = workload.program_of(rank).resolved
        context = context_of(workload, rank)
        self.context = context
        self.payload = _payload(settings, rank, resolved, context, device)
        self._control = _control_group(settings.timeout)
        communicators = self._guarded("connecting", lambda: connect(workload, rank, settings.timeout))
        self.engine = Rank(workload, rank, resolved, context, self.payload, communicators, settings.timeout, device)

    @property
    def program(self) -> Program:
        """The Program of this rank."""
        return self.workload.program_of(self._rank)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The persistent buffers by name (numeric runs only)."""
        return {name: t for (name, _), t in self._numeric.tensors.items() if self.program.buffers[name].persistent}

    def left_behind(self) -> list[str]:
        """Buffers that should have died with their last user and did not (numeric runs only)."""
        return sorted({name for name, _ in self._numeric.tensors if not self.program.buffers[name].persistent})

    @property
    def _numeric(self) -> Numeric:
        if not isinstance(self.payload, Numeric):
            raise Malformed(f"compute={self.settings.compute} keeps no tensors; numeric does")
        return self.payload

    def run(self, repetitions: int = 1) -> Timeline:
        """Run the Workload so many times and return, on every rank, the Timeline of all ranks in the repetition of median length.

        With more than one the first warms up and is not chosen. Raises Interrupted on every rank that still answers when a rank dies, is
        late beyond the time-out, or meets an error.
        """
        if repetitions < 1:
            raise Malformed(f"repetitions={repetitions} must be at least 1")
        mine = []
        for _ in range(repetitions):
            self._repeat(self._guarded("agreeing on a start", self._common_start))
            mine.append(self.engine.times)
        gathered: list[Any] = [None] * self.workload.world
        self._guarded("gathering times", lambda: dist.all_gather_object(gathered, mine, group=self._control))
        lengths = [max((float(np.nanmax(g[k][:, 2])) for g in gathered if len(g[k])), default=0.0) for k in range(repetitions)]
        order = sorted(range(min(1, repetitions - 1), repetitions), key=lambda k: lengths[k])
        chosen = order[(len(order) - 1) // 2]
        return self._timeline({r: g[chosen] for r, g in enumerate(gathered)}, {"makespans_s": lengths, "repetition": chosen})

    def train(self, steps: int) -> None:
        """Run so many training steps (a multiple of the Workload's) of which only the numbers count: no common start, no Timeline. Raises Interrupted."""
        for _ in range(steps // self.workload.steps):
            self._repeat(time.monotonic())

    def _repeat(self, zero: float) -> None:
        """Run the Workload once, from `zero` on (CLOCK_MONOTONIC, s)."""
        self._guarded("running", partial(self.engine.run, zero, self.steps_done, self._poll))
        if self.engine.failure:
            self._abort()
        self.steps_done += self.workload.steps

    def _timeline(self, times: dict[int, Times], meta: Mapping[str, Any]) -> Timeline:
        by_class: dict[int, Resolved] = {c: p.resolved for c, p in enumerate(self.workload.programs)}
        resolved = {rank: by_class[int(self.workload.class_of_rank[rank])] for rank in times}
        how = {"backend": dist.get_backend(), "compute": self.settings.compute, "torch": torch.__version__, "host": platform.node()}
        return timeline(self.workload, resolved, times, {**how, **meta})

    def _common_start(self) -> float:
        """Seconds of CLOCK_MONOTONIC at which all ranks start. Hosts have clocks of their own: several hosts start after a barrier."""
        hosts: list[Any] = [None] * self.workload.world
        dist.all_gather_object(hosts, (platform.node(), time.monotonic()), group=self._control)
        if len({h for h, _ in hosts}) > 1:
            dist.barrier(group=self._control)
            return time.monotonic()
        start = torch.tensor([time.monotonic() + LEAD], dtype=torch.float64)
        dist.broadcast(start, 0, group=self._control)
        return float(start[0])

    # ---- failures

    def _poll(self) -> bool:
        try:
            return bool(self._store.check(["failed"]))
        except (RuntimeError, ValueError):  # the store lives on a rank that died
            return True

    def _guarded(self, doing: str, action: Any) -> Any:
        """Do something together; an error ends the run on all ranks."""
        try:
            return action()
        except RuntimeError as error:
            self._abort(f"while {doing}: {brief(error)}")

    def _abort(self, message: str = "") -> None:
        """Tell the others, hear what they are at, and raise with all of it."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ending anyway, within the grace
        self._report(message)
        reports, times = self._collect()
        silent = [r for r in range(self.workload.world) if r not in reports]
        lines = [f"rank {r} gave no sign within {GRACE:g} s: dead or late" for r in silent]
        lines += [f"rank {r}: {reports[r]['message']}" for r in sorted(reports, key=lambda r: (reports[r]["heard"], r))]
        raise Interrupted("\n".join(lines), self._timeline(times, {"interrupted": lines}))

    def _report(self, message: str) -> None:
        """Write what this rank met, and its times, where the others find them."""
        engine: Rank | None = getattr(self, "engine", None)
        places = f"was at {'; '.join(engine.current())}" if engine is not None and engine.current() else "was at no op"
        failure = engine.failure if engine is not None else None
        heard = not message and failure is not None and failure.message == STOPPED
        if engine is not None and failure and not message and not heard:
            message = f"{engine.text(failure.instance)}: {failure.message}"
        message = f"{message}; {places}" if message else places
        self._own = {"message": message, "heard": heard}
        times = engine.times if engine is not None else np.zeros((0, 3))
        with suppress(RuntimeError, ValueError):  # the store may be lost with the rank that held it
            self._store.set(f"times/{self._rank}", times.tobytes().hex())
            self._store.set(f"report/{self._rank}", json.dumps(self._own))
            self._store.set("failed", str(self._rank))

    def _collect(self) -> tuple[dict[int, dict[str, Any]], dict[int, Times]]:
        """Reports and times of the ranks that answer in time; this rank's own in any case. Those with an error of their own say it first."""
        reports: dict[int, dict[str, Any]] = {}
        times: dict[int, Times] = {}
        end = time.monotonic() + min(GRACE, self.settings.timeout)
        with suppress(RuntimeError, ValueError):
            while len(reports) < self.workload.world and time.monotonic() < end:
                for r in range(self.workload.world):
                    if r not in reports and self._store.check([f"report/{r}"]):
                        reports[r] = json.loads(self._store.get(f"report/{r}"))
                        measured = np.frombuffer(bytes.fromhex(self._store.get(f"times/{r}").decode())).reshape(-1, 3)
                        if len(measured):
                            times[r] = measured
                time.sleep(0.05)
        return {self._rank: self._own, **reports}, times


def _device(rank: int) -> torch.device:
    return torch.device("cuda", rank % torch.cuda.device_count()) if dist.get_backend() == "nccl" else torch.device("cpu")


def _payload(settings: Settings, rank: int, resolved: Resolved, context: Any, device: torch.device) -> Payload:
    if settings.compute == "numeric":
        return Numeric(resolved, context, device)
    if settings.compute == "matmul":
        return Shadow(resolved, context, device, multiplying(device))
    if settings.durations is None:
        raise Malformed("compute=sleep needs durations: the seconds of every Compute op, priced by the caller")
    return Shadow(resolved, context, device, sleeping(rank, settings.durations))


def _control_group(timeout: float) -> Any:
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
