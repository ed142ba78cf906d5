"""Where tokens go: how many rows every rank's experts get of every rank, from the layout's load of experts.

Every rank sends alike: a load is a share of the assignments per expert, the same for all sources.
"""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray

from ..model.spec import Experts
from .layout import Layout

Floats = NDArray[np.float64]
# names of load tables: rows by ep coordinate, and what members of an ep group send each other
SENT, ARRIVING, GATHERED = "experts.sent", "experts.arriving", "experts.gathered"
OUT, BACK = "experts.out", "experts.back"


def shares(layout: Layout, experts: Experts) -> Floats:
    """The share of all assignments that each expert gets, float[count], sum 1. A token has topk different experts: no share is above 1/topk, and
    what zipf gives beyond goes to the others in proportion."""
    routing, count = layout.routing, experts.count
    if routing.shares:
        return np.asarray(routing.shares) / sum(routing.shares)
    wanted = np.arange(1, count + 1, dtype=float) ** -routing.zipf
    out, full = np.zeros(count), np.zeros(count, dtype=bool)
    while True:
        out[~full] = wanted[~full] / wanted[~full].sum() * (1 - full.sum() / experts.topk)
        over = ~full & (out > 1 / experts.topk)
        if not over.any():
            return out
        full |= over
        out[full] = 1 / experts.topk


def slots(layout: Layout, experts: Experts) -> int:
    """Rows that one rank may send to one expert: capacity x its even share, rounded up (GShard, section 2.2); 0: any number."""
    tokens = _tokens(layout)
    return ceil(layout.routing.capacity * tokens * experts.topk / experts.count) if layout.routing.capacity else 0


def _tokens(layout: Layout) -> int:
    """Tokens of one microbatch that one rank routes."""
    batch, degrees = layout.batch, layout.degrees
    return batch.micro * batch.sequence // degrees.cp // (degrees.tp if layout.tensor.sequence_parallel else 1)


def loads(layout: Layout, experts: Experts) -> dict[str, Floats]:
    """The load tables of a layer: whole rows by ep coordinate; and, where they are uneven, the parts of an exchange, [i, j] what member i sends to j
    of the largest buffer of a member."""
    tokens, ep = _tokens(layout) * experts.topk, layout.degrees.ep
    most = slots(layout, experts) or tokens
    rows = np.minimum(_whole(shares(layout, experts) * tokens), most).reshape(ep, -1).sum(axis=1)
    arriving = rows * ep
    sent = np.full(ep, rows.sum())
    out = {SENT: sent, ARRIVING: arriving, GATHERED: arriving * layout.degrees.tp}
    if layout.routing.uneven:
        table = np.tile(rows, (ep, 1)) / max(arriving.max(), sent.max())
        out |= {OUT: table, BACK: table.T.copy()}
    return out


def _whole(rows: Floats) -> Floats:
    """Whole numbers with the same sum, nearest below and the largest remainders above."""
    floor = np.floor(rows + 1e-9)
    rest = round(float(rows.sum() - floor.sum()))
    order = np.argsort(floor - rows, kind="stable")
    floor[order[:rest]] += 1
    return floor
