"""Published rows -> run files: what is read, what is assumed, what is refused and why; no row of the vocabulary stops the table."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from parasim.config import build
from parasim.errors import Malformed, ParasimError, Unparsable
from validation.row_layout import _balanced
from validation.row_model import count
from validation.rows import NotModelled, read_rows, systems, to_case

FIT = Path(__file__).parents[2] / "validation" / "data" / "fit"


def rows(name: str) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in read_rows(FIT / f"{name}.jsonl")}


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return rows("korthikanti_2022")["korthikanti_2022-0000"]


def change(row: dict[str, Any], block: str, **values: Any) -> dict[str, Any]:
    return row | {block: row[block] | values}


def test_full_recompute_row(plain: dict[str, Any]) -> None:
    case = to_case(plain)
    assert (case.source, case.accelerator, case.stack, case.profile) == ("korthikanti_2022", "A100-80GB-SXM", "megatron-2022", "a100-megatron")
    assert [(q.name, q.value) for q in case.measured] == [("step_time_s", 1.42)]
    run = case.run
    assert run["parallel"] == {"tp": 8, "pp": 1, "cp": 1, "ep": 1, "dp": 1} and run["recompute"] == {"modules": "full"} and run["precision"] == "fp16"
    assert run["batch"] == {"global": 4, "micro": 4, "sequence": 2048} and run["devices"] == 8 and run["tensor"] == {"sequence_parallel": False}
    shape = {key: run["model"][key] for key in ("layers", "hidden", "heads", "ffn", "kv_heads", "vocab", "activation", "norm", "positions", "tied")}
    assert shape == {
        "layers": 48, "hidden": 6144, "heads": 64, "ffn": 24576, "kv_heads": 64, "vocab": 51200,
        "activation": "gelu", "norm": "layer_norm", "positions": "learned", "tied": True,
    }  # fmt: skip


def test_layer_times_are_of_one_microbatch() -> None:
    case = to_case(rows("korthikanti_2022")["korthikanti_2022-0012"])
    assert [(q.name, q.value) for q in case.measured] == [("layer_forward_s", 0.0077), ("layer_backward_s", 0.0195)]  # printed 7.7 and 19.5 ms
    assert case.run["batch"]["global"] == case.run["batch"]["micro"] == 4


def test_what_a_source_does_not_print_is_assumed_and_said() -> None:
    case = to_case(rows("megatron_readme_h100")["megatron_readme_h100-0001"])
    assert case.run["batch"]["micro"] == [1, 2, 4] and case.run["dp"]["mode"] == "bucketed"
    assert case.run["zero"] == {"stage": 1, "overlap_gather": True}  # it prints "overlap: ... param-gather"
    assert case.run["tensor"] == {"sequence_parallel": True, "user_buffers": True}  # and "TP userbuffers"
    wide = change(rows("megatron_readme_h100")["megatron_readme_h100-0001"], "strategy", tp=16, dp=6)
    far = to_case(wide)  # over two servers, which buffers do not reach
    assert far.run["tensor"]["user_buffers"] is False and any("not through user buffers" in note for note in far.assumptions)
    assert any("micro-batch" in note for note in case.assumptions) and any("recompute" in note for note in case.assumptions)


def test_models_of_the_catalog_complete_a_row() -> None:
    nemo = to_case(rows("nemo_docs")["nemo_docs-0004"]).run["model"]  # Llama-2 7B without its activation: a third matrix per layer
    assert nemo["activation"] == "swiglu" and count(nemo) == pytest.approx(6.74e9, rel=0.001)
    bare = change(rows("torchtitan")["torchtitan-0000"], "model", name="Llama 3.1 70B", layers=80, hidden=8192, heads=64, ffn_hidden=28672)
    del bare["model"]["activation"], bare["model"]["kv_heads"], bare["model"]["vocab"]
    model = to_case(bare).run["model"]
    assert (model["kv_heads"], model["vocab"], model["activation"]) == (8, 128256, "swiglu")  # as published for this shape


def test_a_model_is_of_the_catalog_where_its_name_allows_it() -> None:
    """A GPT of the shape of Nemotron-4 15B has keys and values of every head; MPT is what llm-foundry's files train: learned positions, biases, 50368 words."""
    row = rows("megatron_readme_h100")["megatron_readme_h100-0002"]
    gpt, nemotron = (to_case(change(row, "model", name=name, tied_embeddings=False)).run["model"] for name in ("GPT 16B", "Nemotron-4 15B"))
    assert (gpt["kv_heads"], gpt["activation"], nemotron["kv_heads"], nemotron["activation"]) == (48, "gelu", 8, "squared_relu")
    mpt = to_case(change(row, "model", name="MPT-7b", layers=32, hidden=4096, heads=32, ffn_hidden=None, vocab=None)).run["model"]
    assert (mpt["positions"], mpt["bias"], mpt["vocab"]) == ("learned", True, 50368)
    assert to_case(change(row, "model", name="MPT-7b", activation="relu")).run["model"]["activation"] == "relu"  # what is printed holds


