"""The evaluation in a few lines, for who reads no table: each says what it rests on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .columns import COLUMNS
from .figures import (
    FASTER,
    SLOWER,
    SLOWER_BY_RANGE,
    Found,
    call,
    first_ratio,
    is_behind,
    is_broken,
    is_left_as_written,
    ratio,
    spread,
)
from .overall import attempts, same_bits
from .tables import APART, PEERS, by_row, prose

__all__ = ["in_short"]


def in_short(found: Sequence[Found]) -> str | None:
    """None where no row was measured under Grape as shipped."""
    rows = by_row(found, APART)
    mine = [one for one in attempts(rows, "grape") if one["outcome"] == "measured"]
    over = spread(map(ratio, mine))
    if over is None:
        return None
    said = [_grape(mine, over.middle), _first_run(mine)]
    said += [line for name in PEERS if (line := _beside(rows, name)) is not None]
    return "\n".join("- " + prose(line).replace("\n", "\n  ") for line in said)


def _grape(mine: Sequence[Found], middle: float) -> str:
    calls = Counter(call(one) for one in mine if not is_left_as_written(one))
    left = sum(map(is_left_as_written, mine))
    return (
        f"Grape as shipped: a step is {middle:.2f}x over eager in the geometric mean of {len(mine)} rows; "
        f"{calls[FASTER]} are faster beyond what runs vary, "
        f"{calls[SLOWER_BY_RANGE]} slower, {left} were left as written. "
        f"Same bits: {same_bits(mine)}."
    )


def _first_run(mine: Sequence[Found]) -> str:
    firsts = [(value, one["row"]) for one in mine if (value := first_ratio(one)) is not None]
    middle, (least, row) = spread(value for value, _ in firsts), min(firsts)
    slower = sum(value < SLOWER for value, _ in firsts)
    assert middle is not None
    return (
        f"Its first run of a cell, reports included, is {middle.middle:.2f}x; {slower} of {len(firsts)} are slower by "
        f"more than 3%, the worst {least:.2f}x ({row})."
    )


def _beside(rows: dict[str, dict[str, Found]], name: str) -> str | None:
    """What a peer gives over eager, on how many rows it fails, and what Grape as shipped gives over it."""
    theirs = attempts(rows, name)
    measured = [one for one in theirs if one["outcome"] == "measured"]
    over, first = spread(map(ratio, measured)), spread(map(first_ratio, measured))
    if over is None or first is None:
        return None
    pairs = [(row["grape"], row[name]) for row in rows.values() if "grape" in row and name in row]
    both = [(mine, peer, a / b) for mine, peer in pairs if (a := ratio(mine)) and (b := ratio(peer))]
    beside = spread(value for _, _, value in both)
    broken = sum(map(is_broken, theirs))
    said = (
        f"{COLUMNS[name].what}: {over.middle:.2f}x over eager, a first run {first.middle:.2f}x; "
        f"it fails on {broken} of {len(theirs)} rows."
    )
    if beside is None:
        return said
    behind = sum(is_behind(mine, peer) for mine, peer, _ in both)
    return (
        f"{said} Grape as shipped is {beside.middle:.2f}x of it on the {len(both)} rows that both ran, and slower "
        f"beyond what runs vary on {behind}."
    )
