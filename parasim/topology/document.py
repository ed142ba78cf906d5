"""A YAML file, or a mapping, with the place of every value: errors name file:line:column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import Malformed, Unparsable

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where it is built in; marks are the same


@dataclass(frozen=True)
class Document:
    """`data` as read; `name` for messages; `tree` holds the positions, None for a mapping that came from no file."""

    data: Mapping[str, Any]
    name: str
    tree: yaml.Node | None = None

    def at(self, loc: tuple[Any, ...]) -> str:
        """ "file:line:column" of the value at `loc` or of the nearest mapping around it; "name" alone without a file."""
        if self.tree is None:
            return self.name
        node, mark = self.tree, self.tree.start_mark
        for key in loc:
            found = _child(node, key)
            if found is not None:
                node, mark = found
        return f"{self.name}:{mark.line + 1}:{mark.column + 1}"


def _child(node: yaml.Node, key: Any) -> tuple[yaml.Node, yaml.Mark] | None:
    """The value under `key` and where the entry starts."""
    if isinstance(node, yaml.MappingNode):
        return next(((value, name.start_mark) for name, value in node.value if name.value == key), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        return node.value[key], node.value[key].start_mark
    return None


def read(path: Path) -> Document:
    """The YAML mapping in `path`. Raises `Malformed` for a missing file, `Unparsable` for bad syntax, an empty file or no mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Unparsable(f"{path}:1:1: is not text in UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise Malformed(f"{path}: cannot be read: {error.strerror}") from None
    try:
        loader = _Loader(text)
        tree = loader.get_single_node()
        data = None if tree is None else loader.construct_document(tree)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"
        raise Unparsable(f"{path}:{where}: is not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise Unparsable(f"{path}:1:1: is not YAML: {' '.join(str(error).split())}") from None
    if data is None:
        raise Unparsable(f"{path}:1:1: is empty; a mapping of keys is due")
    if not isinstance(data, dict):
        raise Unparsable(f"{path}:1:1: holds a {type(data).__name__}, a mapping of keys is due")
    return Document(data, str(path), tree)
