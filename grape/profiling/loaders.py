"""Times what a thread waits for its `DataLoader`s, batch by batch.

While a cell is watched, `__next__` of torch's loader iterators is one that takes the time around it. The device's part
is measured by two timers' events around the call: nothing of the loop's own is issued between them, so the time between
them is that in which the device had run dry.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import getstate
from threading import get_ident
from typing import Any

import torch
from torch.utils.data import RandomSampler, SequentialSampler, TensorDataset, default_collate
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from ..failures import surviving
from ..model import LoaderWait, Position
from ..model.location import line_of
from ..originals import numpy_generator, perf_counter_ns
from ..tracing import PositionFinder, below_dispatch, contents_of, is_watched
from .timing import CallTimer

_ITERATOR: Any = _BaseDataLoaderIter
_TIMED = 64
"""So many batches of a line are timed on the device; of the rest one in `_THEN`, up to `_MOST`."""
_THEN, _MOST = 16, 256
_LOOKING = "it timed a loader"
_LOOKS = 3
"""Batches of a line around which random states are compared."""


@dataclass(slots=True)
class _Line:
    """The batches that one line took so far from loaders that are set up alike."""

    at: Position | None
    inner: Position | None
    batches: int = 0
    host_ns: int = 0
    timed_ns: int = 0
    timers: list[CallTimer] = field(default_factory=list)
    looks: int = 0
    draws: bool | None = None
    on_cpu: bool = True


@dataclass(frozen=True, slots=True)
class _SetUp:
    line: tuple[str, int] | None
    workers: int
    pinned: bool
    collates: bool
    tensors: bool


class LoaderWatch:
    """Of one cell and the thread that runs it. `observed_ns` counts what observing operators took so far, which is not
    the loader's time. `timer` makes a timer of the device.
    """

    def __init__(
        self, timer: Callable[[], CallTimer], positions: PositionFinder, observed_ns: Callable[[], int]
    ) -> None:
        self._timer = timer
        self._positions = positions
        self._observed_ns = observed_ns
        self._lines: dict[_SetUp, _Line] = {}
        self._thread = get_ident()
        self._process = os.getpid()
        self._original: Callable[[object], object] | None = None
        self._installed: Callable[[object], object] | None = None
        self._inside = False
        self._on_cuda = torch.cuda.is_available()

    def join(self) -> None:
        """Take the time from here on. A debugger would meet the frame that does it, so beside one nobody does."""
        if self._original is not None or is_watched():
            return
        original = _ITERATOR.__next__

        def timed(iterator: object) -> object:
            if self._inside or get_ident() != self._thread or os.getpid() != self._process:
                return original(iterator)
            if _may_warn(iterator) or _starts_workers(iterator):
                return original(iterator)
            self._inside = True
            try:
                return self._take(original, iterator)
            except BaseException as error:
                error.__traceback__ = below_dispatch(error.__traceback__)
                raise
            finally:
                self._inside = False

        self._original, self._installed = original, timed
        _ITERATOR.__next__ = timed

    def leave(self) -> None:
        """Take it no longer. Where somebody has put something of theirs over it, that stays, and ours does nothing."""
        original, self._original = self._original, None
        if original is not None and _ITERATOR.__next__ is self._installed:
            _ITERATOR.__next__ = original
        self._installed = None
        self._thread = -1

    def _take(self, original: Callable[[object], object], iterator: object) -> object:
        line: _Line | None = None
        timer: CallTimer | None = None
        states: tuple[object, ...] | None = None
        with surviving(_LOOKING):  # an iterator of somebody's own may lack what torch's have
            line = self._line_of(iterator)
            states = _random_states() if line.looks < _LOOKS and _may_draw(iterator) else None
            timer = self._timer_for(line)
            if timer is not None:
                timer.start()
        observed_ns, began = self._observed_ns(), perf_counter_ns()
        batch = original(iterator)
        took = max(0, perf_counter_ns() - began - (self._observed_ns() - observed_ns))
        with surviving(_LOOKING):
            if line is not None:
                self._note(line, batch, took, timer, states)
        return batch

    def _note(
        self, line: _Line, batch: object, took_ns: int, timer: CallTimer | None, states: tuple[object, ...] | None
    ) -> None:
        if timer is not None:
            timer.stop()
            line.timers.append(timer)
            line.timed_ns += took_ns
        if states is not None:
            line.looks += 1
            line.draws = bool(line.draws) or states != _random_states()
        if not line.batches:
            line.on_cpu = _lies_on_cpu(batch)
        line.batches += 1
        line.host_ns += took_ns

    def _line_of(self, iterator: Any) -> _Line:
        user, inner = (self._positions.at(frame) if frame is not None else None for frame in self._positions.find(2))
        collates = iterator._collate_fn is not default_collate and iterator._auto_collation
        set_up = _SetUp(
            line=line_of(user),
            workers=iterator._num_workers,
            pinned=iterator._pin_memory,
            collates=collates,
            tensors=not collates and _gives_rows(iterator),
        )
        line = self._lines.get(set_up)
        if line is None:
            line = self._lines[set_up] = _Line(user, inner)
        return line

    def _timer_for(self, line: _Line) -> CallTimer | None:
        """A timer for this batch, where it is one of those that are timed and an event has a time here."""
        number = len(line.timers)
        if number >= _MOST or (number >= _TIMED and line.batches % _THEN):
            return None
        if self._on_cuda and (not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing()):
            return None
        return self._timer()

    def waits(self) -> tuple[LoaderWait, ...]:
        """All of it. Waits for the device, whose errors are the person's, who meets them elsewhere."""
        found = []
        with suppress(RuntimeError):
            found += [_wait(set_up, line) for set_up, line in self._lines.items() if line.batches]
        return tuple(found)


