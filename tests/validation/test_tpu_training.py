"""Training steps on TPUs as runs: slices, sharding, rematerialisation, measured numbers, defaults that are said; no row stops the table."""

from __future__ import annotations

import random
from typing import Any

import pytest

from parasim.config import build
from parasim.errors import ParasimError
from parasim.model.layers import model_flops
from parasim.model.schema import read_model
from validation.predict import DATA
from validation.row_model import count
from validation.rows import Case, NotModelled, read_rows, to_case
from validation.tpu_training import usual_shape

ROWS = {row["id"]: row for row in read_rows(DATA / "fit" / "tpu.jsonl")}


def row(number: int, **changes: Any) -> dict[str, Any]:
    return ROWS[f"tpu-{number:04}"] | changes


def case(number: int, **changes: Any) -> Case:
    return to_case(row(number, **changes))


def config(number: int, **changes: Any) -> Case:
    return to_case(row(number, config=row(number)["config"] | changes))


def test_every_training_row_with_its_sizes_is_a_run() -> None:
    reasons = {}
    for name, found in ROWS.items():
        try:
            built = build(dict(to_case(found).run))
            assert built.devices == found["chips"] and built.cluster.accelerator.kind == "tpu"
        except NotModelled as reason:
            reasons[name] = str(reason)
    refused = [name for name in reasons if ROWS[name]["kind"] == "train"]
    assert refused == ["tpu-0022"] and "V100 is no TPU" in reasons["tpu-0022"]
    assert all("`python -m validation tpu`" in reasons[name] for name in reasons if ROWS[name]["kind"] == "micro") and len(reasons) == 39


