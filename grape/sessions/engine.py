"""The engine, which outlives a cell: regions, graphs, the interceptor."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import UsageError
from ..failures import surviving
from ..model import LEAST_MS, SIGNIFICANT, CallsAccount, Trace
from ..model.times.cold import may_be_cold
from ..options import REFERENCE
from ..originals import environ
from ..render import Report
from ..streams import shared
from .past.history import CellKey, History
from .status import status_of
from .timing import CellRuns

if TYPE_CHECKING:
    from ..runtime.accounts.settling import Replayed
    from ..runtime.regions.region import Region
    from .prospect import Gain

CELLS = "cells"
"""Who holds the process's stream for cells that run later."""


class OpenSession(Protocol):
    """A cell that runs under Grape."""

    @property
    def outlines(self) -> bool:
        """Statements of loops become functions before they run."""

    @property
    def is_known(self) -> bool:
        """The cell has run before, and been reported at length."""

    def open(self, code: CodeType | None = None) -> None:
        """It begins, with this statement. Raises `UsageError` where a session is already open."""

    def statement_boundary(self, code: CodeType | None = None) -> None:
        """A top-level statement ended. `code` is the next one."""

    def close(self, error: BaseException | None) -> Report:
        """Leave, and report. `error` is what the cell raised, if it did."""

    def abandon(self) -> None:
        """Leave without a report."""

    def stop_sampling(self) -> None:
        """No thread of Grape's runs on."""


