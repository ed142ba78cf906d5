"""V-Half (Qi et al. 2024, arXiv 2405.15362): half the activation memory of 1F1B, by a building block that is repeated for every microbatch."""

from __future__ import annotations

from .actions import Action, Kind, Orders, ScheduleInput

SLOTS = 6  # of a building block on a rank: F I W of both of its stages
# Slots from rank to rank: forward and backward of the lower stages (towards rank p - 1 and back), of the upper ones (back, and towards it again).
# A lower stage holds its activation for 1 + 2 slots per rank beyond it, an upper one for 2 + 1 per rank before it: together 3 (p - 1) for every rank,
# half of what fills a block's 6 slots with p microbatches.
FORWARD_LOWER, FORWARD_UPPER, BACKWARD_UPPER, BACKWARD_LOWER = 1, 2, 1, 2
# Slots at the three turns (F to F on the last rank, F to I on the first, I to I on the last) by parity of p: the fewest that never meet.
TURNS = {0: (4, 1, 5), 1: (2, 1, 1)}


def v_half(given: ScheduleInput) -> Orders:
    """At most (p + 2) div 2 microbatches in flight, twice as many chunks. The order is that of the slots, whatever the times are."""
    p = given.ranks
    orders: Orders = {}
    for r in range(p):
        timed = [(slot + SLOTS * i, Action(kind, stage, i)) for slot, kind, stage in _block(p, r) for i in range(given.microbatches)]
        orders[r] = [action for _, action in sorted(timed)]
    return orders


def _block(p: int, r: int) -> list[tuple[int, Kind, int]]:
    """(slot, kind, stage) of the first microbatch on rank r: both W in the slots of the block that are left, as early as they can."""
    last, below = p - 1, p - 1 - r
    over, top, back = TURNS[p % 2]
    f_last = last * FORWARD_LOWER + over
    b_first = f_last + last * FORWARD_UPPER + top
    b_last = b_first + last * BACKWARD_UPPER + back
    f_lower, f_upper = r * FORWARD_LOWER, f_last + below * FORWARD_UPPER
    b_upper, b_lower = b_first + r * BACKWARD_UPPER, b_last + below * BACKWARD_LOWER
    free = {0, 1, 2, 3, 4, 5} - {slot % SLOTS for slot in (f_lower, f_upper, b_upper, b_lower)}
    lower, upper = r, 2 * p - 1 - r
    w_upper, w_lower = min(
        ((b_upper + (x - b_upper) % SLOTS, b_lower + (y - b_lower) % SLOTS) for x in free for y in free if x != y),
        key=lambda slots: (sum(slots), slots),
    )
    return [
        (f_lower, "F", lower),
        (f_upper, "F", upper),
        (b_upper, "I", upper),
        (b_lower, "I", lower),
        (w_upper, "W", upper),
        (w_lower, "W", lower),
    ]
