"""True where operator streams go on serving a cell that regions left to them."""

from __future__ import annotations

from dataclasses import replace

from ...model import LEAST_MS, SIGNIFICANT
from ...render.units import count, plural, waited_pair
from ..past.history import Past
from ..timing import AGREES

__all__ = ["after_streamed_run", "did_other_work", "without_streams"]

FEWEST_MATCHED = 0.05
"""Of a cell's operators; where fewer match, streams gain nothing."""
MOST_WAIT = 0.5
"""Of a cell's operators; where more wait for their captures, later runs will match them."""
MOST_LOST = 2
"""Runs in a row in which streams gained nothing, after which they serve the cell no more."""
MOST_HELD_BACK = 8
"""The same, where captures were put off because the run had paid for enough of them: the next run goes on."""


def after_streamed_run(
    past: Past,
    *,
    operators: int,
    matched: int,
    waiting: int = 0,
    rested: int = 0,
    wall_ms: float,
    plain_ms: float | None,
) -> Past:
    """The past after a run that streams served: `matched` of its `operators` matched, `waiting` of them wait until
    captures are worth it, and `rested` passes ran as written because enough was spent. `plain_ms`: what the plain cell
    takes, None where that is not known or does not matter.
    """
    few = matched < FEWEST_MATCHED * operators and waiting < MOST_WAIT * operators
    slower = plain_ms is not None and wall_ms > (1 + SIGNIFICANT) * plain_ms + LEAST_MS
    lost = past.lost + 1 if few or slower else 0
    if lost < (MOST_HELD_BACK if rested and not slower else MOST_LOST):
        return replace(past, streamed=True, lost=lost, operators=past.operators or operators)
    if few or plain_ms is None:
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
