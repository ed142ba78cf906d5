"""A model written as a mapping (inline, in a .yaml file or in the catalog) -> a spec, with every wrong key and value named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, get_args

from ..errors import Malformed, Refused, Unparsable, Violation
from ..units import parse
from ..words import nearest
from .spec import GATED, Activation, Experts, Fixed, Latent, Mlp, Model, Transformer

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


def bias(value: object) -> bool | str:
    """Reader of which linear layers have biases."""
    return value if isinstance(value, bool) else choice("qkv", "attention", "mlp")(value)


def texts(value: object) -> tuple[str, ...]:
    """Reader of a list of sentences."""
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
        raise Malformed("must be a list of texts")
    return tuple(value)


def block(kind: type[Any], fields: Mapping[str, Field]) -> Parser:
    """Reader of a mapping with `fields` as a `kind`."""

    def read(value: object) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, Mapping):
            raise Malformed(f"must be a mapping with {', '.join(fields)}")
        values, wrong, missing = _read(fields, value)
        wrong = [f"unknown key '{k}'; {nearest(str(k), fields)}" for k in value if k not in fields] + wrong
        if wrong or missing:
            raise Malformed("; ".join([*wrong, *([f"lacks {', '.join(missing)}"] if missing else [])]))
        return kind(**values)

    return read


def _read(fields: Mapping[str, Field], mapping: Mapping[str, object]) -> tuple[dict[str, Any], list[str], list[str]]:
    """(values of all fields, what is wrong with them, keys that are missing)."""
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for key, field in fields.items():
        try:
            values[key] = field.read(mapping[key]) if mapping.get(key) is not None else field.default
        except Malformed as error:
            wrong.append(f"{key}={mapping[key]}: {error}")
    return values, wrong, [key for key, value in values.items() if value is REQUIRED]


def word(value: object) -> str:
    """Reader of a name."""
    if not isinstance(value, str) or not value:
        raise Malformed("must be a name")
    return value


SECONDS, BYTES = quantity("seconds"), quantity("bytes")

EXPERTS = {
    "count": Field(count()),
    "topk": Field(count()),
    "ffn": Field(count()),
    "shared_ffn": Field(count(0), 0),
    "dense_layers": Field(count(0), 0),
    "every": Field(count(), 1),
    "score": Field(choice("softmax", "sigmoid"), "softmax"),
}
LATENT = {
    "kv_rank": Field(count()),
    "query_rank": Field(count(0), 0),
    "nope_dim": Field(count()),
    "rope_dim": Field(count()),
    "value_dim": Field(count()),
}
FIELDS: dict[str, dict[str, Field]] = {
    "transformer": {
        "layers": Field(count()),
        "hidden": Field(count()),
        "heads": Field(count()),
        "vocab": Field(count()),
        "kv_heads": Field(count(), None),
        "head_dim": Field(count(), None),
        "ffn": Field(count(), None),
        "activation": Field(choice(*get_args(Activation)), "swiglu"),
        "norm": Field(choice("layer_norm", "rms_norm"), None),
        "bias": Field(bias, False),
        "positions": Field(choice("learned", "rotary", "alibi", "none"), "rotary"),
        "max_positions": Field(count(0), 0),
        "tied": Field(flag, False),
        "norm_weights": Field(choice("all", "scale", "none"), "all"),
        "norm_at": Field(choice("pre", "post", "both"), "pre"),
        "qk_norm": Field(choice("none", "head", "full"), "none"),
        "experts": Field(block(Experts, EXPERTS), None),
        "latent": Field(block(Latent, LATENT), None),
        "notes": Field(texts, ()),
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
        "saved": Field(BYTES, 0),
    },
}
FREE_KEYS = ("kind", "name", "source")


def read_model(mapping: Mapping[str, object], at: str, name: str = "") -> Model:
    """The spec that `mapping` describes; `at` (a file, or the field that holds it) opens every message.

    Defaults: kv_heads = heads, head_dim = hidden / heads, ffn = 4 hidden (mlp) or 8/3 hidden rounded up to a multiple of 256 with a gated
    activation (Touvron et al. 2023, section 2.2), norm = rms_norm with a gated activation and layer_norm without, kind = transformer.
    Raises `Unparsable` when keys are missing, `Malformed` for unknown keys and wrong values (all at once), `Refused` for sizes that do not divide.
    """
    kind = str(mapping.get("kind", "transformer"))
    if kind not in FIELDS:
        raise Malformed(f"{at}: kind={kind} is no kind of model; {nearest(kind, FIELDS)}")
    fields = FIELDS[kind]
    wrong = [
        f"{at}: unknown key '{key}' in a model of kind {kind}; {nearest(str(key), fields)}" for key in mapping if key not in fields and key not in FREE_KEYS
    ]
    values, ill, missing = _read(fields, mapping)
    wrong += [f"{at}: {text}" for text in ill]
    if wrong:
        raise Malformed("\n".join(wrong))
    if missing:
        raise Unparsable(f"{at}: a model of kind {kind} lacks {', '.join(missing)}")
    return BUILDERS[kind](str(mapping.get("name") or name or kind), values, at)


def _transformer(name: str, values: dict[str, Any], at: str) -> Model:
    hidden, heads, gated = values["hidden"], values["heads"], values["activation"] in GATED
    if values["head_dim"] is None and hidden % heads and values["latent"] is None:
        legal = [h for h in range(1, 4 * heads) if hidden % h == 0]
        near = sorted(legal, key=lambda h: abs(h - heads))[:3]
        raise Refused([Violation("heads", str(heads), f"must divide hidden={hidden} unless head_dim is given", f"{at}; nearest: {near}")])
    values["head_dim"] = values["head_dim"] or max(1, hidden // heads)
    values["kv_heads"] = values["kv_heads"] or heads
    values["ffn"] = values["ffn"] or (-(-8 * hidden // 3 // 256) * 256 if gated else 4 * hidden)
    values["norm"] = values["norm"] or ("rms_norm" if gated else "layer_norm")
    if heads % values["kv_heads"]:
        legal = [k for k in range(1, heads + 1) if heads % k == 0]
        raise Refused([Violation("kv_heads", str(values["kv_heads"]), f"must divide heads={heads}", f"{at}; legal: {legal}")])
    if values["positions"] == "learned" and not values["max_positions"]:
        raise Unparsable(f"{at}: positions=learned lacks max_positions, the rows of the position table")
    model = Transformer(name=name, **values)
    broken = list(_combinations(model, at))
    if broken:
        raise Refused(broken)
    return model


def _combinations(model: Transformer, at: str) -> Iterator[Violation]:
    """Features that do not go together."""
    experts, latent = model.experts, model.latent
    if experts and experts.topk > experts.count:
        yield Violation("experts.topk", str(experts.topk), f"must not exceed experts.count={experts.count}", f"{at}; legal: 1 to {experts.count}")
    if experts and not any(experts.at(n) for n in range(model.layers)):
        rule = f"leaves none of layers={model.layers} with experts (experts.every={experts.every})"
        yield Violation("experts.dense_layers", str(experts.dense_layers), rule, f"{at}; at most {max(0, model.layers - experts.every)}")
    if experts and model.biased("up"):
        yield Violation("bias", str(model.bias).lower(), "experts have no biases", f"{at}; legal: false, qkv, attention")
    if latent and model.positions != "rotary":
        yield Violation("positions", model.positions, "latent attention has rotary positions", f"{at}; legal: rotary")
    if latent and (model.biased("qkv") or model.qk_norm != "none" or model.kv_heads != model.heads):
        yield Violation("latent", "given", "goes with no biases of attention, qk_norm=none and kv_heads=heads", f"{at}; leave them out")
    if model.norm_at != "pre" and (model.biased("out") or model.biased("down")):
        yield Violation("norm_at", model.norm_at, f"is not supported with bias={str(model.bias).lower()}", f"{at}; legal: pre")


def _mlp(name: str, values: dict[str, Any], at: str) -> Model:
    return Mlp(name=name, layers=values["layers"], hidden=values["hidden"], ffn=values["ffn"] or 4 * values["hidden"])


def _fixed(name: str, values: dict[str, Any], at: str) -> Model:
    return Fixed(name=name, **(values | {name: int(values[name]) for name in ("boundary", "saved")}))


BUILDERS: dict[str, Callable[[str, dict[str, Any], str], Model]] = {"transformer": _transformer, "mlp": _mlp, "fixed": _fixed}