class Engine:
    """Process-wide. Graphs learned in one cell serve the next, until `undo`, `reset` or `close`."""

    def __init__(self) -> None:
        # Imported here: what loads torch is loaded when the first cell runs under Grape, not with the extension.
        from ..outlining import Outliner
        from ..runtime import Interceptor, Predictor, RegionContext, SlotStore, make_backend
        from ..tracing import PositionFinder, Tracer

        self.names: Callable[[str], str] = lambda filename: filename
        backend = make_backend()
        tracer = Tracer(PositionFinder(lambda filename: self.names(filename)))
        self.context = RegionContext(
            backend=backend,
            store=SlotStore(backend),
            predictor=Predictor(backend.device, tracer.positions),
            tracer=tracer,
        )
        self.interceptor = Interceptor(self.context, lambda filename: self.names(filename))
        self.outliner = Outliner(self.context, self.interceptor, lambda filename: self.names(filename))
        self.interceptor.on_withdrawal = self._withdraw
        self.session: OpenSession | None = None
        # Nothing gets faster on a CPU: there graphs serve only where somebody wants to see how they behave.
        self.context.unhurried = environ.get(REFERENCE) == "1"
        self.context.serves = backend.kind == "cuda" or self.context.unhurried
        self.context.stand_aside = self.stand_aside
        self.history = History()
        self._kept_for: weakref.WeakKeyDictionary[Region, set[CellKey]] = weakref.WeakKeyDictionary()
        """The cells in which a region's graphs are worth their keep."""
        self.traced: dict[tuple[str, frozenset[CodeType]], tuple[str, Trace]] = {}
        """Traces of what ran outside of regions, under which cell's name, by its source and the code that it could
        call."""
        self.runs: dict[CellKey | tuple[str, int], CellRuns] = {}
        """Known plain times of cells, by what makes them the same."""
        self.report: Report | None = None

    def status(self, taken: Sequence[str] = ()) -> str:
        """The regions that Grape knows, what became of them, and the memory of their graphs; `taken` are lines about
        source, which come behind what is numbered.
        """
        return status_of(
            self.interceptor,
            self.device,
            self.report,
            holds_stream=shared.serves(CELLS),
            applied=self._applied(),
            taken=taken,
        )

    @property
    def applied_count(self) -> int:
        """How many regions hold graphs, and the stream behind them; `status` and `undo` number them from 1."""
        return len(self._applied()) + shared.serves(CELLS)

    @property
    def has_graphs(self) -> bool:
        return bool(self._applied())

    def _called(self) -> list[object]:
        """Without loops whose body, or what it calls, became the region."""
        return [region for region in self.interceptor.regions if region.calls]

    def _applied(self) -> list[Any]:
        return [region for region in self.interceptor.regions if region.entries]

    def undo(self, number: int | None = None) -> str:
        """Release the graphs of one applied region (numbered as in `status`), or of all. Raises `UsageError`."""
        applied, count = self._applied(), self.applied_count
        if number is not None and not 1 <= number <= count:
            known = f"1 to {count}" if count else "none is applied"
            raise UsageError(f"no applied region {number} ({known}); see %grape status")
        chosen = applied if number is None else applied[number - 1 : number]
        stream = count > len(applied) and number in (None, count)
        if stream:
            shared.release(CELLS)
        undone = [self._take_back(chosen)] if chosen or not stream else []
        return "\n".join([*undone, *(["undone: operators run as written again"] if stream else [])])

    def release_regions(self) -> bool:
        """A cell asks for streams: nothing of regions stands between. True where graphs were released."""
        had = self.has_graphs
        self.interceptor.undisturbed(lambda: [region.release() for region in self._applied()])
        self.settle()
        return had

    def undo_at(self, file: str, line: int) -> str:
        """Release the graphs of the applied regions whose code begins at this line."""
        return self._take_back([r for r in self._applied() if (r.at.file, r.at.line) == (file, line)])

    def _take_back(self, chosen: list[Any]) -> str:
        self.interceptor.undisturbed(lambda: [region.release() for region in chosen])
        if self.session is None:
            self.settle()
        if not chosen:
            return "nothing to undo: no graph is applied"
        names = "; ".join(f"{region.name} at {region.at}" for region in chosen)
        return f"undone: {names} {'runs' if len(chosen) == 1 else 'run'} eagerly again"

    def adopt(self, namespace: Mapping[str, object]) -> None:
        """Make candidates of the functions in `namespace`, and of the bodies of their loops."""
        if not self.interceptor.withdrawn:
            self.outliner.adopt(namespace)
            self.interceptor.adopt(namespace)

    def _withdraw(self) -> None:
        self.outliner.withdraw()
        if self.session is not None:
            self.session.stop_sampling()

    def stand_aside(self) -> None:
        """The cell that runs is observed no longer. Its modes stay on their stacks, muted, until it ends."""
        self.context.observing = False
        self.context.attention.denied = True
        self.context.predictor.stop_learning()
        self.interceptor.active.outside = None
        self.context.tracer.retire()
        self.interceptor.active.record_no_more()
        self.settle()
        with surviving("it chose a module to look at"):
            self._time_afterwards()

    def _time_afterwards(self) -> None:
        """Look a little at the calls of the outermost module in which a first visit of a shape was slower than tracing
        another call is.
        """
        from ..runtime import CallsAfterwards

        if self.interceptor.afterwards is not None or self.interceptor.withdrawn or self.context.beside_group:
            return
        modules = [region for region in self.interceptor.regions if region.root_is_module and region.calls_in_run]
        for region in modules if not self.has_graphs else ():
            if may_be_cold(region.observer.traces):
                self.interceptor.afterwards = CallsAfterwards(region)
                self.interceptor.afterwards.start()
                return

    def end_afterwards(self) -> None:
        """The cell has ended."""
        afterwards, self.interceptor.afterwards = self.interceptor.afterwards, None
        if afterwards is not None:
            afterwards.stop()

    def compare_times(self) -> None:
        """A cell was observed: graphs that turned out slower than eager calls go. The tape's are never faster."""
        if self.context.backend.kind == "cuda":
            for region in self.interceptor.regions:
                region.serving.weigh_all()

    def settle_calls(self) -> tuple[CallsAccount, tuple[Replayed, ...]]:
        """A cell was observed: what its replays took, and what the same calls take as written."""
        from ..runtime.accounts.settling import settle_calls

        return settle_calls(self.interceptor.regions, self.context.attention)

    def gain_of(self, replayed: Iterable[Replayed]) -> Gain | None:
        """The saving of graphs in a run of the cell that was observed; None where they stay whatever they save."""
        from .prospect import gain_of

        if self.context.unhurried or self.context.backend.kind != "cuda":
            return None
        return gain_of(replayed, [region for region in self.interceptor.regions if region.calls_in_run])

    def keep_graphs(self, key: CellKey, *, worth: bool) -> None:
        """The cell keeps the graphs of the regions that it called, or has no use for them: then those go that no other
        cell keeps.
        """
        for region in self.interceptor.regions:
            if not region.calls_in_run:
                continue
            kept = self._kept_for.setdefault(region, set())
            kept.discard(key)
            if worth:
                kept.add(key)
            elif not kept and region.entries and not region.paired:
                region.release()

    def release_losses(self, replayed: Iterable[Replayed], cell_ms: float) -> None:
        """Graphs go whose replays cost more than the calls as written, by more than a change of the cell that counts.
        The tape's are never faster. Times that do not fit into the cell are those of a device that was shared
        meanwhile, and tell nothing.
        """
        for one in replayed if self.context.backend.kind == "cuda" else ():
            fits = one.took_ms <= cell_ms
            if fits and one.eager_ms and not one.region.paired and one.lost_ms > SIGNIFICANT * cell_ms:
                one.region.serving.lost(one.replays, one.took_ms, one.eager_ms)

    def undo_slower(self) -> list[str]:
        """A cell without Grape has ended: graphs that made it slower go. A sentence for each region."""
        from ..render.units import duration
        from ..runtime.accounts.settling import host_times
        from ..runtime.regions.replays import FEWEST

        told = []
        for one in host_times(self._applied()) if self.context.backend.kind == "cuda" else ():
            slower = one.lost_ms > max(SIGNIFICANT * one.eager_ms, LEAST_MS)
            if slower and one.replays >= FEWEST and not one.region.paired:
                one.region.serving.lost(one.replays, one.took_ms, one.eager_ms)
                now, then = duration(one.took_ms / one.replays), duration(one.eager_ms / one.replays)
                name = f"{one.region.name} at {one.region.at}"
                told.append(
                    f"{name} was slower with its graphs ({now} a call, {then} as written): it runs as written again"
                )
        return told

    def settle(self) -> None:
        """No cell runs: give everything back that replays nothing."""
        self.interceptor.settle()
        self.outliner.settle()

    def forget_edited(self, cell: str | None, filename: str, *, finished: bool) -> None:
        """A cell has ended: forget the loops that it had before it was edited. See `Outliner.end_cell`."""
        self.interceptor.undisturbed(lambda: self.outliner.end_cell(cell, filename, finished=finished))

    def end_cell(self, cell: str | None, filename: str, namespace: Mapping[str, object], *, finished: bool) -> None:
        """A cell under Grape has ended: forget what it no longer has, and release what the person has let go of."""
        self.forget_edited(cell, filename, finished=finished)
        self.release_abandoned(namespace)

    def release_abandoned(self, namespace: Mapping[str, object]) -> None:
        """A cell has ended: release the graphs of code and state that the person has let go of."""

        def release() -> None:
            self.outliner.release_abandoned(namespace)
            self.interceptor.release_abandoned(namespace)
            self.context.store.sweep()  # of graphs that went earlier, whose results outlived them

        self.interceptor.undisturbed(release)
        if self.session is None:
            self.settle()

    def reset(self) -> str:
        """Forget every region and release every graph."""
        count, streams = len(self._called()), shared.held_by(CELLS)
        shared.release(CELLS)
        self.interceptor.forget()
        self.outliner.forget()
        self.context.backend.close()
        self.context.store.clear()
        self.context.stream = None
        self.context.exhausted = False
        self.traced.clear()
        self.runs.clear()
        self.history.clear()
        self._kept_for.clear()
        self.report = None
        what = "1 region and released its graphs" if count == 1 else f"{count} regions and released their graphs"
        return f"forgot {what}" + (" and what operator streams recorded" if streams else "")

    def close(self) -> None:
        """Take back every patch and release everything; for `%unload_ext`."""
        if self.session is not None:
            self.session.abandon()
        self.reset()

    @property
    def device(self) -> str:
        import torch

        device = self.context.backend.device
        if device.type == "cuda" and not torch.cuda.is_initialized():
            return "CPU (nothing has used the GPU)"
        return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
