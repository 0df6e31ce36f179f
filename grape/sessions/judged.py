"""Whether operator streams go on serving a cell that regions left to them."""

from __future__ import annotations

from dataclasses import replace

from ..model import LEAST_MS, SIGNIFICANT
from ..render.units import count, plural, waited_pair
from .history import Past
from .timing import AGREES

__all__ = ["after_streamed_run", "did_other_work", "without_streams"]

FEWEST_MATCHED = 0.05
"""Of a cell's operators; where fewer match, streams gain nothing."""
MOST_LOST = 2
"""Runs in a row in which streams gained nothing, after which they serve the cell no more."""


def after_streamed_run(past: Past, *, operators: int, matched: int, wall_ms: float, plain_ms: float | None) -> Past:
    """What is known after a run that streams served, of `operators` of which so many `matched`. `plain_ms`: what the
    plain cell takes, None where that is not known or does not matter.
    """
    few = matched < FEWEST_MATCHED * operators
    slower = plain_ms is not None and wall_ms > (1 + SIGNIFICANT) * plain_ms + LEAST_MS
    lost = past.lost + 1 if few or slower else 0
    if lost < MOST_LOST:
        return replace(past, streamed=True, lost=lost, operators=past.operators or operators)
    if few or plain_ms is None:
        return without_streams(past, f"operator streams matched {count(matched)} of {plural(operators, 'operator')}")
    return without_streams(past, f"operator streams made it slower ({waited_pair(plain_ms, wall_ms)})")


def did_other_work(past: Past, operators: int) -> bool:
    """Whether the cell had more or less to do than when streams served it first: an earlier run tells nothing then."""
    return past.operators is not None and abs(operators - past.operators) > AGREES * past.operators


def without_streams(past: Past, why: str) -> Past:
    """The cell runs as written from now on; regions look at it again where they only made room for streams."""
    return replace(past, streamed=False, operators=None, lost=0, streamless=why, settled=not past.outbid)
