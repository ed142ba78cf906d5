"""The schedules by name, one row each, and what a caller may turn about them."""

from __future__ import annotations

from types import MappingProxyType

from .actions import Orders, Schedule, ScheduleInput, refused, turned
from .dualpipe import dualpipe
from .dualpipe_v import dualpipe_v
from .gpipe import gpipe
from .interleaved import interleaved
from .looped_bfs import looped_bfs
from .naive import naive
from .one_f_one_b import one_f_one_b
from .placement import BIDIRECTIONAL, VEE
from .v_half import v_half
from .zb1p_interleaved import zb1p_interleaved
from .zb_auto import zb_1p, zb_2p, zb_auto
from .zb_h1 import zb_h1
from .zb_h2 import zb_h2
from .zb_v import zb_v

SCHEDULES: MappingProxyType[str, Schedule] = MappingProxyType(
    {
        "naive": Schedule(naive),
        "gpipe": Schedule(gpipe, backward="increasing"),
        "1f1b": Schedule(one_f_one_b),
        "interleaved-1f1b": Schedule(interleaved, fixed=False, knobs=("group",)),
        "looped-bfs": Schedule(looped_bfs, fixed=False, backward="decreasing"),
        "zb-h1": Schedule(zb_h1),
        "zb-h2": Schedule(zb_h2),
        "zb1p-interleaved": Schedule(zb1p_interleaved, fixed=False, knobs=("group",)),
        "zb-v": Schedule(zb_v, VEE, chunks=2),
        "v-half": Schedule(v_half, VEE, chunks=2),
        "zb-auto": Schedule(zb_auto, knobs=("times", "memory_cap")),
        "zb-1p": Schedule(zb_1p, knobs=("times",)),
        "zb-2p": Schedule(zb_2p, knobs=("times",)),
        "dualpipe": Schedule(dualpipe, BIDIRECTIONAL, chunks=2),
        "dualpipe-v": Schedule(dualpipe_v, VEE, chunks=2),
    }
)


def orders_of(name: str, given: ScheduleInput, backward_order: str | None = None) -> Orders:
    """The orders of a schedule of SCHEDULES, with the microbatches of its backwards "increasing" or "decreasing" where it can be turned.

    Raises InvalidLayout for sizes that it does not allow and for a knob that it does not have.
    """
    row = SCHEDULES[name]
    for knob in ("group", "memory_cap"):
        if getattr(given, knob) is not None and knob not in row.knobs:
            with_it = ", ".join(n for n, s in SCHEDULES.items() if knob in s.knobs)
            raise refused(knob, getattr(given, knob), f"means nothing to {name}", f"leave it out; schedules that have it: {with_it}")
    orders = row(given)
    if backward_order in (None, row.backward or "increasing"):
        return orders
    if not row.backward:
        able = ", ".join(n for n, s in SCHEDULES.items() if s.backward)
        raise refused("backward_order", backward_order, f"cannot be had of {name}, which mixes forwards and backwards", f"schedules that turn: {able}")
    return turned(orders, given.microbatches)
