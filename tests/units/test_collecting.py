"""The garbage collector is off inside and as it was outside, whatever happens."""

from __future__ import annotations

import gc

import pytest

from parasim.collecting import uncollected


@uncollected()
def inside() -> bool:
    return gc.isenabled()


def test_off_inside_and_back_after() -> None:
    assert gc.isenabled() and not inside() and gc.isenabled()
    with pytest.raises(ValueError, match="x"), uncollected():
        raise ValueError("x")
    assert gc.isenabled()


def test_who_switched_it_off_keeps_it_off() -> None:
    gc.disable()
    try:
        assert not inside()
        assert not gc.isenabled()
    finally:
        gc.enable()
