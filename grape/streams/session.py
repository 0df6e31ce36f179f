"""Opens and closes a stream, and says what it did."""

from __future__ import annotations

import atexit
import os
from contextlib import ExitStack
from dataclasses import asdict, replace
from types import ModuleType
from typing import Any, Literal

import torch

from .. import native
from ..model.stream import COLD, Stop, added
from ..model.times.cold import cost_of, slow_visits
from ..native import Unavailable
from ..tracing.positions import OWN_FOLDER
from . import extensions, higher_order, profilers, threads
from .arrivals import Arrivals, read
from .captures import Captures, watch
from .compiled import CompiledGraphs, Key, on_cuda, watch_code, watch_guards
from .counts import FROM_THE_ENGINE, Evidence, Settings, with_compiled
from .first_use import own_device
from .places import Places


class Stream:
    """An open stream of this thread; as a context manager it closes at the end."""

    def __init__(self, extension: ModuleType, settings: Settings) -> None:
        native_settings = extension.Settings()
        given = asdict(settings)
        device = given.pop("device")
        for name, value in given.items():
            if value is not None:
                setattr(native_settings, name, value)
        native_settings.graphs = device != "cpu"
        extension.own_folder(_REGIONS)
        self._extension = extension
        self._cuda = torch.device("cuda", own_device()) if device == "cuda" else None
        self._defers_on = torch.cuda.current_stream(self._cuda) if self._cuda is not None else None
        self._budget = settings.budget if settings.budget is not None else _budget_on(self._cuda)
        native_settings.budget = self._budget
        self._session = extension.Session(native_settings, -1 if self._cuda is None else self._cuda.index)
        self._undo, self._graphs = ExitStack(), ExitStack()
        self._places = Places()
        self._compiled: CompiledGraphs | None = None
        self.is_open = False
        self._paused = False
        self.stopped = ""
        """Why nothing is deferred any more, also where it is open: an extension was loaded. Empty until then."""

    def open(self) -> list[str]:
        """Begin; the names of what torch has and cannot be watched."""
        global _current
        _current = self
        self.is_open = True
        if self._cuda is not None:
            captures = Captures(self._session, self._cuda)
            self._session.on_capture(captures.capture)
            self._graphs.callback(captures.close)
            process = on_cuda(
                self._extension,
                self._cuda,
                budget=self._budget,
                capture=captures.call,
                changes=self._session.changes,
            )
            self._compiled = CompiledGraphs(process)
            self._graphs.callback(self._compiled.close)
        self._place(Places())
        self._watch()
        _tell_of_scripts(self._extension)
        missing: list[str] = self._session.open()
        return missing

    def look_anew(self, *, first: bool = False) -> None:
        """Other code runs from now on: its operators are placed anew. The `first` time more may be spent."""
        self._place(Places())
        self._session.look_anew(first)

    def _place(self, places: Places) -> None:
        self._places = places
        self._session.on_place(places.here)
        self._session.on_arrival(places.meet)

    def _watch(self) -> None:
        self._undo.callback(threads.watch(self._session.join, self._session.leave))
        key = Key(self._extension, self._session.flush, self._defers)
        self._undo.callback(watch_code(key.apart, self._compiled.run if self._compiled is not None else None))
        self._undo.callback(watch_guards(key))
        self._undo.callback(extensions.watch(self._stop_beside_extensions))
        self._undo.callback(higher_order.watch())
        self._undo.callback(profilers.watch(self._session.flush))
        if self._cuda is not None:
            self._undo.callback(watch(self._session))

    def _stop_beside_extensions(self) -> None:
        if self.stopped or self._paused:
            return
        self.stopped = extensions.in_the_way(self._extension)
        if self.stopped:
            self.pause()

    def pause(self) -> None:
        """Issue what is pending and defer nothing until `resume`. What was recorded stays."""
        if self.is_open and not self._paused:
            self._paused = True
            try:
                self._session.pause()
            finally:
                self._undo.close()

    def resume(self) -> Unavailable | None:
        """Go on after a pause, in this thread and those that it starts; why not, if not."""
        if not self.is_open:
            return Unavailable("the stream is closed")
        self.stopped = self.stopped or extensions.in_the_way(self._extension)
        refused = Unavailable(self.stopped) if self.stopped else _in_the_way(self._extension)
        if refused is None and self._paused:
            self._paused = False
            self._watch()
            _tell_of_scripts(self._extension)
            self._session.resume()
        return refused

    def close(self) -> None:
        """Issue what is pending and take everything back. May be called twice."""
        global _current
        if not self.is_open:
            return
        self.is_open = False
        _current = None
        try:
            self._session.close()
        finally:
            self._undo.close()
            self._graphs.close()
            _closed.append(self)
            settle()

    def flush(self) -> None:
        """Issue what is pending."""
        self._session.flush()

    def _defers(self) -> bool:
        return self.is_open and not self._paused

    @property
    def is_left_behind(self) -> bool:
        """Another device, or another stream of it, is current than when it was opened, and it has learned nothing."""
        if self._cuda is None or self.counts().fragments:
            return False
        return own_device() != self._cuda.index or torch.cuda.current_stream(self._cuda) != self._defers_on

    def evidence(self) -> Evidence:
        return replace(self.counts(), stops=self.stops())

    def counts(self) -> Evidence:
        """Without the stops, which take longer."""
        found: dict[str, Any] = self._session.evidence()
        counts = Evidence(**{name: found[name] for name in FROM_THE_ENGINE})
        return counts if self._compiled is None else with_compiled(counts, self._compiled.counted)

    def fragments(self) -> list[dict[str, Any]]:
        """What became of each fragment: see `StreamedFunction.fragments`."""
        rows: list[dict[str, Any]] = self._session.fragments()
        return rows

    def arrivals(self) -> Arrivals:
        """At the collectives since the last look, which are forgotten here. Nothing may be pending; where the device
        has something to do, this waits for it.
        """
        return read(self._session.arrivals(), self._places.of)

    def charge(self, user: int) -> None:
        """Count for this user from now on what runs as written."""
        self._session.charge(user)

    def stops(self, user: int | None = None) -> tuple[Stop, ...]:
        """Operators that ran as written inside of fragments since the last look, and those that took longer where they
        met sizes for the first time; of one user, or of all.
        """
        places = self._places
        stops = []
        rows, visits = self._session.as_written()
        for whom, operator, place, first, later in visits:
            if slow := slow_visits(first, later, least_ms=_COLD_MS, share=_COLD):
                _, total_ns = cost_of([ns for _, ns in slow])
                rows.append((whom, operator, COLD, place, len(slow), round(total_ns), 0))
        for whom, operator, reason, place, times, total_ns, segments in rows:
            if user is None or whom == user:
                line, inner = places.of(place)
                stops.append(
                    Stop(
                        operator=operator,
                        reason=reason,
                        user=line,
                        inner=inner,
                        times=times,
                        total_ns=total_ns,
                        segments=segments,
                    )
                )
        return added((), stops)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _take_back(self) -> bool:
        """Take the kernels back, unless a thread or a backward still carries the key and would miss them."""
        if threads.running() or self._extension.in_backward():
            return False
        self._session.take_back()
        return True


