"""YAML with positions: plain data plus the place where every key and value was written.

Scalars follow YAML 1.2, so that no trap of 1.1 remains: `1e9` is a number, `no`, `on`, `1:30` and `2024-01-01` are text, only `true` and
`false` are booleans. Duplicate keys are refused; aliases are followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from .errors import Malformed, ParasimError, Unparsable
from .files import whole

Keys = tuple[str | int, ...]

_INT = re.compile(r"[-+]?\d+")
_FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_SPECIAL: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", "+.inf"), float("inf")),
    "-.inf": float("-inf"),
    ".nan": float("nan"),
}
_TEXT_TAG = "tag:yaml.org,2002:str"
_VALUES_AT_MOST = 100_000
_DIGITS_AT_MOST = 300


@dataclass(frozen=True, order=True)
class Place:
    """A file with line and column (from 1), an override (`--set ...`, line 0), or nothing when the keys came from Python."""

    origin: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.origin}:{self.line}:{self.column}" if self.line else self.origin


@dataclass(frozen=True)
class Problem:
    """One thing wrong with what was written; `kind` says whether a key is missing, unknown, or holds something illegal."""

    place: Place
    path: str
    message: str
    kind: str = "wrong"

    def __str__(self) -> str:
        named = self.place.line == 0 and self.place.origin.startswith(f"--set {self.path}=")
        return ": ".join(part for part in (str(self.place), "" if named else self.path, self.message) if part)


def dotted(keys: Keys) -> str:
    """("perturb", 0, "rank") as people write it: perturb[0].rank."""
    return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in keys).removeprefix(".")


def refusal(problems: list[Problem]) -> ParasimError:
    """All problems as one error, a line each in order of place.

    A file that lacks keys, and has no unknown key that might be a misspelt one, is `Unparsable`; everything else is `Malformed`.
    """
    lines = "\n".join(str(p) for p in sorted(problems, key=lambda p: (p.place, p.path)))
    lacking = any(p.kind == "missing" and p.place.line for p in problems) and not any(p.kind == "unknown" for p in problems)
    return Unparsable(lines) if lacking else Malformed(lines)


@dataclass(frozen=True)
class Document:
    """`data` is plain (dict, list, str, int, float, bool, None); `keys` and `values` give places by path; `base` resolves relative paths.

    `name` stands in messages for what has no place; `inputs` are the raw texts that made it, for their hashes; `problems` are duplicate keys
    and the like.
    """

    data: object
    name: str = ""
    keys: Mapping[Keys, Place] = field(default_factory=dict)
    values: Mapping[Keys, Place] = field(default_factory=dict)
    base: Path = field(default_factory=Path)
    inputs: Mapping[str, bytes] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def place(self, keys: Keys, *, of_key: bool = False) -> Place:
        """Where the value (or the key) at `keys` was written; of what encloses it when it was not."""
        for n in range(len(keys), -1, -1):
            if of_key and keys[:n] in self.keys:
                return self.keys[keys[:n]]
            if keys[:n] in self.values:
                return self.values[keys[:n]]
        return Place(self.name)

    def path(self, loc: Sequence[str | int]) -> Keys:
        """What pydantic says of an error's place as a path of the file: without the tags of unions, which are no keys; a missing last key is kept."""
        path: Keys = ()
        data: Any = self.data
        for part in loc[:-1]:
            if isinstance(part, int) or (isinstance(data, Mapping) and part in data):
                path, data = (*path, part), data[part]
        return (*path, *(part for part in loc[-1:] if isinstance(part, int) or isinstance(data, Mapping)))

    def mapping(self) -> Mapping[str, Any]:
        """`data` where keys and values are due. Raises `Unparsable` when it is anything else, `Malformed` for duplicate keys."""
        if not isinstance(self.data, Mapping):
            raise Unparsable(f"{self.place(())}: must hold a mapping of keys to values, not {_kind(self.data)}")
        if self.problems:
            raise refusal(list(self.problems))
        return self.data


def _kind(value: object) -> str:
    return "a list" if isinstance(value, list) else f"'{value}'"