def test_slices_share_parameters_inside_and_replicate_over_the_network() -> None:
    found = case(2)  # two slices of 256: fsdp=-1 (256), data=2; 2 sequences per chip
    assert found.run["parallel"] == {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp": 512} and found.run["zero"] == {"stage": 3, "shard": 256}
    assert found.run["batch"] == {"global": 1024, "micro": 2, "sequence": 2048} and found.run["recompute"] == {"modules": "full"}
    assert found.run["dp"] == {"mode": "flat"} and "dp" not in case(1).run
    assert found.run["cluster"] == {"base": "tpu-v5e", "accelerator": "tpu-v5e", "torus": {"shapes": "16x16", "slices": 2}}
    assert (found.stack, found.profile, found.family) == ("maxtext-tpu", "tpu-maxtext", "tpu")
    assert [(q.name, q.value) for q in found.measured] == [("step_time_s", 14.194)]
    assert count(found.run["model"]) == pytest.approx(62801313792, rel=1e-4)  # as published


def test_tensor_lies_along_an_axis_and_cuts_the_sequence() -> None:
    found = case(10)  # fsdp=-1 (64),tensor=16, two slices of 1024
    assert found.run["parallel"] == {"tp": 16, "pp": 1, "cp": 1, "ep": 1, "dp": 128} and found.run["zero"]["shard"] == 64
    assert found.run["tensor"] == {"sequence_parallel": True, "async": True} and found.run["cluster"]["torus"] == {"shapes": "16x8x8", "slices": 2}
    assert found.run["batch"]["micro"] == 4096 // 128
    assert case(7).run["recompute"] == {"modules": ["layernorm", "core_attn", "act"]}  # minimal: products are kept


@pytest.mark.parametrize(
    ("chips", "axes", "shape"),
    [(8, 2, (2, 4)), (256, 2, (16, 16)), (64, 3, (4, 4, 4)), (2048, 3, (8, 16, 16)), (16, 3, (2, 2, 4)), (8960, 3, (16, 20, 28)), (1, 2, (1, 1))],
)
def test_usual_shapes(chips: int, axes: int, shape: tuple[int, ...]) -> None:
    """8960 chips are a whole pod of v5p, 16x20x28."""
    assert usual_shape(chips, axes) == shape


def test_two_cores_of_a_chip_are_one_device() -> None:
    found = case(15)  # Ironwood: fsdp 256 x data 2 over the 512 cores of 256 chips; 16 sequences per core
    assert found.run["devices"] == 256 and found.run["parallel"]["dp"] == 256 and found.run["zero"] == {"stage": 3, "shard": 256}
    assert found.run["batch"] == {"global": 8192, "micro": 32, "sequence": 4096}
    alone = row(14)
    for key in ("global_batch", "global_batch_tokens", "tokens_per_chip"):
        del alone[key]
    assert to_case(alone).run["batch"]["global"] == 16 * 2 * 64  # from per_device_batch
    cut = config(14, ici_fsdp_parallelism="16", ici_tensor_parallelism=4, ici_context_parallelism=2).run["parallel"]
    assert (cut["tp"], cut["cp"], cut["dp"]) == (4, 2, 8)
    assert config(16, ici_expert_parallelism=4).run["parallel"]["ep"] == 4


def test_experts() -> None:
    qwen = case(16).run["model"]
    assert qwen["experts"] | {"count": 128, "topk": 8, "ffn": 1536} == qwen["experts"] and qwen["qk_norm"] == "head"  # completed by the catalog
    gemma = case(14).run["model"]
    assert gemma["experts"]["shared_ffn"] == 2112 and gemma["activation"] == "geglu" and gemma["tied"]
    padded = case(20)
    assert padded.run["model"]["experts"]["topk"] == 3 and any("capacity of 1.5" in note for note in padded.assumptions)


def test_measured_numbers() -> None:
    """From an MFU: FLOPs with full attention / (chips x peak x MFU)."""
    found = case(19)
    flops = model_flops(read_model(found.run["model"], "model"), 256 * 8192, 2048)
    assert found.measured[0].value == pytest.approx(flops / (256 * 918e12 * 0.498), rel=1e-9) and "full attention" in found.measured[0].note
    rate = row(13)
    del rate["step_time_s"]
    assert to_case(rate).measured[0].value == pytest.approx(393216 / (8 * 7776.813))
    assert any("sequence not published: 2048" in note for note in found.assumptions)


def test_rematerialisation_keeps_what_its_policy_names() -> None:
    assert case(13).run["recompute"] == {"modules": ["layernorm", "core_attn", "mlp"]}  # queries, keys, values and out_proj are offloaded
    assert config(13, remat_policy="qkv_proj_offloaded").run["recompute"] == {"modules": ["layernorm", "core_attn", "proj", "mlp"]}
    assert config(16, mlpwi="device").run["recompute"] == {"modules": ["layernorm", "qkv", "core_attn", "proj", "moe_act"]}
    assert case(1, remat="what").run["recompute"] == {"modules": "full"} and case(1, remat="none").run["recompute"] == {"modules": "none"}


def test_other_spellings_and_accelerators() -> None:
    dims = {
        "base_emb_dim": 8192,
        "base_num_query_heads": 64,
        "base_num_kv_heads": 8,
        "base_mlp_dim": 28672,
        "base_num_decoder_layers": 80,
        "vocab_size": 128256,
    }
    llama = case(1, model="llama3-70b", model_dims=dims).run["model"]
    assert (llama["layers"], llama["kv_heads"], llama["vocab"], llama["activation"]) == (80, 8, 128256, "swiglu")
    assert case(1, accelerator="TPU v5e", dtype="bf16").assumptions == ()
    old = case(7, accelerator="TPU v4", slice="v4-128", peak_tflops=275)
    assert old.run["cluster"]["base"] == "tpu-v4" and "transferred" in old.assumptions[0]
    few = case(1, per_device_batch=0.5, tokens_per_chip=1024, global_batch_tokens=262144)
    assert few.run["parallel"] == {"tp": 1, "pp": 1, "cp": 2, "ep": 1, "dp": 128} and few.run["zero"]["shard"] == 128


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_dims": None}, "not published: model_dims"),
        ({"model_dims": {}}, "not published: layers"),
        ({"chips": None, "slice": None, "topology": None}, "not published: chips"),
        ({"chips": 1e6}, "more than"),
        ({"model_dims": {"layers": 1e6, "hidden": 64, "heads": 1}}, "layers 1e.06 are more than 4096"),
        ({"dtype": "fp8_full"}, "no rate of 8-bit products"),
        ({"dtype": "int4"}, "dtype int4 is not modelled"),
        ({"ici_sharding": "fsdp=-1,tensor=7"}, "does not divide 256"),
        ({"ici_sharding": "diloco=4"}, "over diloco"),
        ({"accelerator": "TPU v99"}, "no TPU that is known"),
        ({"kind": "micro"}, "validation tpu"),
        ({"step_time_s_derived": None, "mfu_pct": None, "tflops_per_chip": None}, "nothing that is predicted"),
        ({"per_device_batch": None, "tokens_per_chip": None, "global_batch_tokens": None}, "not published: the batch"),
    ],
)
def test_reasons(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotModelled, match=reason):
        case(1, **changes)


STRANGE: tuple[Any, ...] = (None, 0, -1, 3, 0.5, 1e300, float("nan"), True, "", "x", "-1", "16", [], [3], {}, {"x": None}, {"tensor": 2})


def test_no_row_stops_the_table() -> None:
    """A row with any field absent, null or of a strange type is a run that parasim takes or refuses, or has a reason."""
    draw = random.Random(11)
    train = [found for found in ROWS.values() if found["kind"] == "train" and found.get("chips", 0) <= 256]
    runs = 0
    for attempt in range(400):
        tried = {key: dict(value) if isinstance(value, dict) else value for key, value in draw.choice(train).items()}
        for _ in range(draw.choice((1, 1, 2, 4))):
            where = draw.choice([tried, *(value for value in tried.values() if isinstance(value, dict) and value)])
            name = draw.choice([key for key in where if key != "id"])
            if draw.random() < 0.3:
                del where[name]
            else:
                where[name] = draw.choice(STRANGE)
        try:
            run = to_case(tried).run
            runs += 1
            if attempt % 20 == 0:
                build(dict(run))
        except (NotModelled, ParasimError) as reason:
            assert str(reason)
    assert runs > 100
