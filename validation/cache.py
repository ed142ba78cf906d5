"""Predictions of many cases: equal runs once, over processes, kept in a folder by content so that an interrupted table goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import parasim
from parasim.cost.profile import load_profile
from parasim.errors import ParasimError

from .predict import prepare
from .row_model import NotModelled

Answer = dict[str, Any]  # {"values": {quantity: SI}} or {"refused": reason}
Task = tuple[str, str]  # the run as JSON, the profile's name or path


@dataclass(frozen=True)
class Cache:
    """A folder with one file per run, profile and state of the program."""

    folder: Path

    def path(self, task: Task) -> Path:
        """Where the answer of `task` is kept."""
        content = json.dumps([task[0], repr(load_profile(task[1])), _program()])
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
    shipped = [root, root.parent / "topologies", Path(__file__).with_name("predict.py")]
    found = [p for place in shipped for p in ([place] if place.is_file() else sorted(place.rglob("*"))) if p.suffix in (".py", ".yaml")]
    digest = hashlib.sha256()
    for path in (p for p in found if "profiles" not in p.parts):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def task_of(run: Mapping[str, Any], profile: str) -> Task:
    """Runs that differ in their names only are one."""
    return json.dumps({**run, "name": "row", "model": {**run["model"], "name": "model"}}, sort_keys=True), profile


def predicted(tasks: Iterable[Task], kept: Cache, workers: int) -> dict[Task, Answer]:
    """The answers of `tasks`."""
    wanted = list(dict.fromkeys(tasks))
    answers = {task: answer for task in wanted if (answer := kept.get(task)) is not None}
    rest = [task for task in wanted if task not in answers]
    for task, answer in _simulated(rest, workers):
        answers[task] = answer
        kept.put(task, answer)
    return answers


def _simulated(tasks: Sequence[Task], workers: int) -> Iterable[tuple[Task, Answer]]:
    if workers <= 1 or len(tasks) < 4:
        yield from ((task, answer(task)) for task in tasks)
        return
    with ProcessPoolExecutor(workers) as pool:
        running = {pool.submit(answer, task): task for task in tasks}
        for future in as_completed(running):
            yield running[future], future.result()


def answer(task: Task) -> Answer:
    """Predict one run; anything that goes wrong is its reason."""
    run, profile = task
    try:
        return {"values": prepare(json.loads(run)).values(load_profile(profile))}
    except NotModelled as reason:
        return {"refused": str(reason)}
    except ParasimError as error:
        return {"refused": " / ".join(str(error).splitlines())}
    except Exception as error:  # a row never stops the table; the defect is said instead
        return {"refused": f"defect: {type(error).__name__}: {error}"}