def test_published_parameters_say_whether_embedding_and_head_are_one_matrix() -> None:
    """16 billion: 32 layers of 12 x 6144^2 and one vocabulary of 131072 x 6144 are 15.3, two are 16.1. Printed as 15.3 it is one."""
    row = rows("megatron_readme_h100")["megatron_readme_h100-0002"]
    two, one = to_case(row), to_case(change(row, "model", params_b=15.3))
    assert not two.run["model"]["tied"] and any("two matrices" in note for note in two.assumptions)
    assert one.run["model"]["tied"] and to_case(change(row, "model", tied_embeddings=True)).run["model"]["tied"]
    assert count(two.run["model"]) - count(one.run["model"]) == 131072 * 6144


def test_layouts(plain: dict[str, Any]) -> None:
    def run(**strategy: Any) -> Any:
        return to_case(change(plain, "strategy", tp=1, dp=8, global_batch=32, **strategy)).run

    assert run(fsdp="FULL_SHARD")["zero"] == {"stage": 3} and run(fsdp="SHARD_GRAD_OP")["zero"] == {"stage": 2}
    assert run(fsdp=4)["zero"] == {"stage": 3, "shard": 4} and run(fsdp_shard_group=2)["zero"] == {"stage": 3, "shard": 2}
    assert run(zero=1)["zero"] == {"stage": 1} and run(distributed_optimizer=True)["zero"] == {"stage": 1}
    piped = to_case(change(plain, "strategy", tp=1, pp=4, dp=2, global_batch=32, micro_batch=1, schedule="interleaved-1f1b")).run["pipeline"]
    assert piped == {"schedule": "interleaved-1f1b", "chunks": 2, "comm": "async"}  # 48 layers over 8 stages
    later = change(rows("megatron_readme_h100")["megatron_readme_h100-0001"], "model", layers=48)
    piped = to_case(change(later, "strategy", tp=2, pp=4, dp=12, micro_batch=1, schedule="interleaved-1f1b")).run["pipeline"]
    assert piped["chunks"] == 6  # over 24, as its messages are overlapped
    redis = change(plain, "strategy", tp=1, pp=8, dp=1, micro_batch=1, schedule="1f1b", vocab_method="redis")
    layers = to_case(change(redis, "model", vocab=262144)).run["pipeline"]["layers"]
    cut = to_case(change(redis, "strategy", vocab_method="vocab-1")).run["pipeline"]
    assert cut == {"schedule": "1f1b", "vocabulary": "parallel", "comm": "async"}
    assert layers == [7, 7, 7, 6, 6, 6, 6, 3]  # the head is V / 12 h = 3.56 layers: (48 + 3.56) / 8 - 3.56 = 2.9 are left for the last stage


def test_nanotron_deals_out_layers_by_cost() -> None:
    """32 layers of 4 h^2 + 3 h f = 243.3e6 weights, a head of V h = 536.9e6, 2.2 layers: 34.2 / 4 = 8.55 a rank, which takes layers until it passes
    8.55, 17.1, 25.7."""
    found = [to_case(row).run for row in rows("ultrascale_nanotron").values()]
    assert {tuple(r["pipeline"]["layers"]) for r in found if r["parallel"]["pp"] == 4} == {(9, 9, 8, 6)}
    assert {tuple(r["pipeline"]["layers"]) for r in found if r["parallel"]["pp"] == 2} == {(18, 14)}
    # 2.14 a rank: 3, 2, 2, ... and 32 layers are dealt out to 15 ranks; the head stands alone on the last
    assert {tuple(r["pipeline"]["layers"]) for r in found if r["parallel"]["pp"] == 16} == {(3, 2, 2, 2, 2, 2, 2, 3, 2, 2, 2, 2, 2, 2, 2, 0)}
    assert all(r["tensor"]["async"] for r in found if r["parallel"]["tp"] > 1)  # they print tp_async
    small = {"hidden": 2048, "ffn": 8192, "heads": 32, "vocab": 131072}  # a head of 4 layers: (16 + 4) / 8 = 2.5 a rank
    assert _balanced(small, 16, 8) == [0, 3, 3, 2, 3, 2, 3, 0] and _balanced(small, 16, 4) == [6, 5, 5, 0]


