"""One cell is served by operator streams, and reported. Its Python runs as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from types import CodeType

from ..errors import UsageError
from ..model import CallsAccount, CellEvidence, CellTime, Served, StreamEvidence
from ..options import Options
from ..quiet import without_warnings
from ..render import Report, build_report
from ..streams import Building, Evidence, Settings, Stream, shared
from .cell import IN_THE_NOTEBOOK, Cell, engine_and_ms
from .process import CELLS, Engine, engine
from .timing import CellClock, CellRuns

__all__ = ["StreamedSession", "begin_plain_cell", "end_plain_cell", "hindrance", "settings_for"]

NO_GPU = "no GPU here, and on a CPU streams make nothing faster"
NOT_YET = "operator streams serve no cell on a GPU yet; --engine regions does"
_NESTED = "a Grape session is already open, by %%grape or grape.session; take one of them away, they do not nest"
_PROFILE = "operator streams have nothing to look on at (--profile); --engine regions has"
_STOPPED = "what came after an import ran as written: "
_RELEASED = "graphs of earlier cells were released: this cell asked for operator streams"


def settings_for(memory_budget: int | None) -> Settings:
    """Operators of the CPU alone are deferred: see `NOT_YET`."""
    served = Settings(device="cpu")
    return served if memory_budget is None else replace(served, budget=memory_budget)


def hindrance(owner: Engine) -> str | None:
    """Why streams serve nothing in this process now; None where nothing speaks against them."""
    from ..tracing import BESIDE_GROUP, process_group

    if not owner.situation.serves:
        return NO_GPU
    if not owner.situation.unhurried:
        return NOT_YET  # what launches CUDA graphs has run on no GPU
    return BESIDE_GROUP if process_group() else None


class StreamedSession:
    """One cell under streams; the same calls as `Session`."""

    def __init__(self, *, options: Options, cell: Cell, file_names: Callable[[str], str] | None = None) -> None:
        self.options = options
        self.cell = cell
        self.report: Report | None = None
        self._file_names = file_names
        self._engine: Engine | None = None
        self._entered = False
        self._found: Evidence | None = None
        self._as_written: str | None = None
        self._notes: tuple[str, ...] = ()
        self._late: BaseException | None = None
        self._wall_ms = 0.0

    def open(self, code: CodeType | None = None) -> None:
        """Serve this thread from here on, if anything can. Raises `UsageError` where a session is already open."""
        from ..runtime import Allowance, hold_off

        owner, made_ms = engine_and_ms()
        if owner.session is not None:
            raise UsageError(_NESTED)
        self._engine = owner
        self._clock = CellClock(owner.situation.attention, ahead_ms=self.cell.ahead_ms + made_ms)
        owner.situation.attention.begin_run(Allowance())
        owner.session = self
        hold_off(self)
        try:
            self._open(owner)
        except BaseException:
            self._leave()
            raise
        self._clock.start()

    def _open(self, owner: Engine) -> None:
        if owner.release_regions():
            self._notes = (_RELEASED,)
        self._as_written = _PROFILE if self.options.profile else hindrance(owner)
        if self._as_written is not None:
            return
        entered = shared.enter(self, settings_for(self.options.memory_budget))
        if not isinstance(entered, Stream):
            later = "; it is served once that has ended" if isinstance(entered, Building) else ""
            self._as_written = entered.reason + later
            return
        self._entered = True
        shared.hold(CELLS)

    def statement_boundary(self, code: CodeType | None = None) -> None:
        """Nothing is to be done between statements."""

    def stop_sampling(self) -> None:
        """There is no thread of Grape's."""

    def abandon(self) -> None:
        """Leave without a report."""
        self._leave()

    def close(self, error: BaseException | None) -> Report:
        """Leave, and report. `error` is what the cell raised, if it did."""
        owner = self._leave()
        if owner is None:
            raise UsageError("this session is not open")
        with without_warnings(), owner.situation.attention.spend("report"):
            self.report = owner.report = self._report(owner, error if error is not None else self._late)
        return self.report

    def _leave(self) -> Engine | None:
        from ..runtime import let_through

        owner, self._engine = self._engine, None
        if owner is None:
            return None
        if self._entered:
            self._entered = False
            if shared.stream is not None and shared.stream.stopped:
                self._notes = (*self._notes, _STOPPED + shared.stream.stopped)
            try:
                shared.leave()
            except Exception as late:  # of an operator that was issued behind the cell's last line
                self._late = late
            self._found = shared.evidence(self, forget=True)
            if self._found is None or not self._found.fragments:
                shared.release(CELLS)
        with contextlib.suppress(Exception):  # an error of the device is the person's, who meets it in the next cell
            owner.situation.backend.synchronize()
        self._wall_ms = self._clock.end()
        owner.session = None
        let_through(self)
        return owner

    def _report(self, owner: Engine, error: BaseException | None) -> Report:
        import torch

        found = self._stream()
        name = self.cell.name
        rewritten = (
            () if self.cell.rewritten is None else (f"the cell ran rewritten: {self.cell.rewritten}{IN_THE_NOTEBOOK}",)
        )
        runs = owner.runs.setdefault(self.cell.key or self.cell.source, CellRuns())
        runs.torch_ran |= found is not None and found.operators > 0
        evidence = CellEvidence(
            file=name,
            source=self.cell.source,
            device=owner.device,
            backend=owner.situation.backend.kind,
            engine="streams",
            wall_ms=self._wall_ms,
            streams=(found,) if found is not None else (),
            error=f"{type(error).__name__}: {error}" if error is not None else None,
            cuda=torch.cuda.is_available(),
            torch_ran=runs.torch_ran,
            notes=(*self._notes, *rewritten),
            as_written=self._as_written,
            profile_only=self.options.profile,
            time=self._time(found, runs, finished=error is None),
        )
        return build_report(evidence, ())

    def _time(self, found: StreamEvidence | None, runs: CellRuns, *, finished: bool) -> CellTime:
        """Where something was served, what the plain cell takes is known only from an earlier run as written."""
        if found is None or not found.matched:
            return self._clock.time(CallsAccount(), runs, finished=finished)
        served = Served(streams=found.matched / found.operators)
        time = self._clock.time(CallsAccount(replays=found.matched, unknown=found.name), runs, finished=finished)
        if runs.plain is None:
            return replace(time, basis="no run of this cell as written was timed", served=served)
        basis = f"measured in run {runs.plain.number} of this cell"
        return replace(time, plain_ms=runs.plain.ms, basis=basis, served=served)

    def _stream(self) -> StreamEvidence | None:
        e = self._found
        if e is None:
            return None
        return StreamEvidence(
            name=self.cell.name,
            operators=e.seen,
            matched=e.matched,
            issued=e.issued,
            recorded=e.recorded,
            as_written=tuple(sorted(e.written.items(), key=lambda row: -row[1])),
            segments=e.segments,
            partial=e.partial,
            iterations=e.entered,
            diverged=e.diverged,
            last_divergence=e.last_divergence or None,
            fragments=e.fragments,
            steps=e.steps,
            bytes=e.bytes,
            copies=e.copied_in + e.copied_out,
            copied_bytes=e.copied_bytes,
            kept=e.kept,
            own_ms=e.own_ns / 1e6,
        )


def begin_plain_cell() -> bool:
    """A cell without Grape begins: what streams learned serves it. True where `end_plain_cell` has to be called."""
    if shared.stream is None or not shared.held_by(CELLS) or engine().session is not None or hindrance(engine()):
        return False
    from ..runtime import hold_off, let_through

    hold_off(shared)
    entered = isinstance(shared.enter(None), Stream)
    if not entered:
        let_through(shared)
    return entered


def end_plain_cell() -> None:
    """It has ended. What was issued late may raise."""
    from ..runtime import let_through

    try:
        shared.leave()
    finally:
        let_through(shared)
