"""From a run file, or its keys in Python, to a Run: read, override, check the form, load what it names, resolve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..documents import Document, Problem, parse, read, refusal
from ..errors import InvalidLayout
from ..model.spec import Transformer
from ..provenance import stamp
from .changed import changed, needed
from .named import LOADERS, inputs, load_named, specs, wrong_names
from .overrides import apply
from .reach import out_of_reach
from .resolve import resolve
from .run import Loaded, Run
from .source import echo, expanded
from .stack import with_stack
from .validate import validate

DEFAULT = "default.yaml"


def load(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Run:
    """The run in the file at `path`, or the embedded default run, with `overrides` ("zero.stage=1") applied in order.

    Raises `Unparsable` (not YAML, empty, cut short, keys missing), `Malformed` (missing file, unknown or duplicate key, wrong type, unit or
    name; all at once, a line each with its place), `InvalidLayout` (legal form, illegal or not yet supported layout), `Refused` (the
    cluster has too few devices, the accelerator does not know the precision).
    """
    document = parse(files(__package__).joinpath(DEFAULT).read_bytes(), DEFAULT) if path is None else read(Path(path))
    return _run(apply(document, overrides), "default" if path is None else Path(path).stem)


def build(keys: Mapping[str, object], overrides: Sequence[str] = ()) -> Run:
    """The run with the keys of a run file given in Python (plain data, paths relative to the working directory); raises as `load` does."""
    return _run(apply(Document(_plain(keys)), overrides), "run")


def vary(run: Run, overrides: Sequence[str]) -> Run:
    """`run` with further `overrides`, resolved anew from what was written: `auto` stays auto.

    Model, cluster and profile are kept where nothing of theirs changed. Raises as `load` does.
    """
    return _run(apply(run.document or Document(_plain(run.source)), overrides), run.name, run)


def _plain(value: Any) -> Any:
    """Mappings as dict, sequences as list, paths as text."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def _run(document: Document, name: str, before: Run | None = None) -> Run:
    expansion = with_stack(document)
    keys, problems = validate(expansion.document)
    if keys is None:
        bad = {p.path.partition(".")[0] for p in problems}
        raise refusal([*problems, *wrong_names(document, bad)])
    named = load_named(document, needed(keys), _unchanged(document, needed(keys), before))
    if keys.batch.sequence is None and isinstance(named.model, Transformer):
        rule = f"is missing; {named.model.name} is a transformer and needs the length of a sequence (tokens), such as 4096"
        raise refusal([Problem(document.place(("batch",)), "batch.sequence", rule, "missing")])
    try:
        plan = resolve(keys, named.model)
    except InvalidLayout as error:
        raise expansion.blame(error) from None
    cluster = changed(named.cluster, keys, document)
    if far := list(out_of_reach(plan.layout, cluster)):
        raise expansion.blame(InvalidLayout(far))
    plan = replace(plan, assumptions=(*expansion.assumption(), *plan.assumptions))
    for dtype in (plan.layout.precision, plan.layout.compute_dtype):
        named.cluster.accelerator.peak(dtype)
    written: Any = expansion.document.data
    located = specs(document)
    return Run(
        name=keys.name or name,
        plan=plan,
        cluster=cluster,
        profile=named.profile,
        critical_batch=keys.critical_batch,
        devices=keys.devices,
        source=expanded(keys, _plain({k: v for k, v in located.items() if v is not None}), plan),
        echo=echo(written),
        provenance=stamp({**document.inputs, **inputs(document), "plan": repr(plan)}),
        document=document,
        loaded=Loaded(named.cluster, needed(keys)),
    )


def _unchanged(document: Document, devices: int, before: Run | None) -> dict[str, object]:
    """Model, cluster and profile of `before` as far as `document` writes the same of them."""
    if before is None or before.document is None or before.loaded is None:
        return {}
    new, old = specs(document), specs(before.document)
    same = {key for key in LOADERS if new[key] == old[key] and (key != "cluster" or devices == before.loaded.devices)}
    parts = {"model": before.plan.model, "cluster": before.loaded.cluster, "profile": before.profile}
    return {key: value for key, value in parts.items() if key in same}
