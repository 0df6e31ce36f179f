"""What is seen of a cell's first run beside the streams that serve it: the time of its lines, how long they wait for
loaders, what its source says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import CodeType
from typing import TYPE_CHECKING

from ...failures import surviving
from ...model import CellEvidence, Finding, LineTimes, LoaderWait
from ...streams import shared
from ..line_times import CellLines
from ..past.told import findings_as
from ..running import Cell
from .stream_evidence import findings_beside, shown_at

if TYPE_CHECKING:
    from ..engine import Engine
    from ..past.history import Past
    from ..timing import CellClock

_LOADER = "GR303"
"""The finding that later runs, in which loaders are not timed, have from the first one."""

_READING_MS, _BESIDE_MS, _SHARE = 0.1, 30.0, 0.02
"""Milliseconds that a line of source takes to be read; what reading may take at the end of a cell, and the share of a
cell that it may take where that is more."""


class FirstLook:
    """Times the lines of a cell by events of the interpreter; where it has none, nothing does. And what the cell waits
    for loaders: what is pending is issued before some batches and behind them, so that it is no part of that.
    """

    def __init__(self, owner: Engine, cell: Cell) -> None:
        from ...profiling import LineMemory, LoaderWatch, allocated_by

        read = allocated_by(owner.context.backend.device)
        memory = LineMemory(read, _captured) if read is not None else None
        self._owner = owner
        self._lines = CellLines(cell.filename, memory, _capture_ns)
        self._loaders = LoaderWatch(owner.context.backend.timer, owner.context.tracer.positions, _capture_ns)
        self._loaders.join()

    def statement(self, code: CodeType | None) -> None:
        """The next one is about to run."""
        self._lines.statement(code)

    def give_up(self) -> None:
        """The cell goes on, and its lines are not timed any more."""
        self._lines.give_up()
        self._loaders.leave()

    def stop(self) -> None:
        """The cell is over. What this took is booked as observing."""
        self._lines.stop()
        self._loaders.leave()
        self._owner.context.attention.book("observe", self._lines.own_ns)

    def waits(self, shown: Callable[[str], str]) -> tuple[LoaderWait, ...]:
        waits = self._loaders.waits()
        return tuple(replace(one, at=shown_at(one.at, shown), inner=shown_at(one.inner, shown)) for one in waits)

    def times(self, clock: CellClock, evidence: CellEvidence) -> LineTimes | None:
        """Of the run that the `evidence` is of: captures are Grape's time, and no line's."""
        captures_ms = sum(stream.capture_ms for stream in evidence.streams)
        return self._lines.times(max(0.0, clock.work_ms - captures_ms), 1, None)


def with_first(
    evidence: CellEvidence, findings: tuple[Finding, ...], past: Past | None, lines: LineTimes | None
) -> tuple[CellEvidence, tuple[Finding, ...]]:
    """With the time of the `lines`, and what the source says beside what was seen: of this run, which is the first
    where there is no `past`, else as then.
    """
    if past is None:
        more = _found_in_source(evidence)
    else:
        lines = past.evidence.lines
        said = [one for one in past.findings if one.from_source or one.code == _LOADER]
        more = findings_as(said, past.evidence.file, evidence.file)
    return replace(evidence, lines=lines), findings_beside(findings, more)


def _found_in_source(evidence: CellEvidence) -> tuple[Finding, ...]:
    """Findings about the cell's own lines that its source, and that of the cells before it, are enough for. None where
    to read it would take longer than a person should wait; of cells before it those are read that leave the time.
    """
    from ...advisor import advise_sources

    left_ms = max(_BESIDE_MS, _SHARE * evidence.wall_ms) - _takes_ms(evidence.source)
    if left_ms < 0:
        return ()
    read = [(evidence.file, evidence.source)]
    for name, text in reversed(evidence.sources):
        takes_ms = _takes_ms(text)
        if name.startswith("In[") and name != evidence.file and takes_ms <= left_ms:
            left_ms -= takes_ms
            read.insert(0, (name, text))
    found: tuple[Finding, ...] = ()
    with surviving("it looked for findings in a cell's source"):
        found = tuple(one for one in advise_sources(read) if one.at is not None and one.at.file == evidence.file)
    return found


def _takes_ms(source: str) -> float:
    return _READING_MS * (source.count("\n") + 1)


def _captured() -> int:
    return shared.stream.counts().captured if shared.stream is not None else 0


def _capture_ns() -> int:
    return shared.stream.counts().capture_ns if shared.stream is not None else 0
