"""The timelines of a report, by name."""

from __future__ import annotations

from collections.abc import Iterator

from ...model import ReportData, Timeline
from ..summary import place
from ..units import clean


def named_timelines(report: ReportData) -> Iterator[tuple[str, Timeline]]:
    """Before and after of each region, the main one first, then that of the cell."""
    main = report.main_region
    known = (main.name, main.file, main.line) if main else None
    ordered = sorted(report.evidence.regions, key=lambda r: (r.name, r.at.file, r.at.line) != known)
    for region in ordered:
        where = f"{clean(region.name)} ({place(region.at.file, region.at.line)})"
        if region.before:
            yield f"before: {where}", region.before
        if region.after:
            yield f"after: {where}", region.after
    if report.evidence.timeline:
        yield f"cell {place(report.evidence.file, None)}", report.evidence.timeline
