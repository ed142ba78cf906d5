"""`path=value` overrides, applied to the raw tree before it is checked; the value is YAML and replaces what the path held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..documents import Document, Keys, Place, Problem, dotted, fragment
from ..errors import Malformed


def apply(document: Document, overrides: Sequence[str]) -> Document:
    """`document` with every override applied in order; a later one wins.

    Raises `Malformed` for one without `=`, with an empty path, with a value that is no YAML, or that reaches into a plain value.
    """
    for text in overrides:
        document = _apply(document, text)
    return document


def _apply(document: Document, text: str) -> Document:
    origin = f"--set {text}"
    path, equals, value = text.partition("=")
    words = [word.strip() for word in path.split(".")]
    if not equals or not all(words):
        raise Malformed(f"{origin}: an override is written path=value, such as zero.stage=1 or parallel={{tp: 4}}")
    new = fragment(value, origin)
    keys, data = _put(document.data, words, new.data, origin)
    kept_keys = {k: p for k, p in document.keys.items() if k[: len(keys)] != keys}
    kept_values = {k: p for k, p in document.values.items() if k[: len(keys)] != keys}
    parents = {keys[:n]: Place(origin) for n in range(1, len(keys))}
    moved = tuple(replace(p, path=dotted(keys) + ("." if p.path else "") + p.path) for p in new.problems)
    return replace(
        document,
        data=data,
        keys=parents | kept_keys | {keys: Place(origin)} | {keys + k: p for k, p in new.keys.items()},
        values=parents | kept_values | {keys + k: p for k, p in new.values.items()},
        inputs={**document.inputs, origin: text.encode()},
        problems=(*(p for p in document.problems if not _inside(p, keys)), *moved),
    )


def _inside(problem: Problem, keys: Keys) -> bool:
    """Whether an earlier problem lies in what the override replaces."""
    path = dotted(keys)
    return problem.path == path or problem.path.startswith((f"{path}.", f"{path}["))


def _put(tree: object, words: Sequence[str], value: object, origin: str, done: Keys = ()) -> tuple[Keys, object]:
    """The path taken (list positions as integers) and a copy of `tree` with `value` there."""
    if not words:
        return done, value
    word = words[0]
    if isinstance(tree, list):
        if not (word.isdecimal() and int(word) < len(tree)):
            raise Malformed(f"{origin}: {dotted(done)} is a list of {len(tree)}; write a position 0 to {len(tree) - 1} instead of '{word}'")
        keys, child = _put(tree[int(word)], words[1:], value, origin, (*done, int(word)))
        return keys, [child if i == int(word) else old for i, old in enumerate(tree)]
    if tree is not None and not isinstance(tree, Mapping):
        raise Malformed(f"{origin}: {dotted(done)} is {tree!r}, which has no key '{word}'; set {dotted(done)} as a whole")
    inner = dict(tree or {})
    keys, child = _put(inner.get(word), words[1:], value, origin, (*done, word))
    return keys, {**inner, word: child}
