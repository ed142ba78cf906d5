"""Names, files and inline mappings -> models; every refusal names what is wrong and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parasim.errors import Malformed, Refused, Unparsable
from parasim.model.catalog import catalog, load_model
from parasim.model.hf import REQUIRED
from parasim.model.layers import parameters
from parasim.model.spec import Fixed, Mlp, Transformer

LLAMA3_8B = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}


def write(folder: Path, config: object, name: str = "config.json") -> str:
    folder.joinpath(name).write_text(config if isinstance(config, str) else json.dumps(config))
    return name


def test_catalog_names() -> None:
    assert set(catalog()) >= {"gpt3-175b", "megatron-22b", "llama3-8b", "llama3-70b", "llama3-405b"}
    assert load_model("llama3-8b", Path()) is catalog()["llama3-8b"]
    assert all(model.name == name for name, model in catalog().items())


def test_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(Malformed, match=r"llama3-70\b.*nearest: llama3-70b"):
        load_model("llama3-70", Path())


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match=r"no such file.*nowhere\.json"):
        load_model("nowhere.json", tmp_path)


def test_hf_config_equals_the_catalog(tmp_path: Path) -> None:
    model = load_model(write(tmp_path, LLAMA3_8B), tmp_path)
    assert isinstance(model, Transformer)
    assert parameters(model) == 8_030_261_248
    assert (model.kv_heads, model.head_dim, model.tied, model.bias, model.activation) == (8, 128, False, False, "swiglu")
    assert load_model(tmp_path, Path()) == model  # a folder that holds config.json


def test_hf_optional_keys(tmp_path: Path) -> None:
    config = LLAMA3_8B | {"head_dim": 64, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}
    del config["num_key_value_heads"]
    model = load_model(write(tmp_path, config), tmp_path)
    assert isinstance(model, Transformer)
    assert (model.kv_heads, model.head_dim, model.tied, model.bias) == (32, 64, True, True)
    # h 3 heads d + heads d h + 3 h f, a bias per column, two norms; one table of V h, one final norm
    layer = 4096 * 6144 + 2048 * 4096 + 3 * 4096 * 14336 + (6144 + 4096 + 2 * 14336 + 4096) + 2 * 4096
    assert parameters(model) == 128256 * 4096 + 32 * layer + 4096


@pytest.mark.parametrize("key", sorted(REQUIRED))
def test_hf_missing_key_is_named(tmp_path: Path, key: str) -> None:
    config = {k: v for k, v in LLAMA3_8B.items() if k != key}
    with pytest.raises(Unparsable, match=rf"config\.json: lacks {key}$"):
        load_model(write(tmp_path, config), tmp_path)


def test_hf_all_missing_keys_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(Unparsable) as caught:
        load_model(write(tmp_path, {"model_type": "llama"}), tmp_path)
    assert all(key in str(caught.value) for key in REQUIRED)


@pytest.mark.parametrize(("text", "message"), [("", "is empty"), ("  \n", "is empty"), ("{\n 'a'", ":2:2: is not JSON"), ("[1]", "mapping")])
def test_broken_json(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Unparsable, match=message):
        load_model(write(tmp_path, text), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_local_experts": 8}, "num_local_experts=8 cannot be imported: model_type=llama has no experts"),
        ({"model_type": "falcon"}, "parallel residual"),
        ({"model_type": "lama"}, "nearest: .*llama"),
        ({"hidden_act": "tanh"}, "hidden_act=tanh cannot be imported; legal: silu"),
        ({"num_key_value_heads": 5}, "must divide heads=32"),
    ],
)
def test_hf_other_shapes_are_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    with pytest.raises(Refused, match=message):
        load_model(write(tmp_path, LLAMA3_8B | change), tmp_path)


def test_hf_biases_on_some_layers(tmp_path: Path) -> None:
    for change, bias in (({"attention_bias": True}, "attention"), ({"mlp_bias": True}, "mlp")):
        model = load_model(write(tmp_path, LLAMA3_8B | change), tmp_path)
        assert isinstance(model, Transformer) and model.bias == bias


@pytest.mark.parametrize(("key", "value"), [("hidden_size", -1), ("num_hidden_layers", 2.5), ("vocab_size", "many"), ("mlp_bias", "no")])
def test_hf_wrong_values(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(Malformed, match=f"{key}={value}"):
        load_model(write(tmp_path, LLAMA3_8B | {key: value}), tmp_path)


def test_inline_transformer_defaults() -> None:
    model = load_model({"kind": "transformer", "layers": 2, "hidden": 64, "heads": 4, "vocab": 100}, Path())
    # 8/3 64 = 170.7, rounded up to a multiple of 256
    assert model == Transformer("transformer", layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=256, vocab=100)
    gelu = load_model({"kind": "transformer", "layers": 2, "hidden": 64, "heads": 4, "vocab": 100, "activation": "gelu"}, Path())
    assert isinstance(gelu, Transformer) and gelu.ffn == 256 and gelu.norm == "layer_norm"


def test_inline_mlp_and_fixed() -> None:
    assert load_model({"kind": "mlp", "layers": 2, "hidden": 8}, Path()) == Mlp("mlp", layers=2, hidden=8, ffn=32)
    fixed = load_model(
        {"kind": "fixed", "layers": 8, "forward": "10 ms", "input_grad": "10 ms", "weight_grad": "5 ms", "parameters": "7.5e9", "boundary": "1 MB"},
        Path(),
    )
    assert fixed == Fixed("fixed", 8, forward=0.01, input_grad=0.01, weight_grad=0.005, parameters=7_500_000_000, boundary=1_000_000)


@pytest.mark.parametrize(
    ("mapping", "error", "message"),
    [
        ({"kind": "transformr"}, Malformed, "nearest: transformer"),
        ({"kind": "mlp", "layers": 2, "hiden": 8}, Malformed, "unknown key 'hiden'.*nearest: hidden"),
        ({"kind": "mlp"}, Unparsable, "lacks layers, hidden"),
        ({"kind": "mlp", "layers": 0, "hidden": 8}, Malformed, "layers=0: must be a whole number, 1 or more"),
        ({"kind": "fixed", "layers": 1, "forward": 10, "input_grad": "1 s", "weight_grad": "1 s"}, Malformed, "forward=10: 10 has no unit"),
        ({"kind": "transformer", "layers": 1, "hidden": 10, "heads": 3, "vocab": 9}, Refused, "heads=3 must divide hidden=10"),
        ({"kind": "transformer", "layers": 1, "hidden": 8, "heads": 2, "vocab": 9, "positions": "learned"}, Unparsable, "max_positions"),
        ({"kind": "transformer", "layers": 1, "hidden": 8, "heads": 2, "vocab": 9, "tied": "yes"}, Malformed, "tied=yes: must be true or false"),
    ],
)
def test_inline_errors(mapping: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_model(mapping, Path())


def test_model_yaml(tmp_path: Path) -> None:
    name = write(tmp_path, "kind: mlp\nlayers: 4\nhidden: 16\nffn: 64\n", "small.yaml")
    assert load_model(name, tmp_path) == Mlp("small", layers=4, hidden=16, ffn=64)
    with pytest.raises(Unparsable, match=r"bad\.yaml:2:\d+: not valid YAML"):
        load_model(write(tmp_path, "kind: {mlp\n", "bad.yaml"), tmp_path)
