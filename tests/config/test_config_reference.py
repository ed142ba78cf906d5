"""The reference page lists every key with type, default and meaning; the schema of inline models is the model room's."""

from __future__ import annotations

from parasim.config.reference import reference
from parasim.config.schema import RunKeys
from parasim.config.schema_model import MODEL_KINDS
from parasim.model.schema import FIELDS, FREE_KEYS


def test_every_row_is_full() -> None:
    rows = [line.strip("| ").split(" | ") for line in reference().splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    for key, type_, *_, default, meaning in rows:
        assert type_.strip() and default.strip() and meaning.strip(), key


def test_rows_say_what_the_schema_says() -> None:
    text = reference()
    assert "| `dp.bucket` | size, such as 25 MiB | MiB, GB, GiB | `25 MiB` | gradients reduced together when bucketed |" in text
    assert "| `tensor.async` | `true` or `false` |  | `false` |" in text
    assert "| `devices` | whole number, 1 to 1048576 | devices | must be written |" in text
    for name, info in RunKeys.model_fields.items():
        assert f"| `{info.alias or name}" in text


def test_inline_models_have_the_keys_that_the_loader_reads() -> None:
    assert set(MODEL_KINDS) == set(FIELDS)
    for kind, block in MODEL_KINDS.items():
        assert set(block.model_fields) - {"kind", "name"} == set(FIELDS[kind]) - set(FREE_KEYS)
