"""A cell, or a script, that starts processes: each of them has a session, and this process none.

Nothing here asks for a device. A process that has used CUDA cannot fork others that use it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import CodeType

from ...errors import UsageError
from ...failures import failure_notes
from ...model import CellEvidence, CellTime
from ...options import Options
from ...originals import perf_counter
from ...quiet import without_warnings
from ...render import Report, build_report
from ...render.units import count, waited
from ..engine import OpenSession
from ..past.told import sources
from ..process import engine_there_is, keep_report
from ..ranks import beside_children, children, count_children
from ..running import NESTED, Cell
from .child import ChildReport, Served, give_back, reports_in, take_over

_AS_WRITTEN = "it has a call that starts processes, and none was started; put work of its own into another cell"
_RELEASED = "graphs of earlier cells were released, for the processes that this cell starts"


class LaunchedSession:
    """The same calls as `Session`. `own` is the session of what this process does itself: None where that must use no
    device, for children that are forked off.
    """

    def __init__(
        self,
        *,
        options: Options,
        cell: Cell,
        namespace: dict[str, object],
        on_progress: Callable[[str], None] | None = None,
        file_names: Callable[[str], str] | None = None,
        own: OpenSession | None = None,
    ) -> None:
        self._own = own
        self.options = options
        self.cell = cell
        self.namespace = namespace
        self.report: Report | None = None
        self._shown = cell.names(file_names)
        self._folder: Path | None = None
        self._notes: tuple[str, ...] = ()
        self._since = self.cell.since if self.cell.since is not None else perf_counter()

    @property
    def outlines(self) -> bool:
        return self._own is not None and self._own.outlines

    @property
    def is_known(self) -> bool:
        return self._own is not None and self._own.is_known

    def open(self, code: CodeType | None = None) -> None:
        """Serve processes that are started from here on. Raises `UsageError` where a session is already open."""
        if self._own is not None:
            self._own.open(code)
        else:
            self._open_alone()
        self._folder = Path(tempfile.mkdtemp(prefix="grape-ranks-"))
        self._take_over()

    def _open_alone(self) -> None:
        owner = engine_there_is()
        if owner is not None:
            if owner.session is not None:
                raise UsageError(NESTED)
            owner.session = self
            if owner.release_regions():
                self._notes = (_RELEASED,)
        count_children()

    def _take_over(self) -> None:
        cell = self.cell
        served = Served(
            folder=str(self._folder), options=self.options, name=cell.name, source=cell.source, filename=cell.filename
        )
        take_over(served, self.namespace, self._shown)

    def statement_boundary(self, code: CodeType | None = None) -> None:
        """A top-level statement ended: it may have been the import of torch."""
        if self._own is not None:
            self._own.statement_boundary(code)
        if self._folder is not None:
            self._take_over()

    def stop_sampling(self) -> None:
        """No thread of Grape's runs on."""
        if self._own is not None:
            self._own.stop_sampling()

    def abandon(self) -> None:
        """Leave without a report."""
        self._leave()
        if self._own is not None:
            self._own.abandon()

    def close(self, error: BaseException | None) -> Report:
        """Leave, and report. `error` is what the cell raised, if it did."""
        if self._folder is None:
            raise UsageError("this session is not open")
        wall_ms = (perf_counter() - self._since) * 1e3
        try:
            found, started = reports_in(self._folder)
        finally:
            self._leave()
        own = self._own.close(error) if self._own is not None else None
        with without_warnings():
            self.report = self._report(own, found, started, wall_ms, error)
        keep_report(self.report)
        return self.report

    def _leave(self) -> None:
        folder, self._folder = self._folder, None
        self.namespace = {}
        if folder is None:
            return
        give_back()
        owner = engine_there_is()
        if owner is not None and owner.session is self:
            owner.session = None
        shutil.rmtree(folder, ignore_errors=True)

    def _report(
        self, own: Report | None, found: list[ChildReport], started: int, wall_ms: float, error: BaseException | None
    ) -> Report:
        """`own`, where this process did work of its own, or none of `found` reported; else that of the first of these
        with the others beside it.
        """
        said = f"{type(error).__name__}: {error}" if error is not None else None
        if not found:
            return own or build_report(self._alone(wall_ms, started, said), ())
        by_rank = {one.message.rank if one.message.rank is not None else one.index: one for one in found}
        first = by_rank[min(by_rank)]
        evidence = first.report.evidence
        if own is not None and own.evidence.torch_ran:
            note = f"{_were_started(started)}; rank {min(by_rank)} of them: {first.report.verdict}"
            known = replace(own.evidence, notes=(*own.evidence.notes, note))
            return build_report(known, own.findings, own.make_fixes)
        served_ms = evidence.time.wall_ms if evidence.time is not None else evidence.wall_ms
        part = f"this is what rank {min(by_rank)} did, {waited(served_ms)} of {waited(wall_ms)} in all"
        note = f"{_were_started(started)}; {part}"
        evidence = replace(
            evidence,
            error=said if said is not None else evidence.error,
            notes=(*self._notes, note, *evidence.notes, *failure_notes()),
        )
        from ...fixing.later import FixesLater

        fixes = FixesLater(lambda: evidence, first.report.findings, None)
        report = build_report(evidence, first.report.findings, fixes)
        return beside_children(report, {rank: one.message for rank, one in by_rank.items()}, started, self._shown)

    def _alone(self, wall_ms: float, started: int, error: str | None) -> CellEvidence:
        """Of no process there is a report."""
        return CellEvidence(
            file=self.cell.name,
            source=self.cell.source,
            device="",
            backend="",
            wall_ms=wall_ms,
            error=error,
            children=max(started, children()),
            sources=sources(self._shown),
            as_written=None if started or children() else _AS_WRITTEN,
            time=CellTime(wall_ms=wall_ms, plain_ms=None, basis="no process reported"),
            notes=(*self._notes, *failure_notes()),
        )


def _were_started(count_: int) -> str:
    return "1 process was started" if count_ == 1 else f"{count(count_)} processes were started"