def test_a_sequence_that_is_not_published_is_the_usual_one() -> None:
    v100 = change(rows("megatron_sc21")["megatron_sc21-0000"], "cluster", accelerator="V100-32GB-SXM3")
    old = {**rows("megatron_sc21")["megatron_sc21-0000"], "id": "megatron_2020_tables-0004"}  # as that study trained
    for row, tokens in ((v100, 1024), (old, 1024), (rows("megatron_sc21")["megatron_sc21-0000"], 2048)):
        case = to_case({**row, "sequence": None})
        assert case.run["batch"]["sequence"] == tokens and f"sequence not published: {tokens}" in case.assumptions


def test_what_a_source_does_not_print_is_what_its_scripts_ask_for() -> None:
    case = to_case(rows("zero_bubble")["zero_bubble-0000"])  # no flash attention, a SentencePiece tokenizer
    assert case.run["model"]["vocab"] == 32000 and case.run["kernels"] == {"attention": "unfused", "dropout": True}
    assert any("vocabulary not published: 32000" in note for note in case.assumptions)
    assert "kernels" not in to_case(rows("vocab_parallel")["vocab_parallel-0000"]).run  # as stack megatron-2023 has them


def test_a_source_known_for_its_schedule_has_it_where_none_is_printed() -> None:
    """Llama-2 13B on 4 stages: 40 layers, one a chunk: 10 chunks a rank. Chunks that are printed, and no pipeline, stay."""
    row = rows("nemo_docs")["nemo_docs-0004"]
    row = {**row, "model": {**row["model"], "name": "Llama-2 13B", "layers": 40, "hidden": 5120, "heads": 40, "kv_heads": 40, "ffn_hidden": 13824}}
    piped = {**row["strategy"], "pp": 4, "dp": 2}
    unsaid = {k: v for k, v in piped.items() if k not in ("chunks", "schedule")}
    case = to_case({**row, "strategy": unsaid})
    assert (case.run["pipeline"]["schedule"], case.run["pipeline"]["chunks"]) == ("interleaved-1f1b", 10)
    assert any("which its source is known for" in note for note in case.assumptions)
    assert to_case({**row, "strategy": {**unsaid, "chunks": 5}}).run["pipeline"]["chunks"] == 5
    assert to_case(row).run["pipeline"]["schedule"] == "1f1b"


def test_ends_of_a_pipeline_may_hold_the_embedding_or_the_head_alone() -> None:
    case = to_case(rows("zero_bubble")["zero_bubble-0001"])  # 22 layers on 8 ranks, first and last stage one layer fewer, interleaved
    assert case.run["pipeline"]["chunks"] == 3 and case.run["pipeline"]["layers"] == [0, *[1] * 22, 0]
    assert build(dict(case.run)).plan.layout.pipeline.layers[0] == 0


def test_redistributed_layers_leave_a_large_head_alone() -> None:
    """32 layers of 3072 and a head of V / (12 h) layers on 8 stages: 0.9 for 32768 words leaves 3 layers beside it, 7.1 for 262144 outweigh 39.1 / 8."""
    row = rows("vocab_parallel")["vocab_parallel-0000"]
    dealt = {v: to_case(change(change(row, "model", vocab=v), "strategy", vocab_method="redis")).run["pipeline"]["layers"] for v in (32768, 262144)}
    assert dealt == {32768: [5, 4, 4, 4, 4, 4, 4, 3], 262144: [5, 5, 5, 5, 4, 4, 4, 0]}


