"""Reading YAML: scalars of YAML 1.2, places of keys and values, and every kind of file that is no run file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parasim.config import load
from parasim.documents import Place, parse
from parasim.errors import Malformed, ParasimError, Unparsable


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e9", 1e9),
        ("7.5e9", 7.5e9),
        ("1.", 1.0),
        (".5", 0.5),
        ("-3", -3),
        ("010", 10),
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2024-01-01", "2024-01-01"),
        ("0x10", "0x10"),
        ("true", True),
        ("'true'", "true"),
        ("'1e9'", "1e9"),
        ("null", None),
        ("~", None),
        ("", None),
        (".inf", float("inf")),
    ],
)
def test_scalars(text: str, value: object) -> None:
    data = parse(f"key: {text}".encode(), "f").data
    assert data == {"key": value}
    assert type(data["key"]) is type(value)  # type: ignore[index]


def test_places_of_keys_and_values() -> None:
    document = parse(b"a: 1\nb:\n  - {c: x}\n", "f.yaml")
    assert document.place(("a",)) == Place("f.yaml", 1, 4)
    assert document.place(("b", 0, "c")) == Place("f.yaml", 3, 9)
    assert document.place(("b", 0, "c"), of_key=True) == Place("f.yaml", 3, 6)
    assert document.place(("b", 0, "missing")) == Place("f.yaml", 3, 5)  # of what encloses it


def test_a_byte_order_mark_is_no_part_of_the_first_key() -> None:
    assert parse("\ufeffa: 1".encode(), "f").data == {"a": 1}


def test_an_alias_stands_for_its_anchor() -> None:
    assert parse(b"a: &x {b: 1}\nc: *x\n", "f").data == {"a": {"b": 1}, "c": {"b": 1}}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "run.yaml: the file is empty"),
        (b"# nothing\n", "run.yaml: the file is empty"),
        (b"---\n", "run.yaml: the file is empty"),
        (b"mod", "run.yaml:1:1: 'mod' is not a run file; write keys and values, such as model: llama3-8b"),
        (b"a: 1\nmod", "run.yaml:2:4: not valid YAML: could not find expected ':', while scanning a simple key that began at line 2"),
        (b"a: {b: 1", "run.yaml:1:9: not valid YAML: it ends too early, while parsing a flow mapping that began at line 1"),
        (b"a: [1,\n  2", "run.yaml:2:4: not valid YAML: it ends too early, while parsing a flow sequence that began at line 1"),
        (b"a: 'b", "run.yaml:1:6: not valid YAML: it ends too early, while scanning a quoted scalar that began at line 1"),
        (b"a: 1\n b: 2\n", "run.yaml:2:3: not valid YAML: mapping values are not allowed here"),
        (b"a:\n\tb: 1\n", "run.yaml:2:1: not valid YAML: found character '\\t' that cannot start any token, while scanning for the next token"),
        (b"a: 1\n---\nb: 2\n", "run.yaml:2:1: not valid YAML: a second document begins here; write one"),
        (b"a: *x\n", "run.yaml:1:4: not valid YAML: found undefined alias 'x'"),
        (b"a: &x [*x]\n", "run.yaml:1:4: not valid YAML: an alias that contains itself or grows without bound"),
        (b"a: \xff\n", "run.yaml: not UTF-8 text (byte 0xff at offset 3)"),
    ],
)
def test_what_cannot_be_parsed(raw: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_bytes(raw)
    with pytest.raises(Unparsable) as error:
        load("run.yaml")
    assert str(error.value) == message
    assert error.value.exit_code == 3


def test_bombs_are_answered(tmp_path: Path) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join(10 * [f'*a{n - 1}'])}]" for n in range(1, 12)]
    for content in ("\n".join(levels), "a: " + "[" * 5000):
        (tmp_path / "bomb.yaml").write_text(content)
        with pytest.raises(Unparsable, match="not valid YAML"):
            load(tmp_path / "bomb.yaml")


def test_what_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("list.yaml").write_text("- model: x\n")
    for path, message in (
        ("folder", "folder: is a directory; a file is due"),
        ("none.yaml", "none.yaml: no such file"),
        ("list.yaml", "list.yaml:1:1: a list is not a run file; write keys and values, such as model: llama3-8b"),
    ):
        with pytest.raises(Malformed) as error:
            load(path)
        assert (str(error.value), error.value.exit_code) == (message, 2)


EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "llama3-70b-64xh100.yaml"


def test_every_beginning_of_a_file_is_answered(tmp_path: Path) -> None:
    """A file cut before its last required key is malformed; afterwards it is one that was written shorter, perhaps an illegal one."""
    text = EXAMPLE.read_text(encoding="utf-8")
    path = tmp_path / "cut.yaml"
    whole = text.index("\nprecision:")
    for end in range(0, len(text), 7):
        path.write_text(text[:end], encoding="utf-8")
        try:
            load(path)
        except ParasimError as error:
            assert error.exit_code in ((2, 3) if end < whole else (1, 2, 3)), text[:end]
            continue
        assert end >= whole


@pytest.mark.parametrize("mark", ["{global: 32", "{tp: 8, pp", "bucket: 100 Mi", "{sequence_parallel"])
def test_a_file_cut_inside_a_mapping_cannot_be_parsed(mark: str, tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    (tmp_path / "cut.yaml").write_text(text[: text.index(mark) + len(mark)], encoding="utf-8")
    with pytest.raises(Unparsable, match=r"cut\.yaml:\d+:\d+: not valid YAML: it ends too early"):
        load(tmp_path / "cut.yaml")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.one_of(st.binary(max_size=60), st.text(alphabet="ab:{}[]-,'\"#&*!|>%@ \n\t1.~?", max_size=40).map(str.encode)))
def test_any_bytes_get_an_answer(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "any.yaml").write_bytes(raw)
    with pytest.raises(ParasimError) as error:
        load(tmp_path / "any.yaml")
    assert str(error.value).startswith(str(tmp_path / "any.yaml"))
