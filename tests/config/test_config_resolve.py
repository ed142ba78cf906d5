"""Resolution: auto degrees, microbatches, layers over stages, refusals with the nearest legal values, defaults said aloud."""

# ruff: noqa: E501 (whole messages are expected, one a line)

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parasim.config import build, load
from parasim.config.not_yet import NotYet
from parasim.errors import InvalidLayout, Malformed, Refused, Unparsable
from parasim.parallel.placement import split_layers


def test_the_default_run() -> None:
    """Llama 3 70B on 64 H100: dp = 64 / (8 x 4) = 2, microbatches = 32 / (1 x 2) = 16, 80 layers / 4 stages = 20."""
    run = load()
    layout = run.plan.layout
    assert (run.name, run.plan.model.name, run.cluster.name, run.profile.name, run.devices) == (
        "default", "llama3-70b", "h100-hgx-ib400", "h100-megatron", 64,
    )  # fmt: skip
    assert (layout.degrees.tp, layout.degrees.pp, layout.degrees.dp, layout.degrees.world) == (8, 4, 2, 64)
    assert (layout.batch.microbatches, layout.pipeline.layers, layout.zero.shard) == (16, (20, 20, 20, 20), 2)
    assert (layout.recompute.modules, layout.tensor.sequence_parallel, layout.optimizer.master) == ((), True, True)
    assert layout.data.bucket == 100 * 2**20
    assert run.echo == {"dp.bucket": "100 MiB = 104857600 bytes"}


def test_the_example_is_the_default_run() -> None:
    example = load(Path(__file__).parents[2] / "docs" / "examples" / "llama3-70b-64xh100.yaml")
    assert (example.plan, example.source) == (load().plan, load().source)
    assert example.name == "llama3-70b-64xh100"


def test_the_source_of_a_run_gives_the_run_again() -> None:
    run = load()
    again = build(run.source)
    assert again.plan.layout == run.plan.layout
    assert again.source == run.source


def test_a_batch_that_does_not_split_names_dp_and_what_is_legal() -> None:
    """dp = 1472 / (8 x 8) = 23; 32 is no multiple of 23, the multiples around it are 23 and 46; the divisors of 32 near 23 are 8, 16, 32."""
    with pytest.raises(InvalidLayout) as error:
        load(None, ["devices=1472", "parallel.pp=8", "batch.global=32"])
    assert str(error.value) == (
        "batch.global=32 must be a multiple of batch.micro=1 x dp=23 = 23 (dp is devices=1472 / (parallel.tp=8 x cp=1 x pp=8 = 64)); "
        "legal batch.global near it: 23, 46; legal dp for it: 8, 16, 32"
    )
    assert error.value.exit_code == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["devices=60"], "devices=60 must be a multiple of parallel.tp=8 x cp=1 x pp=4 = 32; nearest legal: 32, 64"),
        (["devices=8"], "devices=8 must be a multiple of parallel.tp=8 x cp=1 x pp=4 = 32; nearest legal: 32"),
        (["parallel.dp=4"], "parallel.dp=4 times parallel.tp=8 x cp=1 x pp=4 = 32 is 128 ranks, but devices=64; legal: 2, auto, or devices=128"),
        (["batch.global=1"], "parallel.dp=2 is more than batch.global=1; a rank needs at least one sequence (dp is devices=64 / (parallel.tp=8 x cp=1 x pp=4 = 32)); legal: at most 1"),
        (["pipeline.layers=[20, 20, 20]"], "pipeline.layers=[20, 20, 20] has 3 entries, but there are 4 stages (parallel.pp=4 x pipeline.chunks=1); write 4 entries, or auto\npipeline.layers=[20, 20, 20] sums to 60, but model.layers=80; write numbers that sum to 80, or auto"),
        (["tensor.sequence_parallel=true", "parallel.tp=1"], "tensor.sequence_parallel=true needs parallel.tp of 2 or more, not 1; set it to false, or raise parallel.tp"),
        (["precision=fp32", "optimizer={gradient_dtype: bf16, master: true}"], "optimizer.gradient_dtype=bf16 cannot hold the gradients of precision=fp32; legal: fp32\noptimizer.master=true is an fp32 copy of bf16 or fp16 parameters, but precision=fp32; legal: false"),
    ],
)  # fmt: skip
def test_illegal_layouts(overrides: list[str], message: str) -> None:
    with pytest.raises(InvalidLayout) as error:
        load(None, overrides)
    assert str(error.value) == message


