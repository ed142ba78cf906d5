"""Sweeps beyond one machine: every combination of settings of a run, spread over workers, each row kept as it comes.

SWEEP.yaml: `run` (a run file; omitted: the embedded one), `vary` {key: [values] or "a..b:2x"} (all combinations, the last key fastest), `measure`
(step, or goodput: the closed form, whose flags are varied as `goodput.mtbf`), `out` (file of rows), `options` (of the back end).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, wait
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from .. import __version__
from ..documents import Document, Problem, content, read, refusal
from ..errors import Failed, Malformed
from ..provenance import digest
from ..units import format_seconds
from ..words import known
from .settings import sweep as values_of
from .sweep_point import FLAGS, MEASURES, Point, Row, evaluate_all
from .sweep_pools import POOLS
from .sweep_rows import FORM, Rows

KEYS = ("run", "vary", "measure", "out", "options")
MOST_POINTS = 10**6
ATTEMPTS = 4  # at a pool whose workers die
SHOWN = 40  # rows in text
BATCHES = {"local": 16, "dask": 16, "slurm": 4}  # batches of points per worker: work for all to the end, little talk, and jobs are slow to start


@dataclass(frozen=True)
class Sweep:
    """A sweep file: its points in order, where its rows go, and options of the back end."""

    name: str
    points: tuple[Point, ...]
    out: Path
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """Points and their rows, in the order of the file."""

    name: str
    out: Path
    points: tuple[Point, ...]
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        """The contract `parasim.sweep/1`."""
        return {"schema": FORM, "points": len(self.points), "rows": [{"set": dict(p.settings), **r} for p, r in zip(self.points, self.rows, strict=True)]}

    def __str__(self) -> str:
        keys = [k for k, _ in self.points[0].settings]
        names = [n for n in dict.fromkeys(n for r in self.rows for n in r) if n != "refusal"]
        cells = [[*keys, *names]]
        for point, row in itertools.islice(zip(self.points, self.rows, strict=True), SHOWN):
            refusal = row["refusal"]
            cells.append([*(v for _, v in point.settings), *([f"refused: {refusal.splitlines()[0]}"] if refusal else [_cell(row[n]) for n in names])])
        widths = [max((len(c[i]) for c in cells if len(c) == len(cells[0])), default=0) for i in range(len(cells[0]))]
        lines = ["  ".join(text.ljust(w) for text, w in zip(line, widths, strict=False)).rstrip() for line in cells]
        more = [f"... {len(self.rows) - SHOWN} more"] if len(self.rows) > SHOWN else []
        return "\n".join([f"{self.name}: {len(self.points)} points, rows in {self.out}", *lines, *more])


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def load_sweep(path: Path) -> Sweep:
    """The sweep in the file at `path`; paths in it are relative to it. Raises Malformed, Unparsable."""
    document = read(path)
    keys = document.mapping()
    strange = [Problem(document.place((k,), of_key=True), str(k), f"is unknown; known: {', '.join(KEYS)}", "unknown") for k in keys if k not in KEYS]
    if strange:
        raise refusal(strange)
    if "vary" not in keys:
        raise refusal([Problem(document.place(()), "vary", "is missing; write {key: [values] or a..b:2x}", "missing")])
    measure = known(str(keys.get("measure", "step")), MEASURES, "measure")
    options = keys.get("options", {})
    if not isinstance(options, Mapping):
        raise refusal([Problem(document.place(("options",)), "options", "must be a mapping, such as {cluster: local}")])
    run = str(document.base / str(keys["run"])) if "run" in keys else ""
    raw = content(Path(run)) if run else files("parasim.config").joinpath("default.yaml").read_bytes()
    inputs = f"{__version__} {digest(raw)}"
    points = tuple(Point(run, s, measure, inputs) for s in _combinations(document, keys["vary"], measure))
    return Sweep(path.stem, points, document.base / str(keys.get("out", f"{path.stem}.sqlite")), options)


def _combinations(document: Document, vary: object, measure: str) -> Iterator[tuple[tuple[str, str], ...]]:
    """All combinations of values, the last key fastest."""

    def wrong(keys: tuple[str, ...], message: str) -> Exception:
        return refusal([Problem(document.place(keys), ".".join(keys), message)])

    if not isinstance(vary, Mapping) or not vary:
        raise wrong(("vary",), "is empty; write {key: [values] or a..b:2x}, such as {batch.micro: 1..4:2x}")
    axes = []
    for key, values in vary.items():
        if key.startswith(FLAGS) and measure != "goodput":
            raise wrong(("vary", key), "is a flag of goodput; write measure: goodput")
        texts = [_text(v) for v in values] if isinstance(values, list) else list(values_of(f"{key}={_text(values)}", "vary")[1])
        if not texts or any(not t.strip() for t in texts):
            raise wrong(("vary", key), "has no values; write a list such as [1, 2, 4], or a range such as 1..8:2x")
        axes.append([(str(key), t) for t in texts])
    count = 1
    for axis in axes:
        count *= len(axis)
    if count > MOST_POINTS:
        raise wrong(("vary",), f"asks for {count} points; at most {MOST_POINTS}")
    return itertools.product(*axes)


def _text(value: object) -> str:
    """A YAML value as --set takes it."""
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


Progress = Callable[[str], None]


def run_sweep(sweep: Sweep, backend: str = "local", workers: int = 2, resume: bool = False, progress: Progress | None = None) -> Table:
    """Evaluate what is not in the file of rows yet, keep every row as it comes, return all of them.

    Raises Malformed (a point of the wrong form, a file that exists without `resume`), Unparsable (a file of rows that is not whole), MissingExtra, Failed
    (workers that die again and again).
    """
    pool = POOLS[known(backend, POOLS, "backend")]
    if not 1 <= workers <= 10**4:
        raise Malformed(f"--workers {workers} must be a number from 1 to {10**4}")
    with Rows(sweep.out, resume) as rows:
        for _ in range(ATTEMPTS):
            done = rows.all().keys()
            todo = list({p.key: p for p in sweep.points if p.key not in done}.values())
            if not todo:
                break
            try:
                with pool(workers, sweep.options, sweep.out.with_suffix(".jobs")) as executor:
                    _drain(executor, todo, workers * BATCHES[backend], rows, _Clock(len(sweep.points), len(sweep.points) - len(todo), progress))
            except BrokenExecutor:  # a worker was killed: the rows so far are kept, the rest is done by a new pool
                continue
        found = rows.all()
    missing = sum(p.key not in found for p in sweep.points)
    if missing:
        raise Failed(f"workers died {ATTEMPTS} times; {missing} of {len(sweep.points)} points are missing from {sweep.out}; --resume goes on")
    return Table(sweep.name, sweep.out, sweep.points, tuple(found[p.key] for p in sweep.points))


class _Clock:
    """Progress and how long it will still take."""

    def __init__(self, total: int, done: int, progress: Progress | None) -> None:
        self.total, self.done, self.before, self.progress = total, done, done, progress
        self.began = self.said = time.monotonic()

    def add(self, count: int) -> None:
        """`count` more points are done; say so at most once a second, and at the end."""
        self.done += count
        now = time.monotonic()
        if self.progress is not None and (now - self.said >= 1 or self.done == self.total):
            self.said = now
            rate = (self.done - self.before) / max(now - self.began, 1e-9)
            self.progress(f"{self.done}/{self.total} points, {rate:.3g} a second, {format_seconds((self.total - self.done) / rate)} to go")


def _drain(executor: Executor, todo: Sequence[Point], batches: int, rows: Rows, clock: _Clock) -> None:
    """Hand out batches, and keep each that comes back."""
    size = max(1, -(-len(todo) // batches))
    waiting = {executor.submit(evaluate_all, todo[i : i + size]) for i in range(0, len(todo), size)}
    while waiting:
        ready, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        for future in ready:
            found = future.result()
            rows.add(found)
            clock.add(len(found))
