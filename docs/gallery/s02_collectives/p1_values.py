"""
What collectives do to values
=============================

Four ranks. Every algorithm of parasim exists as explicit messages too; here they are played on small arrays.
"""

import numpy as np

import parasim as ps
from beside import Table, beside

rows = [np.arange(4.0) + r for r in range(4)]
own = [np.array([float(r)]) for r in range(4)]
root = [np.arange(4.0), None, None, None]


def out(op, inputs, algorithm, at=0):
    return [None if x is None else x.tolist() for x in ps.play_collective(op, inputs, algorithm, at)]


beside(
    ("broadcast", [[0, 1, 2, 3]] * 4, out("broadcast", root, "direct")),
    ("broadcast from rank 2", [[7, 8]] * 4, out("broadcast", [None, None, np.array([7.0, 8.0]), None], "binomial", 2)),
    ("scatter", [[0], [1], [2], [3]], out("scatter", root, "binomial")),
    ("gather, on the root", [0, 1, 2, 3], out("gather", own, "direct")[0]),
    ("reduce, on the root", [6], out("reduce", own, "binomial")[0]),
    ("all-gather", [[0, 1, 2, 3]] * 4, out("all_gather", own, "ring")),
    ("reduce-scatter", [[6], [10], [14], [18]], out("reduce_scatter", rows, "ring")),
    ("all-reduce, ring", [[6, 10, 14, 18]] * 4, out("all_reduce", rows, "ring")),
    ("all-reduce, halving and doubling", [[6, 10, 14, 18]] * 4, out("all_reduce", rows, "halving-doubling")),
)

# %%
# An all-to-all transposes: the position is the destination. Twice is the identity.

matrix = [np.arange(4.0) + 4 * r for r in range(4)]
once = ps.play_collective("all_to_all", matrix, "direct")
twice = ps.play_collective("all_to_all", once, "pairwise")
beside(
    ("all-to-all", [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]], [x.tolist() for x in once]),
    ("twice", [x.tolist() for x in matrix], [x.tolist() for x in twice]),
)

# %%
# Averages, maxima, minima, and parts of unequal size follow from the plain definitions:

from parasim.collectives import reference

splits = [[1, 2, 0, 1], [0, 1, 3, 0], [2, 0, 1, 1], [1, 1, 1, 1]]
uneven = reference.all_to_all([np.arange(4) + 10 * r for r in range(4)], splits)
beside(
    ("average", [1.5, 2.5, 3.5, 4.5], reference.all_reduce(rows, "avg")[0].tolist()),
    ("maximum", [3, 4, 5, 6], reference.all_reduce(rows, "max")[0].tolist()),
    ("minimum", [0, 1, 2, 3], reference.all_reduce(rows, "min")[0].tolist()),
    ("uneven all-to-all, rank 0", [0, 20, 21, 30], uneven[0].tolist()),
    ("uneven all-to-all, lengths", [4, 4, 5, 3], [len(x) for x in uneven]),
)

# %%
# In the backward every operation has a partner:

Table(
    ("forward", "backward"),
    [
        ("all-gather", "reduce-scatter"),
        ("reduce-scatter", "all-gather"),
        ("broadcast", "reduce"),
        ("scatter", "gather"),
        ("all-to-all", "all-to-all"),
        ("all-reduce of a sum used everywhere", "identity"),
        ("identity of an input used everywhere", "all-reduce"),
    ],
)
