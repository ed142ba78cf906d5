"""Profile: every fitted or assumed number of a machine and its software, with provenance. Numbers only: it never changes a Program."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import yaml

from ..errors import Malformed, Unparsable
from ..program.ops import CollectiveOp
from ..provenance import Number, Status
from ..topology.cluster import LINK_KINDS
from ..units import parse

Backend = Literal["nccl", "gloo", "tpu"]


class Key(NamedTuple):
    """A number a profile may hold: its value on the datasheet, its SI unit ("1" for a ratio), what it means. Ratios that divide must be > 0."""

    default: float
    unit: Literal["1", "s"]
    meaning: str
    positive: bool = False


KEYS: dict[str, Key] = {
    "compute.matmul_efficiency": Key(1.0, "1", "fraction of the peak that matrix products reach", True),
    "compute.attention_efficiency": Key(1.0, "1", "fraction of the peak that tiled attention reaches", True),
    "compute.memory_efficiency": Key(1.0, "1", "fraction of the memory bandwidth that kernels reach", True),
    "compute.kernel_launch": Key(0.0, "s", "added to every kernel"),
    "compute.op_overhead": Key(0.0, "s", "added to every Compute op"),
    "network.bandwidth_factor.<link kind>": Key(1.0, "1", "fraction of a link's bandwidth that transfers reach", True),
    "network.latency.<link kind>": Key(0.0, "s", "added per link crossed"),
    "collective.<op>.latency": Key(0.0, "s", "added per call"),
    "collective.<op>.step_latency": Key(0.0, "s", "added per step of the algorithm"),
    "collective.<op>.bandwidth_factor": Key(1.0, "1", "fraction of the bandwidth that the op reaches", True),
    "p2p.latency": Key(0.0, "s", "added per message"),
    "p2p.bandwidth_factor": Key(1.0, "1", "fraction of the bandwidth that messages reach", True),
    "overlap.slowdown.collective": Key(0.0, "1", "compute takes 1 + x times as long beside a collective of its rank"),
    "overlap.slowdown.p2p": Key(0.0, "1", "compute takes 1 + x times as long beside a message of its rank"),
}
PLACEHOLDERS: dict[str, tuple[str, ...]] = {
    "<link kind>": LINK_KINDS,
    "<op>": get_args(CollectiveOp),
}
TOP = ("name", "backend", "description", "numbers")


def _expanded() -> dict[str, Key]:
    out: dict[str, Key] = {}
    for pattern, key in KEYS.items():
        placeholder = next((p for p in PLACEHOLDERS if p in pattern), None)
        names = [pattern.replace(placeholder, word) for word in PLACEHOLDERS[placeholder]] if placeholder else [pattern]
        out.update(dict.fromkeys(names, key))
    return out


LEGAL: dict[str, Key] = _expanded()


@dataclass(frozen=True)
class Profile:
    """Numbers by key (see KEYS), in SI; `backend` names the software's ways (ring order, rendezvous rule)."""

    name: str
    backend: Backend = "nccl"
    numbers: Mapping[str, Number] = field(default_factory=dict)
    description: str = ""

    def get(self, key: str, default: float | None = None) -> float:
        """The number called `key`, else `default`, else the datasheet's value of that key."""
        if key in self.numbers:
            return self.numbers[key].value
        return default if default is not None else LEGAL[key].default


def datasheet() -> Profile:
    """The profile without numbers: every kernel and link reaches its datasheet value and latencies are the links' own."""
    return Profile("datasheet", description="datasheet numbers: nothing fitted, no overheads")


def catalog() -> dict[str, Profile]:
    """Every profile that ships with parasim, by name, in order of name."""
    return dict(_catalog())


@cache
def _catalog() -> dict[str, Profile]:
    entries = sorted((e for e in files(__package__).joinpath("profiles").iterdir() if e.name.endswith(".yaml")), key=lambda e: e.name)
    loaded = [datasheet(), *(_from_text(e.read_text(encoding="utf-8"), e.name) for e in entries)]
    return {profile.name: profile for profile in loaded}


