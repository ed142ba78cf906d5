"""Predictions of many cases: equal runs once, over processes, kept in a folder by content so that an interrupted table goes on where it was.

A run is lowered once for all the profiles and variants that it is asked with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import parasim
from parasim.cost.profile import load_profile
from parasim.errors import ParasimError

from .predict import Predictor, prepare
from .row_model import NotModelled
from .variants import AS_IT_IS, VARIANTS

Answer = dict[str, Any]  # {"values": {quantity: SI}} or {"refused": reason}


class Task(NamedTuple):
    """The run as JSON, the profile's name or path, and what of the model is taken away (a name of `variants.VARIANTS`)."""

    run: str
    profile: str
    variant: str = AS_IT_IS


@dataclass(frozen=True)
class Cache:
    """A folder with one file per run, profile and state of the program."""

    folder: Path

    def path(self, task: Task) -> Path:
        """Where the answer of `task` is kept."""
        content = json.dumps([task.run, repr(load_profile(task.profile)), task.variant, _program()])
        return self.folder / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.json"

    def get(self, task: Task) -> Answer | None:
        """What was kept, if it is whole."""
        try:
            answer: Answer = json.loads(self.path(task).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return answer

    def put(self, task: Task, answer: Answer) -> None:
        """Keep `answer`; where the folder cannot be written nothing is kept."""
        path = self.path(task)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps(answer), encoding="utf-8")
            fresh.replace(path)
        except OSError:
            return


@cache
def _program() -> str:
    """Digest of every source and data file of parasim and of its clusters: another program gives other answers."""
    root = Path(parasim.__file__).parent
    shipped = [root, root.parent / "topologies", *(Path(__file__).with_name(name) for name in ("predict.py", "variants.py"))]
    found = [p for place in shipped for p in ([place] if place.is_file() else sorted(place.rglob("*"))) if p.suffix in (".py", ".yaml")]
    digest = hashlib.sha256()
    for path in (p for p in found if "profiles" not in p.parts):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def task_of(run: Mapping[str, Any], profile: str, variant: str = AS_IT_IS) -> Task:
    """Runs that differ in their names only are one."""
    changed = VARIANTS[variant].run(run)
    return Task(json.dumps({**changed, "name": "row", "model": {**changed["model"], "name": "model"}}, sort_keys=True), profile, variant)


def predicted(tasks: Iterable[Task], kept: Cache, workers: int) -> dict[Task, Answer]:
    """The answers of `tasks`."""
    wanted = list(dict.fromkeys(tasks))
    found = {task: answer for task in wanted if (answer := kept.get(task)) is not None}
    runs: dict[str, list[Task]] = {}
    for task in wanted:
        if task not in found:
            runs.setdefault(task.run, []).append(task)
    for task, answer in _simulated(list(runs.values()), workers):
        found[task] = answer
        kept.put(task, answer)
    return found


def _simulated(runs: Sequence[Sequence[Task]], workers: int) -> Iterable[tuple[Task, Answer]]:
    if workers <= 1 or len(runs) < 4:
        for tasks in runs:
            yield from zip(tasks, answers(tasks), strict=True)
        return
    with ProcessPoolExecutor(workers) as pool:
        running = {pool.submit(answers, tasks): tasks for tasks in runs}
        for future in as_completed(running):
            yield from zip(running[future], future.result(), strict=True)


def answers(tasks: Sequence[Task]) -> list[Answer]:
    """Predict one run, which all of `tasks` have; anything that goes wrong is its reason."""
    try:
        prepared = prepare(json.loads(tasks[0].run))
    except Exception as error:  # a row never stops the table; the defect is said instead
        return [_refused(error) for _ in tasks]
    return [_answer(prepared, task) for task in tasks]


def _answer(prepared: Predictor, task: Task) -> Answer:
    variant = VARIANTS[task.variant]
    try:
        return {"values": prepared.values(variant.profile(load_profile(task.profile)), variant.simulate)}
    except Exception as error:
        return _refused(error)


def _refused(error: Exception) -> Answer:
    if isinstance(error, NotModelled | ParasimError):
        return {"refused": " / ".join(str(error).splitlines())}
    return {"refused": f"defect: {type(error).__name__}: {error}"}
