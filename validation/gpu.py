"""One accelerator, measured in one go: kernels, training steps of GPT-like stacks with their peaks of memory, and collectives of a world of one.

Nothing is fetched. Every result is on disk before the next is taken, so that what ends early is still of use. `--dry` runs everything tiny.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from parasim.calibrating import STACKS, TIMEOUT, Bench, bench, step_run
from parasim.errors import Failed, Malformed
from parasim.files import whole
from parasim.lowering import lower
from parasim.memory import memory_peak
from parasim.provenance import stamp
from parasim.sim import simulate

SCHEMA = "parasim.gpu/1"
SECONDS = 420.0  # after which nothing new is started
ROUNDS = 5  # samples of a kernel and of a collective
STEPS = 3  # samples of a step
RECOMPUTE = ("none", "selective", "full")
MICRO = (1, 2, 4)  # sequences of a microbatch
BYTES = (1 << 16, 1 << 20, 1 << 24, 1 << 27)
MODELS: Mapping[str, Mapping[str, Any]] = {
    "gpt-0.1b": {"layers": 12, "hidden": 768, "heads": 12, "vocab": 32768, "max_positions": 1024},
    "gpt-0.5b": {"layers": 8, "hidden": 2048, "heads": 16, "vocab": 32768, "max_positions": 2048},
    "gpt-1b": {"layers": 6, "hidden": 4096, "heads": 32, "vocab": 32768, "max_positions": 2048},
}
DRY_BYTES, DRY_MICRO = BYTES[:2], MICRO[:2]
DRY_MODELS: Mapping[str, Mapping[str, Any]] = {f"tiny-{n}": {**STACKS["tiny"], "layers": n} for n in (1, 2, 3)}


class Report:
    """The JSON file, whole after every entry; no entry is begun after `limit` seconds, and what was left out is said."""

    def __init__(self, path: Path, found: Bench, limit: float, dry: bool) -> None:
        from parasim.executor.single import clocks

        self.path, self._end = path, time.monotonic() + limit
        made = {**stamp({}), **found.machine, "dtype": found.dtype, "clocks": clocks(found.device), "date": str(datetime.date.today())}
        self.data: dict[str, Any] = {"schema": SCHEMA, "dry": dry, "provenance": made, "kernels": [], "steps": [], "collectives": [], "left_out": []}
        self._write()

    def add(self, part: str, what: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]]) -> None:
        """Measure an entry of a part and keep it. An error of the device, such as memory that ran out, is a result."""
        name = " ".join(map(str, what.values()))
        if time.monotonic() > self._end:
            self.data["left_out"].append(f"{part} {name}")
        else:
            try:
                entry = {**what, **measure()}
            except (Failed, RuntimeError) as error:
                entry = {**what, "error": str(error).splitlines()[0]}
            self.data[part].append(entry)
            typer.echo(f"{part} {name}", err=True)
        self._write()

    def _write(self) -> None:
        with whole(self.path, "--out ") as draft:
            draft.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")


def kernels(report: Report, found: Bench) -> None:
    """Every case of `calibrate kernels`: seconds of one call."""
    from parasim.executor.kernel_times import SETS, cases

    for name, case in cases(SETS[found.sizes], found.dtype, found.device).items():
        report.add("kernels", {"case": name}, partial(_samples, case.sample, ROUNDS))


def _samples(sample: Callable[[], float], count: int) -> dict[str, list[float]]:
    return {"seconds": [sample() for _ in range(count)]}


def steps(report: Report, found: Bench, models: Mapping[str, Mapping[str, Any]], micro: tuple[int, ...], count: int) -> None:
    """Sizes x recompute modes x microbatches, small ones first."""
    for name, way, m in product(models, RECOMPUTE, micro):
        report.add("steps", {"model": name, "recompute": way, "micro": m}, partial(_step, found, models[name], way, m, count))


def _step(found: Bench, stack: Mapping[str, Any], way: str, micro: int, count: int) -> dict[str, Any]:
    """Seconds of steps and their most allocated bytes (0: not known), beside the bytes that are predicted. In a group of its own: one that
    failed is of no more use."""
    from parasim.executor.single import alone
    from parasim.executor.step_times import Step

    run = step_run(stack, way, found.dtype, micro, kernels={"attention": "unfused"})
    workload = lower(run.plan)
    predicted = memory_peak(simulate(workload, run.cluster, run.profile), 0).nbytes
    with alone(found.device, TIMEOUT):
        step = Step(workload, found.device, TIMEOUT)
        samples = [step.sample() for _ in range(count)]
    return {"seconds": [s[0] for s in samples], "peak_bytes": max(s[1] for s in samples), "predicted_peak_bytes": predicted, "stack": dict(stack)}


def collectives(report: Report, found: Bench, sizes: tuple[int, ...]) -> None:
    """Collectives of a world of one on a stream of their own: what a launch and a copy take."""
    import torch

    from parasim.executor.single import alone, seconds_of

    cuda: Any = torch.cuda
    side = cuda.Stream(found.device) if found.device.type == "cuda" else None
    with alone(found.device, TIMEOUT), cuda.stream(side) if side is not None else nullcontext():
        for name, nbytes, work in _collectives(found.device, sizes):
            work()
            what = {"op": name, "bytes": nbytes, "backend": found.backend}
            report.add("collectives", what, partial(_samples, partial(seconds_of, found.device, work, ROUNDS), ROUNDS))


def _collectives(device: Any, sizes: tuple[int, ...]) -> Iterator[tuple[str, int, Callable[[], object]]]:
    import torch
    import torch.distributed as dist

    from parasim.executor.transfers import ALL_GATHER, REDUCE_SCATTER

    for nbytes in sizes:
        x, y = (torch.zeros(nbytes // 4, device=device) for _ in range(2))
        yield "all_reduce", nbytes, partial(dist.all_reduce, x)
        yield "all_gather", nbytes, partial(ALL_GATHER, y, x)
        yield "reduce_scatter", nbytes, partial(REDUCE_SCATTER, y, x)


def gpu(
    out: Annotated[Path, typer.Option(help="The JSON file to write.")],
    dry: Annotated[bool, typer.Option("--dry", help="Tiny sizes, on the processor, in seconds.")] = False,
    seconds: Annotated[float, typer.Option(min=0.0, help="After which nothing new is started.")] = SECONDS,
) -> None:
    """Measure one accelerator: kernels, steps of three stacks x recompute modes x microbatches with their peaks, collectives of one rank."""
    import torch

    if not dry and not torch.cuda.is_available():
        raise Malformed("gpu needs a GPU that torch can use; --dry runs tiny sizes on the processor")
    found = bench("tiny", on_processor=True) if dry else bench("large")
    report = Report(out, found, seconds, dry)
    kernels(report, found)
    collectives(report, found, DRY_BYTES if dry else BYTES)
    steps(report, found, DRY_MODELS if dry else MODELS, DRY_MICRO if dry else MICRO, 1 if dry else STEPS)
    typer.echo(f"wrote {out}: {', '.join(f'{len(report.data[p])} {p}' for p in ('kernels', 'steps', 'collectives', 'left_out'))}")
