"""Wrong keys and values: each with its exact place, the value, the rule and the nearest legal values; all at once."""

# ruff: noqa: E501 (whole messages are expected, one a line)

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from parasim.config import build, load
from parasim.errors import InvalidLayout, Malformed, ParasimError, Unparsable

CASES = [
    ("zero: {stage: 1}", "zero: {stge: 1}", "run.yaml:8:8: zero.stge: unknown key 'stge', did you mean 'stage'?"),
    ("zero: {stage: 1}", "zro: {stage: 1}", "run.yaml:8:1: zro: unknown key 'zro', did you mean 'zero'?"),
    ("zero: {stage: 1}", "zero: {xyzzy: 1}", "run.yaml:8:8: zero.xyzzy: unknown key 'xyzzy'; legal: stage, shard, overlap, prefetch, limit, reshard_after_forward, overlap_gather, gather, keep_below"),
    ("zero: {stage: 1}", "zero: {stage: 4}", "run.yaml:8:15: zero.stage: 4 is not a ZeRO stage; legal: 0, 1, 2, 3"),
    ("zero: {stage: 1}", "zero: {overlap: no}", "run.yaml:8:17: zero.overlap: 'no' is not true or false; write true or false without quotes"),
    ("zero: {stage: 1}", "zero: 1", "run.yaml:8:7: zero: 1 is not a mapping; write {key: value, ...} with keys of stage, shard, overlap, prefetch, limit, reshard_after_forward, overlap_gather, gather, keep_below"),
    ("zero: {stage: 1}", "zero: {stage: 1}\nzero: {}", "run.yaml:9:1: zero: duplicate key 'zero' (first on line 8); keep one of them"),
    ("zero: {stage: 1}", "zero: {stage: !!int 1}", "run.yaml:8:15: zero.stage: tags such as tag:yaml.org,2002:int are not used here; write the plain value"),
    ("zero: {stage: 1}", "zero: {[1]: 1}", "run.yaml:8:8: zero: a key must be a word, not a list or a mapping"),
    ("devices: 8", "devices: eight", "run.yaml:3:10: devices: 'eight' is not a whole number; write 1 or more"),
    ("devices: 8", "devices: 0", "run.yaml:3:10: devices: 0 is too small; write a whole number, 1 or more"),
    ("devices: 8", "devices: 1e12", "run.yaml:3:10: devices: 1000000000000.0 is too large; write a whole number, at most 1048576"),
    ("devices: 8", "devices: 8.5", "run.yaml:3:10: devices: 8.5 is not a whole number; write 1 or more"),
    ("devices: 8", "devices: true", "run.yaml:3:10: devices: true is not a whole number; write 1 or more"),
    ("devices: 8", 'devices: "8"', "run.yaml:3:10: devices: '8' is not a whole number; write 8 without quotes"),
    ("devices: 8", "devices: .nan", "run.yaml:3:10: devices: nan is not a whole number; write 1 or more"),
    ("bucket: 25 MiB", "bucket: 25", "run.yaml:7:30: dp.bucket: 25 has no unit; write a size with its unit, such as 25 MiB or 25 GB"),
    ("bucket: 25 MiB", "bucket: 25 MiB/s", "run.yaml:7:30: dp.bucket: 25 MiB/s is a bandwidth, a size has no /s: 25 MiB"),
    ("bucket: 25 MiB", "bucket: 3 b", "run.yaml:7:30: dp.bucket: 3 b is 0.375 bytes; write a whole number of bytes, such as 1 B"),
    ("mode: bucketed", "mode: bucket", "run.yaml:7:12: dp.mode: 'bucket' is not legal, did you mean 'bucketed'?"),
    ("precision: bf16", "precision: int8", "run.yaml:5:12: precision: 'int8' is not legal; legal: bf16, fp16, fp32, fp64, fp8"),
    ("schedule: 1f1b", "schedule: 1F1B", "run.yaml:9:22: pipeline.schedule: '1F1B' is not legal, did you mean '1f1b'?"),
    ("schedule: 1f1b", "layers: [3, -1]", "run.yaml:9:20: pipeline.layers: [3, -1] is not auto, a list of layers per stage, or a mapping of first and last; write auto, whole numbers of 1 or more (0 at the ends) such as [10, 10, 10, 10], or {first: 9, last: 9}"),
    ("dp: auto", "dp: aut", "run.yaml:6:30: parallel.dp: 'aut' is not a whole number and not auto; write 1 or more"),
    ("dp: auto", "order: [tp, dp]", "run.yaml:6:33: parallel.order: [tp, dp] is not an order of the five axes; write each once, such as [tp, cp, ep, dp, pp]"),
    ("kind: mlp", "kind: mpl", "run.yaml:1:15: model.kind: 'mpl' is not a kind of model, did you mean 'mlp'?"),
    ("hidden: 64", "hidden: 64 B", "run.yaml:1:39: model.hidden: '64 B' is not a whole number; write 1 or more"),
    ("hidden: 64", "hidden: 64, hiden: 3", "run.yaml:1:43: model.hiden: unknown key 'hiden', did you mean 'hidden'?"),
    ("model: {kind: mlp, layers: 8, hidden: 64, ffn: 256}", "model: 7", "run.yaml:1:8: model: 7 is not a model; write a name of `parasim catalog models`, a path, or {kind: transformer | mlp | fixed, ...}"),
    ("cluster: h100-hgx-ib400", "cluster: [a]", "run.yaml:2:10: cluster: a list is not a cluster; write a name of `parasim catalog clusters`, a path, or the cluster as a mapping"),
    ("", "perturb: [{rank: -1}]\n", "run.yaml:10:18: perturb[0].rank: -1 is too small; write a whole number, 0 or more"),
    ("", "perturb: [3]\n", "run.yaml:10:11: perturb[0]: 3 is not a mapping; write {key: value, ...} with keys of rank, slowdown, link, bandwidth, node, failed"),
    ("", "perturb: 3\n", "run.yaml:10:10: perturb: 3 is not a list; write [...]"),
    ("", "recompute: ful\n", "run.yaml:10:12: recompute: 'ful' is not a way to recompute, did you mean 'full'?"),
    ("", "experts: {load: skewed}\n", "run.yaml:10:17: experts.load: 'skewed' is not a load of experts; write balanced, {zipf: 1.2} or {shares: [...]}"),
    ("", "experts: {capacity: 0}\n", "run.yaml:10:21: experts.capacity: 0 is not a number above 0"),
    ("", "optimizer:\n", "run.yaml:10:11: optimizer: null (nothing) is not a mapping; write {key: value, ...} with keys of name, gradient_dtype, master, step"),
    ("", "name: ../x\n", "run.yaml:10:7: name: '../x' cannot name a folder; write letters, digits, - and _"),
    ("", "profile: 3\n", "run.yaml:10:10: profile: 3 is not a name; write a word, in quotes"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), CASES)