_COLD_MS, _COLD = 0.1, 0.25
"""That a first visit costs more, at least, and the share of them that do. All visits are known here, at whatever line,
and of the convolutions of a model some may need no plan.
"""
_REGIONS = os.path.join(OWN_FOLDER, "runtime", "")
"""Whose code may ask for addresses during a pause; others of Grape's may call what the person gave them (`stream`)."""
_current: Stream | None = None
_closed: list[Stream] = []
_hooked = 0


def _budget_on(device: torch.device | None) -> int:
    return 4 << 30 if device is None else torch.cuda.get_device_properties(device).total_memory // 8


def open_stream(settings: Settings | None = None) -> Stream | Unavailable:
    """Open a stream for this thread and those that it starts."""
    if _current is not None:
        return Unavailable("a stream is open already")
    settle()
    if _closed:
        return Unavailable("a stream that was closed is still in use")
    extension = native.load()
    if isinstance(extension, Unavailable):
        return extension
    refused = _in_the_way(extension)
    if refused is not None:
        return refused
    refusal = extensions.in_the_way(extension) or extension.refusal()
    if refusal:
        return Unavailable(refusal)
    _hook_process()
    settings = settings or Settings()
    if settings.device == "auto":
        settings = replace(settings, device=_automatic())
    if settings.device == "cuda":
        refusal = _no_cuda()
        if refusal:
            return Unavailable(refusal)
    try:
        stream = Stream(extension, settings)
    except RuntimeError as error:
        return Unavailable(str(error).partition("\n")[0])
    missing = stream.open()
    if missing:
        stream.close()
        return Unavailable(f"torch's {missing[0]} cannot be watched")
    return stream


def _automatic() -> Literal["cpu", "cuda"]:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _no_cuda() -> str:
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    if torch.cuda.get_allocator_backend() != "native":
        return "torch's allocator is not its own"
    with torch.cuda.device(own_device()):  # asking gives a device a context
        if torch.cuda.is_current_stream_capturing():
            return "the current stream is being captured"
    torch.cuda.init()
    return ""


def _tell_of_scripts(extension: ModuleType) -> None:
    """TorchScript ran while nobody saw it, so a graph of autograd's may be its, whose kernels no operator announces."""
    if torch._C._last_executed_optimized_graph() is not None:
        extension.scripts_ran()


def _in_the_way(extension: ModuleType) -> Unavailable | None:
    rpc = getattr(torch._C, "_distributed_rpc", None)  # not in every build of torch
    if rpc is not None and rpc._is_current_rpc_agent_set():
        return Unavailable("torch.distributed.rpc serves other processes on threads whose operators would not be seen")
    others = threads.others()
    if others:
        return Unavailable(f"thread {others[0]} runs, and its operators would not be seen")
    return Unavailable("a backward is running") if extension.in_backward() else None


def beside_extensions() -> Unavailable | None:
    """Why no stream would open or go on in this process, which loads the C++ of streams where it is built."""
    extension = native.load()
    if isinstance(extension, Unavailable):
        return extension
    reason = extensions.in_the_way(extension)
    return Unavailable(reason) if reason else None


def settle() -> None:
    """Take back what closed streams had to leave."""
    _closed[:] = [stream for stream in _closed if not stream._take_back()]


def _hook_process() -> None:
    global _hooked
    if not _hooked:
        _hooked = os.getpid()  # hooks of forks cannot be taken back; without a stream they do nothing
        os.register_at_fork(before=_before_fork, after_in_child=_in_child)
        atexit.register(_at_exit)


def _at_exit() -> None:
    """Graphs and their memory, and marks of arrivals, go while there is a device."""
    stream = _current
    if stream is not None and _hooked == os.getpid():
        stream.close()
        stream.arrivals()


def _before_fork() -> None:
    if _current is not None:
        _current.flush()


def _in_child() -> None:
    global _current
    if _current is not None:
        _current._session.in_forked_child()
        _current.is_open = False  # what is in torch stays there, and passes everything through
        _current = None