def load_profile(spec: str | Path | None, where: Path = Path()) -> Profile:
    """The profile called or stored at `spec` (a path relative to the folder `where`); None is the datasheet.

    Raises `Malformed` for an unknown name, a missing file, unknown keys or wrong values (all at once), `Unparsable` for a broken or empty
    file or one without its numbers' value, unit, source or status.
    """
    if spec is None:
        return datasheet()
    if str(spec) in _catalog():
        return _catalog()[str(spec)]
    path = where / Path(spec).expanduser()
    if path.is_file():
        try:
            return _from_text(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise Unparsable(f"{path}: cannot be read: {error}") from None
    names = ", ".join(_catalog())
    if isinstance(spec, Path) or path.suffix in (".yaml", ".yml") or "/" in spec:
        raise Malformed(f"profile={spec}: no such file: {path}; or a name of the catalog: {names}")
    raise Malformed(f"profile={spec} is not in the catalog{_nearest(spec, _catalog())}; names: {names}")


def save_profile(profile: Profile, path: Path) -> None:
    """Write `profile` as YAML that `load_profile` reads back equal. Raises `Malformed` when the file cannot be written."""
    numbers = {key: _entry(number) for key, number in sorted(profile.numbers.items())}
    tree = {"name": profile.name, "backend": profile.backend, "description": profile.description, "numbers": numbers}
    text = yaml.safe_dump(tree, sort_keys=False, width=130, allow_unicode=True)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Malformed(f"{path}: cannot be written: {error.strerror}") from None


def _entry(number: Number) -> dict[str, object]:
    entry: dict[str, object] = {"value": number.value, "unit": number.unit, "source": number.source, "status": number.status}
    return entry | ({"interval": list(number.interval)} if number.interval else {})


def _nearest(name: str, legal: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, list(legal), n=3, cutoff=0.5)
    return f"; nearest: {', '.join(close)}" if close else ""


def read_profile(tree: Mapping[str, Any], at: str) -> Profile:
    """The profile that a mapping describes; `at` (a file) opens every message. Raises as `load_profile` does."""
    if not tree.get("name"):
        raise Unparsable(f"{at}: lacks name")
    numbers = tree.get("numbers") or {}
    if not isinstance(numbers, Mapping):
        raise Malformed(f"{at}: numbers must map keys to values, not {type(numbers).__name__}")
    wrong = [f"{at}: unknown key '{key}'{_nearest(str(key), dict.fromkeys(TOP))}; legal: {', '.join(TOP)}" for key in tree if key not in TOP]
    backend = tree.get("backend", "nccl")
    if backend not in get_args(Backend):
        wrong.append(f"{at}: backend={backend} must be one of {', '.join(get_args(Backend))}")
    missing, read = [], {}
    for key, entry in numbers.items():
        try:
            read[str(key)] = _number(str(key), entry)
        except Malformed as error:
            wrong.append(f"{at}: numbers.{key}: {error}")
        except Unparsable as error:
            missing.append(f"{at}: numbers.{key}: {error}")
    if wrong:
        raise Malformed("\n".join(wrong + missing))
    if missing:
        raise Unparsable("\n".join(missing))
    return Profile(str(tree["name"]), backend, read, str(tree.get("description") or ""))


def _from_text(text: str, at: str) -> Profile:
    return read_profile(_tree(text, at), at)


def _tree(text: str, at: str) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise Unparsable(f"{at}{f':{mark.line + 1}:{mark.column + 1}' if mark else ''}: is not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise Unparsable(f"{at}: is not YAML: {error}") from None
    if not tree:
        raise Unparsable(f"{at}: is empty")
    if not isinstance(tree, dict):
        raise Unparsable(f"{at}: must hold a mapping of keys to values, not {type(tree).__name__}")
    return tree


def _number(key: str, entry: object) -> Number:
    """One number: {value, unit, source, status, interval?}; the value may carry its unit ("5 us") and a time's unit may be any."""
    if key not in LEGAL:
        patterns = {**dict.fromkeys(LEGAL), **dict.fromkeys(KEYS)}
        raise Malformed(f"unknown{_nearest(key, patterns) or '; legal: ' + ', '.join(KEYS)}")
    legal = ("value", "unit", "source", "status", "interval")
    if not isinstance(entry, Mapping):
        raise Malformed(f"{entry!r} must be a mapping of {', '.join(legal[:4])} (and interval)")
    unknown = [str(k) for k in entry if k not in legal]
    if unknown:
        raise Malformed("; ".join(f"unknown key '{k}'{_nearest(k, dict.fromkeys(legal))}" for k in unknown) + f"; legal: {', '.join(legal)}")
    carries_unit = isinstance(entry.get("value"), str) and not _plain(entry["value"])
    missing = [k for k in legal[:4] if entry.get(k) is None and not (k == "unit" and carries_unit)]
    if missing:
        raise Unparsable(f"lacks {', '.join(missing)}")
    if entry["status"] not in get_args(Status):
        raise Malformed(f"status={entry['status']} must be one of {', '.join(get_args(Status))}")
    unit = LEGAL[key].unit
    value = _value(entry["value"], entry.get("unit"), key)
    return Number(value, unit, str(entry["source"]), entry["status"], _interval(entry.get("interval"), entry.get("unit"), key))


def _plain(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return not isinstance(value, bool)


def _value(value: object, unit: object, key: str) -> float:
    due = LEGAL[key]
    if due.unit == "s":
        number = parse(f"{value} {unit}" if _plain(value) else value, "seconds")
    elif not _plain(value) or str(unit) != "1":
        raise Malformed(f"value={value}, unit={unit}: a ratio is due, a number with unit 1")
    else:
        number = float(str(value))
    if not isfinite(number) or number < 0 or (due.positive and number == 0):
        raise Malformed(f"value={value} must be {'more than 0' if due.positive else '0 or more'} ({due.meaning})")
    return number


def _interval(interval: object, unit: object, key: str) -> tuple[float, float] | None:
    if interval is None:
        return None
    if not isinstance(interval, list | tuple) or len(interval) != 2:
        raise Malformed(f"interval={interval} must be [low, high]")
    low, high = (_value(bound, unit, key) for bound in interval)
    return low, high