def test_wrong_values(old: str, new: str, message: str, write: Any) -> None:
    with pytest.raises(Malformed) as error:
        load(write(old, new))
    assert (str(error.value), error.value.exit_code) == (message, 2)


@pytest.mark.parametrize(
    ("old", "new", "begin"),
    [
        ("cluster: h100-hgx-ib400", "cluster: h100-hgx", "run.yaml:2:10: cluster: "),
        ("cluster: h100-hgx-ib400", "cluster: none/here.yaml", "run.yaml:2:10: cluster: "),
        ("model: {kind: mlp, layers: 8, hidden: 64, ffn: 256}", "model: llama3-70", "run.yaml:1:8: model: llama3-70 "),
        ("model: {kind: mlp, layers: 8, hidden: 64, ffn: 256}", "model: ./none.yaml", "run.yaml:1:8: model: "),
        ("precision: bf16", "profile: h100-megatro", "run.yaml:5:10: profile: h100-megatro "),
        ("cluster: h100-hgx-ib400", "cluster: {name: x, accelerator: h100-sxm, node: {devices: 8, scale_up: {bandwidth: 50 GB}}}", "run.yaml:2:84: cluster.node.scale_up.bandwidth: 50 GB is a size"),
    ],
)  # fmt: skip
def test_unknown_names_and_inline_clusters_are_placed(old: str, new: str, begin: str, write: Any) -> None:
    with pytest.raises(Malformed) as error:
        load(write(old, new))
    assert str(error.value).startswith(begin)
    assert "\n" not in str(error.value)


