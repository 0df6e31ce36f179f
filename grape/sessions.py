"""Orchestration: one cell (or one `with` block) is observed, decided on, accelerated and reported.

The engine lives as long as the process and owns what outlives a cell: regions, graphs, the interceptor. A session
lives for one cell.
"""

from __future__ import annotations

import inspect
import linecache
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

from .advisor import advise, predict
from .errors import UsageError
from .model import CellEvidence, MachineCosts, MemoryCurve, Position, RegionEvidence, Trace
from .options import Options, budget_bytes
from .render import Report, build_report

__all__ = ["Cell", "Engine", "Session", "close_engine", "engine", "last_report", "preload", "session"]

OUTSIDE_LIMIT = 400
"""Operators outside every region that are traced per cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What runs: the name to show ("In[4]"), the source as written, and the file name it is compiled under."""

    name: str
    source: str
    filename: str


class Engine:
    """Process-wide. Graphs learned in one cell serve the next, until `undo`, `reset` or `close`."""

    def __init__(self) -> None:
        # Imported here: what loads torch is loaded when the first cell runs under Grape, not with the extension.
        from .hoisting import Hoister
        from .runtime import Interceptor, Predictor, Situation, SlotStore, make_backend
        from .tracing import PositionFinder, Tracer

        self.names: Callable[[str], str] = lambda filename: filename
        backend = make_backend()
        tracer = Tracer(PositionFinder(lambda filename: self.names(filename)))
        self.situation = Situation(
            backend=backend,
            store=SlotStore(backend),
            predictor=Predictor(backend.device, tracer.positions),
            tracer=tracer,
        )
        self.interceptor = Interceptor(self.situation, lambda filename: self.names(filename))
        self.hoister = Hoister(self.situation, self.interceptor, lambda filename: self.names(filename))
        self.session: Session | None = None
        self.traced: dict[tuple[str, frozenset[CodeType]], tuple[str, Trace]] = {}
        """What ran outside of regions, under which cell's name, by its source and the code that it could call."""
        self.report: Report | None = None

    def status(self) -> str:
        """The regions that Grape knows, what became of them, and the memory of their graphs."""
        regions = self.interceptor.regions
        if not regions:
            return "grape: nothing observed yet; put %%grape on the first line of a slow cell"
        lines = [f"grape: {self.device}, {self.situation.backend.kind} backend"]
        applied = self._applied()
        for region in sorted(regions, key=lambda r: (not r.entries, -r.calls)):
            number = f"{applied.index(region) + 1:>3}" if region in applied else "  -"
            state = f"refused ({region.refused.code}: {region.refused.why})" if region.refused else "observed"
            if region.entries:
                state = f"{len(region.entries)} graphs, {region.replays} replays, {_held_beside_pool(region)}"
            lines.append(f"{number} {region.name} at {region.at}: {region.calls} calls, {state}")
        lines += self._memory()
        if self.report is not None:
            lines += [f"{f.code} {f.name} {f.at or ''}: {f.message}" for f in self.report.findings]
        return "\n".join(lines)

    def _memory(self) -> list[str]:
        """What the graphs hold, store by store, in lines."""
        from .render import graph_stores
        from .runtime import account

        held = self.interceptor.undisturbed(lambda: account(self.situation))
        if held is not None:
            return ["memory: " + line for line in graph_stores(held)]
        stores = self.situation.backend.memory()
        pool, executables = stores.pool_bytes / 2**20, stores.executable_bytes / 2**20
        return [f"memory: pool {pool:.1f} MB, executables {executables:.1f} MB"]

    @property
    def applied_count(self) -> int:
        """How many regions hold graphs; `status` and `undo` number them from 1."""
        return len(self._applied())

    def _applied(self) -> list[Any]:
        return [region for region in self.interceptor.regions if region.entries]

    def undo(self, number: int | None = None) -> str:
        """Release the graphs of one applied region (numbered as in `status`), or of all. Raises `UsageError`."""
        applied = self._applied()
        if number is not None and not 1 <= number <= len(applied):
            known = f"1 to {len(applied)}" if applied else "none is applied"
            raise UsageError(f"no applied region {number} ({known}); see %grape status")
        return self._take_back(applied if number is None else [applied[number - 1]])

    def undo_at(self, file: str, line: int) -> str:
        """Release the graphs of the applied regions whose code begins at this line."""
        return self._take_back([r for r in self._applied() if (r.at.file, r.at.line) == (file, line)])

    def _take_back(self, chosen: list[Any]) -> str:
        self.interceptor.undisturbed(lambda: [region.release() for region in chosen])
        if self.session is None:
            self.settle()
        if not chosen:
            return "nothing to undo: no graph is applied"
        return "undone: " + ", ".join(f"{region.name} at {region.at}" for region in chosen) + " runs eagerly again"

    def adopt(self, namespace: Mapping[str, Any]) -> None:
        """Make candidates of the functions in `namespace`, and of the bodies of their loops."""
        self.hoister.adopt(namespace)
        self.interceptor.adopt(namespace)

    def settle(self) -> None:
        """No cell runs: give everything back that replays nothing."""
        self.interceptor.settle()
        self.hoister.settle()

    def reset(self) -> str:
        """Forget every region and release every graph."""
        count = len(self.interceptor.regions)
        self.interceptor.forget()
        self.hoister.forget()
        self.situation.backend.close()
        self.situation.store.clear()
        self.situation.stream = None
        self.situation.exhausted = False
        self.traced.clear()
        self.report = None
        return f"forgot {count} region{'s' if count != 1 else ''} and released their graphs"

    def close(self) -> None:
        """Take back every patch and release everything; for `%unload_ext`."""
        if self.session is not None:
            self.session.abandon()
        self.reset()

    @property
    def device(self) -> str:
        import torch

        device = self.situation.backend.device
        return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


