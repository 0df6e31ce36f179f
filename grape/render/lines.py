"""The cell's own source with the time of its lines, and what was found at them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..model import CellEvidence, Finding, LineTime, LineTimes, ReportData, Timeline
from .summary import shown_findings
from .units import clean, duration, nbytes, percent
from .verdict.verdict import gpu_measured

SHOWN_LINES = 10
"""Of the cell, where its report is folded: those with findings and those that took most."""
_WARM = 0.01
"""Of less than this share nothing is said."""


_GROWN = 0.01
"""Of the peak of the cell's memory; of less nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """`share` of the cell's own time; `took` is empty where that is next to nothing. `notes`: what else is known."""

    number: int
    text: str
    share: float
    took: str
    notes: tuple[str, ...]
    codes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLines:
    """`shown` stands unfolded, None for a gap; empty where no line took any time. `found`: what stands below a line
    that is shown, by line: the numbers of findings in the report, counted from 0.
    """

    all: tuple[Line, ...]
    shown: tuple[Line | None, ...]
    found: Mapping[int, tuple[int, ...]]

    @property
    def placed(self) -> frozenset[int]:
        """All findings that stand below a line."""
        return frozenset(index for indices in self.found.values() for index in indices)


def lines_title(report: ReportData) -> str:
    """Whose lines, and in which run they were timed."""
    known = report.evidence.lines
    if known is None:
        return ""
    return f"time by line, in run {known.run}"


def warm_lines(report: ReportData) -> tuple[Line, ...]:
    """All lines of the cell; empty where the time of none is known."""
    cell, known = report.evidence, report.evidence.lines
    if known is None or not cell.source:
        return ()
    times = {one.line: one for one in known.lines}
    gpu, waits = gpu_ms_by_line(cell), _waits_by_line(cell)
    codes = _codes(cell, report.findings)
    return tuple(
        _line(number, text, known, times.get(number), gpu.get(number), waits.get(number), codes.get(number, ()), report)
        for number, text in enumerate(cell.source.splitlines(), start=1)
    )


def _line(
    number: int,
    text: str,
    known: LineTimes,
    time: LineTime | None,
    gpu_ms: float | None,
    wait_ms: float | None,
    codes: tuple[str, ...],
    report: ReportData,
) -> Line:
    share = known.share(time.ms) if time is not None else 0.0
    notes = []
    if time is not None and known.share(time.replayed_ms) >= _WARM:
        notes.append(f"{percent(known.share(time.replayed_ms))} in replays{_until(report, number)}")
    if gpu_ms:
        notes.append(f"GPU {duration(gpu_ms)}")
    if wait_ms:
        notes.append(f"waits {duration(wait_ms)}")
    grown = time.grown_bytes if time is not None else None
    if grown and grown >= _GROWN * report.memory.peak_allocated_bytes:
        notes.append(f"memory +{nbytes(grown)}")
    took = f"{percent(share)}" if share >= _WARM else ""
    return Line(number=number, text=clean(text), share=share, took=took, notes=tuple(notes), codes=codes)


def _until(report: ReportData, number: int) -> str:
    """`` of lines 6 to 10``: what replays there as one."""
    ends = [
        region.end_line
        for region in report.evidence.regions
        if region.at.file == report.evidence.file and region.at.line == number and region.end_line
    ]
    return f" of lines {number} to {max(ends)}" if ends and max(ends) > number else ""


def shown_lines(lines: Iterable[Line], most: int = SHOWN_LINES) -> tuple[Line | None, ...]:
    """The lines to show where there is not room for all, in the order of the source; None stands for a gap."""
    known = tuple(lines)
    ranked = sorted((line for line in known if line.took or line.codes), key=lambda line: (not line.codes, -line.share))
    chosen = {line.number for line in ranked[:most]}
    for line in ranked[:most]:  # with what little stands between them, code reads as code
        if line.number + 2 in chosen and len(chosen) < most:
            chosen.add(line.number + 1)
    shown: list[Line | None] = []
    for line in known:
        if line.number not in chosen:
            continue
        if shown and shown[-1] is not None and shown[-1].number < line.number - 1:
            shown.append(None)
        shown.append(line)
    return tuple(shown)


def cell_lines(report: ReportData) -> CellLines:
    """The lines of a cell as its report shows them."""
    lines = warm_lines(report)
    shown = shown_lines(lines)
    if not any(line is not None and line.took for line in shown):
        return CellLines(all=lines, shown=(), found={})
    numbers = {line.number for line in shown if line is not None}
    found: dict[int, tuple[int, ...]] = {}
    for index, finding in enumerate(report.findings[: shown_findings(report)]):
        at = finding.at
        if at is not None and at.file == report.evidence.file and at.line in numbers:
            found[at.line] = (*found.get(at.line, ()), index)
    return CellLines(all=lines, shown=shown, found=found)


def _codes(cell: CellEvidence, findings: Iterable[Finding]) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for finding in findings:
        if finding.at is not None and finding.at.file == cell.file:
            known = found.get(finding.at.line, ())
            found[finding.at.line] = known if finding.code in known else (*known, finding.code)
    return found


def gpu_ms_by_line(cell: CellEvidence) -> dict[int, float]:
    """Milliseconds of GPU work that each line of the cell starts in all its calls, from calls that were profiled."""
    if not gpu_measured(cell):
        return {}
    found: dict[int, float] = {}
    for region in cell.regions:
        for line, ns in _device_ns(region.before, cell.file).items():
            found[line] = found.get(line, 0.0) + ns * region.calls / 1e6
    return found


def _device_ns(timeline: Timeline | None, file: str) -> dict[int, float]:
    """Per call."""
    found: dict[int, float] = {}
    for event in timeline.device_events() if timeline is not None else ():
        if event.position is not None and event.position.file == file:
            line = event.position.line
            found[line] = found.get(line, 0.0) + event.duration_ns / max(1, timeline.calls if timeline else 1)
    return found


def _waits_by_line(cell: CellEvidence) -> dict[int, float]:
    """Milliseconds that the host waited for values at each line, in this run, where streams served it."""
    found: dict[int, float] = {}
    for stop in (stop for stream in cell.streams for stop in stream.reads) if gpu_measured(cell) else ():
        if stop.user is not None and stop.user.file == cell.file:
            found[stop.user.line] = found.get(stop.user.line, 0.0) + stop.total_ns / 1e6
    return found
