"""A model written as a mapping (inline, in a .yaml file or in the catalog) -> a spec, with every wrong key and value named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..errors import Malformed, Refused, Unparsable, Violation
from ..units import parse
from ..words import nearest
from .spec import Fixed, Mlp, Model, Transformer

Parser = Callable[[object], Any]
REQUIRED = object()


class Field(NamedTuple):
    """How a key is read, and what it is when absent."""

    read: Parser
    default: object = REQUIRED


def count(minimum: int = 1) -> Parser:
    """Reader of a whole number of at least `minimum`; `7.5e9` is one, also as text."""

    def read(value: object) -> int:
        try:
            number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else float("nan")
        except ValueError:
            number = float("nan")
        if not number.is_integer() or number < minimum:
            raise Malformed(f"must be a whole number, {minimum} or more")
        return int(str(value)) if str(value).isdecimal() else int(number)

    return read


def choice(*names: str) -> Parser:
    """Reader of one of `names`."""

    def read(value: object) -> str:
        if value not in names:
            raise Malformed(f"is no legal value; {nearest(str(value), names)}")
        return str(value)

    return read


def quantity(dimension: Any) -> Parser:
    """Reader of a quantity with its unit, in SI."""
    return lambda value: parse(value, dimension)


def flag(value: object) -> bool:
    """Reader of true or false."""
    if not isinstance(value, bool):
        raise Malformed("must be true or false")
    return value


def word(value: object) -> str:
    """Reader of a name."""
    if not isinstance(value, str) or not value:
        raise Malformed("must be a name")
    return value


SECONDS, BYTES = quantity("seconds"), quantity("bytes")

FIELDS: dict[str, dict[str, Field]] = {
    "transformer": {
        "layers": Field(count()),
        "hidden": Field(count()),
        "heads": Field(count()),
        "vocab": Field(count()),
        "kv_heads": Field(count(), None),
        "head_dim": Field(count(), None),
        "ffn": Field(count(), None),
        "activation": Field(choice("gelu", "swiglu"), "swiglu"),
        "norm": Field(choice("layer_norm", "rms_norm"), None),
        "bias": Field(flag, False),
        "positions": Field(choice("learned", "rotary"), "rotary"),
        "max_positions": Field(count(0), 0),
        "tied": Field(flag, False),
    },
    "mlp": {"layers": Field(count()), "hidden": Field(count()), "ffn": Field(count(), None)},
    "fixed": {
        "layers": Field(count()),
        "forward": Field(SECONDS),
        "input_grad": Field(SECONDS),
        "weight_grad": Field(SECONDS),
        "optimizer": Field(SECONDS, 0.0),
        "parameters": Field(count(0), 0),
        "boundary": Field(BYTES, 0),
    },
}
FREE_KEYS = ("kind", "name", "source")


def read_model(mapping: Mapping[str, object], at: str, name: str = "") -> Model:
    """The spec that `mapping` describes; `at` (a file, or the field that holds it) opens every message.

    Defaults: kv_heads = heads, head_dim = hidden / heads, ffn = 4 hidden (gelu, mlp) or 8/3 hidden rounded up to a multiple of 256
    (swiglu; Touvron et al. 2023, section 2.2), norm = rms_norm with swiglu and layer_norm with gelu, kind = transformer.
    Raises `Unparsable` when keys are missing, `Malformed` for unknown keys and wrong values (all at once), `Refused` for sizes that do not divide.
    """
    kind = str(mapping.get("kind", "transformer"))
    if kind not in FIELDS:
        raise Malformed(f"{at}: kind={kind} is no kind of model; {nearest(kind, FIELDS)}")
    fields = FIELDS[kind]
    wrong = [
        f"{at}: unknown key '{key}' in a model of kind {kind}; {nearest(str(key), fields)}" for key in mapping if key not in fields and key not in FREE_KEYS
    ]
    values: dict[str, Any] = {}
    for key, field in fields.items():
        try:
            values[key] = field.read(mapping[key]) if mapping.get(key) is not None else field.default
        except Malformed as error:
            wrong.append(f"{at}: {key}={mapping[key]}: {error}")
    if wrong:
        raise Malformed("\n".join(wrong))
    missing = [key for key, value in values.items() if value is REQUIRED]
    if missing:
        raise Unparsable(f"{at}: a model of kind {kind} lacks {', '.join(missing)}")
    return BUILDERS[kind](str(mapping.get("name") or name or kind), values, at)


def _transformer(name: str, values: dict[str, Any], at: str) -> Model:
    hidden, heads, gelu = values["hidden"], values["heads"], values["activation"] == "gelu"
    if values["head_dim"] is None and hidden % heads:
        legal = [h for h in range(1, 4 * heads) if hidden % h == 0]
        near = sorted(legal, key=lambda h: abs(h - heads))[:3]
        raise Refused([Violation("heads", str(heads), f"must divide hidden={hidden} unless head_dim is given", f"{at}; nearest: {near}")])
    values["head_dim"] = values["head_dim"] or hidden // heads
    values["kv_heads"] = values["kv_heads"] or heads
    values["ffn"] = values["ffn"] or (4 * hidden if gelu else -(-8 * hidden // 3 // 256) * 256)
    values["norm"] = values["norm"] or ("layer_norm" if gelu else "rms_norm")
    if heads % values["kv_heads"]:
        legal = [k for k in range(1, heads + 1) if heads % k == 0]
        raise Refused([Violation("kv_heads", str(values["kv_heads"]), f"must divide heads={heads}", f"{at}; legal: {legal}")])
    if values["positions"] == "learned" and not values["max_positions"]:
        raise Unparsable(f"{at}: positions=learned lacks max_positions, the rows of the position table")
    return Transformer(name=name, **values)


def _mlp(name: str, values: dict[str, Any], at: str) -> Model:
    return Mlp(name=name, layers=values["layers"], hidden=values["hidden"], ffn=values["ffn"] or 4 * values["hidden"])


def _fixed(name: str, values: dict[str, Any], at: str) -> Model:
    return Fixed(name=name, **(values | {"boundary": int(values["boundary"])}))


BUILDERS: dict[str, Callable[[str, dict[str, Any], str], Model]] = {"transformer": _transformer, "mlp": _mlp, "fixed": _fixed}
