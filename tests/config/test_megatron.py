"""Arguments of Megatron-LM as a run file: names and defaults of its arguments.py."""

from __future__ import annotations

from pathlib import Path

import pytest

import parasim as ps
from parasim.config.megatron import from_megatron
from parasim.errors import Malformed, Unparsable
from parasim.jobs import import_run

SCRIPT = """#!/bin/bash
torchrun --nproc_per_node 8 --nnodes=2 pretrain_gpt.py \\
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \\
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 \\
    --seq-length 8192 --max-position-embeddings 8192 --vocab-size 128256 \\
    --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights \\
    --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 8 \\
    --micro-batch-size 1 --global-batch-size 64 --bf16 --use-distributed-optimizer --overlap-grad-reduce \\
    --recompute-activations --lr 3e-4 --min-lr 1.0e-5  # a comment --num-layers 99
"""


def test_llama_3_8b() -> None:
    keys, left_out, assumed = from_megatron(SCRIPT, "train.sh", "h100-hgx-ib400", None)
    assert (left_out, assumed) == (("--lr", "--min-lr"), ())
    run = ps.build(keys)
    degrees = run.plan.layout.degrees
    assert (degrees.tp, degrees.pp, degrees.dp, run.devices) == (2, 2, 4, 16)
    from parasim.model.layers import parameters

    assert parameters(run.plan.model) == 8_030_261_248  # Llama 3 8B, arXiv 2407.21783
    layout = run.plan.layout
    assert (layout.pipeline.schedule, layout.pipeline.chunks) == ("interleaved-1f1b", 2)  # 32 layers / 2 stages / 8
    assert (layout.zero.stage, layout.data.mode, layout.tensor.sequence_parallel, layout.batch.global_) == (1, "bucketed", True, 64)


def test_defaults_are_those_of_gpt() -> None:
    keys, _, assumed = from_megatron("--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --fp16", "x", "h100-hgx-ib400", 8)
    model = keys["model"]
    assert assumed == ("no --vocab-size: 50304 tokens",)
    assert tuple(model[k] for k in ("activation", "norm", "bias", "positions", "tied", "ffn")) == (
        "gelu",
        "layer_norm",
        True,
        "learned",
        True,
        256,
    )
    assert (keys["precision"], keys["zero"], keys["dp"]) == ("fp16", {"stage": 0}, {"mode": "flat"})
    assert ps.build(keys).devices == 8


def test_the_file_that_is_written_loads(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(SCRIPT)
    said = import_run(tmp_path / "train.sh", "megatron", "h100-hgx-ib400", 32, tmp_path / "run.yaml")
    assert said.splitlines()[:2] == ["tp 2 x cp 1 x pp 2 x dp 8 on h100-hgx-ib400", "note: not used: --lr, --min-lr"]
    assert ps.load(tmp_path / "run.yaml").devices == 32


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("hello", Unparsable, "--num-layers, --hidden-size, --num-attention-heads, --seq-length are missing"),
        (SCRIPT.replace("--nproc_per_node 8", ""), Malformed, "how many devices"),
        (SCRIPT.replace("--micro-batch-size 1", "--micro-batch-size $MBS"), Malformed, r"--micro-batch-size '\$MBS' is not a whole number"),
    ],
)
def test_refusals(text: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        from_megatron(text, "train.sh", "h100-hgx-ib400", None)
