"""The tables and sentences of the page."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Sequence

from .columns import COLUMNS
from .figures import SLOWER, Found, costs, first_ratio, is_broken, ratio, spread, whole_ratio
from .job import Group

__all__ = [
    "APART",
    "COSTS_SAY",
    "NOTHING",
    "SUMMARY_SAYS",
    "agreed",
    "by_row",
    "costs_table",
    "failures",
    "losses",
    "machines",
    "markdown",
    "outcome",
    "points",
    "program_points",
    "programs_said",
    "programs_table",
    "prose",
    "steps",
    "summary",
    "times",
]

PEERS = ("by_hand", "reduce_overhead", "compiled", "dynamic")
GRAPES = ("grape", "streams", "regions", "over_compiled")
NOTHING = "Not measured."
APART = ("growth", "libraries", "programs")
"""Groups that are not rows of steps."""


def prose(*parts: str) -> str:
    return textwrap.fill(" ".join(parts), 118, break_on_hyphens=False, break_long_words=False)


SUMMARY_SAYS = prose(
    "Ratios are geometric means over rows, behind them the quartiles, and the least and the greatest. A tool fails on",
    "a row that it cannot run as it is written, ends with an error, or does not end in time. Slower: by more than 3%.",
    "Whole runs contain reports, which a step does not. Training by hand differs in the last bits where the optimizer",
    "counts its steps on the device, and compiled code where it fuses.",
)
COSTS_SAY = prose(
    "From the beginning of the first run, reports, captures and compilation included. The first gain is the beginning",
    "of the first run that was faster than eager's; it breaks even where all runs together took no longer than eager's",
    "would have. Memory is what the device holds more than before the first run, the allocator's cache apart.",
)


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


def seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s" if value >= 1 else f"{value * 1e3:.0f} ms"


def machines(found: Sequence[Found]) -> str:
    told = Counter(
        ", ".join(
            f"{name} {machine[key]}" if name else str(machine[key])
            for name, key in (("", "gpu"), ("driver", "driver"), ("torch", "torch"), ("Python", "python"))
            if machine.get(key)
        )
        for one in found
        if (machine := one.get("machine"))
    )
    said = "; ".join(f"{where} ({count} pairs)" for where, count in told.most_common())
    return f"Measured on {said}." if told else NOTHING


# -- in all -----------------------------------------------------------------------------------------------------------


def summary(found: Sequence[Found]) -> str:
    rows = by_row(found, APART)
    table = [("", "rows", "over eager, a step", "over eager, a whole run", "fails", "slower, a step", "same bits")]
    for name in (*GRAPES[:1], *PEERS, *GRAPES[1:]):
        mine = [row[name] for row in rows.values() if name in row]
        tried = [one for one in mine if one["outcome"] not in ("not installed", "the row fails", "unfinished")]
        if not tried:
            continue
        ratios = [known for one in tried if (known := ratio(one)) is not None]
        same = [one["agreement"]["identical"] for one in tried if "agreement" in one]
        table.append(
            (
                COLUMNS[name].what,
                str(len(tried)),
                str(spread(ratios) or "-"),
                str(spread(map(whole_ratio, tried)) or "-"),
                share(sum(map(is_broken, tried)), len(tried)),
                share(sum(one < SLOWER for one in ratios), len(tried)),
                share(sum(same), len(same)),
            )
        )
    if len(table) == 1:
        return NOTHING
    against = [("Grape as shipped, on the rows that both ran", "rows", "a step", "a whole run", "slower, a step")]
    for name in PEERS:
        pairs = [(row["grape"], row[name]) for row in rows.values() if "grape" in row and name in row]
        sides = [(ratio(mine), ratio(theirs)) for mine, theirs in pairs]
        both = [mine / theirs for mine, theirs in sides if mine and theirs]
        whole = [(whole_ratio(mine), whole_ratio(theirs)) for mine, theirs in pairs]
        wholes = [mine / theirs for mine, theirs in whole if mine and theirs]
        if both:
            slower = share(sum(one < SLOWER for one in both), len(both))
            what = f"over {COLUMNS[name].what}"
            against.append((what, str(len(both)), str(spread(both)), str(spread(wholes)), slower))
    return markdown(table) + ("\n\n" + markdown(against) if len(against) > 1 else "")


def share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.0%})" if whole else "-"


def points(found: Sequence[Found]) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Ratios of steps by row and by the name of the column, of rows that were measured under Grape."""
    names = [name for name in ("grape", *PEERS) if any(one["column"] == name and ratio(one) for one in found)]
    rows = {
        row: {COLUMNS[name].what: known for name in names if (known := ratio(columns.get(name))) is not None}
        for row, columns in by_row(found, APART).items()
    }
    kept = {row: ratios for row, ratios in rows.items() if ratios}
    order = sorted(kept, key=lambda row: -kept[row].get(COLUMNS["grape"].what, 0.0))
    return {row: kept[row] for row in order}, [COLUMNS[name].what for name in names]


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
    return times(value) if value is not None else str(one["outcome"])


def agreed(one: Found | None) -> str:
    if one is None or "agreement" not in one:
        return "-"
    agreement = one["agreement"]
    if agreement["identical"]:
        return "identical"
    own = "" if one.get("repeatable", True) else "; eager differs from itself"
    return f"at most {agreement['relative']:.1e} of the largest{own}"


def losses(found: Sequence[Found]) -> str:
    """Rows on which eager or a peer is faster by more than 3%, with what the report says there."""
    table = [("row", "against", "a step", "a whole run", "what Grape says")]
    for row, columns in by_row(found, ("growth",)).items():
        mine = columns.get("grape")
        value, whole = ratio(mine), whole_ratio(mine)
        if mine is None or value is None or whole is None:
            continue
        rivals = {"eager": (1.0, 1.0)}
        rivals |= {
            COLUMNS[name].what: (theirs, whole_ratio(columns[name]) or theirs)
            for name in PEERS
            if (theirs := ratio(columns.get(name))) is not None
        }
        more = mine.get("more", {})
        said = [part[:180] for part in (more.get("verdict", ""), *more.get("findings", [])[:2]) if part]
        for name, (theirs, theirs_whole) in rivals.items():
            if value < SLOWER * theirs or (name == "eager" and whole < SLOWER):
                table.append(
                    (row, name, times(value / theirs), times(whole / theirs_whole), "; ".join(filter(None, said)))
                )
                said = ["as above"]
    return markdown(table) if len(table) > 1 else ("On no row." if by_row(found) else NOTHING)


def costs_table(found: Sequence[Found]) -> str:
    table = [("row", "", "eager run", "first run", "first gain after", "breaks even after", "memory held")]
    for row, columns in by_row(found, APART).items():
        for name in ("grape", "by_hand", "reduce_overhead"):
            known = costs(columns[name]) if name in columns else None
            if known is None:
                continue
            held = columns[name].get("memory", {}).get("held_bytes")
            table.append(
                (
                    row,
                    COLUMNS[name].what,
                    seconds(known.eager_run_s),
                    seconds(known.first_run_s),
                    seconds(known.to_first_gain_s),
                    seconds(known.to_break_even_s),
                    "-" if held is None else f"{held / 1e6:,.0f} MB",
                )
            )
    return markdown(table) if len(table) > 1 else NOTHING


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
