"""The table of published rows: errors per row and quantity, figures per source, the score, and what one MFU per family of accelerators would give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from statistics import median
from typing import Any

import numpy as np

from parasim.model.layers import model_flops, parameters
from parasim.model.schema import read_model
from parasim.topology.loader import accelerators

from .cache import Answer, Task, task_of
from .predict import DATA
from .rows import Case, NotModelled, read_rows, source_of, to_case
from .variants import AS_IT_IS

STEP = "step_time_s"
Predict = Callable[[Iterable[Task]], Mapping[Task, Answer]]


@dataclass(frozen=True)
class Line:
    """One measured number of a row, in SI, or a refused row. `flat_error`: that of a step at the one MFU of the family. `group`: model, accelerator
    and devices, within which layouts are ranked; `tokens` of the step; `fill`: part of a device's memory that is predicted to be reserved."""

    id: str
    source: str
    quantity: str
    measured: float | None
    predicted: float | None
    error: float | None
    flat_error: float | None
    profile: str
    fitted: bool
    assumptions: tuple[str, ...]
    refused: str | None
    group: str = ""
    tokens: int | None = None
    fill: float | None = None


def cases_of(rows: Sequence[Mapping[str, Any]]) -> list[Case | str]:
    """Every row as a run, or the reason why it is none."""
    cases: list[Case | str] = []
    for row in rows:
        try:
            cases.append(to_case(row))
        except NotModelled as reason:
            cases.append(str(reason))
    return cases


def tasks_of(cases: Sequence[Case | str], profile: str | None = None, variant: str = AS_IT_IS) -> list[Task | None]:
    """What is to be predicted for every case."""
    return [task_of(case.run, profile or case.profile, variant) if isinstance(case, Case) else None for case in cases]


def lines_of(rows: Sequence[Mapping[str, Any]], predict: Predict, profile: str | None = None, variant: str = AS_IT_IS) -> list[Line]:
    """Every row, in order: a line per measured number, or one that says why it is refused."""
    cases = cases_of(rows)
    tasks = tasks_of(cases, profile, variant)
    answers = predict([task for task in tasks if task is not None])
    found = [answers.get(task) if task is not None else None for task in tasks]
    return [line for row, case, answer in zip(rows, cases, found, strict=True) for line in _lines(row, case, answer, profile)]


def _lines(row: Mapping[str, Any], case: Case | str, answer: Answer | None, profile: str | None) -> Iterable[Line]:
    name, source, fitted = str(row["id"]), source_of(row), row.get("set") == "fit"
    if isinstance(case, str) or answer is None or "refused" in answer:
        reason = case if isinstance(case, str) else str((answer or {}).get("refused"))
        yield Line(name, source, STEP, None, None, None, None, "", fitted, (), reason)
        return
    for q in case.measured:
        found = answer["values"].get(q.name)
        if not found:
            yield Line(name, source, q.name, q.value, None, None, None, case.profile, fitted, (), f"no {q.name} in the simulated step")
            continue
        notes = (*case.assumptions, *((q.note,) if q.note else ()))
        flat = flat_time(case) / q.value - 1 if q.name == STEP else None
        yield Line(name, source, q.name, q.value, found, found / q.value - 1, flat, profile or case.profile, fitted, notes, None, *_place(case, answer))


def _place(case: Case, answer: Answer) -> tuple[str, int, float | None]:
    """group, tokens and fill of a line."""
    run, batch = case.run, case.run["batch"]
    chip = accelerators()[run["cluster"]["accelerator"]]
    model = read_model(run["model"], "model")
    group = f"{model.name} ({parameters(model) / 1e9:.3g}B), {run['devices']} {case.accelerator}"
    held = answer["values"].get("reserved_memory_bytes")
    return group, batch["global"] * batch["sequence"], held / chip.memory.value if held else None


def _work(case: Case) -> tuple[tuple[str, bool], float]:
    """(family and whether products are fp8, seconds of the model's FLOPs at the dense peak)."""
    run, narrow = case.run, case.run["precision"] == "fp8"
    batch = run["batch"]
    flops = model_flops(read_model(run["model"], "model"), batch["global"] * batch["sequence"], batch["sequence"])
    chip = accelerators()[run["cluster"]["accelerator"]]
    dtype = run["precision"] if run["precision"] in chip.peak_flops else "fp16"
    return (case.family, narrow), flops / (chip.peak(dtype) * run["devices"])


@cache
def flat_mfu() -> Mapping[tuple[str, bool], float]:
    """MFU of the fit rows, per family of accelerators and precision, median of the sources' medians: the baseline that a model has to beat."""
    found: dict[tuple[str, bool], list[float]] = {}
    for path in sorted((DATA / "fit").glob("*.jsonl")):
        source: dict[tuple[str, bool], list[float]] = {}
        for row in read_rows(path):
            try:
                case = to_case(row)
            except NotModelled:
                continue
            steps = [q.value for q in case.measured if q.name == STEP]
            key, seconds = _work(case)
            source.setdefault(key, []).extend(seconds / s for s in steps)
        for key, values in source.items():
            found.setdefault(key, []).extend([median(values)] if values else [])
    return {key: median(values) for key, values in found.items() if values}


def flat_time(case: Case) -> float:
    """Seconds of a step at the one MFU of its family; of its family's other precision where no fit row has this one."""
    (family, narrow), seconds = _work(case)
    return seconds / flat_mfu().get((family, narrow), flat_mfu()[family, False])


def tree_of(lines: Sequence[Line], max_error: float | None = None) -> dict[str, Any]:
    """The table as JSON: rows, by_source, refusals, score, passed."""
    sources = {name: _source([line for line in lines if line.source == name]) for name in dict.fromkeys(line.source for line in lines)}
    medians = [s["median_abs_error"] for s in sources.values() if s["n"]]
    steps = [line for line in lines if line.quantity == STEP and line.error is not None]
    missed = [line for line in steps if max_error is not None and abs(line.error or 0.0) > max_error]
    return {
        "schema": "parasim.published/2",
        "max_error": max_error,
        "passed": bool(steps) and not missed,
        "score": sum(medians) / len(medians) if medians else None,
        "by_source": sources,
        "refusals": dict(Counter(f"{line.source}: {line.refused}" for line in lines if line.refused).most_common()),
        "rows": [asdict(line) for line in lines],
    }


def _source(lines: Sequence[Line]) -> dict[str, Any]:
    steps = [line for line in lines if line.quantity == STEP and line.error is not None]
    others = dict.fromkeys(line.quantity for line in lines if line.quantity != STEP and line.error is not None)
    flat = [abs(line.flat_error) for line in steps if line.flat_error is not None]
    return {
        "n": len(steps),
        "refused": sum(line.refused is not None for line in lines),
        **_figures([line.error for line in steps if line.error is not None]),
        "flat_mfu_median": median(flat) if flat else None,
        "others": {q: _figures([line.error for line in lines if line.quantity == q and line.error is not None], count=True) for q in others},
    }


def _figures(errors: Sequence[float], count: bool = False) -> dict[str, Any]:
    if not errors:
        return {"median_abs_error": None, "bias": None, "p90_abs_error": None}
    size = np.abs(np.array(errors))
    out = {"median_abs_error": float(np.median(size)), "bias": median(errors), "p90_abs_error": float(np.quantile(size, 0.9))}
    return ({"n": len(errors)} if count else {}) | out