def test_more_devices_than_the_cluster_has() -> None:
    graph = {
        "name": "two",
        "accelerator": "h100-sxm",
        "nodes": [{"id": "a", "kind": "gpu"}, {"id": "b", "kind": "gpu"}],
        "links": [{"a": "a", "b": "b", "kind": "scale_up", "bandwidth": "50 GB/s"}],
    }
    keys = {"model": {"kind": "mlp", "layers": 4, "hidden": 8}, "cluster": graph, "batch": {"global": 12}}
    assert len(build({**keys, "devices": 2}).cluster.devices) == 2
    with pytest.raises(Refused, match="devices=3 is more than cluster two has"):
        build({**keys, "devices": 3})


def test_an_accelerator_without_the_precision() -> None:
    chip = {"name": "chip", "kind": "gpu", "peak_flops": {"fp32": "1 TFLOP/s"}, "memory": "80 GB", "memory_bandwidth": "1 TB/s"}
    cluster = {"name": "one", "accelerator": chip, "node": {"devices": 1}}
    with pytest.raises(Refused, match=r"precision=bf16 has no peak on accelerator chip; known: fp32"):
        build({"model": {"kind": "mlp", "layers": 4, "hidden": 8}, "cluster": cluster, "devices": 1, "batch": {"global": 1}})


def test_a_transformer_needs_a_sequence(write: Any) -> None:
    with pytest.raises(Unparsable) as error:
        load(write(", sequence: 8192", "", text=DESIGN_EXAMPLE))
    assert str(error.value) == (
        "run.yaml:4:8: batch.sequence: is missing; llama3-70b is a transformer and needs the length of a sequence (tokens), such as 4096"
    )


def test_fixed_and_mlp_models_need_no_sequence() -> None:
    fixed = {
        "kind": "fixed",
        "layers": 8,
        "forward": "10 ms",
        "input_grad": "10 ms",
        "weight_grad": "10 ms",
        "optimizer": "0 s",
        "parameters": 7.5e9,
        "boundary": "1 MB",
    }
    run = build({"model": fixed, "cluster": "h100-hgx-ib400", "devices": 4, "batch": {"global": 8, "micro": 1}, "parallel": {"pp": 4}})
    assert (run.plan.model.forward, run.plan.model.parameters, run.plan.model.boundary) == (0.01, 7_500_000_000, 1_000_000)  # type: ignore[union-attr]
    assert run.plan.layout.batch.sequence == 1
    assert "batch.sequence omitted: 1" in run.plan.assumptions
    assert run.echo["model.forward"] == "10 ms = 0.01 seconds"


def test_the_folder_of_the_run_file_is_where_paths_start(write: Any, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "deep.yaml").write_text("{kind: mlp, layers: 16, hidden: 8}")
    path = write("model: {kind: mlp, layers: 8, hidden: 64, ffn: 256}", "model: models/deep.yaml")
    run = load((tmp_path / path).absolute())
    assert run.plan.model.layers == 16
    assert "model deep.yaml" in run.provenance["inputs"]  # type: ignore[operator]


def test_what_was_omitted_is_said(write: Any) -> None:
    run = load(
        write(
            "precision: bf16\n",
            "",
            text="model: {kind: mlp, layers: 5, hidden: 8}\ncluster: h100-hgx-ib400\ndevices: 8\nbatch: {global: 8}\nparallel: {pp: 4}\nprecision: bf16\n",
        )
    )
    assert run.plan.assumptions == (
        "profile omitted: datasheet numbers, every efficiency 1 and no overhead of software",
        "precision omitted: bf16",
        "parallel.dp auto: 2 (devices 8 / (tp 1 x cp 1 x pp 4))",
        "batch.micro omitted: 1",
        "batch.sequence omitted: 1",
        "4 microbatches of 1 per replica and step",
        "zero.stage omitted: 0, every replica holds the whole optimizer state",
        "dp.mode omitted: bucketed, 25 MiB of gradients at a time",
        "pipeline.schedule omitted: 1f1b",
        "pipeline.layers auto: [1, 2, 1, 1]",
        "recompute omitted: none, every activation is kept",
        "optimizer.gradient_dtype omitted: bf16, the precision; gradients are accumulated and reduced in it (Megatron-LM's own default for bf16 is fp32)",
        "optimizer.master omitted: true, an fp32 copy of the parameters is kept and updated",
    )


