"""Published rows -> run files: what is read, what is assumed, what is refused and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parasim.errors import Malformed, Unparsable
from validation.rows import NotModelled, read_rows, to_case

FIT = Path(__file__).parents[2] / "validation" / "data" / "fit"


def rows(name: str) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in read_rows(FIT / name)}


def test_full_recompute_row() -> None:
    case = to_case(rows("korthikanti_2022.jsonl")["korthikanti_2022-0000"])
    assert (case.measured, case.source, case.accelerator, case.assumptions) == (1.42, "korthikanti_2022", "A100-80GB-SXM", ())
    run = case.run
    assert run["parallel"] == {"tp": 8, "pp": 1, "dp": 1} and run["recompute"] == "full" and run["precision"] == "fp16"
    assert run["batch"] == {"global": 4, "micro": 4, "sequence": 2048} and run["devices"] == 8
    assert run["model"] == {
        "kind": "transformer", "name": "22B", "layers": 48, "hidden": 6144, "heads": 64, "ffn": 24576, "kv_heads": 64, "vocab": 51200,
        "activation": "gelu", "norm": "layer_norm", "positions": "learned", "bias": True, "max_positions": 2048, "tied": True,
    }  # fmt: skip


def test_what_a_source_does_not_print_is_assumed_and_said() -> None:
    case = to_case(rows("megatron_readme_h100.jsonl")["megatron_readme_h100-0001"])
    assert case.run["batch"]["micro"] == 4 and case.run["zero"] == {"stage": 1} and case.run["dp"]["mode"] == "bucketed"
    assert any("micro-batch" in note for note in case.assumptions) and any("recompute" in note for note in case.assumptions)


@pytest.mark.parametrize(
    ("row", "reason"),
    [("korthikanti_2022-0001", "selective recompute is not modelled yet"), ("korthikanti_2022-0010", "no step time is published")],
)
def test_refused_rows(row: str, reason: str) -> None:
    with pytest.raises(NotModelled, match=reason):
        to_case(rows("korthikanti_2022.jsonl")[row])


@pytest.mark.parametrize(
    ("block", "change", "reason"),
    [
        ("model", {"moe": {"experts": 8}}, "experts"),
        ("model", {"attention": "MLA"}, "dense transformers"),
        ("strategy", {"cp": 2}, "cp=2"),
        ("strategy", {"zero": 3}, "ZeRO-2, ZeRO-3"),
        ("strategy", {"schedule": "zb-h1"}, "schedule zb-h1"),
        ("strategy", {"schedule": "interleaved-1f1b"}, "interleaved-1f1b"),
        ("strategy", {"chunks": 2}, "chunks"),
        ("strategy", {"precision": "fp8"}, "precision fp8"),
        ("strategy", {"vocab_method": "vocab-1"}, "vocabulary parallelism"),
        ("cluster", {"fabric": "string"}, "A100-80GB-SXM on string"),
        ("cluster", {"accelerator": "V100-16GB-SXM2"}, "V100-16GB-SXM2 on selene"),
    ],
)
def test_reasons(block: str, change: dict[str, Any], reason: str) -> None:
    row = rows("korthikanti_2022.jsonl")["korthikanti_2022-0000"]
    with pytest.raises(NotModelled, match=reason):
        to_case(row | {block: row[block] | change})


def test_every_reason_is_given_at_once() -> None:
    row = rows("korthikanti_2022.jsonl")["korthikanti_2022-0001"]
    with pytest.raises(NotModelled, match=r"cp=2.*; selective recompute"):
        to_case(row | {"strategy": row["strategy"] | {"cp": 2}})


def test_an_absent_field_is_no_failure() -> None:
    row = rows("korthikanti_2022.jsonl")["korthikanti_2022-0000"]
    silent = row | {"model": {k: row["model"][k] for k in ("layers", "hidden", "heads")}, "strategy": {"tp": 8, "global_batch": 16}}
    case = to_case(silent)
    assert case.run["parallel"] == {"tp": 8, "pp": 1, "dp": 1} and case.run["batch"]["micro"] == 4 and case.run["precision"] == "bf16"
    assert len(case.assumptions) == 6  # vocabulary, activation, feed-forward, micro-batch, recompute, precision
    piped = to_case(silent | {"strategy": {"tp": 2, "pp": 4, "global_batch": 16}})
    assert piped.run["batch"]["micro"] == 1 and any("schedule" in note for note in piped.assumptions)
    with pytest.raises(NotModelled, match="not published: layers, global_batch"):
        to_case(row | {"model": {"hidden": 8, "heads": 1}, "strategy": {"tp": 1}})


def test_uneven_first_and_last_stage() -> None:
    row = rows("korthikanti_2022.jsonl")["korthikanti_2022-0000"]
    case = to_case(row | {"model": row["model"] | {"layers": 22}, "strategy": row["strategy"] | {"tp": 1, "pp": 8, "schedule": "1f1b"}})
    assert case.run["pipeline"] == {"schedule": "1f1b", "layers": [2, 3, 3, 3, 3, 3, 3, 2]}


@pytest.mark.parametrize(("text", "message"), [("", "is empty"), ("{", "is not JSON"), ("[1]", "is not an object")])
def test_broken_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(Unparsable, match=message):
        list(read_rows(path))
    with pytest.raises(Malformed, match="no such file"):
        list(read_rows(tmp_path / "absent.jsonl"))


def test_a_row_that_is_no_training_step_is_refused_alone(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"op": "all_reduce", "time_us": 3}\n')
    (row,) = read_rows(path)
    assert row["id"] == "rows-0001"
    with pytest.raises(NotModelled, match="lacks model, cluster, strategy, measured"):
        to_case(row)
