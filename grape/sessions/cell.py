"""One cell is observed, decided on, accelerated and reported."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import CodeType
from typing import TYPE_CHECKING, Any

from ..advisor import advise, predict
from ..errors import UsageError
from ..failures import failure_notes, surviving
from ..model import CallsAccount, CellEvidence, Finding, LineTimes, MachineCosts, MemoryCurve, RegionEvidence
from ..options import Options, engine_named
from ..quiet import without_warnings
from ..render import Report, build_report
from ..streams import Building, prepare, shared
from .again import evidence_again, report_again, why_no_graphs
from .gains import TakenFixes, gains
from .history import CellKey, Mode, Past, recalled_shapes
from .line_times import CellLines
from .process import CELLS, Engine, engine
from .prospect import STREAMS_SAVE, Gain, Prospect, prospect
from .timing import CellClock, CellRuns
from .told import distinct, evidence_as, renamed, sources, told

if TYPE_CHECKING:
    from ..profiling import LoaderWatch, MemorySampler
    from ..rewrite.at_once import RewrittenCell
    from ..runtime import Allowance
    from ..tracing import Recorder

__all__ = ["IN_THE_NOTEBOOK", "Cell", "Session"]

FIRST_SHARE, FIRST_MS = 0.15, 60.0
"""Of a first run, so much may go to looking on: a share of its time, and milliseconds beside it."""
SECOND_SHARE, SECOND_MS = 0.2, 300.0
"""The same of a second run, where streams would serve the cell instead; else what it captures is bounded by what that
is expected to save."""
LATER_SHARE, LATER_MS = 0.02, 5.0
"""The same from the third run on."""

IN_THE_NOTEBOOK = "; %grape diff shows how, %grape undo takes it back"
"""The end of a note that speaks to somebody in the notebook."""

OUTSIDE_LIMIT = 400
"""Operators outside every region that are traced per cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell that runs: the name to show ("In[4]"), the source as written, and the file name it is compiled under."""

    name: str
    source: str
    filename: str
    id: str | None = None
    """The front end's name for the cell, also after it was edited."""
    rewritten: RewrittenCell | None = None
    """The source that runs in the place of `source`, with the lines of `source`."""
    taken: tuple[TakenFixes, ...] = ()
    """Fixes that the person has taken so far, in this cell or in others."""
    mode: Mode = "watch"
    """How much attention it gets; see `history`."""
    key: CellKey | None = None
    """Under which its history is kept; None where it has none."""
    ahead_ms: float = 0.0
    """Milliseconds that Grape took of it before its first statement."""
    since: float | None = None
    """When the person began to wait, by `time.perf_counter`; None: when the session opens."""


