"""Lines of a summary about operator streams: what they served, and the lines that ran as written."""

from __future__ import annotations

from ..advisor.code.source import cell_source
from ..advisor.stopped import Stopped, stopped_lines
from ..model import CellEvidence, ReportData, StreamEvidence
from ..model.stream import READ
from .summary import place
from .units import count, duration, nbytes, one_line, percent, plural

_REASONS_SHOWN = 5
_LINES_SHOWN = 5
_READS = ("item", "tolist", "cpu", "numpy", "float", "int", "bool", "nonzero", "masked_select", "unique", "print")
_CALLS = ("step",)


def stream_lines(report: ReportData) -> tuple[str, ...]:
    """Lines about what streams did; empty where they served nothing."""
    served = [line for stream in report.evidence.streams for line in _stream_lines(stream)]
    return (*served, *_stopped_lines(report.evidence)) if served else ()


def _stream_lines(stream: StreamEvidence) -> list[str]:
    if not stream.operators:
        return []
    cut = f", {count(stream.partial)} of them cut short" if stream.partial else ""
    share = percent(stream.matched / stream.operators)
    lines = [f"operator stream: {share} of {plural(stream.operators, 'operator')} matched"]
    if stream.matched:
        lines.append(f"  issued: {count(stream.issued)} in {plural(stream.segments, 'segment')}{cut}")
    if stream.fragments:
        known = f"{plural(stream.steps, 'operator')} in {plural(stream.fragments, 'fragment')}"
        lines.append(f"  known: {known}, {nbytes(stream.bytes)} of results")
    lines.append(f"  comparing and recording: about {duration(stream.own_ms)}")
    if stream.captured:
        lines.append(f"  captures: {count(stream.captured)}, {duration(stream.capture_ms)}")
    if stream.lost:
        lines.append(f"  given up, for they were slower than code as written: {plural(stream.lost, 'fragment')}")
    if stream.as_written:
        shown = [f"{why} {count(n)}" for why, n in stream.as_written[:_REASONS_SHOWN]]
        more = len(stream.as_written) - _REASONS_SHOWN
        lines.append(f"  as written: {', '.join(shown)}" + (f" and {plural(more, 'more reason')}" if more > 0 else ""))
    if stream.diverged and stream.last_divergence:
        lines.append(f"  diverged {plural(stream.diverged, 'time')}, at last: {one_line(stream.last_divergence)}")
    return lines


def _stopped_lines(evidence: CellEvidence) -> list[str]:
    known = stopped_lines(evidence)
    lines = [_stopped_line(evidence, reason, stopped) for reason, stopped in known[:_LINES_SHOWN]]
    more = len(known) - _LINES_SHOWN
    return [*lines, f"  and {plural(more, 'more line')}"] if more > 0 else lines


def _stopped_line(evidence: CellEvidence, reason: str, stopped: Stopped) -> str:
    at = stopped.at
    where = place(at.file, at.line) if at is not None else "no line known"
    source = cell_source(evidence)
    read = reason == READ
    written = source.call(at, _READS if read else _CALLS) or (source.subscript(at) if read else None)
    what = f"`{written}`" if written is not None else stopped.spoken
    often, each = plural(stopped.times, "time"), duration(stopped.ms / stopped.times)
    return f"  {where}, {what}: {reason}, {often}, {each} each"
