"""Configs of torchtitan as run files. Names and defaults: pytorch/torchtitan, torchtitan/config/job_config.py and models/llama3/train_configs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import parasim as ps
from parasim.config.torchtitan import from_torchtitan
from parasim.errors import Malformed, Unparsable

CLUSTER = "h100-hgx-ib400"
# Sections and keys of train_configs/llama3_70b.toml
LLAMA = """\
# a preset for 64 GPUs
[job]
description = "Llama 3 70B training"

[model]
name = "llama3"
flavor = "70B"

[optimizer]
name = "AdamW"
lr = 1.5e-4

[training]
local_batch_size = 8
seq_len = 8192
steps = 1000

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8  # 8-way TP
pipeline_parallel_degree = 1

[activation_checkpoint]
mode = "full"
"""
PIPELINE = """\
[model]
name = "llama3"
flavor = "8B_flex"
converters = ["float8"]
[training]
local_batch_size = 16
seq_len = 4096
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 4
tensor_parallel_degree = 2
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_layers_per_stage = 8
[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"
[compile]
enable = true
"""


def test_llama_3_70b() -> None:
    keys, left_out, assumed = from_torchtitan(LLAMA, "70b.toml", CLUSTER, 64)
    assert left_out == ("job.description", "optimizer.lr", "optimizer.name", "training.steps") and assumed == ()
    run = ps.build(keys)
    layout = run.plan.layout
    assert (layout.degrees.tp, layout.degrees.dp, run.devices) == (8, 8, 64)  # shard degree -1: 64 / 8
    # FSDP2 reshards unless there is a pipeline; the batch is 8 sequences for each of 8 ranks, in one microbatch
    assert (layout.zero.stage, layout.zero.reshard_after_forward, layout.tensor.sequence_parallel) == (3, True, True)
    assert (layout.batch.global_, layout.batch.micro, layout.batch.sequence) == (64, 8, 8192)


def test_a_pipeline_with_replicas_and_float8() -> None:
    keys, _, assumed = from_torchtitan(PIPELINE, "x.toml", CLUSTER, None)
    run = ps.build(keys)
    layout = run.plan.layout
    assert run.devices == 2 * 4 * 2 * 2 and layout.degrees.dp == 8
    # 32 layers / 8 per stage / 2 ranks; microbatches of one sequence; HSDP over 4 of 8; no resharding under a pipeline
    assert (layout.pipeline.schedule, layout.pipeline.chunks, layout.batch.micro, layout.batch.global_) == ("interleaved-1f1b", 2, 1, 128)
    assert (layout.zero.shard, layout.zero.reshard_after_forward, keys["precision"]) == (4, False, "fp8")
    # every second of 8 layers of a stage
    assert keys["recompute"] == {"modules": "full", "layers": 4, "method": "block", "early_stop": True}
    assert any("one layer in 2" in a for a in assumed) and any(a.startswith("compiled") for a in assumed)


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "path", "value"),
    [
        ('mode = "full"', 'mode = "none"', ("recompute",), "none"),
        ('mode = "full"', 'mode = "selective"\nselective_ac_option = "op"', ("recompute",), None),  # what the stack does
        ("data_parallel_shard_degree = -1", "data_parallel_shard_degree = 1\ndata_parallel_replicate_degree2 = 1", ("zero",), {"stage": 0}),
        ("seq_len = 8192", "seq_len = 8192\nglobal_batch_size = 512", ("batch", "global"), 512),
        ("seq_len = 8192", 'seq_len = 8192\nmixed_precision_param = "float32"', ("precision",), "fp32"),
        ("seq_len = 8192", "seq_len = 8192\nenable_cpu_offload = true", ("offload",), {"optimizer": True, "parameters": True}),
        ("local_batch_size", "batch_size", ("batch", "micro"), 8),  # its older name
        ("tensor_parallel_degree = 8", "enable_async_tensor_parallel = true\ntensor_parallel_degree = 8", ("tensor", "pieces"), 8),
        ('flavor = "70B"', 'flavor = "debugmodel"', ("model", "hidden"), 256),
    ],
)
def test_keys(old: str, new: str, path: tuple[str, ...], value: object) -> None:
    found = from_torchtitan(changed(LLAMA, old, new), "x.toml", CLUSTER, None if value == {"stage": 0} else 64).keys
    for part in path[:-1]:
        found = found[part]
    assert found.get(path[-1]) == value


@pytest.mark.parametrize(
    ("old", "new", "error", "said"),
    [
        ("tensor_parallel_degree = 8", 'tensor_parallel_degree = "8"', Malformed, r"x.toml:21: parallelism.tensor_parallel_degree: '8' is not a whole number"),
        ("local_batch_size = 8", "local_batch_size = 0", Malformed, r"x.toml:14: training.local_batch_size: 0 is not a whole number of 1 or more"),
        ('flavor = "70B"', 'flavor = "71B"', Malformed, r"x.toml:7: model.flavor: '71B' of llama3 is not known; nearest: 1B, 70B"),
        ('name = "llama3"', 'name = "llama9"', Malformed, r"x.toml:6: model.name: 'llama9' is not known; nearest: llama3"),
        ('mode = "full"', 'mode = "half"', Malformed, r"x.toml:25: activation_checkpoint.mode: 'half' is not known; legal: none, selective, full"),
        ("pipeline_parallel_degree = 1", 'pipeline_parallel_schedule = "1F2B"', Malformed, r"x.toml:22: .*'1F2B' is not known; nearest: 1f1b"),
        ("seq_len = 8192", "seq_len = ", Unparsable, r"x.toml:15:\d+: is not TOML: Invalid value"),
        ("[training]", "[trainings]", Unparsable, r"lacks \[training\]; is this a config of torchtitan\?"),
        ("data_parallel_shard_degree = -1", "data_parallel_shard_degree = 0", Malformed, "x.toml:20: .*neither -1 nor"),
    ],
)
def test_refusals(old: str, new: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        from_torchtitan(changed(LLAMA, old, new), "x.toml", CLUSTER, 64)


def test_devices_must_be_said_and_fit() -> None:
    with pytest.raises(Malformed, match="how many devices"):
        from_torchtitan(LLAMA, "x.toml", CLUSTER, None)
    with pytest.raises(Malformed, match="--devices 60 is not a multiple of 8"):
        from_torchtitan(LLAMA, "x.toml", CLUSTER, 60)
    with pytest.raises(Malformed, match=r"--devices 64 is not the product of the degrees in x.toml: 32"):
        from_torchtitan(PIPELINE, "x.toml", CLUSTER, 64)


def test_the_file_that_is_written_runs(tmp_path: Path, cli: Callable[..., Any]) -> None:
    (tmp_path / "llama.toml").write_text(LLAMA)
    answer = cli("import", tmp_path / "llama.toml", "--kind", "torchtitan", "--devices", 64, "--out", tmp_path / "run.yaml")
    assert answer.code == 0 and answer.out.splitlines()[:2] == [
        "tp 8 x cp 1 x pp 1 x dp 8 on h100-hgx-ib400",
        "note: not used: job.description, optimizer.lr, optimizer.name, training.steps",
    ]
    report = json.loads(cli("run", tmp_path / "run.yaml", "--json").out)
    assert report["world_size"] == 64
    (tmp_path / "cut.toml").write_text(LLAMA[:300])
    assert cli("import", tmp_path / "cut.toml", "--kind", "torchtitan", "--devices", 64).code == 3
    assert cli("import", tmp_path / "nothing.toml", "--kind", "torchtitan").code == 2