def _wait(set_up: _SetUp, line: _Line) -> LoaderWait:
    host_ms, timed_ms = line.host_ns / 1e6, line.timed_ns / 1e6
    idle_ms = sum(timer.elapsed_ms() for timer in line.timers)
    share = min(1.0, idle_ms / timed_ms) if timed_ms else 0.0
    return LoaderWait(
        at=line.at,
        inner=line.inner,
        batches=line.batches,
        host_ms=host_ms,
        wait_ms=host_ms * share,
        workers=set_up.workers,
        pinned=set_up.pinned,
        collates=set_up.collates,
        tensors=set_up.tensors,
        draws=line.draws,
        on_cpu=line.on_cpu,
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        forks=multiprocessing.get_start_method(allow_none=True) in (None, "fork")
        and multiprocessing.get_all_start_methods()[0] == "fork",
    )


def _may_warn(iterator: object) -> bool:
    """Of an iterable dataset that is longer than it said torch warns, and names the frame above."""
    kind, told = (getattr(iterator, name, None) for name in ("_dataset_kind", "_IterableDataset_len_called"))
    return kind == _DatasetKind.Iterable and told is not None


def _may_draw(iterator: Any) -> bool:
    """True where items are made in this process, but for the first batch, for which a sampler draws its seed."""
    return bool(iterator._num_workers == 0 and iterator._num_yielded > 0)


def _starts_workers(iterator: object) -> bool:
    """For its first batch a loop waits until the worker processes have started, however many there are."""
    return bool(getattr(iterator, "_num_workers", 0)) and not getattr(iterator, "_num_yielded", 0)


def _gives_rows(iterator: Any) -> bool:
    """True where batches are rows of tensors, in an order that a sampler draws when the iteration begins."""
    sampler = getattr(iterator._index_sampler, "sampler", None)
    plain = type(sampler) is SequentialSampler or (type(sampler) is RandomSampler and not sampler.replacement)
    return plain and iterator._auto_collation and type(iterator._dataset) is TensorDataset


def _lies_on_cpu(batch: object) -> bool:
    if isinstance(batch, torch.Tensor):
        return batch.device.type == "cpu"
    if isinstance(batch, dict):
        batch = list(batch.values())
    return all(map(_lies_on_cpu, batch)) if isinstance(batch, (list, tuple)) else True


def _random_states() -> tuple[object, ...]:
    """The states of torch on the CPU, of Python and of NumPy."""
    numpy = numpy_generator()
    arrays = numpy.get_state() if numpy is not None else ()
    with torch._C.DisableTorchFunction():
        drawn = contents_of(torch.default_generator.get_state())
    return drawn, getstate(), tuple(map(_plain, arrays))


def _plain(value: object) -> object:
    return value.tobytes() if hasattr(value, "tobytes") else value
