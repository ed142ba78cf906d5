"""Goodput: the share of wall time that is training, under failures and checkpoints, in closed form.

Failures are independent and memoryless. A job alternates an interval of training and a checkpoint; a failure anywhere throws it back to the last
checkpoint. Expectations follow Daly, A higher order estimate of the optimum checkpoint interval for restart dumps (FGCS 22, 2006), extended
by a time until a failure is noticed and a wait for a spare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import Refused

HOPELESS = 30.0  # MTBFs without a failure: e^30 attempts, longer than anybody waits


@dataclass(frozen=True)
class Outages:
    """What interrupts a job and what each interruption costs; seconds.

    `mtbf`: mean time between failures of the whole job. `silent`: share of failures that corrupt without stopping, noticed after `silent_delay`
    (until then nothing that is computed counts, and no checkpoint is clean); the others after `detection`. `replaced`: share of failures that
    need a spare server, of which there are `spares` (None: always one), back after `repair` on average. `planned`: mean time between planned
    interruptions (None: none), which checkpoint first. `slowdown`: mean factor on the step time of stragglers.
    """

    mtbf: float
    checkpoint: float
    restart: float
    detection: float = 0.0
    silent: float = 0.0
    silent_delay: float = 0.0
    replaced: float = 1.0
    spares: int | None = None
    repair: float = 0.0
    planned: float | None = None
    slowdown: float = 1.0

    @property
    def wait(self) -> float:
        """Mean wait of a failure for a spare: servers in repair are a birth-death chain that stops when none is left (the job stands still).

        A failure finds no spare with Erlang's probability B(spares, a), a = repair x rate, and then the first of spares + 1 exponential repairs ends
        the wait. Repairs during other outages are left out, so this is slightly too long.
        """
        if self.spares is None or not self.repair:
            return 0.0
        load, blocked = self.replaced * self.repair / self.mtbf, 1.0
        for k in range(1, self.spares + 1):
            blocked = load * blocked / (k + load * blocked)
        return self.replaced * blocked * self.repair / (self.spares + 1)

    @property
    def delay(self) -> float:
        """Mean time from a failure until the restart begins."""
        return (1 - self.silent) * self.detection + self.silent * self.silent_delay + self.wait


@dataclass(frozen=True)
class Shares:
    """Parts of the wall time, summing to 1: `training` (at full pace), `stragglers`, `checkpoints`, `rework`, `down`, `planned`."""

    training: float
    stragglers: float
    checkpoints: float
    rework: float
    down: float
    planned: float


def young(checkpoint: float, mtbf: float) -> float:
    """Seconds of training between checkpoints, sqrt(2 C M): Young, A first order approximation to the optimum checkpoint interval (CACM 17, 1974)."""
    return math.sqrt(2 * checkpoint * mtbf)


def daly(checkpoint: float, mtbf: float) -> float:
    """Daly 2006, equation 37: sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C where C < 2M, else M."""
    x = checkpoint / (2 * mtbf)
    return mtbf if x >= 1 else young(checkpoint, mtbf) * (1 + math.sqrt(x) / 3 + x / 9) - checkpoint


INTERVALS = {"young": young, "daly": daly}


def first_order_loss(outages: Outages, interval: float) -> float:
    """Lost share of wall time to first order: C / tau + tau / 2M + (delay + R) / M."""
    return outages.checkpoint / interval + interval / (2 * outages.mtbf) + (outages.delay + outages.restart) / outages.mtbf


def shares(outages: Outages, interval: float) -> Shares:
    """Where the wall time goes when `interval` seconds of training lie between checkpoints.

    With rate 1/M, an interval and its checkpoint take (M + U) (e^((tau + C) / M) - 1) on average, where U = D + (M + D) (e^(R / M) - 1) is the
    outage after one failure: D until the restart begins, and a restart that may fail itself. Without D this is Daly's M e^(R/M) (e^((tau+C)/M) - 1).
    Raises Refused where the job would not get anywhere.
    """
    m, c, r, d = outages.mtbf, outages.checkpoint, outages.restart, outages.delay
    planned = 0.0 if outages.planned is None else (c + r) / outages.planned
    if max((interval + c) / m, r / m) > HOPELESS or planned >= 1:
        raise Refused(
            f"the job makes no progress: an interval of {interval:.4g} s, a checkpoint of {c:.4g} s and a restart of {r:.4g} s at an MTBF of {m:.4g} s"
        )
    failures = math.expm1((interval + c) / m)
    outage = d + (m + d) * math.expm1(r / m)
    whole = (m + outage) * failures
    running = (1 - planned) / whole
    training, checkpoints, down = running * interval, running * c, running * failures * outage
    at_pace = training / outages.slowdown
    return Shares(at_pace, training - at_pace, checkpoints, max(0.0, 1 - planned - training - checkpoints - down), down, planned)


def silent_rollback(found_after: float, since_checkpoint: float) -> float:
    """Steps (or seconds) lost to a silent fault found `found_after` later: those, and what lay between it and the last clean checkpoint before it."""
    return found_after + since_checkpoint
