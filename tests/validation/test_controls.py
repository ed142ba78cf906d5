"""What the numeric proof shows to train wrongly, `verify` refuses before anything runs; and what it proves right, `verify` accepts."""

from __future__ import annotations

import pytest

from parasim.lowering import lower
from parasim.program.checks import verify
from validation.numeric import CASES, CONTROLS


@pytest.mark.parametrize("title", list(CONTROLS))
def test_every_lost_transfer_is_refused(title: str) -> None:
    name, change = CONTROLS[title]
    whole = lower(CASES[name].plan(), check=False)
    assert verify(whole) == ()
    assert verify(change(whole))


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("gpt-tp2-sp without the sum of the norms' gradients", "L0.norm1.weight.grad is reduced over tp 0 times in step 0, due once"),
        ("llama-tp4-copied-kv without the sum of the copies", "L1.kv.weight.grad is reduced over tp.kv 0 times in step 0, due once"),
        ("gpt-pp2 without the sum of the tied embedding", "embedding.weight.grad is reduced over embedding 0 times in step 0, due once"),
    ],
)
def test_what_is_lost_is_named(title: str, words: str) -> None:
    name, change = CONTROLS[title]
    text = "\n".join(map(str, verify(change(lower(CASES[name].plan(), check=False)))))
    assert words in text.replace("=", " ")
