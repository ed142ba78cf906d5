"""Values of collectives from the command line: by definition, over real processes, and what is refused."""

from __future__ import annotations

import pytest

from parasim.errors import Malformed
from parasim.plan.values import collective_values

ROWS = "[[0,1,2,3],[1,2,3,4],[2,3,4,5],[3,4,5,6]]"


def test_a_mean_and_a_chain() -> None:
    assert collective_values("all_reduce", ROWS, reduce="avg").steps[-1] == [[1.5, 2.5, 3.5, 4.5]] * 4  # column means of ROWS
    chained = collective_values("reduce_scatter,all_gather", ROWS)
    assert chained.steps == [[[6], [10], [14], [18]], [[6, 10, 14, 18]] * 4]  # column sums, cut and put together


def test_elements_of_an_uneven_exchange() -> None:
    splits = "[[1,2,0,1],[0,1,3,0],[2,0,1,1],[1,1,1,1]]"
    found = collective_values("all_to_all", ROWS, splits=splits).to_json()
    assert found["elements"] == {"sent": [3, 3, 3, 3], "received": [3, 3, 4, 2], "bottleneck": 4}  # sums of splits without its diagonal


def test_the_root_alone_and_undefined_values() -> None:
    assert collective_values("scatter", "[5,6]", ranks=2, root=1).steps[-1] == [[5], [6]]
    assert collective_values("reduce", "[[1],[2]]", root=1).steps[-1] == [None, [3]]
    assert "undefined" in str(collective_values("gather", "[[1],[2]]"))


@pytest.mark.parametrize(
    ("op", "inputs", "more", "word"),
    [
        ("all_reduce", "nonsense", {}, "JSON"),
        ("all_reduce", "[0,1]", {}, "one list"),
        ("all_reduce", "[[0],[1,2]]", {}, "one length"),
        ("all_reduce", "[[0],[true]]", {}, "numbers"),
        ("all_reduces", ROWS, {}, "all_reduce"),
        ("all_reduce", ROWS, {"reduce": "median"}, "reduction"),
        ("all_reduce", ROWS, {"backend": "mpi"}, "backend"),
        ("scatter", "[1,2,3]", {"ranks": 2}, "multiple"),
        ("gather", ROWS, {"root": 4}, "0 to 3"),
        ("all_to_all", ROWS, {"splits": "[[4,0,0,0]]"}, "row per rank"),
        ("all_gather", ROWS, {"splits": ROWS}, "all_to_all"),
        ("reduce,all_gather", ROWS, {}, "undefined"),
    ],
)
def test_what_is_refused(op: str, inputs: str, more: dict[str, object], word: str) -> None:
    with pytest.raises(Malformed, match=word):
        collective_values(op, inputs, **more)  # type: ignore[arg-type]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("ops", "inputs"),
    [
        ("all_to_all,all_reduce,all_to_all,reduce_scatter,all_gather,gather", ROWS),
        ("broadcast,all_to_all,reduce", "[7,8,9,10]"),
        ("scatter,all_gather", "[7,8,9,10]"),
    ],
)
def test_gloo_agrees_with_the_definition(ops: str, inputs: str) -> None:
    """Every collective, several of them one after the other on the same four processes; the values after each are compared."""
    given = {"root": 2} if inputs == ROWS else {"ranks": 4, "root": 2}
    found = collective_values(ops, inputs, backend="gloo", **given).steps  # type: ignore[arg-type]
    assert found == collective_values(ops, inputs, **given).steps and len(found) == ops.count(",") + 1  # type: ignore[arg-type]