@given(st.integers(1, 200), st.integers(1, 40))
def test_layers_are_split_as_evenly_as_possible(layers: int, stages: int) -> None:
    split = split_layers(layers, stages)
    assert (sum(split), len(split)) == (layers, stages)
    assert max(split) - min(split) <= 1
    assert split[-1] == min(split)  # the stage with head and loss has the fewest


@pytest.mark.parametrize(
    ("layers", "stages", "split"),
    [(8, 4, (2, 2, 2, 2)), (9, 4, (2, 3, 2, 2)), (10, 4, (2, 3, 3, 2)), (11, 4, (3, 3, 3, 2)), (3, 2, (2, 1)), (7, 1, (7,))],
)
def test_the_remainder_goes_to_the_middle_then_to_the_first(layers: int, stages: int, split: tuple[int, ...]) -> None:
    assert split_layers(layers, stages) == split


DESIGN_EXAMPLE = """\
model: llama3-70b
cluster: h100-hgx-ib400
devices: 512
batch: {global: 1024, micro: 1, sequence: 8192}
precision: bf16
stack: megatron-h100
profile: h100-megatron
parallel: {tp: 8, pp: 8, dp: auto, cp: 1, ep: 1, order: [tp, cp, ep, dp, pp]}
dp: {mode: bucketed, bucket: 25 MiB}
zero: {stage: 1, shard: auto, overlap: true, prefetch: 1, limit: 2, reshard_after_forward: true}
pipeline: {schedule: interleaved-1f1b, chunks: 2, comm: async, layers: auto, optimizer: barrier}
tensor: {style: megatron, sequence_parallel: true, async: false}
context: {style: ring}
experts: {load: balanced, capacity: null, max_nodes: null}
recompute: selective
optimizer: {name: adam, gradient_dtype: bf16, master: true}
perturb: []
"""


def test_every_key_of_the_format_is_known(write: Any) -> None:
    layout = load(write(text=DESIGN_EXAMPLE)).plan.layout
    assert (layout.degrees.dp, layout.batch.microbatches, layout.pipeline.layers) == (8, 128, 16 * (5,))


def test_what_is_not_supported_yet_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    row = NotYet("context.style", lambda value, dp: value == "all-to-all", "exchanged heads", "supported: ring")
    monkeypatch.setattr("parasim.config.not_yet.NOT_YET", (row,))
    with pytest.raises(InvalidLayout) as error:
        load(None, ["context.style=all-to-all"])
    assert "context.style=all-to-all asks for exchanged heads, which is not supported yet; supported: ring" in str(error.value).splitlines()
    assert error.value.exit_code == 1


def test_an_unknown_stack_is_malformed() -> None:
    with pytest.raises(Malformed, match=r"--set stack=megatron-h10: .*did you mean 'megatron-h100'"):
        load(None, ["stack=megatron-h10"])


def test_zero_without_replicas_is_legal() -> None:
    assert load(None, ["devices=32"]).plan.layout.zero.shard == 1


def test_shard_equal_to_dp_is_not_hsdp() -> None:
    assert load(None, ["zero.shard=2"]).plan.layout.zero.shard == 2
    with pytest.raises(InvalidLayout, match=r"zero\.shard=4 must divide dp=2; legal: 1, 2"):
        load(None, ["zero.shard=4"])


def test_a_schedule_brings_its_chunks(write: Any) -> None:
    run = load(write(), ["pipeline.schedule=zb-v"])
    assert run.plan.layout.pipeline.chunks == 2 and run.plan.layout.pipeline.layers == (2, 2, 2, 2)
    assert "pipeline.chunks omitted: 2, as zb-v has" in run.plan.assumptions
    for overrides, message in (
        (["pipeline.chunks=2"], "pipeline.chunks=2 is not what this schedule has, 1 stage per rank (pipeline.schedule=1f1b); legal: 1"),
        (["pipeline={schedule: zb-v, chunks: 1}"], "pipeline.chunks=1 is not what this schedule has, 2 stages per rank (pipeline.schedule=zb-v); legal: 2"),
    ):
        with pytest.raises(InvalidLayout) as error:
            load(write(), overrides)
        assert message in str(error.value)