def test_all_errors_at_once_in_order_of_place(write: Any) -> None:
    path = write("", "recompute: ful\nprofile: h100-megatro\n")
    path.write_text(path.read_text().replace("devices: 8", "devices: x").replace("stage: 1", "stge: 1"))
    with pytest.raises(Malformed) as error:
        load(path)
    starts = [line.split(": ")[0] for line in str(error.value).splitlines()]
    assert starts == ["run.yaml:3:10", "run.yaml:8:8", "run.yaml:10:12", "run.yaml:11:10"]


def test_a_file_that_lacks_keys(write: Any) -> None:
    with pytest.raises(Unparsable) as error:
        load(write("devices: 8\n", ""))
    assert str(error.value) == "run.yaml:1:1: devices: is missing; it holds ranks used; whole nodes are filled in order (devices)"
    with pytest.raises(Unparsable) as error:
        load(write("global: 16, ", ""))
    assert str(error.value) == "run.yaml:4:8: batch.global: is missing; it holds one step of all replicas together (sequences)"
    with pytest.raises(Unparsable) as error:
        load(write("hidden: 64, ", ""))
    assert str(error.value) == "run.yaml:1:8: model.hidden: is missing; it holds width of the residual stream (elements)"


def test_a_misspelt_required_key_is_malformed(write: Any) -> None:
    with pytest.raises(Malformed) as error:
        load(write("devices: 8", "device: 8"))
    assert str(error.value).splitlines() == [
        "run.yaml:1:1: devices: is missing; it holds ranks used; whole nodes are filled in order (devices)",
        "run.yaml:3:1: device: unknown key 'device', did you mean 'devices'?",
    ]


def test_keys_from_python_have_no_place() -> None:
    with pytest.raises(Malformed) as error:
        build({"model": "llama3-8b", "cluster": "h100-hgx-ib400", "devices": 8})
    assert str(error.value) == "batch: is missing; it holds sizes of the batch"


def test_a_model_config_without_its_keys_cannot_be_parsed(write: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 64}')
    with pytest.raises(Unparsable) as error:
        load(write("model: {kind: mlp, layers: 8, hidden: 64, ffn: 256}", "model: ./config.json"))
    assert str(error.value).startswith("run.yaml:1:8: model: ")
    assert "num_hidden_layers" in str(error.value)


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 70), st.floats(), st.text(max_size=6), st.sampled_from(["auto", "1e9", "25 MiB", "none"]), st.lists(st.integers(0, 3), max_size=3),
    st.dictionaries(st.sampled_from(["kind", "stage", "tp", "layers", "zipf", "x"]), st.integers(0, 3), max_size=2),
)  # fmt: skip
PATHS = [
    "model", "model.kind", "model.layers", "cluster", "devices", "batch", "batch.global", "batch.sequence", "precision", "stack", "profile", "parallel", "parallel.dp",
    "parallel.order", "dp", "dp.bucket", "zero", "zero.shard", "pipeline", "pipeline.layers", "tensor", "context.style", "experts.load", "recompute", "optimizer", "perturb",
]  # fmt: skip


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.sampled_from(PATHS), JUNK, min_size=1, max_size=3))
@example({"model": "\x1e\r"})  # both end a line
def test_any_value_anywhere_gets_an_answer(changes: dict[str, object]) -> None:
    keys: dict[str, Any] = {
        "model": {"kind": "mlp", "layers": 8, "hidden": 64},
        "cluster": "h100-hgx-ib400",
        "devices": 8,
        "batch": {"global": 16},
        "parallel": {"tp": 2, "pp": 2},
    }
    for path, value in changes.items():
        *parents, last = path.split(".")
        block = keys
        for parent in parents:
            block = block.setdefault(parent, {}) if isinstance(block.get(parent, {}), dict) else {}
        block[last] = value
    try:
        build(keys)
    except InvalidLayout as error:
        assert error.violations
    except ParasimError as error:
        assert all(line.strip() for line in str(error).splitlines())
