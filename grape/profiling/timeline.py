"""Records what host and device do in a few calls, with torch's profiler, for a `grape.model.Timeline`.

`torch.autograd.profiler.profile` is used, not `torch.profiler.profile` on top of it: the latter imports the compiler
the first time it starts, which takes a second of the person's cell.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Protocol

import torch
from torch._C import _autograd

from ..model import Timeline, Trace
from ..model.times.timeline import thinned
from ..originals import time_ns
from ..tracing import busy
from .devices.cupti import detach
from .devices.visible import device_index
from .kineto import KinetoEvent, Window, convert
from .positions import PositionOf, trace_positions

_EVENT_LIMIT = 400_000
_QUIET = {"KINETO_LOG_LEVEL": "99"}
"""Kineto reads its log level when it starts for the first time, and else writes a line to stderr at each start."""


class _Results(Protocol):
    """The events of one stretch, as torch's profiler has them."""

    def events(self) -> Iterable[KinetoEvent]: ...


class TimelineRecorder:
    """Profiles calls, each between `start` and `stop`, on the calling thread and `device`.

    The costly conversion waits for `timeline`, to be called after the cell. Nothing here raises into the person's
    cell: where nothing could be recorded `unavailable` says why, in one line. `position_of` (see `trace_positions`)
    gives events their lines. Both ends of a call wait for the device, so that its stretch holds its own work and no
    other; after it, launches cost what they did before.
    """

    def __init__(self, device: torch.device, *, limit: int = _EVENT_LIMIT) -> None:
        self.device = device
        self.position_of: PositionOf | None = None
        self.inner_of: PositionOf | None = None
        self.limit = limit
        self.unavailable: str | None = None
        self._profile: torch.autograd.profiler.profile | None = None
        self._start_ns = 0
        self._recorded: list[tuple[_Results, Window]] = []
        """Calls that were not converted yet."""
        self._each: list[Timeline] = []
        self.typical_ms: float | None = None
        self.last_ms: float | None = None
        """Milliseconds of the last call."""

    def follow(self, trace: Trace) -> None:
        """Take lines from an operator trace of the same code; for what is converted from now on."""
        self.position_of = trace_positions(trace)
        self.inner_of = trace_positions(trace, inner=True)

    def start(self) -> None:
        """Begin a stretch. Does nothing inside a stretch, under another profiler or inside a graph capture."""
        if self._profile is not None:
            return
        try:
            self.unavailable = _obstacle(self.device)
            if self.unavailable is None:
                wait_for(self.device)
                self._profile = _profile(self.device)
                busy.profiles = True
                with _environment(_QUIET):
                    self._profile.__enter__()
                self._start_ns = time_ns()
        except BaseException as error:
            self._abandon(error)
            if not isinstance(error, Exception):
                raise

    def stop(self) -> None:
        """End the stretch. Does nothing outside one."""
        profile = self._profile
        if profile is None:
            return
        stop_ns = time_ns()
        try:
            wait_for(self.device)
            end_ns = time_ns()
            profile.__exit__(None, None, None)
            busy.profiles = False
            index = device_index(self.device) if self.device.type == "cuda" else None
            window = Window(start_ns=self._start_ns, stop_ns=stop_ns, end_ns=end_ns, device=index)
            self._profile = None
            assert profile.kineto_results is not None
            self._recorded.append((profile.kineto_results, window))
            self.last_ms = window.wall_ns / 1e6
            if self.device.type == "cuda":
                detach()
        except BaseException as error:
            self._abandon(error)
            if not isinstance(error, Exception):
                raise

    def timeline(self) -> Timeline | None:
        """The call that took nearest to `typical_ms`, the last where that is None; None where nothing was recorded.

        At most `limit` events are kept and `dropped` counts the others. Of a call that is too long, the shortest host
        events go first, and where its device work alone is too much the timeline ends early; the busy share holds for
        what is kept.
        """
        recorded, self._recorded = self._recorded, []
        for results, window in recorded:
            try:
                events = convert(
                    results.events(),
                    window,
                    position_of=self.position_of,
                    inner_of=self.inner_of,
                    demangle=torch._C._demangle,
                )
            except Exception as error:
                self.unavailable = f"the profiler's events could not be read: {_line(error)}"
                continue
            if events is None:
                self.unavailable = "CUPTI reported no GPU activity (another profiler may hold it); see grape doctor"
            else:
                kept, wall_ns = thinned(events, window.wall_ns, self.limit)
                self._each.append(Timeline(events=kept, wall_ns=wall_ns, dropped=len(events) - len(kept)))
        return self._nearest() if self._each else None

    def _nearest(self) -> Timeline:
        """The same object as long as it is the same call."""
        typical_ms, found = self.typical_ms, self._each[-1]
        if typical_ms is not None:
            found = min(self._each, key=lambda one: abs(one.wall_ns / 1e6 - typical_ms))
        if found.chosen_of != len(self._each):
            index = self._each.index(found)
            found = self._each[index] = replace(found, chosen_of=len(self._each))
        return found

    def _abandon(self, error: BaseException) -> None:
        """Leave no profiler running, and remember why."""
        profile, self._profile = self._profile, None
        busy.profiles = False
        self.unavailable = f"the profiler failed: {_line(error)}"
        if profile is not None and _autograd._profiler_enabled():
            # Not `__exit__`: it waits for the device first, and after a CUDA error that is what fails.
            with suppress(Exception):
                _autograd._disable_profiler()
        if profile is not None:
            torch.autograd.profiler._run_on_profiler_stop()


def _obstacle(device: torch.device) -> str | None:
    """Why nothing can be recorded now."""
    if _autograd._profiler_enabled() or torch.autograd.profiler._is_profiler_enabled:
        return "another profiler is running; leave it out of the cell to see Grape's timeline"
    if device.type == "cuda" and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    return None


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _profile(device: torch.device) -> torch.autograd.profiler.profile:
    return torch.autograd.profiler.profile(use_kineto=True, use_device="cuda" if device.type == "cuda" else None)


@contextmanager
def _environment(defaults: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a moment; what the person has set is left alone."""
    chosen = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(chosen)
    try:
        yield
    finally:
        for name in chosen:
            os.environ.pop(name, None)


def _line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    return text or type(error).__name__
