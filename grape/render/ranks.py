"""The ranks of a process group in a report: rank 0 has a table of all, the others a line."""

from __future__ import annotations

from ..model import RanksEvidence, RankTimes, ReportData
from .units import count, duration, percent, plural, waited

IN_RANK_0 = "the report of rank 0 has the ranks beside each other"
RANK_HEADER = ("rank", "took", "in groups", "collectives", "waited for others")
_MISSING_SHOWN = 8


def is_of_another_rank(report: ReportData) -> bool:
    """True where the report of rank 0 has the ranks beside each other, and this one is not that."""
    ranks = report.evidence.ranks
    return ranks is not None and ranks.rank != 0


def rank_line(report: ReportData) -> str:
    """The one line of a rank that is not rank 0."""
    ranks = report.evidence.ranks
    assert ranks is not None
    return f"rank {ranks.rank} of {ranks.size}: {report.verdict}; {IN_RANK_0}"


def rank_rows(report: ReportData) -> tuple[tuple[str, ...], ...]:
    """One for each rank that was heard, as in `RANK_HEADER`; empty elsewhere than in rank 0."""
    ranks = report.evidence.ranks
    return tuple(map(_row, ranks.shown)) if ranks is not None else ()


def _row(one: RankTimes) -> tuple[str, ...]:
    return (
        f"{one.rank}" + (" (raised)" if one.error else ""),
        waited(one.wall_ms),
        f"{percent(one.matched / one.operators)} of {count(one.operators)}" if one.operators else "",
        count(one.collectives) if one.collectives is not None else "",
        duration(one.waits_ms) if one.waits_ms is not None else "",
    )


def rank_notes(report: ReportData) -> tuple[str, ...]:
    """What is to be said below the table."""
    ranks = report.evidence.ranks
    if ranks is None or not ranks.shown:
        return ()
    return tuple(note for note in (_missing(ranks), _imbalance(ranks), _apart(ranks)) if note)


def _missing(ranks: RanksEvidence) -> str:
    missing = ranks.missing
    if not missing:
        return ""
    named = ", ".join(map(str, missing[:_MISSING_SHOWN])) + (", ..." if len(missing) > _MISSING_SHOWN else "")
    return f"missing: {plural(len(missing), 'rank')} ({named}), not heard within half a second of rank 0's end"


def _imbalance(ranks: RanksEvidence) -> str:
    """How unequal they are: by what they waited, where that is known, for all end together."""
    waits = [one.waits_ms for one in ranks.shown if one.waits_ms is not None]
    if len(waits) < 2 or not ranks.window_ms:
        return ""
    spread = (max(waits) - min(waits)) / ranks.window_ms
    return f"imbalance: {percent(min(1.0, spread))} of the cell, by what the ranks waited for each other"


def _apart(ranks: RanksEvidence) -> str:
    return f"arrivals at collectives not compared: {ranks.apart}" if ranks.apart else ""
