"""Decides from a cell's last watched run how Grape meets the next one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..model import SIGNIFICANT, RegionEvidence

if TYPE_CHECKING:
    from ..runtime.accounts.settling import Replayed
    from ..runtime.regions.region import Region

MOST_WATCHED = 4
"""Runs of a cell in which a capture that did not pay yet is waited for."""
STREAMS_SAVE = 0.4
"""The share of a cell's plain time that operator streams are taken to save: on one H200 they made steps of nine kinds
1.1 to 3.1 times faster."""
FORESEEN = 0.5
"""The share of a saving that is expected to come, where a capture was only waited for: of 27 public programs three had
such captures made in their second run, and none was faster for it."""
SHORT_MS = 1000.0
"""In a shorter cell no capture is waited for: to look on costs some milliseconds however little there is to see."""


MANY = 8
"""Calls of which it is said that each has new shapes."""
_EACH_NEW = "graphs for shapes that are new at each call would cost more than they save"

EARNED = 1.2
"""So many times faster than under operator streams a cell has to get by graphs."""


def bar_over(saved: float) -> float:
    """The share of a cell's plain time that graphs have to save, where operator streams save the share `saved`."""
    return 1 - (1 - saved) / EARNED


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Milliseconds that graphs save in each run of a cell: those that are there, and those that were waited for."""

    made_ms: float = 0.0
    foreseen_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """`settled`: there is nothing more to learn. `served`: graphs serve the next run. `why` says what speaks against
    them, where nothing stands in the way of a capture.
    """

    settled: bool
    served: bool
    why: str | None = None
    outbid: bool = False
    """Graphs would have served, if nothing else were expected to save more."""


def gain_of(replayed: Iterable[Replayed], regions: Iterable[Region]) -> Gain:
    """Savings: of replays, for all calls that their regions had; of others, as the capture policy expects them."""
    measured = {id(one.region): one for one in replayed if one.replays and one.eager_ms}
    made = 0.0
    foreseen: dict[str, tuple[str | None, float]] = {}
    for region in regions:
        one, decisions = measured.get(id(region)), region.captures.decisions
        if region.refused is not None:
            continue
        if one is not None:
            made -= one.lost_ms / one.replays * region.calls_in_run
        elif region.entries and decisions:
            made += decisions[-1].saving_ms * region.calls_in_run
        else:
            waiting = [one.decision for one in region.shapes.values() if one.decision is not None]
            saving_ms = max((one.saving_ms for one in waiting if one.action == "wait"), default=0.0)
            if saving_ms > 0:
                foreseen[region.name] = region.parent, saving_ms * region.calls_in_run
    outermost = [ms for parent, ms in foreseen.values() if parent not in foreseen]  # a graph holds what it calls
    return Gain(made_ms=made, foreseen_ms=sum(outermost))


def _has_new_shapes(regions: Iterable[RegionEvidence]) -> bool:
    """Whether hardly any call of some region had shapes that another one had."""
    return any(one.refused is None and one.calls >= MANY and one.calls <= len(one.shapes) for one in regions)


def prospect(
    *,
    runs: int,
    regions: Sequence[RegionEvidence],
    gain: Gain | None,
    plain_ms: float,
    has_graphs: bool,
    captured: bool,
    denied: bool,
    serves: bool,
    bar: float | None = None,
) -> Prospect:
    """After the `runs`-th run, in which something was `captured` or not, or not looked at (`denied`) for want of an
    allowance.

    `gain`: None where graphs stay whatever they save. `bar`: the share of the plain time that graphs have to save
    because something else would serve the cell instead, which is decided after the first run, and after the second
    where that captured nothing; None where nothing would.
    """
    hopeless = not has_graphs and not denied and all(region.refused is not None for region in regions)
    waits = any(one.action == "wait" for region in regions for one in region.decisions[-1:])
    more = captured or (waits and plain_ms >= SHORT_MS)
    known = runs >= 2 and (runs >= MOST_WATCHED or not more or (bar is not None and not captured))
    if gain is not None and plain_ms and (runs >= 2 or bar is not None):
        expected = gain.made_ms + (0.0 if known else gain.foreseen_ms)
        share = max(0.0, expected) / plain_ms
        likely = (gain.made_ms + (0.0 if known else FORESEEN * gain.foreseen_ms)) / plain_ms
        if bar is not None and likely < bar and not hopeless and (runs < 2 or share >= SIGNIFICANT):
            why = f"graphs would save {share:.0%} of the cell" if share >= SIGNIFICANT else None
            return Prospect(settled=True, served=False, why=why, outbid=True)
        if share < SIGNIFICANT and runs >= 2:
            new = _EACH_NEW if _has_new_shapes(regions) else None
            why = "captures would cost more than they save" if waits else new
            if has_graphs:
                share = max(0.0, gain.made_ms) / plain_ms
                why = f"graphs would save {share:.0%} of the cell, too little to stand between"
            return Prospect(settled=True, served=False, why=why)
    return Prospect(settled=not serves or hopeless or known, served=has_graphs)
