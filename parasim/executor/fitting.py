"""From seconds of kernels, and of the ops of steps, to the numbers of a Profile, with 95 % intervals from samples and cases drawn anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cost.device import Device
from ..cost.pricing import PRICES, bytes_moved, flops
from ..cost.profile import LEGAL, datasheet
from ..cost.timing import EFFICIENCY, seconds
from ..errors import Refused
from ..program.ops import Compute, Kernel
from ..provenance import Number

Floats = NDArray[np.float64]
RESAMPLES = 200
LEAST = 10  # launches that a kernel must last to tell of rates
GRAD = "compute.attention_grad_efficiency"
LAUNCH = "compute.kernel_launch"
GIVEN = ("time", "view")  # kinds of kernels that no number of a profile acts on


def _key(kernel: Kernel) -> str:
    """The number that the time of a kernel tells of."""
    kind = PRICES[kernel.name].kind
    if kind == "attention" and kernel.name.endswith("_grad"):
        return GRAD
    return EFFICIENCY.get(kind, "compute.memory_efficiency")


def rate(kernel: Kernel, taken: float) -> float:
    """FLOP/s of a product or of attention, bytes/s of what is bound by memory, where one call takes `taken` seconds."""
    return (flops(kernel) or bytes_moved(kernel)) / taken


def peak(kernel: Kernel, accelerator: Device) -> float:
    """What `rate` is on the datasheet."""
    return accelerator.peak(kernel.dtype) if flops(kernel) else accelerator.memory_bandwidth.value


def fit_kernels(
    samples: Mapping[str, Sequence[float]], kernels: Mapping[str, Kernel], launches: Mapping[str, str], accelerator: Device, source: str
) -> dict[str, Number]:
    """Efficiencies and launches from seconds by case. `launches` names the cases that are a launch, and the key each gives.

    A case reaches the median over its samples of rate / peak, the launch taken off; an efficiency is the median over its cases. Cases, and samples
    in them, are drawn anew for the intervals: what sizes disagree on widens them. Raises Refused where a case that is needed has no sample.
    """
    lacking = [name for name in (*kernels, *launches) if not samples.get(name)]
    if lacking:
        raise Refused(f"{len(lacking)} cases are not measured yet ({', '.join(lacking[:3])}, ...): run again to go on, or give more --seconds")
    rng = np.random.default_rng(0)
    numbers = {}
    for name, key in launches.items():
        numbers[key] = _number(key, [np.asarray(samples[name])], source, rng)
    launch = numbers[LAUNCH].value if LAUNCH in numbers else 0.0
    by_key: dict[str, dict[str, Floats]] = {}
    for name, kernel in kernels.items():
        by_key.setdefault(_key(kernel), {})[name] = np.asarray(samples[name])
    for key, found in by_key.items():
        longest = max(found, key=lambda n: float(np.median(found[n])))
        kept = {n: s for n, s in found.items() if np.median(s) >= LEAST * launch or n == longest}
        reached = [rate(kernels[n], 1.0) / np.maximum(s - launch, s / LEAST) / peak(kernels[n], accelerator) for n, s in kept.items()]
        numbers[key] = _number(key, reached, source, rng)
    return numbers


def _number(key: str, cases: Sequence[Floats], source: str, rng: np.random.Generator) -> Number:
    def drawn() -> float:
        picked = rng.choice(len(cases), len(cases))
        return float(np.median([np.median(rng.choice(cases[i], len(cases[i]))) for i in picked]))

    value = float(np.median([np.median(c) for c in cases]))
    return _fitted(key, value, [drawn() for _ in range(RESAMPLES)], source)


def _fitted(key: str, value: float, drawn: Sequence[float], source: str) -> Number:
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Number(value, LEGAL[key].unit, source, "fitted", (min(float(low), value), max(float(high), value)))


# ---- steps

Steps = Sequence[tuple[Sequence[Compute], Any]]  # the Compute ops of a step, and float[repetitions, ops] of their seconds


def fit_steps(steps: Steps, accelerator: Device, source: str) -> dict[str, Number]:
    """Efficiencies and the seconds of a launch from the ops of whole steps.

    An op takes the sum over its kernels of datasheet seconds / efficiency + launch. What a kernel tells of goes by its kind; least squares, each op
    weighed by the inverse of its seconds, no number negative: one that would be is left out, as steps of this size do not tell of it.
    """
    keys = [*sorted({_key(k) for ops, _ in steps for op in ops for k in op.kernels}), LAUNCH]
    matrix = np.concatenate([_matrix(ops, keys, accelerator) for ops, _ in steps])
    rng = np.random.default_rng(0)
    best = _solve(matrix, np.concatenate([np.median(s, axis=0) for _, s in steps]))
    draws = []
    for _ in range(RESAMPLES):
        again = [np.median(np.asarray(s)[rng.choice(len(s), len(s))], axis=0) for _, s in steps]
        draws.append(_solve(matrix, np.concatenate(again)))
    out = {}
    for i, key in enumerate(keys):
        if not best[i] > 0:
            continue
        told = [d[i] for d in draws if d[i] > 0] or [best[i]]
        inverse = key != LAUNCH
        out[key] = _fitted(key, float(1 / best[i] if inverse else best[i]), [float(1 / x if inverse else x) for x in told], source)
    return out


def _matrix(ops: Sequence[Compute], keys: Sequence[str], accelerator: Device) -> Floats:
    """float[ops, keys]: datasheet seconds by key, and how many kernels are launched."""
    out = np.zeros((len(ops), len(keys)))
    bare = datasheet()
    for row, op in enumerate(ops):
        for kernel in op.kernels:
            if PRICES[kernel.name].kind not in GIVEN:
                out[row, keys.index(_key(kernel))] += seconds(kernel, accelerator, bare)
                out[row, keys.index(LAUNCH)] += 1
    return out


def _solve(matrix: Floats, y: Floats) -> Floats:
    """Weighted least squares with x >= 0: columns whose x is negative go, the most negative first."""
    weight = 1 / np.maximum(y, np.finfo(float).tiny)
    kept = [i for i in range(matrix.shape[1]) if matrix[:, i].any()]
    x = np.zeros(matrix.shape[1])
    while kept:
        found = np.linalg.lstsq(matrix[:, kept] * weight[:, None], y * weight, rcond=None)[0]
        if found.min() > 0:
            x[kept] = found
            return x
        kept.pop(int(np.argmin(found)))
    return x
