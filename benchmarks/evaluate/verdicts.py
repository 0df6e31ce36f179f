"""How far what a report says of the plain cell is from what eager runs took."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .figures import Found, is_left_as_written, spread
from .tables import apart_from, prose, times

__all__ = ["plain_named", "verdicts"]

FAR = 1.2
"""What is named: so many times more or less."""
_PAIR = re.compile(r"\((?P<before>[\d.,]+) -> [\d.,]+ (?P<unit>m?s)\)")


def plain_named(found: Found) -> float | None:
    """Seconds that the last report says the plain cell takes; None where it names no time. Files that were made before
    reports were kept with it have the two digits of the verdict.
    """
    more = found.get("more", {})
    if more.get("plain_ms") is not None:
        return float(more["plain_ms"]) / 1e3
    pair = _PAIR.search(more.get("verdict", ""))
    return float(pair["before"].replace(",", "")) / (1e3 if pair["unit"] == "ms" else 1) if pair else None


def verdicts(found: Sequence[Found]) -> str:
    """That of the rows that Grape serves, over the last eager run beside it; those that are far off by name."""
    known = [(named / one["beside"]["run_s"][-1], one["row"]) for one in _served(found) if (named := plain_named(one))]
    all_of_them = spread(value for value, _ in known)
    if all_of_them is None:
        return ""
    far = sorted((max(value, 1 / value), value, row) for value, row in known if not 1 / FAR <= value <= FAR)
    by_name = ", ".join(f"{row} {times(value)}" for _, value, row in reversed(far)) or "none"
    return prose(
        f"What the last verdict says the plain cell takes, over the eager run beside it: {all_of_them},",
        f"{all_of_them.n} rows that Grape serves; more than a fifth off: {by_name}.",
    )


def _served(found: Sequence[Found]) -> list[Found]:
    mine = [one for one in apart_from(found) if one["column"] == "grape" and "beside" in one]
    return [one for one in mine if not is_left_as_written(one)]
