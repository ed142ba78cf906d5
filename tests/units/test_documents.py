"""YAML is read in one way everywhere: written data comes back equal, duplicate keys are refused in every kind of file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parasim.cost.profile import load_profile
from parasim.documents import parse, read, write
from parasim.errors import Malformed
from parasim.model.catalog import load_model
from parasim.topology.loader import load_cluster
from parasim.words import closest, nearest

TRAPS = ["1e9", "1_000", "no", "on", "true", "null", "~", "", "1:30", "0x1F", "2024-01-01", ".inf", "12", "a: b", "# c", "- d", "é", " e ", "f\ng"]
WORDS = st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), max_size=12)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.floats(allow_nan=False), WORDS, st.sampled_from(TRAPS))
KEYS = st.one_of(st.sampled_from(TRAPS), WORDS)
TREES = st.dictionaries(KEYS, st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(TREES)
def test_what_is_written_is_read_back_equal(tmp_path: Path, tree: dict[str, object]) -> None:
    write(tree, tmp_path / "tree.yaml")
    assert read(tmp_path / "tree.yaml").mapping() == tree


def test_a_folder_that_is_missing_is_malformed(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match=r"cannot be written \(No such file"):
        write({}, tmp_path / "none" / "tree.yaml")


@pytest.mark.parametrize("load", [load_model, load_profile, lambda path: load_cluster(path, 1)], ids=["model", "profile", "cluster"])
def test_duplicate_keys_are_refused_in_every_file(load: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "twice.yaml").write_text("name: a\nkind: mlp\nname: b\n")
    with pytest.raises(Malformed, match=r"twice\.yaml:3:1: name: duplicate key 'name' \(first on line 1\); keep one of them"):
        load(tmp_path / "twice.yaml")


def test_a_large_document_is_read_fast() -> None:
    """4000 links, 20,000 values: the compiled parser takes a fraction of a second, PyYAML's own several."""
    rows = "\n".join(f"- {{a: gpu{i}, b: switch{i % 40}, kind: scale_up, bandwidth: 50 GB/s, latency: 1 us}}" for i in range(4000))
    assert len(parse(f"links:\n{rows}".encode(), "large.yaml").values) == 2 + 4000 * 6


def test_close_names() -> None:
    assert closest("LLAMA3-70B", ["llama3-8b", "llama3-70b"], 1) == ["llama3-70b"]
    assert closest("zzz", ["llama3-8b"]) == []
    assert nearest("rng", ["tree", "ring"]) == "nearest: ring; known: ring, tree"
    assert nearest("zzz", ["tree", "ring"]) == "known: ring, tree"
    assert nearest("gpu77", [f"gpu{i}" for i in range(100)]).startswith("nearest: gpu77")
    assert "known" not in nearest("gpu77", [f"gpu{i}" for i in range(100)])
