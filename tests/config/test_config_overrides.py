"""--set path=value: applied in order to what was written, told by its own text when it is wrong."""

# ruff: noqa: E501 (whole messages are expected, one a line)

from __future__ import annotations

from typing import Any

import pytest

from parasim.config import load, vary
from parasim.errors import InvalidLayout, Malformed


def test_overrides_accumulate_and_the_last_wins(write: Any) -> None:
    run = load(write(), ["zero.stage=0", "parallel={tp: 4}", "parallel.pp=2", "dp.bucket=1 GiB", "zero.stage=1", "devices=16"])
    layout = run.plan.layout
    assert (layout.degrees.tp, layout.degrees.pp, layout.degrees.dp) == (4, 2, 2)  # dp auto: 16 / (4 x 2)
    assert (layout.zero.stage, layout.data.bucket) == (1, 2**30)


def test_an_override_makes_the_blocks_it_needs(write: Any) -> None:
    assert load(write(), ["optimizer.gradient_dtype=fp32"]).plan.layout.optimizer.gradient == "fp32"
    assert load(write(), ["model=llama3-8b", "batch.sequence=4096"]).plan.model.name == "llama3-8b"


def test_an_override_mends_what_the_file_has_wrong(write: Any) -> None:
    assert load(write("devices: 8", "devices: x"), ["devices=8"]).devices == 8
    assert load(write("zero: {stage: 1}", "zero: {stage: 1, stage: 0}"), ["zero={stage: 1}"]).plan.layout.zero.stage == 1


def test_a_list_entry_can_be_set(write: Any) -> None:
    run = load(write("schedule: 1f1b", "layers: [3, 5]"), ["pipeline.layers.0=6", "pipeline.layers.1=2"])
    assert run.plan.layout.pipeline.layers == (6, 2)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("zero.stge=1", "--set zero.stge=1: unknown key 'stge', did you mean 'stage'?"),
        ("zero.stage=no", "--set zero.stage=no: 'no' is not a ZeRO stage; legal: 0, 1, 2, 3"),
        ("parallel={tp: x}", "--set parallel={tp: x}: parallel.tp: 'x' is not a whole number; write 1 or more"),
        ("zero", "--set zero: an override is written path=value, such as zero.stage=1 or parallel={tp: 4}"),
        ("=1", "--set =1: an override is written path=value, such as zero.stage=1 or parallel={tp: 4}"),
        ("zero..stage=1", "--set zero..stage=1: an override is written path=value, such as zero.stage=1 or parallel={tp: 4}"),
        ("devices.x=1", "--set devices.x=1: devices is 8, which has no key 'x'; set devices as a whole"),
        ("pipeline.layers.7=1", "--set pipeline.layers.7=1: pipeline.layers is a list of 2; write a position 0 to 1 instead of '7'"),
        ("parallel={tp: 4", "--set parallel={tp: 4: the value is not valid YAML (it ends too early, while parsing a flow mapping that began at line 1)"),
        ("parallel={tp: 4, tp: 2}", "--set parallel={tp: 4, tp: 2}: parallel.tp: duplicate key 'tp'; keep one of them"),
        ("zero=", "--set zero=: null (nothing) is not a mapping; write {key: value, ...} with keys of stage, shard, overlap, prefetch, limit, reshard_after_forward, overlap_gather, gather, keep_below"),
        ("model={kind: mlp, layers: 8}", "--set model={kind: mlp, layers: 8}: model.hidden: is missing; it holds width of the residual stream (elements)"),
    ],
)  # fmt: skip
def test_wrong_overrides(override: str, message: str, write: Any) -> None:
    path = write("schedule: 1f1b", "layers: [3, 5]")
    with pytest.raises(Malformed) as error:
        load(path, [override])
    assert (str(error.value), error.value.exit_code) == (message, 2)


def test_vary_resolves_auto_anew_and_keeps_what_did_not_change(write: Any) -> None:
    run = load(write())
    other = vary(run, ["parallel.tp=1"])
    assert (run.plan.layout.degrees.dp, other.plan.layout.degrees.dp) == (2, 4)  # 8 / (2 x 2), 8 / (1 x 2)
    assert other.cluster is run.cluster
    assert other.name == run.name
    assert vary(other, ["devices=16"]).cluster is not run.cluster
    with pytest.raises(InvalidLayout):
        vary(run, ["parallel.tp=3"])