class Session:
    """One cell under Grape. `open` before it runs, `close` after it, `statement_boundary` between its statements."""

    def __init__(
        self,
        *,
        options: Options,
        cell: Cell,
        namespace: dict[str, Any],
        on_progress: Callable[[str], None] | None = None,
        file_names: Callable[[str], str] | None = None,
    ) -> None:
        self.options = options
        self.cell = cell
        self.namespace = namespace
        self.report: Report | None = None
        self._on_progress = on_progress or (lambda text: None)
        self._file_names = file_names
        self._engine: Engine | None = None
        self._wall_ms = 0.0
        self._calls = CallsAccount()
        self._memory: MemorySampler | None = None
        self._lines: CellLines | None = None
        self._loaders: LoaderWatch | None = None
        self._outside: Recorder | None = None
        self._gain: Gain | None = None
        self._prospect: Prospect | None = None

    def open(self, code: CodeType | None = None) -> None:
        """Install everything. `code` is the first statement. Raises `UsageError` where a session is already open."""
        owner, took_ms = engine_and_ms()
        self._past: Past | None = None
        if owner.session is not None:
            raise UsageError(
                "a Grape session is already open, by %%grape or grape.session; take one of them away, they do not nest"
            )
        self._engine = owner
        self._start = time.perf_counter()
        ahead_ms = self.cell.ahead_ms + took_ms
        self._clock = CellClock(owner.situation.attention, ahead_ms=ahead_ms, since=self.cell.since)
        owner.session = self
        try:
            self._install(owner, code)
        except BaseException:
            self._leave()
            raise
        if self._lines is not None:
            self._lines.statement(code)
        self._clock.start()

    def _install(self, owner: Engine, code: CodeType | None) -> None:
        from ..profiling import LoaderWatch, MemorySampler
        from ..runtime import CellName, enforce_budget
        from ..tracing import Recorder, process_group

        cell, names = self.cell, self._file_names
        # Regions ask for addresses: what they look at while a stream is paused, it would never defer again (E4).
        if cell.mode != "leave" or shared.inside or engine_named(self.options.engine) == "regions":
            shared.release(CELLS)
        if shared.inside:
            shared.close()

        def name_of(filename: str) -> str:
            if filename == cell.filename:
                return cell.name
            return names(filename) if names else filename

        owner.names = name_of
        situation = owner.situation
        situation.beside_group = process_group()
        self._past = owner.history.of(cell.key, self.options.applied)
        situation.attention.begin_run(self._allowance())
        if cell.mode == "leave" and self._past is not None:
            self._start = time.perf_counter()
            return
        watched = cell.mode == "watch"
        situation.tracer.own_ns = situation.tracer.recorded_ns = 0
        situation.observing, situation.comparing = watched, False
        situation.apply = not self.options.profile
        situation.tolerance = self.options.tolerance
        situation.memory_budget = self.options.memory_budget
        situation.progress = self._on_progress
        situation.run += 1
        situation.cell = CellName(source=cell.source, shown=cell.name)
        situation.recalled = recalled_shapes(self._past)
        situation.captured_at_s.clear()
        for region in owner.interceptor.regions:
            region.begin_run()
        owner.interceptor.undisturbed(lambda: enforce_budget(situation))
        if not situation.beside_group:
            owner.interceptor.install()
            owner.interceptor.withdraw_before(code, self.namespace)
            owner.adopt(self.namespace)
        self._captures = situation.captures
        if not watched:
            self._start = time.perf_counter()
            return
        self._outside = Recorder(situation.backend.device, limit=OUTSIDE_LIMIT)
        owner.interceptor.floor.outside = self._outside
        self._traced_as = (cell.rewritten or cell).source, owner.interceptor.codes
        if situation.beside_group or owner.interceptor.withdrawn:
            owner.interceptor.floor.outside = None
        elif owner.traced.get(self._traced_as) is None:
            situation.tracer.enter()
            situation.tracer.listen(self._outside)
        else:
            owner.interceptor.floor.outside = None  # this very cell has been traced before
        self._lines = CellLines(cell.filename) if not owner.interceptor.withdrawn else None
        looks = self._lines.looks if self._lines is not None else None
        self._memory = MemorySampler(situation.backend.device, lines=looks)
        self._loaders = LoaderWatch(situation.backend.timer, situation.tracer.positions, lambda: _looked_ns(owner))
        if not owner.interceptor.withdrawn:
            self._memory.start()
            self._loaders.join()
        self._start = time.perf_counter()

    def _allowance(self) -> Allowance:
        """The allowance for looking at this run."""
        from ..runtime import Allowance

        if self.cell.key is None or (self._engine is not None and self._engine.situation.unhurried):
            return Allowance()  # no later run of this cell would go on with what this one learns
        past = self._past
        if past is None:
            return Allowance(share=FIRST_SHARE, beside_ms=FIRST_MS)
        if past.runs > 1:
            return Allowance(share=LATER_SHARE, beside_ms=LATER_MS)
        owner = self._engine
        if owner is None or not self._streams_would_serve(owner):
            return Allowance()
        return Allowance(share=SECOND_SHARE, beside_ms=SECOND_MS)

    def statement_boundary(self, code: CodeType | None = None) -> None:
        """A top-level statement ended: functions that it defined become candidates. `code` is the next one."""
        owner = self._engine
        if owner is None or self.cell.mode == "leave":
            return
        self._look_between(owner, code)
        if self._lines is not None:
            self._lines.statement(code)

    def _look_between(self, owner: Engine, code: CodeType | None) -> None:
        situation = owner.situation
        if situation.observing and situation.attention.overdrawn:
            owner.stand_aside()
        owner.interceptor.withdraw_before(code, self.namespace)
        if situation.beside_group or (self.cell.mode == "watch" and not situation.observing):
            situation.tracer.leave()
            return
        with situation.attention.spend("observe"):
            owner.adopt(self.namespace)
        if self._outside is not None and self._outside.overflowed:
            situation.tracer.leave()

    def _leave(self) -> Engine | None:
        owner, self._engine = self._engine, None
        if owner is None:
            return None
        with contextlib.suppress(Exception):  # an error of the device is the person's, who meets it in the next cell
            owner.situation.backend.synchronize()  # the cell is over when its work is
        if self.cell.mode == "watch":
            tracer = owner.situation.tracer
            owner.situation.attention.book("record", tracer.own_ns - tracer.recorded_ns)
            if self._lines is not None:
                self._lines.stop()
                owner.situation.attention.book("observe", self._lines.own_ns)
        self._wall_ms = self._clock.end()
        owner.situation.beside_group |= _process_group()
        if self._loaders is not None:
            self._loaders.leave()
        owner.end_afterwards()
        if self.cell.mode == "leave":
            owner.session = None
            return owner
        owner.situation.observing = False
        owner.situation.predictor.stop_learning()
        owner.situation.progress = lambda text: None
        owner.situation.tracer.leave()
        owner.interceptor.floor.outside = None
        with surviving("it compared the times of replays and calls as written"):
            owner.interceptor.undisturbed(owner.weigh)
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
            with without_warnings(), owner.situation.attention.spend("report"):
                return self._report(owner, error)
        finally:
            self._let_go(owner, finished=error is None)

    def shown(self) -> None:
        """The person has the report: what the next run would wait for is done now."""
        owner, found = engine(), self._prospect
        backend = owner.situation.backend
        if found is None or found.served or backend.kind != "cuda" or not self._streams_would_serve(owner):
            return
        with surviving("it prepared captures"):
            prepare(backend.device)

    def _let_go(self, owner: Engine, *, finished: bool) -> None:
        """Release what the cell no longer has, and hold none of its objects."""
        namespace, self.namespace = self.namespace, {}
        owner.interceptor.withdrawn = False  # the next cell is compiled before its session opens
        with surviving("it released graphs that nothing uses"):  # the next cell tries again
            if self.cell.mode == "leave" and not owner.has_graphs:
                return
            owner.end_cell(self.cell.id, self.cell.filename, namespace, finished=finished)

    def _report(self, owner: Engine, error: BaseException | None) -> Report:
        from ..fixing import FixesLater

        past = self._past
        if past is not None and self.cell.mode != "watch":
            return self._report_again(owner, past, error)
        memory = self._memory.stop() if self._memory is not None else MemoryCurve()
        evidence = self._evidence(owner, memory, error)
        costs = _costs(owner, evidence)
        evidence = predict(evidence, costs)
        # A script's source is the whole file, which must not run again to compare a rewrite of it.
        namespace = self.namespace if self._file_names is not None else None
        ran = self.cell.rewritten.applied if self.cell.rewritten is not None else ()
        findings = advise(evidence, costs)
        fixes = FixesLater(lambda: evidence, findings, namespace, ran=ran, busy=lambda: owner.session is not None)
        timed = self._timed(owner, evidence, error)
        bar = self._bar(owner)
        self._prospect = self._expect(owner, timed, bar) if error is None else None
        if self._prospect is not None and self._prospect.why is not None:
            left_to = timed.left_to if bar is None else "operator streams serve it"
            timed = replace(timed, given_up=self._prospect.why, left_to=left_to)
        self.report = owner.report = build_report(timed, findings, fixes)
        self._remember(owner, evidence, findings)
        return self.report

    def _remember(self, owner: Engine, evidence: CellEvidence, findings: tuple[Finding, ...]) -> None:
        """Remember what the next run of the same cell begins with. A run that was cut short tells too little."""
        runs, found = self._runs_so_far(), self._prospect
        if self.cell.key is None or found is None:
            return
        past = Past(
            runs=runs,
            settled=found.settled,
            served=found.served,
            why=found.why,
            evidence=evidence,
            findings=findings,
            applied=self.options.applied,
            outbid=found.outbid,
            streamless=self._past.streamless if self._past is not None else None,
        )
        owner.history.remember(self.cell.key, past)
        owner.keep_graphs(self.cell.key, worth=found.served)

    def _runs_so_far(self) -> int:
        return (self._past.runs if self._past is not None else 0) + 1

    def _bar(self, owner: Engine) -> float | None:
        """The share that graphs have to save where streams would serve the cell instead; None where they would not."""
        return STREAMS_SAVE if self._gain is not None and self._streams_would_serve(owner) else None

    def _streams_would_serve(self, owner: Engine) -> bool:
        """True where the cell's next run may be left to streams."""
        from .streamed import hindrance

        streamless = self._past is not None and self._past.streamless is not None
        if self.cell.key is None or engine_named(self.options.engine) != "auto" or streamless:
            return False
        if not self._runs(owner).torch_ran:
            return False
        return hindrance(owner) is None and isinstance(shared.prepare(), Building | None)

    def _expect(self, owner: Engine, evidence: CellEvidence, bar: float | None) -> Prospect | None:
        """The prospect of the next run; None where this one, of which Grape saw only a part, does not tell."""
        if self.options.profile or owner.situation.beside_group or owner.interceptor.withdrawn:
            return None
        time = evidence.time
        return prospect(
            runs=self._runs_so_far(),
            regions=evidence.regions,
            gain=self._gain,
            plain_ms=(time.plain_ms or 0.0) if time is not None else 0.0,
            has_graphs=any(region.entries for region in owner.interceptor.regions if region.calls_in_run),
            captured=owner.situation.captures != self._captures,
            denied=owner.situation.attention.denied,
            serves=owner.situation.serves,
            bar=bar,
        )

    def _report_again(self, owner: Engine, past: Past, error: BaseException | None) -> Report:
        """The report of a cell that is not looked at any more: what is known of it, and what this run took."""
        stance = "its graphs serve it and nothing is observed"
        if self.cell.mode == "leave":
            lost = f", and {past.streamless}" if past.streamless is not None else ""
            stance = f"it runs as written, for {why_no_graphs(past)}{lost}"
        said = f"{type(error).__name__}: {error}" if error is not None else None
        evidence = evidence_again(past, self.cell.name, stance=stance, wall_ms=self._wall_ms, error=said)
        if self.cell.mode == "serve":
            here = [region for region in owner.interceptor.regions if region.calls_in_run]
            now = [region.evidence() for region in told(here)]
            evidence = replace(evidence, regions=distinct([*self._divided(owner), *now]))
        if owner.situation.beside_group:
            evidence = replace(evidence, as_written=_beside_group())
        namespace = self.namespace if self._file_names is not None else None
        self.report = report_again(owner, past, self._timed(owner, evidence, error), namespace)
        return self.report

    def _divided(self, owner: Engine) -> list[RegionEvidence]:
        """Regions of the last run that a loop was divided for: what they were refused for still runs as written."""
        known = evidence_as(self._past.evidence, self.cell.name, traces=False).regions if self._past is not None else ()
        at = [region.refused.at if region.refused is not None else None for region in known]
        return [
            _never_called(region)
            for region, place in zip(known, at, strict=True)
            if place is not None and owner.hoister.is_apart(place)
        ]

    def _line_times(self, owner: Engine) -> LineTimes | None:
        before = self._past.evidence.lines if self._past is not None else None
        if self._lines is None:
            return before
        spent_ms = owner.situation.attention.spent_ms
        work_ms = max(0.0, self._wall_ms - (spent_ms() - spent_ms("report")))
        return self._lines.times(self.cell.source, work_ms, self._runs_so_far(), before)

    def _runs(self, owner: Engine) -> CellRuns:
        return owner.runs.setdefault(self.cell.key or self.cell.source, CellRuns())

    def _timed(self, owner: Engine, evidence: CellEvidence, error: BaseException | None) -> CellEvidence:
        """`evidence` with what the person waited until now, and what the plain cell takes."""
        runs = self._runs(owner)
        time = self._clock.time(self._calls, runs, finished=error is None)
        return replace(evidence, time=time)

    def _evidence(self, owner: Engine, memory: MemoryCurve, error: BaseException | None) -> CellEvidence:
        import torch

        from ..runtime import account

        assert self._outside is not None
        outside = self._outside.finish(int(self._wall_ms * 1e6)).trace
        traced_earlier = not outside.ops and self._traced_as in owner.traced
        if traced_earlier:
            name, earlier = owner.traced[self._traced_as]
            outside = replace(renamed(earlier, name, self.cell.name), cut=True)  # of this run nothing was counted
        elif error is None:
            owner.traced[self._traced_as] = self.cell.name, outside
        regions = [region for region in owner.interceptor.regions if region.calls_in_run]
        runs = self._runs(owner)
        runs.torch_ran |= bool(outside.ops) or any(
            r.replays_in_run or any(t.ops for t in r.observer.traces) for r in regions
        )
        kept = [region.evidence() for region in told(regions) if not owner.hoister.covers(region)]
        known = sources(owner.names)
        gained = gains(self.cell.taken, kept, known, backend=owner.situation.backend.kind)
        return CellEvidence(
            file=self.cell.name,
            source=self.cell.source,
            device=owner.device,
            backend=owner.situation.backend.kind,
            wall_ms=self._wall_ms,
            regions=distinct([*self._divided(owner), *kept]),
            trace=outside,
            traced_earlier=traced_earlier,
            looked_ms=min(self._wall_ms, owner.situation.attention.spent_ms()),
            looked_on=not owner.situation.attention.denied,
            memory=memory,
            lines=self._line_times(owner),
            loaders=self._loaders.waits() if self._loaders is not None else (),
            captured_at_ms=tuple((at - self._start) * 1e3 for at in owner.situation.captured_at_s if at >= self._start),
            error=f"{type(error).__name__}: {error}" if error is not None else None,
            cuda=torch.cuda.is_available(),
            torch_ran=runs.torch_ran,
            notes=(*_notes(self.cell), *gained, *failure_notes()),
            as_written=_beside_group() if owner.situation.beside_group else None,
            profile_only=self.options.profile,
            sources=known,
            graph_memory=owner.interceptor.undisturbed(lambda: account(owner.situation)),
        )


