"""Where Grape loses: rows that are slower under it, those that cannot be called, and first runs."""

from __future__ import annotations

from collections.abc import Sequence

from .columns import COLUMNS
from .figures import (
    AS_WRITTEN,
    SLOWER,
    SLOWER_BY_RANGE,
    Found,
    call,
    first_ratio,
    is_behind,
    is_left_as_written,
    is_replaying,
    ratio,
    whole_ratio,
)
from .tables import NOTHING, PEERS, apart_from, by_row, markdown, prose, times

__all__ = ["losses"]

LOSSES_SAY = prose(
    "Rows slower than eager, or steps slower than those of a peer that was measured, beyond the ranges of their runs;",
    "of whole programs, which have no range, by more than 3%:",
)


def losses(found: Sequence[Found]) -> str:
    """Rows on which eager or a peer is faster beyond the ranges, with what the report says there."""
    table = [("row", "against", "a step", "a settled run", "what Grape says")]
    rows = by_row(found, ("growth",))
    for row, columns in rows.items():
        mine = columns.get("grape")
        value, whole = ratio(mine), whole_ratio(mine)
        if mine is None or value is None or whole is None:
            continue
        rivals = {"eager": (1.0, 1.0)} if _loses_to_eager(mine) else {}
        rivals |= {
            COLUMNS[name].what: (theirs, whole_ratio(columns[name]) or theirs)
            for name in PEERS
            if (theirs := ratio(columns.get(name))) is not None and is_behind(mine, columns[name])
        }
        more = mine.get("more", {})
        said = [part[:180] for part in (more.get("verdict"), *more.get("findings", [])[:2], more.get("next")) if part]
        for name, (theirs, theirs_whole) in rivals.items():
            against = f"{value / theirs:.3f}x", f"{whole / theirs_whole:.3f}x"
            table.append((row, name, *against, "; ".join(said)))
            said = ["as above"]
    if not rows:
        return NOTHING
    none = "Slower than eager beyond the ranges of their runs, in steps or in settled runs: no row."
    lost = f"{LOSSES_SAY}\n\n{markdown(table)}" if len(table) > 1 else none
    return "\n\n".join(part for part in (lost, *_unclear(found), _first_losses(found)) if part)


def _loses_to_eager(mine: Found) -> bool:
    """A pair of whole programs has no range."""
    if "program" in mine:
        return (ratio(mine) or 1.0) < SLOWER
    return SLOWER_BY_RANGE in (call(mine), call(mine, "run_s"))


def _unclear(found: Sequence[Found]) -> list[str]:
    """Rows that cannot be called, whose ratio is below one."""
    mine = [one for one in apart_from(found) if one["column"] == "grape" and (ratio(one) or 1.0) < 1]
    unclear = [one for one in mine if not _loses_to_eager(one)]
    said = ", ".join(f"{one['row']} {times(ratio(one))}{_why_unclear(one)}" for one in unclear)
    return [prose(f"Below eager, but within the range of its runs, a step: {said}.")] if said else []


def _why_unclear(one: Found) -> str:
    if is_left_as_written(one):
        return f" ({AS_WRITTEN})"
    return "" if is_replaying(one) else " (nothing was replayed in its last run)"


def _first_losses(found: Sequence[Found]) -> str:
    mine = [one for one in apart_from(found) if one["column"] == "grape"]
    known = sorted((value, one["row"]) for one in mine if (value := first_ratio(one)) is not None)
    slow = [f"{row} {times(value)}" for value, row in known if value < SLOWER]
    if not known:
        return ""
    return prose(f"First runs slower by more than 3%, {len(slow)} of {len(known)}: {', '.join(slow) or 'none'}.")
