"""One cell is observed, decided on, accelerated and reported."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..failures import surviving
from ..options import Options, engine_named
from ..originals import perf_counter
from ..quiet import without_warnings
from ..render import Report
from ..streams import shared
from .engine import CELLS, Engine
from .line_times import CellLines
from .past.history import recalled_shapes
from .process import engine_and_ms
from .ranks import beside_ranks, count_children
from .running import NESTED, Cell
from .seen import SeenCell
from .timing import CellClock

if TYPE_CHECKING:
    from ..runtime import Allowance
    from ..runtime.accounts.attention import Purpose

FIRST_SHARE, FIRST_MS = 0.15, 60.0
"""Of a first run, so much may go to looking on: a share of its time, and milliseconds beside it."""
SECOND_SHARE, SECOND_MS = 0.2, 300.0
"""The same of a second run, where streams would serve the cell instead; else what it captures is bounded by what that
is expected to save."""
LOOK_MS = 3000.0
"""The milliseconds of a look at a cell that streams served so far: see `LONG_MS` in `lead.py`."""
LATER_SHARE, LATER_MS = 0.02, 5.0
"""The same from the third run on."""

OUTSIDE_LIMIT = 400
"""Operators outside every region that are traced per cell."""


class Session(SeenCell):
    """One cell that regions look at or serve. `open` before it runs, `close` after it, `statement_boundary` between its
    statements.
    """

    outlines, is_known = True, True

    def __init__(
        self,
        *,
        options: Options,
        cell: Cell,
        namespace: dict[str, object],
        on_progress: Callable[[str], None] | None = None,
        file_names: Callable[[str], str] | None = None,
    ) -> None:
        super().__init__(options, cell, namespace, file_names)
        self._on_progress = on_progress or (lambda text: None)
        self._engine: Engine | None = None

    def open(self, code: CodeType | None = None) -> None:
        """Install everything. `code` is the first statement. Raises `UsageError` where a session is already open."""
        owner, took_ms = engine_and_ms()
        if owner.session is not None:
            raise UsageError(NESTED)
        self._engine = owner
        self._start = perf_counter()
        ahead_ms = self.cell.ahead_ms + took_ms
        self._clock = CellClock(owner.context.attention, ahead_ms=ahead_ms, since=self.cell.since)
        owner.session = self
        count_children()
        try:
            self._install(owner, code)
        except BaseException:
            self._leave()
            raise
        if self._lines is not None:
            self._lines.statement(code)
        self._clock.start()

    def _install(self, owner: Engine, code: CodeType | None) -> None:
        from ..profiling import LineMemory, LoaderWatch, MemorySampler, allocated_by
        from ..runtime import CellName, enforce_budget
        from ..tracing import Recorder, process_group

        if shared.inside or engine_named(self.options.engine) == "regions":
            shared.release(CELLS)
        if shared.inside:
            shared.close()
        cell = self.cell
        owner.names = cell.names(self._file_names)
        context = owner.context
        context.beside_group = process_group()
        self._past = owner.history.of(cell.key, self.options.applied)
        context.attention.begin_run(self._allowance())
        if cell.mode == "leave" and self._past is not None:
            self._start = perf_counter()
            return
        watched = cell.mode == "watch"
        context.tracer.own_ns = context.tracer.recorded_ns = 0
        context.observing, context.comparing = watched, False
        context.apply = not self.options.profile
        context.tolerance = self.options.tolerance
        context.memory_budget = self.options.memory_budget
        context.progress = self._on_progress
        context.run += 1
        context.cell = CellName(source=cell.source, shown=cell.name)
        context.recalled = recalled_shapes(self._past)
        context.captured_at_s.clear()
        for region in owner.interceptor.regions:
            region.begin_run()
        owner.interceptor.undisturbed(lambda: enforce_budget(context))
        if not context.beside_group:
            owner.interceptor.install()
            owner.interceptor.withdraw_before(code, self.namespace)
            owner.adopt(self.namespace)
        self._captures = context.captures
        if not watched:
            self._start = perf_counter()
            return
        self._outside = Recorder(context.backend.device, limit=OUTSIDE_LIMIT)
        owner.interceptor.active.outside = self._outside
        self._traced_as = (cell.rewritten or cell).source, owner.interceptor.codes
        if context.beside_group or owner.interceptor.withdrawn:
            owner.interceptor.active.outside = None
        elif owner.traced.get(self._traced_as) is None:
            context.tracer.enter()
            context.tracer.listen(self._outside)
        else:
            owner.interceptor.active.outside = None  # this very cell has been traced before
        if not owner.interceptor.withdrawn:
            read = allocated_by(context.backend.device)
            memory = LineMemory(read, lambda: context.captures) if read is not None else None
            self._lines = CellLines(cell.filename, memory, lambda: _looked_ns(owner))
        self._memory = MemorySampler(context.backend.device)
        self._loaders = LoaderWatch(context.backend.timer, context.tracer.positions, lambda: _looked_ns(owner))
        if not owner.interceptor.withdrawn:
            self._memory.start()
            self._loaders.join()
        self._start = perf_counter()

    def _allowance(self) -> Allowance:
        """The allowance for looking at this run."""
        from ..runtime import Allowance

        if self.cell.key is None or (self._engine is not None and self._engine.context.unhurried):
            return Allowance()  # no later run of this cell would go on with what this one learns
        past = self._past
        if past is None or (not past.runs and past.streamless is not None):
            return Allowance(share=FIRST_SHARE, beside_ms=FIRST_MS)
        if past.runs > 1:
            return Allowance(share=LATER_SHARE, beside_ms=LATER_MS)
        owner = self._engine
        if owner is None or (past.streamless is None and not self._streams_would_serve(owner)):
            return Allowance()
        return Allowance(share=SECOND_SHARE, beside_ms=SECOND_MS if past.led is None else LOOK_MS)

    def statement_boundary(self, code: CodeType | None = None) -> None:
        """A top-level statement ended: functions that it defined become candidates. `code` is the next one."""
        owner = self._engine
        if owner is None or self.cell.mode == "leave":
            return
        self._look_between(owner, code)
        if self._lines is not None:
            self._lines.statement(code)

    def _look_between(self, owner: Engine, code: CodeType | None) -> None:
        context = owner.context
        if context.observing and context.attention.overdrawn:
            owner.stand_aside()
        owner.interceptor.withdraw_before(code, self.namespace)
        if context.beside_group or (self.cell.mode == "watch" and not context.observing):
            context.tracer.leave()
            return
        with context.attention.spend("observe"):
            owner.adopt(self.namespace)
        if self._outside is not None and self._outside.overflowed:
            context.tracer.leave()

    def _leave(self) -> Engine | None:
        owner, self._engine = self._engine, None
        if owner is None:
            return None
        with contextlib.suppress(Exception):  # an error of the device is the person's, who meets it in the next cell
            owner.context.backend.synchronize()  # the cell is over when its work is
        if self.cell.mode == "watch":
            tracer = owner.context.tracer
            owner.context.attention.book("record", tracer.own_ns - tracer.recorded_ns)
            if self._lines is not None:
                self._lines.stop()
                owner.context.attention.book("observe", self._lines.own_ns)
        self._wall_ms = self._clock.end()
        from ..tracing import process_group

        owner.context.beside_group |= process_group()
        if self._loaders is not None:
            self._loaders.leave()
        owner.end_afterwards()
        if self.cell.mode == "leave":
            owner.session = None
            return owner
        owner.context.observing = False
        owner.context.predictor.stop_learning()
        owner.context.progress = lambda text: None
        owner.context.tracer.leave()
        owner.interceptor.active.outside = None
        with surviving("it compared the times of replays and calls as written"):
            owner.interceptor.undisturbed(owner.compare_times)
            self._calls, replayed = self._clock.book(lambda: owner.interceptor.undisturbed(owner.settle_calls))
            owner.interceptor.undisturbed(lambda: owner.release_losses(replayed, self._wall_ms))
            self._gain = owner.gain_of(replayed)
        try:
            owner.settle()
        finally:
            owner.session = None
        return owner

    def stop_sampling(self) -> None:
        """No thread of Grape's runs on: from Python 3.12 on a profiler of the person's would count what it does."""
        if self._memory is not None:
            self._memory.stop()
        if self._lines is not None and self._engine is not None:
            self._lines.give_up()
        if self._loaders is not None:
            self._loaders.leave()
        if self._engine is not None:
            self._engine.end_afterwards()

    def abandon(self) -> None:
        """Leave without a report."""
        owner = self._leave()
        if owner is not None:
            self.stop_sampling()
            self._let_go(owner, finished=False)

    def close(self, error: BaseException | None) -> Report:
        """Leave, and report. `error` is what the cell raised, if it did."""
        owner = self._leave()
        if owner is None:
            raise UsageError("this session is not open")
        try:
            with without_warnings(), owner.context.attention.spend("report"):
                report = beside_ranks(self._report(owner, error), self.cell.source)
                self.report = owner.report = report
                return report
        finally:
            self._let_go(owner, finished=error is None)

    def _let_go(self, owner: Engine, *, finished: bool) -> None:
        """Release what the cell no longer has, and hold none of its objects."""
        namespace, self.namespace = self.namespace, {}
        owner.interceptor.withdrawn = False  # the next cell is compiled before its session opens
        with surviving("it released graphs that nothing uses"):  # the next cell tries again
            if self.cell.mode == "leave" and not owner.has_graphs:
                return
            owner.end_cell(self.cell.id, self.cell.filename, namespace, finished=finished)


_PURPOSES: tuple[Purpose, ...] = ("observe", "record", "capture", "verify")
"""Of Grape's time while a cell runs."""


def _looked_ns(owner: Engine) -> int:
    """Nanoseconds that Grape took of the cell so far, with what tracing outside of regions takes."""
    from ..runtime import TRACING

    attention, tracer = owner.context.attention, owner.context.tracer
    spent_ms = sum(map(attention.spent_ms, _PURPOSES))
    return int(spent_ms * 1e6 + TRACING * (tracer.own_ns - tracer.recorded_ns))