def _looked_ns(owner: Engine) -> int:
    """Nanoseconds that Grape took of the cell so far, with what tracing outside of regions takes."""
    from ..runtime import TRACING

    attention, tracer = owner.situation.attention, owner.situation.tracer
    return int(attention.spent_ms() * 1e6 + TRACING * (tracer.own_ns - tracer.recorded_ns))


def _never_called(region: RegionEvidence) -> RegionEvidence:
    """As of a run without a call of it, under the name that it had before `distinct`."""
    return replace(region, name=region.name.partition(" #")[0], calls=0, replays=0)


def engine_and_ms() -> tuple[Engine, float]:
    """The engine, and the milliseconds it took to make. Where torch was not there yet, its import is the cell's."""
    began = time.perf_counter() if "torch" in sys.modules else None
    owner = engine()
    return owner, (time.perf_counter() - began) * 1e3 if began is not None else 0.0


def _process_group() -> bool:
    from ..tracing import process_group

    return process_group()


def _beside_group() -> str:
    from ..tracing import BESIDE_GROUP

    return BESIDE_GROUP


def _notes(cell: Cell) -> tuple[str, ...]:
    if cell.rewritten is None:
        return ()
    return (f"the cell ran rewritten: {cell.rewritten}{IN_THE_NOTEBOOK}",)


def _costs(owner: Engine, evidence: CellEvidence) -> MachineCosts:
    """This machine's constants, measured once something was profiled: until then nothing is predicted from them."""
    from ..profiling import machine_costs

    profiled = any(region.before is not None for region in evidence.regions)
    return machine_costs(owner.situation.backend.device) if evidence.cuda and profiled else MachineCosts()
