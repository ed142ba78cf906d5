"""What lectures on parallel training say, through the real commands: `python -m validation lecture [--only ID] [FILE]`.

`data/lecture/*.yaml` say which command and which place of its JSON give the value of a row; nothing is computed here beyond units and the sum
of parts of a report. Predictions are held against datasheet bandwidths, which the run files there carry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any

import typer

from parasim.errors import Malformed

from .lecture_executor import EXECUTIONS
from .lecture_rows import answer, command_of, entry_of, shown
from .predict import DATA
from .rows import read_rows

VERDICTS = ("pass", "miss", "hardware", "prose", "unmapped")


@dataclass(frozen=True)
class Value:
    """One value of a row: place in `expected`, what the row says, what `source` gave, and whether it is near enough."""

    place: str
    expected: Any
    obtained: Any
    source: str
    passed: bool


@dataclass(frozen=True)
class Judged:
    """A row: `verdict` is one of VERDICTS; `note` is the reason where no value was asked for, and what a miss means."""

    id: str
    verdict: str
    note: str
    values: tuple[Value, ...] = ()


def judge(row: Mapping[str, Any]) -> Judged:
    """Run the commands of a row and hold what they print against it."""
    name = str(row["id"])
    if row["tolerance"].get("prose"):
        return Judged(name, "prose", "says how, not how much")
    entry = entry_of(name)
    if entry is None:
        return Judged(name, "unmapped", "no command prints this value, or none is named for it")
    if "hardware" in entry:
        return Judged(name, "hardware", str(entry["hardware"]))
    values = tuple(value for ask in entry["asks"] for value in answers(ask, row, entry["runs"]))
    missing = [place for place in leaves(row["expected"]) if not covered(place, [v.place for v in values])]
    values += tuple(Value(place, pick(row["expected"], place), None, "asked of no command", False) for place in missing)
    return Judged(name, "pass" if all(v.passed for v in values) else "miss", str(entry.get("note", "")), values)


def leaves(tree: Any, at: str = "") -> list[str]:
    """The places of all values of nested objects; a list is one value."""
    if not isinstance(tree, Mapping):
        return [at]
    return [place for key, value in tree.items() for place in leaves(value, f"{at}/{key}" if at else str(key))]


def covered(place: str, asked: Sequence[str]) -> bool:
    """Whether a value, what holds it, or every part of it was asked for."""
    return any(a in ("", place) or place.startswith(f"{a}/") or a.startswith(f"{place}/") or (not place and a) for a in asked)


def answers(ask: Mapping[str, Any], row: Mapping[str, Any], runs: Mapping[str, Any]) -> list[Value]:
    """The values that one command, or one run of the executor, gives for a row."""
    if "execute" in ask:
        printed, source = EXECUTIONS[ask["execute"]](), ask["execute"]
    else:
        command = command_of(ask, row["inputs"])
        printed, source = answer(command, runs[ask["run"]] if "run" in ask else None), shown(command)
    out = []
    for place, path in ask["paths"].items():
        wanted, got = pick(row["expected"], place), obtained(printed, path, float(ask.get("scale", 1)))
        out.append(Value(place, wanted, got, f"{source}: {path}", holds(got, wanted, ask, row["tolerance"])))
    return out


def holds(got: Any, wanted: Any, ask: Mapping[str, Any], tolerance: Mapping[str, Any]) -> bool:
    """`near`, or the relation that the entry names where the row says a bound or an order in words."""
    match ask.get("holds"):
        case "ordered part":  # the words of the row stand in what is printed, in this order
            found = iter(got or ())
            return bool(got) and all(any(word in item for item in found) for word in wanted)
        case "absent":
            return bool(got) and not any(word in item for word in wanted for item in got)
        case "among":
            return isinstance(got, Mapping) and any(all(got.get(key) == one[key] for key in ask["keys"]) for one in wanted)
        case "between":
            return isinstance(got, int | float) and bool(wanted[0] <= got <= wanted[1])
        case "at most":
            return isinstance(got, int | float) and bool(got <= wanted)
        case "at least":
            return isinstance(got, int | float) and bool(got >= wanted)
        case "words":  # the message names them all
            return isinstance(got, str) and all(str(word) in got for word in ask.get("words", wanted))
    return near(got, wanted, {"rel": ask["rel"]} if "rel" in ask else tolerance)


def pick(tree: Any, path: str) -> Any:
    """The entry of nested lists and objects at `a/0/b`; None where there is none. `*` is every entry of a list."""
    if isinstance(tree, Mapping) and path in tree:  # a key with a stroke in it
        return tree[path]
    parts = path.split("/") if path else []
    for i, part in enumerate(parts):
        if part == "*":
            return [pick(entry, "/".join(parts[i + 1 :])) for entry in tree] if isinstance(tree, list) else None
        if isinstance(tree, list):
            tree = tree[int(part)] if part.lstrip("-").isdigit() and -len(tree) <= int(part) < len(tree) else None
        else:
            tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def obtained(printed: Mapping[str, Any], path: str, scale: float) -> Any:
    """The entry at `path`, several added up, in the unit of the row."""
    parts = [pick(printed, part) for part in path.split("+")]
    if len(parts) == 1:
        return _scaled(parts[0], scale)
    return None if None in parts else sum(parts) * scale


def _scaled(value: Any, scale: float) -> Any:
    if scale == 1 or value is None or isinstance(value, str | bool):
        return value
    return [_scaled(v, scale) for v in value] if isinstance(value, list) else value * scale


def near(got: Any, wanted: Any, tolerance: Mapping[str, Any]) -> bool:
    """Whether `got` is what the row says, within its tolerance."""
    if isinstance(wanted, list):
        return isinstance(got, list) and len(got) == len(wanted) and all(near(g, w, tolerance) for g, w in zip(got, wanted, strict=True))
    if isinstance(wanted, Mapping):
        return isinstance(got, Mapping) and all(near(got.get(k), w, tolerance) for k, w in wanted.items())
    if isinstance(wanted, bool) or not isinstance(wanted, int | float) or not isinstance(got, int | float) or tolerance.get("exact"):
        return bool(got == wanted)
    if "max" in tolerance or "min" in tolerance:
        return bool(tolerance.get("min", got) <= got <= tolerance.get("max", got))
    return bool(abs(got - wanted) <= tolerance.get("abs", 0) + tolerance.get("rel", 0) * abs(wanted))


def lecture(
    file: Annotated[Path, typer.Argument(help="Rows as .jsonl.")] = DATA / "lecture.jsonl",
    only: Annotated[str | None, typer.Option(help="Only the rows whose id this pattern names.")] = None,
) -> None:
    """Hold what the commands print against the numbers of lectures on parallel training; exit code 1 when a row misses."""
    rows = [row for row in read_rows(file) if only is None or fnmatch(str(row["id"]), only)]
    if not rows:
        raise Malformed(f"--only {only}: no row of {file} has such an id")
    counts: Counter[str] = Counter()
    for judged in map(judge, rows):
        counts[judged.verdict] += 1
        typer.echo(f"{judged.verdict:<9}{judged.id}{'  ' + judged.note if judged.note else ''}")
        for v in judged.values:
            mark = "" if v.passed else "   <-- miss"
            typer.echo(f"           {v.place or 'value'}: expected {v.expected}, obtained {v.obtained}   {v.source}{mark}")
    typer.echo(", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS) + f" of {len(rows)} rows")
    raise typer.Exit(1 if counts["miss"] else 0)
