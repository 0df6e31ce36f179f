"""The tables and sentences of the page."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from .columns import COLUMNS
from .figures import (
    AS_WRITTEN,
    ONE_RUN,
    SLOWER,
    Found,
    call,
    first_ratio,
    is_left_as_written,
    pair_range,
    ratio,
    spread,
    timed_runs,
)
from .job import Group

__all__ = [
    "APART",
    "GRAPES",
    "NOTHING",
    "PEERS",
    "agreed",
    "apart_from",
    "by_row",
    "failures",
    "markdown",
    "outcome",
    "points",
    "program_points",
    "programs_said",
    "programs_table",
    "prose",
    "share",
    "steps",
    "times",
]

PEERS = ("by_hand", "reduce_overhead", "compiled", "dynamic")
GRAPES = ("grape", "streams", "regions", "over_compiled")
NOTHING = "Not measured."
APART = ("growth", "libraries", "programs")
"""Groups that are not rows of steps."""


def prose(*parts: str) -> str:
    return textwrap.fill(" ".join(parts), 118, break_on_hyphens=False, break_long_words=False)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *rest = rows
    lines = [head, ["---"] * len(head), *rest]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "/") for cell in row) + " |" for row in lines)


def by_row(found: Sequence[Found], without: Sequence[str] = ()) -> dict[str, dict[str, Found]]:
    rows: dict[str, dict[str, Found]] = {}
    for one in found:
        if one["group"] not in without:
            rows.setdefault(one["row"], {})[one["column"]] = one
    return rows


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def apart_from(found: Sequence[Found]) -> list[Found]:
    """Rows of steps."""
    return [one for one in found if one["group"] not in APART]


def share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.0%})" if whole else "-"


def points(found: Sequence[Found]) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Ratios of steps by row and by the name of the column; rows left as written say so beside their name."""
    names = [name for name in ("grape", *PEERS) if any(one["column"] == name and ratio(one) for one in found)]
    rows = {
        row: {COLUMNS[name].what: known for name in names if (known := ratio(columns.get(name))) is not None}
        for row, columns in by_row(found, APART).items()
    }
    kept = {row: ratios for row, ratios in rows.items() if ratios}
    order = sorted(kept, key=lambda row: -kept[row].get(COLUMNS["grape"].what, 0.0))
    written = {one["row"] for one in found if one["column"] == "grape" and is_left_as_written(one)}
    named = {f"{row}, {AS_WRITTEN}" if row in written else row: kept[row] for row in order}
    return named, [COLUMNS[name].what for name in names]


# -- rows -------------------------------------------------------------------------------------------------------------


def steps(found: Sequence[Found], group: Group) -> str:
    rows = by_row([one for one in found if one["group"] == group.name])
    names = [name for name in ("grape", *PEERS, *GRAPES[1:]) if any(name in row for row in rows.values())]
    if not names:
        return markdown([("row", "")] + [(row.what, "not measured") for row in group.rows])
    table = [("row", "eager, a step", *(COLUMNS[name].what for name in names), "results under Grape")]
    for known in group.rows:
        row = rows.get(known.name, {})
        if not row and known.long:
            continue
        eager = next((one["beside"]["median_step_ms"] for one in row.values() if "beside" in one), None)
        table.append(
            (
                known.what,
                f"{eager:.3f} ms" if eager is not None else "-",
                *(outcome(row.get(name)) for name in names),
                agreed(row.get("grape")),
            )
        )
    return markdown(table)


def outcome(one: Found | None) -> str:
    if one is None:
        return ""
    value = ratio(one)
    if value is None:
        return str(one["outcome"])
    if "program" in one:
        return times(value)
    if (n := timed_runs(one)) == 1:
        return f"{AS_WRITTEN if is_left_as_written(one) else ONE_RUN}, {times(value)}"
    least, most = pair_range(one)
    known = f"{times(value)} ({least:.2f} to {most:.2f}, n {n})"
    return f"{AS_WRITTEN}, {known}" if is_left_as_written(one) else f"{call(one)}, {known}"


def agreed(one: Found | None) -> str:
    if one is None or "agreement" not in one:
        return "-"
    agreement = one["agreement"]
    if agreement["identical"]:
        return "identical"
    own = ""
    if not one.get("repeatable", True):
        eager = one.get("eager_agreement")
        known = f"at most {eager['relative']:.1e}" if eager else "not recorded"
        own = f"; eager differs from itself, by how much: {known}"
    return f"at most {agreement['relative']:.1e} of the largest{own}"


# -- whole programs ---------------------------------------------------------------------------------------------------


def _programs(found: Sequence[Found]) -> list[Found]:
    return [one for one in found if "program" in one and one["column"] == "grape"]


def program_points(found: Sequence[Found]) -> dict[str, dict[str, float]]:
    rows = {}
    for one in _programs(found):
        sides = {"first run": first_ratio(one), "later run": ratio(one)}
        rows[one["row"]] = {name: value for name, value in sides.items() if value is not None}
    return dict(sorted(rows.items(), key=lambda pair: -pair[1].get("later run", 0.0)))


def programs_said(found: Sequence[Found]) -> str | None:
    mine = _programs(found)
    third, first = spread(map(ratio, mine)), spread(map(first_ratio, mine))
    if third is None:
        return None
    known = [value for one in mine if (value := ratio(one)) is not None]
    slower = share(sum(value < SLOWER for value in known), len(known))
    broken = [one for one in mine if one["program"]["differences"]]
    return prose(
        f"Cells as others wrote them, and cells over installed libraries, reports included. Later runs: {third}; first",
        f"runs: {first}. Slower by more than 3% in later runs: {slower}. Results that differ from plain runs:",
        f"{len(broken)} of {len(mine)}.",
    )


def programs_table(found: Sequence[Found]) -> str:
    table = [("program", "plain, first and later", "under Grape", "first run", "later run", "results")]
    for one in _programs(found):
        program = one["program"]
        later = program["later_s"] or [math.nan, math.nan]
        table.append(
            (
                one["what"],
                f"{program['plain_s'][0]:.2f}, {later[0]:.2f} s" if program["plain_s"] else "-",
                f"{program['grape_s'][0]:.2f}, {later[1]:.2f} s" if program["grape_s"] else "-",
                times(first_ratio(one)),
                times(ratio(one)),
                "; ".join(program["differences"]) or "identical",
            )
        )
    return markdown(table) if len(table) > 1 else NOTHING


def failures(found: Sequence[Found]) -> str:
    bad = [one for one in found if one["outcome"] != "measured"]
    table = [("row", "column", "outcome", "why")]
    table += [
        (one["row"], COLUMNS[one["column"]].what, one["outcome"], " ".join(str(one.get("why", "")).split())[:160])
        for one in bad
    ]
    return markdown(table) if bad else ("Everything ran." if found else NOTHING)
