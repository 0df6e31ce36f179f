"""One cell is served by operator streams, and reported. Its Python runs as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from types import CodeType

from ...errors import UsageError
from ...failures import failure_notes, surviving
from ...model import CallsAccount, CellEvidence, CellTime, Finding, StreamEvidence
from ...options import Options
from ...originals import perf_counter
from ...quiet import without_warnings
from ...render import Report, build_report
from ...streams import Arrivals, Building, Evidence, Stream, shared, unused, when_used
from ..engine import CELLS, Engine
from ..later import fixes_of
from ..past.again import evidence_again, report_again, why_no_graphs
from ..past.history import Past
from ..process import engine_and_ms
from ..ranks import arrivals_of, beside_ranks, count_children
from ..running import NESTED, Cell
from ..timing import CellClock, CellRuns
from .by_streams import PROFILE, hindrance, settings_for
from .first_look import FirstLook, with_first
from .judged import after_streamed_run, did_other_work, without_streams
from .lead import after_led_run, after_timed_run, has_to_be_timed, is_young
from .stream_evidence import stream_evidence, streamed_findings, with_sources

_TIMED = "this run tells whether operator streams make it faster"
_CUT_SHORT = "this run was to tell whether operator streams make it faster, and did not get to its end"
_STOPPED = "what came after an import ran as written: "
_RELEASED = "graphs of earlier cells were released: this cell asked for operator streams"


class StreamedSession:
    """One cell under streams; the same calls as `Session`. `past`: what regions found that left the cell to streams;
    None where the person asked for them, or where they serve it before regions have looked (`leads`).
    """

    outlines = False

    def __init__(
        self,
        *,
        options: Options,
        cell: Cell,
        namespace: dict[str, object],
        file_names: Callable[[str], str] | None = None,
        past: Past | None = None,
        leads: bool = False,
    ) -> None:
        self.options = options
        self.cell = cell
        self.namespace = namespace
        self._past = past
        self._leads = leads and past is None
        self._look: FirstLook | None = None
        self.is_known = True
        """The cell has run before, and been reported at length."""
        self.report: Report | None = None
        self._file_names = file_names
        self._shown = cell.names(file_names)
        self._engine: Engine | None = None
        self._entered = False
        self._waits: Callable[[], None] | None = None  # takes it back
        self._found: Evidence | None = None
        self._met: Arrivals | None = None
        self._as_written: str | None = None
        self._is_unseen = False  # nobody can tell what work it does
        self._is_timed = False
        self._is_building = False
        self._notes: tuple[str, ...] = ()
        self._late: BaseException | None = None
        self._wall_ms = 0.0
        self._drained_ms = 0.0

    def open(self, code: CodeType | None = None) -> None:
        """Serve this thread from here on, if anything can. Raises `UsageError` where a session is already open."""
        from ...runtime import Allowance, hold_off

        owner, made_ms = engine_and_ms()
        if owner.session is not None:
            raise UsageError(NESTED)
        self._engine = owner
        count_children()
        ahead_ms = self.cell.ahead_ms + made_ms
        self._clock = CellClock(owner.context.attention, ahead_ms=ahead_ms, since=self.cell.since)
        owner.context.attention.begin_run(Allowance())
        owner.session = self
        hold_off(self)
        try:
            self._open(owner, code)
        except BaseException:
            self._leave()
            raise
        self._clock.start()

    def _open(self, owner: Engine, code: CodeType | None) -> None:
        before = self._led_by(owner)
        self.is_known = not self._leads or before is not None
        if self._past is None and not self._leads and owner.release_regions():
            self._notes = (_RELEASED,)
        self._is_timed = has_to_be_timed(before)
        self._as_written = PROFILE if self.options.profile else hindrance(owner) or (_TIMED if self._is_timed else None)
        if self._as_written is not None:
            return
        if unused():
            self._waits = when_used(lambda: self._begin(owner))
        else:
            self._enter(owner)
        if not self.is_known and self._as_written is None:
            self._look = FirstLook(owner, self.cell)
            self._look.statement(code)

    def _begin(self, owner: Engine) -> None:
        self._waits = None
        with surviving("it began to serve a cell that uses the GPU from here on"):
            self._enter(owner)

    def _enter(self, owner: Engine) -> None:
        shared.begin_here()
        entered = shared.enter(self, settings_for(self.options.memory_budget))
        if not isinstance(entered, Stream):
            self._is_building = isinstance(entered, Building)
            later = "; later runs are served when that is done, in a minute or two" if self._is_building else ""
            self._as_written = entered.reason + later
            self._is_unseen = not self._is_building
            return
        self._entered = True
        shared.look_anew(first=is_young(owner, self.cell.place, self._past or self._led_by(owner)))
        shared.hold(CELLS)

    def statement_boundary(self, code: CodeType | None = None) -> None:
        """A top-level statement ended. `code` is the next one."""
        if self._waits is not None and self._engine is not None and not unused():  # another thread was the first
            self._waits()
            self._begin(self._engine)
        if self._look is not None:
            self._look.statement(code)

    def stop_sampling(self) -> None:
        """There is no thread of Grape's; a profiler of the person's is not to meet events of its either."""
        if self._look is not None:
            self._look.give_up()

    def abandon(self) -> None:
        """Leave without a report."""
        owner = self._leave()
        if owner is not None:
            self._let_go(owner, finished=False)

    def close(self, error: BaseException | None) -> Report:
        """Leave, and report. `error` is what the cell raised, if it did."""
        owner = self._leave()
        if owner is None:
            raise UsageError("this session is not open")
        failure = error if error is not None else self._late
        try:
            with without_warnings(), owner.context.attention.spend("report"):
                report = self._report(owner, failure)
                self.report = owner.report = beside_ranks(report, self.cell.source, self._met, self._shown)
        finally:
            self._let_go(owner, finished=failure is None)
        return self.report

    def _let_go(self, owner: Engine, *, finished: bool) -> None:
        """Graphs of other cells stay, but for those of what the cell no longer has."""
        namespace, self.namespace = self.namespace, {}
        with surviving("it released graphs that nothing uses"):  # the next cell tries again
            if owner.has_graphs:
                owner.end_cell(self.cell.id, self.cell.filename, namespace, finished=finished)

    def _leave(self) -> Engine | None:
        from ...runtime import let_through

        owner, self._engine = self._engine, None
        if owner is None:
            return None
        if self._waits is not None:
            self._waits()
        stream = shared.stream if self._entered else None
        if self._entered:
            self._entered = False
            if shared.stream is not None and shared.stream.stopped:
                self._notes = (*self._notes, _STOPPED + shared.stream.stopped)
            try:
                shared.leave()
            except Exception as late:  # of an operator that was issued behind the cell's last line
                self._late = late
            self._found = shared.evidence(self, forget=True)
        done = perf_counter()
        with contextlib.suppress(Exception):  # an error of the device is the person's, who meets it in the next cell
            owner.context.backend.synchronize()
        self._drained_ms = (perf_counter() - done) * 1e3
        self._met = arrivals_of(stream)
        if self._look is not None:
            self._look.stop()
        self._wall_ms = self._clock.end()
        owner.session = None
        let_through(self)
        return owner

    def _report(self, owner: Engine, error: BaseException | None) -> Report:
        import torch

        found = stream_evidence(self._found, self.cell.name, self._shown) if self._found is not None else None
        if error is not None and self._as_written == _TIMED:
            self._as_written = _CUT_SHORT
        runs = owner.runs.setdefault(self.cell.place, CellRuns())
        runs.torch_ran |= self._is_unseen or (found is not None and found.operators > 0)
        said = f"{type(error).__name__}: {error}" if error is not None else None
        evidence = CellEvidence(
            file=self.cell.name,
            source=self.cell.source,
            device=owner.device,
            backend=owner.context.backend.kind,
            engine="streams",
            wall_ms=self._wall_ms,
            streams=(found,) if found is not None else (),
            error=said,
            cuda=torch.cuda.is_available(),
            torch_ran=runs.torch_ran,
            notes=(*self._notes, *self.cell.rewritten_notes, *failure_notes()),
            as_written=self._as_written,
            profile_only=self.options.profile,
            loaders=self._look.waits(self._shown) if self._look is not None else (),
        )
        evidence = with_sources(evidence, self._shown, always=self._leads)
        findings = streamed_findings(evidence)
        if self._past is not None:
            return self._report_again(owner, self._past, found, runs, said, findings)
        if self._leads:
            evidence, findings = self._first(owner, evidence, findings)
        past = self._led_by(owner)
        same_work = past is None or found is None or not did_other_work(past, found.operators)
        evidence = replace(evidence, time=self._time(found, runs, finished=error is None, same_work=same_work))
        if self._leads and self.cell.key is not None and not self._is_building:
            self._remember(owner, evidence, findings, found)
        names = self.namespace if self.cell.may_run_again(self._file_names) else None
        return build_report(evidence, findings, fixes_of(owner, self.cell, evidence, findings, names))

    def _led_by(self, owner: Engine) -> Past | None:
        """What is known of the cell, which streams serve before regions have looked; None where nothing is."""
        return owner.history.of(self.cell.key, self.options.applied) if self._leads else None

    def _first(
        self, owner: Engine, evidence: CellEvidence, findings: tuple[Finding, ...]
    ) -> tuple[CellEvidence, tuple[Finding, ...]]:
        """With the time of the lines, and what the source says beside what was seen."""
        past = self._led_by(owner)
        lines = self._look.times(self._clock, evidence) if past is None and self._look is not None else None
        return with_first(evidence, findings, past, lines)

    def _remember(
        self,
        owner: Engine,
        evidence: CellEvidence,
        findings: tuple[Finding, ...],
        found: StreamEvidence | None,
    ) -> None:
        """What the next run of the same cell begins with."""
        assert self.cell.key is not None and evidence.time is not None
        past = self._led_by(owner)
        if self._is_timed and past is not None and past.led is not None:
            past = after_timed_run(past, evidence.time if evidence.error is None else None)
        elif evidence.error is not None:
            return  # it tells too little
        else:
            past = after_led_run(
                past,
                evidence=evidence,
                findings=findings,
                found=found,
                time=evidence.time,
                options=self.options,
                refused=self._as_written,
            )
        owner.history.remember(self.cell.key, past)
        if past.streamless is not None and not owner.history.streamed:
            shared.release(CELLS)

    def _report_again(
        self,
        owner: Engine,
        past: Past,
        found: StreamEvidence | None,
        runs: CellRuns,
        error: str | None,
        findings: tuple[Finding, ...],
    ) -> Report:
        """The report of what regions found and streams did. The history remembers what became of it."""
        same_work = found is None or not did_other_work(past, found.operators)
        cell_time = self._time(found, runs, finished=error is None, same_work=same_work)
        stance = "operator streams serve it"
        if self._as_written is not None:
            refused = f"operator streams do not serve it: {self._as_written}"
            stance = f"it runs as written, for {why_no_graphs(past)}, and {refused}"
            if past.outbid and not self._is_building:
                past = without_streams(past, refused, again=True)
        elif error is None and found is not None and found.operators:
            plain_ms = cell_time.plain_ms if not owner.context.unhurried else None
            past = after_streamed_run(
                past,
                operators=found.operators,
                matched=found.matched,
                segments=found.segments,
                waiting=found.waiting,
                captured=found.captured,
                rested=found.rested,
                wall_ms=cell_time.wall_ms,
                plain_ms=plain_ms,
            )
            if past.streamless is not None:
                stance = past.streamless
        if past.streamless is not None:
            stance += "; regions look at the next run" if not past.settled else ", so it runs as written from now on"
        evidence = evidence_again(past, self.cell.name, stance=stance, wall_ms=self._wall_ms, error=error)
        evidence = replace(
            evidence,
            engine="streams" if found is not None else "regions",
            streams=(found,) if found is not None else (),
            torch_ran=runs.torch_ran,
            time=cell_time,
        )
        if self.cell.key is not None:
            owner.history.remember(self.cell.key, past)
        if past.streamless is not None and not owner.history.streamed:
            shared.release(CELLS)  # what was recorded serves no cell any more
        namespace = self.namespace if self.cell.may_run_again(self._file_names) else None
        return report_again(owner, past, evidence, namespace, findings)

    def _time(
        self, found: StreamEvidence | None, runs: CellRuns, *, finished: bool, same_work: bool = True
    ) -> CellTime:
        if found is None or not found.operators:
            return self._clock.time(CallsAccount(), runs, finished=finished)
        return self._clock.streamed_time(found, runs, drained_ms=self._drained_ms, same_work=same_work)