_engine: Engine | None = None


def engine() -> Engine:
    """The process's engine; made at the first call."""
    global _engine
    if _engine is None:
        _engine = Engine()
    return _engine


def close_engine() -> None:
    """Take back every patch and release everything, if there is an engine."""
    if _engine is not None:
        _engine.close()


def preload() -> None:
    """Import what the first session needs, so that the first cell does not wait for it."""
    import rich.console
    import rich.table  # noqa: F401

    from . import hoisting, profiling, runtime, tracing  # noqa: F401


def last_report() -> Report | None:
    """The report of the last session that ended, or None."""
    return _engine.report if _engine is not None else None


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

    def open(self) -> None:
        """Install everything. Raises `UsageError` where a session is already open."""
        owner = engine()
        if owner.session is not None:
            raise UsageError("a Grape session is already open; sessions do not nest")
        self._engine = owner
        self._start = time.perf_counter()
        owner.session = self
        try:
            self._install(owner)
        except BaseException:
            self._leave()
            raise

    def _install(self, owner: Engine) -> None:
        from .profiling import MemorySampler
        from .runtime import enforce_budget
        from .tracing import Recorder

        cell, names = self.cell, self._file_names

        def name_of(filename: str) -> str:
            if filename == cell.filename:
                return cell.name
            return names(filename) if names else filename

        owner.names = name_of
        situation = owner.situation
        situation.observing = True
        situation.apply = not self.options.profile
        situation.tolerance = self.options.tolerance
        situation.memory_budget = self.options.memory_budget
        situation.progress = self._on_progress
        situation.run += 1
        for region in owner.interceptor.regions:
            region.begin_run()
        owner.interceptor.undisturbed(lambda: enforce_budget(situation))
        owner.interceptor.install()
        owner.adopt(self.namespace)
        self._outside = Recorder(situation.backend.device, limit=OUTSIDE_LIMIT)
        owner.interceptor.outside = self._outside
        self._traced_as = cell.source, owner.interceptor.codes
        if owner.traced.get(self._traced_as) is None:
            situation.tracer.enter()
            situation.tracer.listen(self._outside)
        else:
            owner.interceptor.outside = None  # this very cell has been traced before
        self._memory = MemorySampler(situation.backend.device)
        self._memory.start()
        self._start = time.perf_counter()

    def statement_boundary(self) -> None:
        """A top-level statement ended: functions that it defined become candidates."""
        if self._engine is not None:
            self._engine.adopt(self.namespace)
            if self._outside.overflowed:
                self._engine.situation.tracer.leave()

    def _leave(self) -> Engine | None:
        owner, self._engine = self._engine, None
        if owner is None:
            return None
        self._wall_ms = (time.perf_counter() - self._start) * 1e3
        owner.situation.observing = False
        owner.situation.predictor.stop_learning()
        owner.situation.progress = lambda text: None
        owner.situation.tracer.leave()
        owner.interceptor.outside = None
        owner.settle()
        owner.session = None
        return owner

    def abandon(self) -> None:
        """Leave without a report."""
        if self._leave() is not None:
            self._memory.stop()

    def close(self, error: BaseException | None) -> Report:
        """Leave, and report. `error` is what the cell raised, if it did."""
        owner = self._leave()
        if owner is None:
            raise UsageError("this session is not open")
        from .fixing import with_fixes

        memory = self._memory.stop()
        evidence = self._evidence(owner, memory, error)
        costs = _costs(owner, evidence)
        evidence = predict(evidence, costs)
        # A script's source is the whole file, which must not run again to compare a rewrite of it.
        namespace = self.namespace if self._file_names is not None else None
        findings = with_fixes(evidence, advise(evidence, costs), namespace)
        self.report = owner.report = build_report(evidence, findings)
        return self.report

    def _evidence(self, owner: Engine, memory: MemoryCurve, error: BaseException | None) -> CellEvidence:
        import torch

        from .runtime import account

        outside = self._outside.finish(int(self._wall_ms * 1e6)).trace
        if not outside.ops and self._traced_as in owner.traced:
            name, earlier = owner.traced[self._traced_as]
            outside = replace(_renamed(earlier, name, self.cell.name), cut=True)  # of this run nothing was counted
        elif error is None:
            owner.traced[self._traced_as] = self.cell.name, outside
        regions = [region for region in owner.interceptor.regions if region.calls_in_run]
        kept = [region.evidence() for region in _told(regions) if not owner.hoister.covers(region)]
        return CellEvidence(
            file=self.cell.name,
            source=self.cell.source,
            device=owner.device,
            backend=owner.situation.backend.kind,
            wall_ms=self._wall_ms,
            regions=_distinct(kept),
            trace=outside,
            memory=memory,
            error=f"{type(error).__name__}: {error}" if error is not None else None,
            cuda=torch.cuda.is_available(),
            profile_only=self.options.profile,
            sources=_sources(owner),
            graph_memory=owner.interceptor.undisturbed(lambda: account(owner.situation)),
        )


