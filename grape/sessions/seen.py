"""What a session saw of its cell, and the report that is made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import CodeType
from typing import TYPE_CHECKING

from ..advisor import advise, predict
from ..failures import failure_notes
from ..model import CallsAccount, CellEvidence, Finding, LineTimes, MachineCosts, MemoryCurve, RegionEvidence
from ..options import Options, engine_named
from ..render import Report, build_report
from ..streams import Building, shared
from .engine import Engine
from .gains import gains
from .later import fixes_of
from .line_times import CellLines
from .past.again import evidence_again, report_again, why_no_graphs
from .past.history import DEAR, MOST_AGAIN, OUT_OF_DATE, Led, Past
from .past.told import distinct, evidence_as, renamed, sources, told
from .prospect import STREAMS_SAVE, Gain, Prospect, bar_over, prospect
from .running import Cell
from .streamed.by_streams import hindrance
from .timing import CellClock, CellRuns

if TYPE_CHECKING:
    from ..profiling import LoaderWatch, MemorySampler
    from ..runtime.regions.region import Region
    from ..tracing import Recorder


class SeenCell:
    """Of one run. `Session` fills it while the cell runs."""

    def __init__(
        self,
        options: Options,
        cell: Cell,
        namespace: dict[str, object],
        file_names: Callable[[str], str] | None,
    ) -> None:
        self.options = options
        self.cell = cell
        self.namespace = namespace
        self.report: Report | None = None
        self._file_names = file_names
        self._past: Past | None = None
        self._clock: CellClock
        self._start = 0.0
        self._captures = 0
        """Of the process, when the cell began."""
        self._traced_as: tuple[str, frozenset[CodeType]]
        self._wall_ms = 0.0
        self._calls = CallsAccount()
        self._memory: MemorySampler | None = None
        self._lines: CellLines | None = None
        self._loaders: LoaderWatch | None = None
        self._outside: Recorder | None = None
        self._gain: Gain | None = None
        self._prospect: Prospect | None = None

    def _report(self, owner: Engine, error: BaseException | None) -> Report:
        past = self._past
        if past is not None and self.cell.mode != "watch":
            return self._report_again(owner, past, error)
        memory = self._memory.stop() if self._memory is not None else MemoryCurve()
        evidence = self._evidence(owner, memory, error)
        costs = _costs(owner, evidence)
        evidence = predict(evidence, costs)
        findings = advise(evidence, costs)
        fixes = fixes_of(
            owner, self.cell, evidence, findings, self.namespace if self.cell.may_run_again(self._file_names) else None
        )
        timed = self._timed(owner, evidence, error)
        bar = self._bar(owner)
        self._prospect = self._expect(owner, timed, bar) if error is None else None
        if self._prospect is not None and self._prospect.why is not None:
            left_to = timed.left_to if bar is None else "operator streams serve it"
            timed = replace(timed, given_up=self._prospect.why, left_to=left_to)
        self.report = owner.report = build_report(timed, findings, fixes)
        ratio = timed.time.ratio if timed.time is not None else None
        self._remember(owner, evidence, findings, dear=ratio is not None and ratio < DEAR)
        return self.report

    def _remember(self, owner: Engine, evidence: CellEvidence, findings: tuple[Finding, ...], *, dear: bool) -> None:
        """Remember what the next run of the same cell begins with. A run that was cut short tells too little."""
        runs, found = self._runs_so_far(), self._prospect
        if self.cell.key is None:
            return
        if found is None:  # it told nothing: what streams did is counted from the beginning
            if self._past is not None and self._past.led is not None:
                owner.history.remember(self.cell.key, replace(self._past, led=Led()))
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
            again=self._past.again if self._past is not None else 0,
            dear=dear,
        )
        owner.history.remember(self.cell.key, past)
        owner.keep_graphs(self.cell.key, worth=found.served)

    def _runs_so_far(self) -> int:
        return (self._past.runs if self._past is not None else 0) + 1

    def _bar(self, owner: Engine) -> float | None:
        """The share that graphs have to save where streams would serve the cell instead; None where they would not."""
        if self._gain is None or not self._streams_would_serve(owner):
            return None
        led = self._past.led if self._past is not None else None
        return STREAMS_SAVE if led is None or not led.runs else bar_over(led.saved / led.runs)

    def _streams_would_serve(self, owner: Engine) -> bool:
        """True where the cell's next run may be left to streams."""
        streamless = self._past is not None and self._past.streamless is not None
        if self.cell.key is None or engine_named(self.options.engine) != "auto" or streamless:
            return False
        if not self._runs(owner).torch_ran:
            return False
        return hindrance(owner) is None and isinstance(shared.prepare(), Building | None)

    def _expect(self, owner: Engine, evidence: CellEvidence, bar: float | None) -> Prospect | None:
        """The prospect of the next run; None where this one, of which Grape saw only a part, does not tell."""
        if self.options.profile or owner.context.beside_group or owner.interceptor.withdrawn:
            return None
        time = evidence.time
        return prospect(
            runs=self._runs_so_far(),
            regions=evidence.regions,
            gain=self._gain,
            plain_ms=(time.plain_ms or 0.0) if time is not None else 0.0,
            has_graphs=any(region.entries for region in owner.interceptor.regions if region.calls_in_run),
            captured=owner.context.captures != self._captures,
            denied=owner.context.attention.denied,
            serves=owner.context.serves,
            bar=bar,
        )

    def _report_again(self, owner: Engine, past: Past, error: BaseException | None) -> Report:
        """The report of a cell that is not looked at any more: what is known of it, and what this run took."""
        here = [region for region in owner.interceptor.regions if region.calls_in_run]
        stance = "its graphs serve it and nothing is observed"
        if error is None and self._idle(owner, here):  # something that its graphs depend on is another one since
            stance = self._look_again(owner, past)
        why = why_no_graphs(past)
        if self.cell.mode == "leave":
            lost = f", and {past.streamless}" if past.streamless not in (None, why) else ""
            stance = f"it runs as written, for {why}{lost}"
        said = f"{type(error).__name__}: {error}" if error is not None else None
        evidence = evidence_again(past, self.cell.name, stance=stance, wall_ms=self._wall_ms, error=said)
        evidence = replace(evidence, source=self.cell.source)  # the magic may ask for something else
        if self.cell.mode == "serve":
            now = [region.evidence() for region in told(here)]
            evidence = replace(evidence, regions=distinct([*self._divided(owner), *now]))
        elif past.evidence.torch_ran and why == past.streamless:  # regions have not looked at it
            evidence = replace(evidence, as_written=past.streamless)
        else:
            evidence = replace(evidence, given_up=why)
        if owner.context.beside_group:
            evidence = replace(evidence, as_written=_beside_group())
        namespace = self.namespace if self.cell.may_run_again(self._file_names) else None
        self.report = report_again(owner, past, self._timed(owner, evidence, error), namespace)
        return self.report

    def _idle(self, owner: Engine, here: Sequence[Region]) -> bool:
        """True where graphs could have served the run, and served no call of it."""
        if self.cell.mode != "serve" or owner.context.beside_group or owner.interceptor.withdrawn:
            return False
        return bool(here) and not any(region.replays_in_run for region in here)

    def _look_again(self, owner: Engine, past: Past) -> str:
        """Have a cell looked at again whose graphs served no call of this run; the words for it."""
        assert self.cell.key is not None
        again = past.again + (2 if past.dear else 1)
        if again <= MOST_AGAIN:
            owner.history.remember(self.cell.key, replace(past, settled=False, again=again))
            return "its graphs served it, but no call of this run, so the next run is looked at"
        owner.history.remember(self.cell.key, replace(past, served=False, why=OUT_OF_DATE, again=again))
        owner.keep_graphs(self.cell.key, worth=False)
        return f"its graphs served it, but no call of this run: from now on it runs as written, for {OUT_OF_DATE}"

    def _divided(self, owner: Engine) -> list[RegionEvidence]:
        """Regions of the last run that a loop was divided for: what they were refused for still runs as written."""
        if self._past is None:
            return []
        known = evidence_as(self._past.evidence, self.cell.name, traces=False)
        apart = [
            _never_called(before)
            for before, now in zip(self._past.evidence.regions, known.regions, strict=True)
            if now.refused is not None and now.refused.at is not None and owner.outliner.is_apart(now.refused.at)
        ]
        kept = replace(self._past.evidence, regions=tuple(apart), trace=None)
        return list(evidence_as(kept, self.cell.name, traces=True).regions)

    def _line_times(self) -> LineTimes | None:
        before = self._past.evidence.lines if self._past is not None else None
        if self._lines is None:
            return before
        return self._lines.times(self._clock.work_ms, self._runs_so_far(), before)

    def _runs(self, owner: Engine) -> CellRuns:
        return owner.runs.setdefault(self.cell.place, CellRuns())

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
        if owner.context.attention.denied:
            outside = replace(outside, cut=True)  # what ran after looking had an end is not in it
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
        kept = [region.evidence() for region in told(regions) if not owner.outliner.covers(region)]
        if owner.context.beside_group:  # none can be a region, whatever stood in its way before there was a group
            kept = [region for region in kept if region.refused is None]
        known = sources(owner.names)
        gained = gains(self.cell.taken, kept, known, backend=owner.context.backend.kind)
        return CellEvidence(
            file=self.cell.name,
            source=self.cell.source,
            device=owner.device,
            backend=owner.context.backend.kind,
            wall_ms=self._wall_ms,
            regions=distinct([*self._divided(owner), *kept]),
            trace=outside,
            traced_earlier=traced_earlier,
            looked_ms=min(self._wall_ms, owner.context.attention.spent_ms()),
            looked_on=not owner.context.attention.denied,
            memory=memory,
            lines=self._line_times(),
            loaders=self._loaders.waits() if self._loaders is not None else (),
            captured_at_ms=tuple((at - self._start) * 1e3 for at in owner.context.captured_at_s if at >= self._start),
            error=f"{type(error).__name__}: {error}" if error is not None else None,
            cuda=torch.cuda.is_available(),
            torch_ran=runs.torch_ran,
            called_again=max((r.calls_in_run for r in regions if any(t.ops for t in r.observer.traces)), default=0),
            notes=(*self.cell.rewritten_notes, *gained, *failure_notes()),
            as_written=_why_as_written(owner, seen=bool(outside.ops or regions)),
            profile_only=self.options.profile,
            sources=known,
            graph_memory=owner.interceptor.undisturbed(lambda: account(owner.context)),
        )


def _never_called(region: RegionEvidence) -> RegionEvidence:
    """As of a run without a call of it, under the name that it had before `distinct`."""
    return replace(region, name=region.name.partition(" #")[0], calls=0, replays=0)


_WATCHED = (
    "somebody looks at its frames, as profilers and debuggers of Python do, or at nodes of autograd, and would see "
    "Grape at work"
)


def _why_as_written(owner: Engine, *, seen: bool) -> str | None:
    if owner.context.beside_group:
        return _beside_group()
    return _WATCHED if owner.interceptor.withdrawn and not seen else None


def _beside_group() -> str:
    from ..tracing import BESIDE_GROUP

    return BESIDE_GROUP


def _costs(owner: Engine, evidence: CellEvidence) -> MachineCosts:
    """This machine's constants, measured once something was profiled: until then nothing is predicted from them."""
    from ..profiling import machine_costs

    profiled = any(region.before is not None for region in evidence.regions)
    return machine_costs(owner.context.backend.device) if evidence.cuda and profiled else MachineCosts()
