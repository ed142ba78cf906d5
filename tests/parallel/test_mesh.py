"""Mesh and placement against brute force over coordinates."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parasim.parallel.layout import Degrees
from parasim.parallel.mesh import Mesh
from parasim.parallel.placement import split_layers, stage_bounds

AXES = ("tp", "cp", "dp", "pp")
OFTEN = settings(max_examples=80, deadline=None, derandomize=True)
degrees = st.builds(
    lambda sizes, order: Degrees(**dict(zip(AXES, sizes, strict=True)), order=tuple(order)),
    st.tuples(*[st.integers(1, 4)] * 4),
    st.permutations(["tp", "cp", "ep", "dp", "pp"]),
)


def brute(d: Degrees) -> list[dict[str, int]]:
    """Coordinates of every rank: nested loops, the first axis of the order innermost."""
    axes = [a for a in d.order if a != "ep"]
    return [dict(zip(reversed(axes), at, strict=True)) for at in product(*[range(getattr(d, a)) for a in reversed(axes)])]


@OFTEN
@given(degrees)
def test_coordinates(d: Degrees) -> None:
    mesh, due = Mesh(d), brute(d)
    assert d.world == len(due)
    for rank, at in enumerate(due):
        assert {a: int(mesh.coordinates[a][rank]) for a in AXES} == at
        assert mesh.rank(**at) == rank


@OFTEN
@given(degrees, st.sampled_from(AXES))
def test_groups_differ_along_one_axis_in_its_order(d: Degrees, axis: str) -> None:
    table, at = Mesh(d).groups(axis), brute(d)
    assert sorted(table.ravel().tolist()) == list(range(d.world))
    assert table[:, 0].tolist() == sorted(table[:, 0].tolist())
    for row in table.tolist():
        assert [at[r][axis] for r in row] == list(range(getattr(d, axis)))
        assert len({tuple(v for a, v in at[r].items() if a != axis) for r in row}) == 1


@OFTEN
@given(degrees, st.sampled_from(AXES), st.integers(-3, 3))
def test_peers_wrap(d: Degrees, axis: str, offset: int) -> None:
    peer, at = Mesh(d).peer(axis, offset), brute(d)
    for rank in range(d.world):
        assert at[peer[rank]] == at[rank] | {axis: (at[rank][axis] + offset) % getattr(d, axis)}
    assert np.array_equal(Mesh(d).peer(axis, -offset)[peer], np.arange(d.world))


def test_data_parallel_group_of_two_nodes() -> None:
    """tp 8 fills a node, so the partners of dp 2 are one node apart: {0, 8}, {1, 9}, ... (llm-analysis issue 27)."""
    mesh = Mesh(Degrees(tp=8, dp=2))
    assert mesh.groups("dp").tolist() == [[i, i + 8] for i in range(8)]
    assert mesh.groups("tp").tolist() == [list(range(8)), list(range(8, 16))]


def test_llama_order_puts_pipeline_before_data() -> None:
    mesh = Mesh(Degrees(tp=2, pp=2, dp=2, order=("tp", "cp", "ep", "pp", "dp")))
    assert mesh.groups("pp").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.peer("pp", 1).tolist() == [2, 3, 0, 1, 6, 7, 4, 5]


@pytest.mark.parametrize("layers", range(1, 40))
def test_layers_are_split_evenly(layers: int) -> None:
    for stages in range(1, layers + 1):
        parts = split_layers(layers, stages)
        assert sum(parts) == layers and max(parts) - min(parts) <= 1 and len(parts) == stages
        assert parts[-1] == min(parts)  # the last stage also holds the head: no more than any other
        bounds = stage_bounds(parts)
        assert bounds[0][0] == 0 and bounds[-1][1] == layers and all(a[1] == b[0] for a, b in pairwise(bounds))
