"""Evidence of operator streams in a cell, as the report has it, and what is found in that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ...advisor import advise
from ...model import CellEvidence, Finding, MachineCosts, Position, Stop, StreamEvidence
from ...model.stream import COLD, MOST_STOPS, READ
from ...streams import Evidence
from ..past.told import sources

_RANK = ("blocker", "costly", "hint")


def stream_evidence(found: Evidence, name: str, shown: Callable[[str], str]) -> StreamEvidence:
    """Of the cell that is called `name`; `shown` turns the file name of code into the name to show."""
    stops = [replace(stop, user=shown_at(stop.user, shown), inner=shown_at(stop.inner, shown)) for stop in found.stops]
    others: list[Stop] = []
    kinds: dict[str, list[Stop]] = {READ: [], COLD: []}
    for stop in stops:
        kinds.get(stop.reason, others).append(stop)
    return StreamEvidence(
        name=name,
        operators=found.seen,
        matched=found.matched,
        issued=found.issued,
        recorded=found.recorded,
        as_written=tuple(sorted(found.written.items(), key=lambda row: -row[1])),
        segments=found.segments,
        partial=found.partial,
        iterations=found.entered,
        diverged=found.diverged,
        last_divergence=found.last_divergence or None,
        fragments=found.fragments,
        steps=found.steps,
        bytes=found.bytes,
        copies=found.copied_in + found.copied_out,
        copied_bytes=found.copied_bytes,
        kept=found.kept,
        own_ms=found.own_ns / 1e6,
        passing_ms=found.passing_ns / 1e6,
        captured=found.captured,
        capture_ms=found.capture_ns / 1e6,
        lost=found.lost,
        saved_ms=found.saved_ns / 1e6,
        waits_ms=found.waits_ns / 1e6,
        timed=found.timed,
        rested=found.rested,
        doubted=found.doubted,
        backwards=found.backwards,
        reads=tuple(kinds[READ][:MOST_STOPS]),
        stops=tuple(others[:MOST_STOPS]),
        cold=tuple(kinds[COLD][:MOST_STOPS]),
    )


def shown_at(position: Position | None, shown: Callable[[str], str]) -> Position | None:
    return None if position is None else replace(position, file=shown(position.file))


def with_sources(evidence: CellEvidence, shown: Callable[[str], str], *, always: bool = False) -> CellEvidence:
    """With the person's code, where something is to be found in it, or `always`."""
    return replace(evidence, sources=sources(shown)) if any_told(evidence) or always else evidence


def any_told(evidence: CellEvidence) -> bool:
    """True where streams tell of a line."""
    return any(stream.reads or stream.stops or stream.cold for stream in evidence.streams)


def streamed_findings(evidence: CellEvidence) -> tuple[Finding, ...]:
    """Findings about what streams ran as written in this run, and about loaders that it waited for."""
    if not evidence.loaders and not any_told(evidence):
        return ()
    return advise(replace(evidence, regions=(), trace=None, timeline=None), MachineCosts())


def findings_beside(known: Iterable[Finding], more: Iterable[Finding]) -> tuple[Finding, ...]:
    """Both, without what of `more` says the same of a line; the gravest first, and of equals those that were known."""
    known = tuple(known)
    lines = {_line(finding) for finding in known}
    both = (*known, *(finding for finding in more if _line(finding) not in lines))
    return tuple(sorted(both, key=lambda finding: _RANK.index(finding.severity)))


def _line(finding: Finding) -> tuple[str, str | None, int | None]:
    at = finding.at
    return finding.code, at.file if at else None, at.line if at else None