def _costs(owner: Engine, evidence: CellEvidence) -> MachineCosts:
    """This machine's constants, measured once something was profiled: until then nothing is predicted from them."""
    from .profiling import machine_costs

    profiled = any(region.before is not None for region in evidence.regions)
    return machine_costs(owner.situation.backend.device) if evidence.cuda and profiled else MachineCosts()


def _held_beside_pool(region: Any) -> str:
    """What a region's graphs hold on the device, but for the pool, which all regions share."""
    from .render.units import nbytes
    from .runtime import account

    held = account(region.situation, region)
    return nbytes(held.device_bytes - held.pool_bytes if held else sum(entry.nbytes for entry in region.entries))


def _sources(owner: Engine) -> tuple[tuple[str, str], ...]:
    """The person's code that ran so far, by the name to show: cells and files."""
    from .tracing import is_own_code

    return tuple(
        (owner.names(filename), "".join(linecache.getlines(filename)))
        for filename in list(linecache.cache)
        if is_own_code(filename)
    )


def _trivial(region: Any) -> bool:
    """A callable without device work is no region worth a row."""
    return region.refused is not None and region.refused.code == "GR406" and not region.captures.durations_ms


def _renamed(trace: Trace, old: str, new: str) -> Trace:
    """The trace of a cell that has another name now that it runs again."""

    def at(position: Position | None) -> Position | None:
        return replace(position, file=new) if position is not None and position.file == old else position

    ops = tuple([replace(op, user=at(op.user), inner=at(op.inner)) for op in trace.ops])
    reads = tuple([replace(read, position=at(read.position)) for read in trace.host_reads])
    return replace(trace, ops=ops, host_reads=reads)


def _told(regions: list[Any]) -> Iterator[Any]:
    """The regions worth a row. Modules of one kind that are called once each at one place are told of once."""
    once = set()
    for region in regions:
        kind = (region.name.partition(" ")[0], region.at)
        repeated = region.calls == 1 and region.root_is_module and kind in once
        if region.calls == 1:
            once.add(kind)
        if not repeated and not _trivial(region):
            yield region


def _distinct(regions: list[RegionEvidence]) -> tuple[RegionEvidence, ...]:
    """Names are unique within a report: a second region of the same name gets a number."""
    seen: dict[str, int] = {}
    result = []
    for region in regions:
        seen[region.name] = seen.get(region.name, 0) + 1
        count = seen[region.name]
        result.append(region if count == 1 else replace(region, name=f"{region.name} #{count}"))
    return tuple(result)


@contextmanager
def session(options: Options | None = None, **settings: Any) -> Iterator[Session]:
    """Do for a `with` block what `%%grape` does for a cell; what it yields has the `.report`, as has `grape.last`.

    `settings` are fields of `Options` (``session(profile=True)``); a memory budget may be text. Functions of the
    calling module and modules called in the block are candidates. Raises `UsageError` for unknown settings, a budget
    that is no size, or a session inside a session. An exception of the block propagates; what was observed until then
    is still reported.
    """
    try:
        chosen = replace(options or Options(), **settings)
    except TypeError as error:
        raise UsageError(f"unknown setting: {error}") from None
    chosen = replace(chosen, memory_budget=budget_bytes(chosen.memory_budget))
    frame = inspect.currentframe()
    caller = frame.f_back.f_back if frame is not None and frame.f_back is not None else None
    filename = caller.f_code.co_filename if caller is not None else "?"
    namespace: Mapping[str, Any] = {**caller.f_globals, **caller.f_locals} if caller is not None else {}
    cell = Cell(name=filename, source="".join(linecache.getlines(filename)), filename=filename)
    current = Session(options=chosen, cell=cell, namespace=dict(namespace))
    current.open()
    failure: BaseException | None = None
    try:
        yield current
    except BaseException as error:
        failure = error
        raise
    finally:
        current.close(failure)
