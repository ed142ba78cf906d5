"""config.json files written after the published values, imported: the published counts, and the catalog's model of the same name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from parasim.errors import Malformed, Refused, Unparsable
from parasim.model.catalog import catalog, load_model
from parasim.model.layers import active_parameters, parameters
from parasim.model.spec import Model, Transformer

DATA = Path(__file__).parents[1] / "data" / "models"
# parameters of the published weights, billions active per token as printed; qwen1.5-moe: 14,315,784,192 with the gates of its shared experts,
# 2048 weights in each of 24 layers, which are left out
PUBLISHED: dict[str, tuple[int | None, float | None]] = {
    "gpt2": (124_439_808, None),
    "mistral-7b": (7_241_732_096, None),
    "mixtral-8x7b": (46_702_792_704, 12.9),
    "llama3.1-8b": (8_030_261_248, None),
    "llama3.1-70b": (70_553_706_496, None),
    "llama3.1-405b": (405_853_388_800, None),
    "qwen2.5-72b": (72_706_203_648, None),
    "qwen2.5-0.5b": (494_032_768, None),
    "qwen3-8b": (8_190_735_360, None),
    "qwen3-235b-a22b": (235_093_634_560, 22),
    "qwen1.5-moe-a2.7b": (14_315_735_040, 2.7),
    "deepseek-llm-67b": (None, None),
    "deepseek-moe-16b": (16_375_728_128, 2.8),
    "deepseek-v2-lite": (15_706_484_224, 2.66),
    "deepseek-v2": (235_741_434_880, 21),
    "deepseek-v3": (671_026_404_352, 37),
    "gemma-7b": (8_537_680_896, None),
    "gemma2-27b": (27_227_128_320, None),
    "gemma3-27b": (27_009_346_304, None),
    "olmo-7b": (6_888_095_744, None),
    "olmo2-13b": (13_716_198_400, None),
    "phi3-mini": (3_821_079_552, None),
    "yi-34b": (34_388_917_248, None),
    "opt-125m": (125_239_296, None),
}


def imported(name: str) -> Transformer:
    model = load_model(DATA / f"{name}.json")
    assert isinstance(model, Transformer)
    return model


def test_every_file_has_its_row() -> None:
    assert {f.stem for f in DATA.glob("*.json")} == set(PUBLISHED)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_counts(name: str) -> None:
    total, active = PUBLISHED[name]
    model = imported(name)
    assert total is None or parameters(model) == total
    assert active is None or active_parameters(model) / 1e9 == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize("name", sorted(set(PUBLISHED) & set(catalog())))
def test_the_catalog_agrees(name: str) -> None:
    def shape(model: Model) -> Model:
        assert isinstance(model, Transformer)
        same = {"ffn": 0} if model.experts and not model.experts.dense_layers else {}  # no layer uses the dense width
        return replace(model, name="", notes=(), **same)  # type: ignore[arg-type]

    assert shape(imported(name)) == shape(catalog()[name])


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("mistral-7b", "sliding window of 4096"),
        ("gemma2-27b", "soft caps"),
        ("gemma3-27b", "vision encoder"),
        ("deepseek-v3", "multi-token prediction"),
        ("phi3-mini", "sliding window of 2047"),
        ("qwen1.5-moe-a2.7b", "gate of the shared expert"),
    ],
)
def test_what_is_left_out_is_said(name: str, note: str) -> None:
    assert any(note in text for text in imported(name).notes)


def test_a_window_that_is_not_used_is_not_said() -> None:
    assert imported("qwen2.5-72b").notes == imported("mixtral-8x7b").notes == ()


def changed(folder: Path, name: str, **change: object) -> Path:
    config = json.loads((DATA / f"{name}.json").read_text()) | change
    file = folder / f"{name}.json"
    file.write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))
    return file


@pytest.mark.parametrize(
    ("name", "key", "attribute", "value"),
    [
        ("mistral-7b", "num_key_value_heads", "kv_heads", 8),
        ("qwen3-8b", "head_dim", "head_dim", 128),
        ("gemma-7b", "head_dim", "head_dim", 256),
        ("gpt2", "n_positions", "max_positions", 1024),
        ("llama3.1-8b", "num_key_value_heads", "kv_heads", 32),
    ],
)
def test_absent_keys_are_the_defaults_of_their_class(tmp_path: Path, name: str, key: str, attribute: str, value: int) -> None:
    assert getattr(load_model(changed(tmp_path, name, **{key: "absent"})), attribute) == value


def test_dense_first_layers_and_every_other(tmp_path: Path) -> None:
    a = load_model(changed(tmp_path, "qwen3-235b-a22b", mlp_only_layers=[0, 1]))
    assert isinstance(a, Transformer) and [a.sparse(n) for n in range(4)] == [False, False, True, True]
    b = load_model(changed(tmp_path, "qwen3-235b-a22b", decoder_sparse_step=2))
    assert isinstance(b, Transformer) and [b.sparse(n) for n in range(4)] == [False, True, False, True]


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("gpt2", {"n_embd": "absent", "n_head": "absent"}, Unparsable, "lacks n_embd, n_head"),
        ("deepseek-moe-16b", {"n_routed_experts": "absent"}, Unparsable, "lacks n_routed_experts"),
        ("mixtral-8x7b", {"num_local_experts": "eight"}, Malformed, "num_local_experts=eight: must be a whole number"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, Refused, r"experts\.topk=9 must not exceed experts\.count=8"),
        ("mixtral-8x7b", {"model_type": "absent"}, Unparsable, "lacks model_type, and num_local_experts"),
        ("qwen3-235b-a22b", {"mlp_only_layers": [5]}, Refused, "only the first layers may be dense"),
        ("deepseek-v2", {"moe_layer_freq": 2}, Refused, "moe_layer_freq=2 cannot be imported; legal: 1"),
        ("llama3.1-8b", {"model_type": "gpt_neox"}, Refused, "parallel residual"),
        ("llama3.1-8b", {"model_type": "qwen3moe"}, Refused, "nearest: .*qwen3_moe"),
        ("llama3.1-8b", {"model_type": 3}, Malformed, "model_type=3: must be a name"),
        ("opt-125m", {"word_embed_proj_dim": 512}, Refused, "must equal hidden_size=768"),
    ],
)
def test_what_cannot_be_imported(tmp_path: Path, name: str, change: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_model(changed(tmp_path, name, **change))


def test_a_key_written_twice(tmp_path: Path) -> None:
    file = tmp_path / "twice.json"
    file.write_text('{"model_type": "llama", "hidden_size": 8, "hidden_size": 16}')
    with pytest.raises(Malformed, match="key 'hidden_size' is written twice"):
        load_model(file)


def test_without_a_model_type_a_dense_config_is_llamas(tmp_path: Path) -> None:
    model = load_model(changed(tmp_path, "llama3.1-8b", model_type="absent"))
    assert isinstance(model, Transformer) and parameters(model) == 8_030_261_248
    assert model.notes == ("config.json has no model_type: read as llama",)
