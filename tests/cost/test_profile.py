"""Profiles: what they hold, how they are written and read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from parasim.cost import profile as profiles
from parasim.cost.profile import KEYS, LEGAL, Profile, catalog, datasheet, load_profile, save_profile
from parasim.errors import Malformed, ParasimError, Unparsable
from parasim.provenance import Number

GOOD = {"value": 0.5, "unit": "1", "source": "a table", "status": "fitted"}


def written(folder: Path, numbers: object, **top: object) -> Path:
    path = folder / "p.yaml"
    path.write_text(yaml.safe_dump({"name": "p", "numbers": numbers} | top))
    return path


def test_datasheet_has_no_numbers() -> None:
    profile = load_profile(None)
    assert profile == datasheet() and not profile.numbers
    assert all(profile.get(key) == LEGAL[key].default for key in LEGAL)
    assert profile.get("compute.matmul_efficiency", 0.25) == 0.25


def test_every_default_leaves_a_machine_as_its_datasheet() -> None:
    # ratios that divide (all must be > 0) are 1, everything that is added is 0
    assert {name: key.default for name, key in KEYS.items()} == {name: float(key.positive) for name, key in KEYS.items()}


def test_catalog_profiles_are_complete() -> None:
    for name, profile in catalog().items():
        assert load_profile(name) == profile and profile.name == name
        assert all(n.source and n.status in ("datasheet", "fitted", "assumed") and n.unit == LEGAL[k].unit for k, n in profile.numbers.items())
        # a number that no row informs has an interval of no width: it is not fitted
        assert all(n.interval[0] < n.interval[1] for n in profile.numbers.values() if n.status == "fitted" and n.interval)


def test_no_file_of_the_catalog_repeats_what_it_extends() -> None:
    """A number that is changed in a base is then changed in all profiles over it."""
    for path in sorted((Path(profiles.__file__).parent / "profiles").glob("*.yaml")):
        tree = yaml.safe_load(path.read_text())
        below = {key: number for name in tree.get("extends") or () for key, number in load_profile(name).numbers.items()}
        own = load_profile(path.stem).numbers
        assert [key for key in tree.get("numbers") or () if below.get(key) == own[key]] == [], path.name


def test_round_trip(tmp_path: Path) -> None:
    numbers = {
        "compute.matmul_efficiency": Number(0.6125, "1", "fit of two rows", "fitted", (0.5, 0.7)),
        "collective.all_reduce.latency": Number(44e-6, "s", "a table: column 3, 'us'", "fitted"),
    }
    profile = Profile("mine", "gloo", numbers, "two numbers")
    save_profile(profile, tmp_path / "mine.yaml")
    assert load_profile(tmp_path / "mine.yaml") == profile
    assert load_profile("mine.yaml", tmp_path) == profile
    with pytest.raises(Malformed, match="cannot be written"):
        save_profile(profile, tmp_path / "absent" / "mine.yaml")


@pytest.mark.parametrize("entry", [{"value": "5 us"}, {"value": 5, "unit": "us"}, {"value": 5e-6, "unit": "s"}, {"value": "5e-6", "unit": "s"}])
def test_a_time_carries_any_unit(tmp_path: Path, entry: dict[str, object]) -> None:
    path = written(tmp_path, {"compute.kernel_launch": {"source": "x", "status": "assumed"} | entry})
    assert load_profile(path).numbers["compute.kernel_launch"] == Number(5e-6, "s", "x", "assumed")


@pytest.mark.parametrize(
    ("numbers", "error", "message"),
    [
        ({"compute.matmul_eficiency": GOOD}, Malformed, "nearest: compute.matmul_efficiency"),
        ({"network.latency.nvlink": GOOD}, Malformed, "numbers.network.latency.nvlink: unknown; nearest: network.latency"),
        ({"compute.matmul_efficiency": GOOD | {"sorce": "x"}}, Malformed, "unknown key 'sorce'; nearest: source"),
        ({"compute.matmul_efficiency": {"value": 0.5}}, Unparsable, "lacks unit, source, status"),
        ({"compute.matmul_efficiency": 0.5}, Malformed, "must be a mapping of value, unit, source, status"),
        ({"compute.matmul_efficiency": GOOD | {"status": "guessed"}}, Malformed, "must be one of datasheet, fitted, assumed"),
        ({"compute.matmul_efficiency": GOOD | {"value": 0}}, Malformed, "more than 0"),
        ({"compute.matmul_efficiency": GOOD | {"value": -1}}, Malformed, "more than 0"),
        ({"compute.matmul_efficiency": GOOD | {"value": "5 us"}}, Malformed, "a ratio is due"),
        ({"compute.matmul_efficiency": GOOD | {"value": True}}, Malformed, "a ratio is due"),
        ({"compute.kernel_launch": GOOD}, Malformed, "unknown unit '1'"),
        ({"compute.kernel_launch": GOOD | {"value": "5 GB", "unit": None}}, Malformed, "is a size, a time is due"),
        ({"compute.matmul_efficiency": GOOD | {"interval": [1]}}, Malformed, r"must be \[low, high\]"),
    ],
)
def test_wrong_numbers(tmp_path: Path, numbers: dict[str, object], error: type[ParasimError], message: str) -> None:
    with pytest.raises(error, match=message):
        load_profile(written(tmp_path, numbers))


def test_all_wrong_numbers_at_once(tmp_path: Path) -> None:
    numbers = {"compute.memory_efficiency": GOOD | {"value": 0}, "compute.kernel_lunch": GOOD}
    with pytest.raises(Malformed, match=r"(?s)memory_efficiency.*kernel_lunch|kernel_lunch.*memory_efficiency"):
        load_profile(written(tmp_path, numbers))


def test_wrong_top_level(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="unknown key 'backnd'; nearest: backend"):
        load_profile(written(tmp_path, {}, backnd="nccl"))
    with pytest.raises(Malformed, match="backend=mpi must be one of nccl, gloo, tpu"):
        load_profile(written(tmp_path, {}, backend="mpi"))


@pytest.mark.parametrize(("text", "message"), [("", "is empty"), ("name: {", "not valid YAML"), ("- 1", "must hold a mapping"), ("numbers: {}", "lacks name")])
def test_broken_files(tmp_path: Path, text: str, message: str) -> None:
    tmp_path.joinpath("p.yaml").write_text(text)
    with pytest.raises(Unparsable, match=message):
        load_profile("p.yaml", tmp_path)


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="nearest: a100-megatron"):
        load_profile("a100-megatrn", tmp_path)
    with pytest.raises(Malformed, match="no such file"):
        load_profile("absent.yaml", tmp_path)
