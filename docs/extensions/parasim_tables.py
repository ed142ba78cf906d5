"""Markdown of the reference pages, made from the schemas, the catalogs, the command line and the docstrings of parasim."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import parasim
from parasim.catalogs import catalog_of
from parasim.cli import app
from parasim.config.reference import reference
from parasim.config.stack import load_stack, stack_names
from parasim.cost.profile import KEYS
from parasim.cost.profile import catalog as profiles
from parasim.model.catalog import catalog as models
from parasim.model.layers import parameters
from parasim.topology import schema
from parasim.topology.loader import accelerators
from parasim.units import format_bandwidth, format_memory

EXAMPLES = Path(__file__).parents[1] / "examples"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines) + "\n"


def run_file() -> str:
    """Every key of a run file and of inline models."""
    return reference()


# ---- cluster files


def cluster_file() -> str:
    """Every key of cluster and accelerator files, block by block."""
    seen: dict[str, type[BaseModel]] = {}
    for form in (schema.ClusterFile, schema.AcceleratorFile):
        _collect(form, seen)
    return "\n".join(_block(form) for form in seen.values())


def _collect(form: type[BaseModel], seen: dict[str, type[BaseModel]]) -> None:
    seen.setdefault(form.__name__, form)
    for info in form.model_fields.values():
        for inner in _forms(info.annotation):
            if inner.__name__ not in seen:
                _collect(inner, seen)


def _forms(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _forms(part)


def _block(form: type[BaseModel]) -> str:
    kind = form.model_fields.get("kind")
    words = get_args(kind.annotation) if kind is not None else ()
    name = f"{form.__name__.removesuffix('File')}" + (f" (kind: {words[0]})" if len(words) == 1 and isinstance(words[0], str) else "")
    rows = [(f"`{info.alias or key}`", _default(info), info.description or _choices(info)) for key, info in form.model_fields.items()]
    return f"## {name}\n\n{inspect.cleandoc(form.__doc__ or '')}\n\n" + table(("key", "default", "meaning"), rows)


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "must be written"
    value = None if info.default is PydanticUndefined else info.default
    if value is None or value == {} or value == ():
        return "omitted"
    return f"`{getattr(value, 'value', value)}`" + (f" {value.unit}" if hasattr(value, "unit") else "")


def _choices(info: FieldInfo) -> str:
    words = [w for w in get_args(info.annotation) if isinstance(w, str)]
    inner = [f.__name__.removesuffix("File") for f in _forms(info.annotation)]
    return ", ".join([*(f"`{w}`" for w in words), *(f"a block {n}" for n in inner)]) or "see the text above"


# ---- profiles


def profile_keys() -> str:
    """Every number that a profile may hold."""
    return table(("key", "unit", "on the datasheet", "meaning"), ((f"`{k}`", key.unit, f"{key.default:g}", key.meaning) for k, key in KEYS.items()))


def profiles_shipped() -> str:
    """The profiles of the catalog."""
    return table(
        ("profile", "back end", "numbers", "about"), ((f"`{n}`", p.backend, _by_status(p.numbers.values()), p.description) for n, p in profiles().items())
    )


def _by_status(numbers: Iterable[Any]) -> str:
    found = [n.status for n in numbers]
    return ", ".join(f"{found.count(s)} {s}" for s in ("fitted", "datasheet", "assumed") if s in found) or "none"


# ---- catalogs


def model_catalog() -> str:
    """The models of the catalog."""
    rows = [(f"`{n}`", f"{m.layers}", _size(m), f"{parameters(m):,}", "mixture of experts" if getattr(m, "experts", None) else "") for n, m in models().items()]
    return table(("model", "layers", "hidden", "parameters", ""), rows)


def _size(model: Any) -> str:
    return str(getattr(model, "hidden", ""))


def cluster_catalog() -> str:
    """The clusters of the catalog."""
    return table(("cluster", "what it is"), ((f"`{n}`", text) for n, text in catalog_of("clusters").items()))


def accelerator_catalog() -> str:
    """The accelerators of the catalog."""
    rows = []
    for name, a in accelerators().items():
        peaks = ", ".join(f"{d} {p.value / 1e12:g}" for d, p in a.peak_flops.items())
        rows.append((f"`{name}`", a.kind, format_memory(a.memory.value), format_bandwidth(a.memory_bandwidth.value), peaks))
    return table(("accelerator", "kind", "memory", "memory bandwidth", "dense peaks, TFLOP/s"), rows)


def stack_catalog() -> str:
    """The stacks, with the keys that each sets."""
    parts = []
    for name in stack_names():
        stack = load_stack(name)
        rows = [*_leaves(stack.keys, ""), *((k, f"{v} (where parallel.tp > 1)") for k, v in _leaves(stack.with_tp, ""))]
        parts.append(f"## {name}\n\n{stack.about}. Known from: {stack.source}.\n\n" + table(("key", "value"), ((f"`{k}`", v) for k, v in rows)))
    return "\n".join(parts)


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, f"`{str(value).lower() if isinstance(value, bool) else value}`"


def schedule_catalog() -> str:
    """The pipeline schedules."""
    return table(("schedule", "what it is"), ((f"`{n}`", _code(text)) for n, text in catalog_of("schedules").items()))


def examples() -> str:
    """The example files: the comment at the head of each, and the file itself."""
    parts = []
    for path in sorted(EXAMPLES.rglob("*.yaml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        end = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
        said = "\n".join(line.removeprefix("#").strip() if not line.startswith("#   ") else f"\n    {line[4:]}\n" for line in lines[:end])
        name = path.relative_to(EXAMPLES)
        parts.append(f"## {name}\n\n{_code(said)}\n\n```yaml\n" + "\n".join(lines[end:]).strip("\n") + "\n```\n")
    return "\n".join(parts)


# ---- commands and Python


def commands() -> str:
    """Every command with its arguments and options, from the command line itself."""
    return "\n".join(_command(command, f"parasim {name}") for name, command in _commands(typer.main.get_command(app)))


def _commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in sorted(group.commands.items()):
        if getattr(command, "commands", None):
            yield from _commands(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


def _command(command: Any, name: str) -> str:
    rows = []
    for p in command.params:
        if p.name == "help":
            continue
        words = ", ".join(f"`{o}`" for o in p.opts) if p.param_type_name == "option" else f"`{p.metavar or p.name.upper()}`"
        default = "" if p.required or p.default in (None, False, ()) or callable(p.default) else f" Default: `{p.default}`."
        rows.append((words, (getattr(p, "help", "") or "") + (" Must be given." if p.required else "") + default))
    return f"## {name}\n\n{_code(inspect.cleandoc(command.help or ''))}\n\n" + (table(("argument or option", "meaning"), rows) if rows else "")


def python_api() -> str:
    """Signature and docstring of every public function and class, and of every plot."""
    names = [n for n in parasim.__all__ if n not in ("plots", "__version__")]
    parts = [_documented(n, getattr(parasim, n)) for n in sorted(names, key=lambda n: (n[0].isupper(), n))]
    drawn = [_documented(f"plots.{n}", getattr(parasim.plots, n)) for n in parasim.plots.__all__]
    return "## Functions and classes\n\n" + "\n".join(parts) + "\n## Plots\n\n" + "\n".join(drawn)


def _documented(name: str, what: Any) -> str:
    signature = str(inspect.signature(what)).replace("'", "")
    signature = re.sub(r"(?:\w+\.)+(\w+)", r"\1", signature)
    return f"### {name}\n\n```python\n{name}{signature}\n```\n\n{_code(inspect.cleandoc(what.__doc__ or ''))}\n" + _members(what)


def _members(what: Any) -> str:
    """The documented methods and properties of a class."""
    if not inspect.isclass(what):
        return ""
    own = [(n, m) for n, m in vars(what).items() if not n.startswith("_") and (inspect.isfunction(m) or isinstance(m, property | classmethod))]
    return "\n" + "".join(f"- `{n}`: {_code(' '.join(inspect.cleandoc(_doc(m)).split()))}\n" for n, m in own if _doc(m))


def _doc(member: Any) -> str:
    return (getattr(member, "__func__", member).__doc__ or "") if not isinstance(member, property) else (member.__doc__ or "")


def _code(text: str) -> str:
    """Docstrings are plain text: what Markdown would take for something else is escaped, backticks stay."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([<>*_\[\]$])", r"\\\1", p) for p in parts)


TABLES: Mapping[str, Callable[[], str]] = {
    "run-file": run_file,
    "cluster-file": cluster_file,
    "profile-keys": profile_keys,
    "profiles": profiles_shipped,
    "models": model_catalog,
    "clusters": cluster_catalog,
    "accelerators": accelerator_catalog,
    "stacks": stack_catalog,
    "schedules": schedule_catalog,
    "examples": examples,
    "commands": commands,
    "python": python_api,
}