@pytest.mark.parametrize(
    ("block", "values", "reason"),
    [
        ("model", {"hybrid": "mamba 1:7"}, "hybrid mamba"),
        ("model", {"attention": "MLA"}, "latent attention"),
        ("model", {"layers": None}, "not published: layers"),
        ("strategy", {"vocab_method": "vocab-2"}, "vocabulary parallelism"),
        ("strategy", {"vocab_method": "vocab-1", "tp": 1, "pp": 8, "schedule": "zb-v"}, "in zb-v is not modelled"),
        ("strategy", {"task": "lora"}, "adapters"),
        ("strategy", {"schedule": "magic"}, "schedule magic"),
        ("strategy", {"precision": "int4"}, "precision int4"),
        ("strategy", {"recompute": "some"}, "some recompute"),
        ("strategy", {"tp": 3}, "no multiple of tp 3"),
        ("strategy", {"tp": "x"}, "cannot be read"),
        ("cluster", {"accelerator": "abacus"}, "no accelerator here is abacus"),
    ],
)
def test_reasons(plain: dict[str, Any], block: str, values: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotModelled, match=reason):
        to_case(change(plain, block, **values))


def test_other_accelerators_use_the_nearest_familys_numbers(plain: dict[str, Any]) -> None:
    for name, known in systems()["accelerators"].items():
        case = to_case(change(plain, "cluster", accelerator=name))
        assert build(dict(case.run)).cluster.accelerator.name == known["name"]
        assert any("transferred" in note for note in case.assumptions) == bool(known.get("transferred"))
    for fabric in (*systems()["fabrics"], "carrier pigeons"):
        assert build(dict(to_case(change(plain, "cluster", fabric=fabric)).run)).devices == 8


VOCABULARY: dict[tuple[str, str], tuple[Any, ...]] = {
    ("cluster", "accelerator"): tuple(systems()["accelerators"]),
    ("cluster", "fabric"): tuple(systems()["fabrics"]),
    ("cluster", "scale_up_domain"): (8, 72, None),
    ("strategy", "schedule"): ("none", "1f1b", "interleaved-1f1b", "zb-1p", "zb-2p", "zb-h1", "zb-h2", "v-half", "dualpipe", None),
    ("strategy", "precision"): ("bf16", "fp16", "fp8", "mxfp8", "nvfp4", None),
    ("strategy", "recompute"): ("none", "selective", "full", None),
    ("strategy", "zero"): (0, 1, 2, 3, None),
    ("strategy", "fsdp"): ("FULL_SHARD", "SHARD_GRAD_OP", 2, None),
    ("strategy", "vocab_method"): ("vocab-1", "redis", "baseline", None),
    ("strategy", "pp"): (1, 2, 4),
    ("strategy", "tp"): (1, 2),
    ("strategy", "cp"): (1, 2, None),
    ("strategy", "ep"): (1, 2, None),
    ("strategy", "chunks"): (1, 2, None),
    ("strategy", "micro_batch"): (1, 2, None),
    ("strategy", "task"): ("pretrain", "sft", "lora", None, None),
    ("strategy", "cpu_offload"): (True, False),
    ("strategy", "async_tp"): (True, None),
    ("strategy", "global_batch"): (64, 64, 64, None),
    ("model", "moe"): ({"experts": 8, "topk": 2, "expert_ffn": 1024}, None, None),
    ("model", "activation"): ("swiglu", "gelu", None),
    ("model", "sliding_window"): (4096, None),
    ("model", "vocab"): (50257, 51200, None),
}


def test_no_row_of_the_vocabulary_stops_the_table(plain: dict[str, Any]) -> None:
    """A row is a run, or refused with a reason; the run is one that parasim takes, or refuses with its own reasons."""
    draw = random.Random(7)
    row = change(plain, "model", layers=8, hidden=1024, heads=16, kv_heads=16, ffn_hidden=4096)
    row = change(row, "strategy", tp=1, micro_batch=1, global_batch=64, precision="bf16")
    runs = 0
    for _ in range(150):
        tried = row
        for (block, key), values in VOCABULARY.items():
            if draw.random() < 0.4:
                tried = change(tried, block, **{key: draw.choice(values)})
        tried = change(tried, "strategy", dp=None)
        try:
            build(dict(to_case(tried).run))
            runs += 1
        except (NotModelled, ParasimError) as reason:
            assert str(reason)
    assert runs > 30


def test_faults_of_files(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="no such file"):
        list(read_rows(tmp_path / "none.jsonl"))
    for text, message in (("", "is empty"), ("{", "is not JSON"), ("3", "is not an object")):
        (tmp_path / "rows.jsonl").write_text(text)
        with pytest.raises(Unparsable, match=message):
            list(read_rows(tmp_path / "rows.jsonl"))
