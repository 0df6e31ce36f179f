"""True where operator streams go on serving a cell that regions left to them."""

from __future__ import annotations

from dataclasses import replace

from ...model import LEAST_MS, SIGNIFICANT
from ...render.units import count, plural, waited_pair
from ..past.history import Past
from ..timing import AGREES

FEWEST_MATCHED = 0.05
"""Of a cell's operators; where fewer match, streams gain nothing."""
FEWEST_TOGETHER = 2
"""Operators of a group, in the mean: one alone is launched as it would be as written, with copies beside it."""
MOST_WAIT = 0.5
"""Of a cell's operators; where more wait for their captures, later runs will match them."""
MOST_LOST = 2
"""Runs in a row in which streams gained nothing, after which they serve the cell no more."""
MOST_LEARNING = 8
"""Runs in which graphs were made, or were still to be made, that are not held against streams; beside those that gained
by them."""
MOST_PAID = 0.5
"""Of the plain cell: what such runs may have cost in all, as far as is known. One of them adds half of that at most,
for a run may be slow for another reason. The slower one that goes beyond it is the last: BERT's training on 64
lengths, of which a run took 1.1 to 1.7 times its plain one on an H200, went on for three more while two in a row had
to lose.
"""
GAIN = 0.05
"""Of the plain cell, captures apart. Estimates of it are off by 12% in the median: what saved less may have lost."""


def is_learning(past: Past, *, operators: int, waiting: int, captured: int, rested: int) -> bool:
    """True of a run of which later ones will be faster: segments were `captured` in it, operators were `waiting` until
    that is worth it, or passes `rested`, for enough was spent. False where the cell had enough of such runs.
    """
    on_its_way = captured or rested or waiting >= FEWEST_MATCHED * operators
    return bool(on_its_way) and past.learning < MOST_LEARNING and past.paid <= MOST_PAID


def after_streamed_run(
    past: Past,
    *,
    operators: int,
    matched: int,
    segments: int = 0,
    waiting: int = 0,
    captured: int = 0,
    rested: int = 0,
    wall_ms: float,
    plain_ms: float | None,
) -> Past:
    """The past after a run that streams served, in which `matched` of its `operators` matched, and were launched in
    `segments`; the other numbers are those of `is_learning`. `plain_ms`: what the plain cell takes, None where that is
    not known or does not matter.
    """
    gained = plain_ms is not None and wall_ms <= (1 - GAIN) * plain_ms
    alone = not gained and 0 < matched < FEWEST_TOGETHER * segments
    few = (alone or matched < FEWEST_MATCHED * operators) and waiting < MOST_WAIT * operators
    slower = plain_ms is not None and wall_ms > (1 + SIGNIFICANT) * plain_ms + LEAST_MS
    lost = past.lost + 1 if few or slower else 0
    learning, paid = past.learning, past.paid
    if not alone and is_learning(past, operators=operators, waiting=waiting, captured=captured, rested=rested):
        learning += not gained
        paid += min(max(0.0, (wall_ms - LEAST_MS) / plain_ms - 1), MOST_PAID / 2) if plain_ms else 0.0
        lost = MOST_LOST if slower and paid > MOST_PAID else 0
    if lost < MOST_LOST:
        operators = past.operators or operators
        return replace(past, streamed=True, lost=lost, operators=operators, learning=learning, paid=paid)
    if alone:
        why = f"operator streams launched hardly two operators together: {count(matched)} in {count(segments)} groups"
    elif few or plain_ms is None:
        why = f"operator streams matched {count(matched)} of {plural(operators, 'operator')}"
    else:
        why = f"operator streams made it slower ({waited_pair(plain_ms, wall_ms)})"
    return without_streams(past, why, again=past.led is not None or (past.outbid and past.why is not None))


def did_other_work(past: Past, operators: int) -> bool:
    """True if the cell had more or less to do than when streams served it first: an earlier run tells nothing then."""
    return past.operators is not None and abs(operators - past.operators) > AGREES * past.operators


def without_streams(past: Past, why: str, *, again: bool) -> Past:
    """The cell runs as written from now on, unless regions look at it `again`, which made room for streams."""
    return replace(past, streamed=False, operators=None, lost=0, streamless=why, settled=not again)
