"""What Grape costs until it pays: seconds and memory."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .columns import COLUMNS
from .figures import ONE_RUN, Found, costs, is_left_as_written
from .tables import APART, NOTHING, apart_from, by_row, markdown, prose

__all__ = ["COSTS_SAY", "costs_table", "memory_said"]

COSTS_SAY = prose(
    "From the beginning of the first run, reports, captures and compilation included. The first gain is the beginning",
    "of the first run that took less than every eager run. It breaks even where all runs together have taken no longer",
    "than as many eager ones of the median length, for the last time; about: after the runs that were measured, by the",
    "median settled run. Never: left as written, or settled runs within the range of eager's or slower. One run has no",
    "range, so nothing is known.",
)


def seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s" if value >= 1 else f"{value * 1e3:.0f} ms"


def costs_table(found: Sequence[Found]) -> str:
    head = ("row", "", "eager run", "first run", "settled runs", "first gain after", "breaks even after")
    table = [(*head, "device holds more", "peak")]
    for row, columns in by_row(found, APART).items():
        for name in ("grape", "by_hand", "reduce_overhead"):
            known = costs(columns[name]) if name in columns else None
            if known is None:
                continue
            never = "not known" if known.settled == ONE_RUN else "never"
            about = "about " if known.is_extrapolated else ""
            table.append(
                (
                    row,
                    COLUMNS[name].what,
                    seconds(known.eager_run_s),
                    seconds(known.first_run_s),
                    known.settled,
                    never if known.to_first_gain_s is None else seconds(known.to_first_gain_s),
                    never if known.to_break_even_s is None else about + seconds(known.to_break_even_s),
                    *memory(columns[name]),
                )
            )
    return markdown(table) if len(table) > 1 else NOTHING


def megabytes(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / 1e6:,.0f} MB"


def memory(one: Found) -> tuple[str, str]:
    """What the device holds more, and the peak, with what it is more than eager's where that is recorded."""
    known = one.get("memory", {})
    peak, eager = known.get("peak_bytes"), known.get("eager_peak_bytes")
    more = f" ({(peak - eager) / 1e6:+,.0f} MB)" if peak is not None and eager is not None else ""
    return megabytes(known.get("held_bytes")), megabytes(peak) + more


def memory_said(found: Sequence[Found]) -> str:
    measured = [one for one in apart_from(found) if one["outcome"] == "measured"]
    written = [one for one in measured if is_left_as_written(one)]
    floor = sorted(held for one in written if (held := one.get("memory", {}).get("held_bytes")) is not None)
    shared = any(one.get("memory", {}).get("shared") for one in measured)
    recorded = any("eager_peak_bytes" in one.get("memory", {}) for one in measured)
    return prose(
        "Memory: what the device holds more after the last run than before the first under the column, the allocator's",
        "cache apart; it is negative where more was given back than taken in between.",
        *(
            ["Pairs beside which others used the GPU have none: that is told for a whole device only."]
            if shared
            else []
        ),
        *(
            [
                "Rows left as written replay nothing at the end, and still the device holds",
                f"{megabytes(floor[0])} to {megabytes(floor[-1])} more, in the median",
                f"{megabytes(int(statistics.median(floor)))}: a floor that is not of graphs in use, and likely part of",
                "the figures of other rows, too.",
            ]
            if floor
            else []
        ),
        "Peak: the most that the allocator reserved in the whole process, eager runs and comparisons included;",
        "in brackets what it is more than eager's own." if recorded else "eager's own was not recorded.",
    )