# Both compose nodes only, plain scalars are typed by `_typed`. libyaml is many times faster where it is built in; PyYAML words faults better.
_PLAIN: dict[str, Any] = {"yaml_implicit_resolvers": {}}
_Loader: Any = type("_Loader", (yaml.SafeLoader,), _PLAIN)
_FastLoader: Any = type("_FastLoader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), _PLAIN)


def read(path: Path, shown: str | None = None) -> Document:
    """The document in the file at `path`, called `shown` in messages. Raises as `content` and `parse` do."""
    name = shown or str(path)
    return replace(parse(content(path, name), name), base=path.parent)


LARGEST = 2**26  # bytes: beyond that it is no file that a person wrote


def content(path: Path, shown: str | None = None) -> bytes:
    """The bytes of the file at `path`. Raises `Malformed` when there is no such readable file."""
    name = shown or str(path)
    try:
        if path.exists() and not path.is_dir() and not path.is_file():
            raise Malformed(f"{name}: is no regular file; a file is due")
        if path.is_file() and path.stat().st_size > LARGEST:
            raise Malformed(f"{name}: has {path.stat().st_size} bytes; files of up to {LARGEST} are read")
        return path.read_bytes()
    except IsADirectoryError:
        raise Malformed(f"{name}: is a directory; a file is due") from None
    except FileNotFoundError:
        raise Malformed(f"{name}: no such file") from None
    except (OSError, ValueError) as error:
        raise Malformed(f"{name}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def decoded(raw: bytes, name: str) -> str:
    """`raw` as text. Raises `Unparsable` when it is not UTF-8 or holds nothing."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unparsable(f"{name}: not UTF-8 text (byte {raw[error.start]:#04x} at offset {error.start})") from None
    if not text.strip():
        raise Unparsable(f"{name}: the file is empty")
    return text


def parse(raw: bytes, name: str) -> Document:
    """The document in `raw`, called `name` in messages. Raises `Unparsable` when it is not UTF-8, not YAML, cut short or empty."""
    node = _compose(decoded(raw, name), name)
    if node is None or (isinstance(node, yaml.ScalarNode) and not node.value):
        raise Unparsable(f"{name}: the file is empty")
    builder = _Builder(name)
    data = builder.build(node, (), frozenset())
    return Document(data, name, builder.keys, builder.values, inputs={name: raw}, problems=tuple(builder.problems))


def fragment(text: str, origin: str) -> Document:
    """The YAML value of an override; every place in it is `origin`. Raises `Malformed`."""
    try:
        node = _compose(text, origin)
    except Unparsable as error:
        raise Malformed(f"{origin}: the value is not valid YAML ({str(error).partition('not valid YAML: ')[2]})") from None
    if node is None:
        return Document(None, origin, values={(): Place(origin)})
    builder = _Builder(origin, numbered=False)
    data = builder.build(node, (), frozenset())
    return Document(data, origin, builder.keys, builder.values, problems=tuple(builder.problems))


def _compose(text: str, name: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=_FastLoader)
    except (yaml.YAMLError, RecursionError):
        pass  # said below in PyYAML's words
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise Unparsable(_syntax(error, name)) from None
    except yaml.YAMLError as error:
        raise Unparsable(f"{name}: not valid YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise Unparsable(f"{name}: not valid YAML: nested too deeply") from None


def _syntax(error: yaml.MarkedYAMLError, name: str) -> str:
    """One line: where, what PyYAML expected, and what it was reading."""
    mark = error.problem_mark or error.context_mark
    place = Place(name, mark.line + 1, mark.column + 1) if mark else Place(name)
    problem = error.problem or "syntax error"
    if problem == "but found another document":
        return f"{place}: not valid YAML: a second document begins here; write one"
    began = f" {error.context}" + (f" that began at line {error.context_mark.line + 1}" if error.context_mark else "") if error.context else ""
    if "stream end" in problem or "end of stream" in problem:
        return f"{place}: not valid YAML: it ends too early,{began or ' in the middle of a value'}"
    return f"{place}: not valid YAML: {problem}{',' if began else ''}{began}"


class _Builder:
    """Turns nodes into plain data and notes the place of every key and value."""

    def __init__(self, origin: str, *, numbered: bool = True) -> None:
        self.origin, self.numbered = origin, numbered
        self.keys: dict[Keys, Place] = {}
        self.values: dict[Keys, Place] = {}
        self.problems: list[Problem] = []

    def place(self, node: yaml.Node) -> Place:
        mark = node.start_mark
        return Place(self.origin, mark.line + 1, mark.column + 1) if self.numbered else Place(self.origin)

    def build(self, node: yaml.Node, path: Keys, above: frozenset[int]) -> object:
        if id(node) in above or len(self.values) > _VALUES_AT_MOST:
            raise Unparsable(f"{self.place(node)}: not valid YAML: an alias that contains itself or grows without bound")
        self.values[path] = self.place(node)
        inside = above | {id(node)}
        if isinstance(node, yaml.MappingNode):
            return {key: self.build(value, (*path, key), inside) for key, value in self._entries(node, path)}
        if isinstance(node, yaml.SequenceNode):
            return [self.build(child, (*path, i), inside) for i, child in enumerate(node.value)]
        return self._scalar(node, path)

    def _entries(self, node: yaml.MappingNode, path: Keys) -> Iterator[tuple[str, yaml.Node]]:
        seen: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.problems.append(Problem(self.place(key), dotted(path), "a key must be a word, not a list or a mapping"))
            elif key.value in seen:
                where = f" (first on line {seen[key.value]})" if self.numbered else ""
                message = f"duplicate key '{key.value}'{where}; keep one of them"
                self.problems.append(Problem(self.place(key), dotted((*path, key.value)), message))
            else:
                seen[key.value] = key.start_mark.line + 1
                self.keys[(*path, key.value)] = self.place(key)
                yield key.value, value

    def _scalar(self, node: yaml.Node, path: Keys) -> object:
        text = str(node.value)
        if node.tag != _TEXT_TAG:
            self.problems.append(Problem(self.place(node), dotted(path), f"tags such as {node.tag} are not used here; write the plain value"))
        return text if getattr(node, "style", None) else _typed(text)


def _typed(text: str) -> object:
    """What a scalar without quotes means."""
    if text in _SPECIAL:
        return _SPECIAL[text]
    if len(text) <= _DIGITS_AT_MOST and _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


class _Dumper(yaml.SafeDumper):
    """Quotes every text that `parse` would read as something else."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(_TEXT_TAG, text, style=None if _typed(text) == text else "'")


_Dumper.add_representer(str, _text)


def write(tree: Mapping[str, Any], path: Path) -> None:
    """Write plain data as YAML that `read` gives back equal; a file that is there is replaced only by a whole one.

    Raises `Malformed` when the file cannot be written.
    """
    text = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=130, allow_unicode=True)
    with whole(path) as draft:
        draft.write_text(text, encoding="utf-8")
