"""The object behind a loop: how long its head goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from threading import get_ident
from types import FrameType

import torch

from ..failures import is_signalled, log_failure
from ..runtime.dispatch.trampoline import prune_traceback
from .run import Run
from .trial import Trial

OBSERVED = 2
"""So many iterations run as written before the values of the names are looked at."""
_TRY_EVERY = 8
"""After so many iterations it is asked whether a trial is due."""


class Loop:
    """Called by compiled code at a loop; see `grape.rewrite.outlining.loops`. `may_start` says if Grape is there;
    `at_work` is around what it does for the loop itself.

    `live`: whether the head may be worth its while.
    """

    def __init__(
        self, may_start: Callable[[Loop], bool], at_work: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self.runs: list[Run] = []
        self.live = True
        self.asleep = False
        """Nothing replays in it, and nobody observes: as written until that changes."""
        self._may_start = may_start
        self._at_work = at_work
        self._iterations = 0
        self._left = _Left()
        self._cell = ""
        self._turns = 0
        self._trial: Trial | None = None
        self._tried = False

    def __reduce__(self) -> tuple[type[_Inert], tuple[()]]:
        return _Inert, ()

    def begin(self, namespace: dict[str, object], filename: str, flags: int, cell: str) -> None:
        """The code was compiled once more, in a cell with the source `cell`: what was hopeless may not be."""
        magics = "%%", "# %%"  # IPython keeps that of Grape as a comment
        written = "".join(line for line in cell.splitlines(keepends=True) if not line.startswith(magics))
        changed, self._cell = written != self._cell, written
        for run in self.runs:
            if changed:
                run.forget_refusals()
            run.begin(namespace, filename, flags)
        self.live, self.asleep = True, False
        self._trial, self._tried = None, False
        self._iterations = OBSERVED + 1 if any(run.live for run in self.runs) else 0

    def look_again(self) -> None:
        """Between two statements of a cell: begin anew where an optimizer that it was split for is another one now."""
        if any([run.is_outdated() for run in self.runs]):
            for run in self.runs:
                run.forget_refusals()
                run.given_up = False
            self.live, self._iterations = True, 0

    def stop(self) -> None:
        """As written from now on, until it is to go on."""
        self.live = False
        for run in self.runs:
            run.live = False

    def sleep(self) -> None:
        """As written until `go_on`."""
        self.live, self.asleep = False, True

    def go_on(self) -> None:
        """Let its runs go on. What was given up, or divided into nothing, stays as it is."""
        self.asleep = False
        for run in self.runs:
            run.live = bool(run.regions) and not run.given_up
        self.live = self._iterations <= OBSERVED or any(run.live for run in self.runs)

    def _enters(self) -> bool:
        return self.live and self._may_start(self)

    @property
    def replays(self) -> bool:
        """True where a region of its body has graphs."""
        return any(part.region is not None and part.region.entries for run in self.runs for part in run.regions)

    @property
    def is_idle(self) -> bool:
        """True where no region of its body was called since the last cell ended."""
        return all(part.region is None or part.region.is_idle for run in self.runs for part in run.regions)

    def _turn(self, *, sees_end: bool) -> bool:
        """Before each iteration, called from a function that the person's code called: whether the head goes on.

        `sees_end`: `_pause` is called however the loop is left.
        """
        if self._iterations <= OBSERVED:
            self._iterations += 1
            if self._iterations >= OBSERVED:
                try:
                    # No mode of the person's sees what is looked at.
                    with torch._C.DisableTorchFunction(), self._at_work():
                        self._show(sys._getframe(2))
                except Exception as error:  # the loop goes on without it
                    if is_signalled(error):
                        raise
                    log_failure("it looked at a loop")
                    for run in self.runs:
                        run.forget()
        if self._iterations > OBSERVED and all([run.given_up for run in self.runs]):
            self.live = False
        elif self._trial is not None:
            self._trial.turn()
            if self._trial.over:
                self._trial, self._tried = None, True
        elif not self._tried:
            self._turns += 1
            if not self._turns % _TRY_EVERY:
                self._trial = Trial.of(self.runs, sees_end=sees_end)
        return self.live

    def _pause(self) -> None:
        if self._trial is not None:
            self._trial.pause()

    def _show(self, frame: FrameType) -> None:
        """Show the runs what the names of the person's code hold."""
        for run in self.runs:
            values: Mapping[str, object] = run.namespace
            if run.source.local is not None:
                local = frame.f_locals
                values = run.seen(local)
                if type(local) is dict:
                    local.clear()  # until 3.13 a copy, which would keep what it holds alive
            (run.look if self._iterations == OBSERVED else run.arm)(values)

    # -- for ---------------------------------------------------------------------------------------------------------

    def head(self, iterable: Iterable[object]) -> object:
        """The items of `iterable` for as long as the head goes on."""
        try:
            iterator = iter(iterable)
        except BaseException as error:
            prune_traceback(error)
            raise
        self._pause()
        if self._enters():
            return _Items(self, iterator)
        self._left.put(iterator)
        return ()

    def rest(self) -> object:
        """The iterator over the items that the head of this thread has left."""
        iterator = self._left.take()
        return iterator if hasattr(iterator, "__iter__") else _Iterable(iterator)

    # -- while -------------------------------------------------------------------------------------------------------

    def stays(self) -> bool:
        if self._enters() and self._turn(sees_end=False):
            return True
        self._left.put(True)
        return False

    def ends(self) -> bool:
        """The person's condition was false."""
        self._pause()
        self._left.put(False)
        return False

    def left(self) -> bool:
        """True where the head ended without the person's condition being false."""
        return bool(self._left.take())


class _Left:
    """Left by heads for what follows them: an entry for each head of a thread that has ended, last in first out.

    A finalizer may run the same loop between the end of a head and its rest.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, list[object]] = {}

    def put(self, entry: object) -> None:
        self._entries.setdefault(get_ident(), []).append(entry)

    def take(self) -> object:
        return self._entries[get_ident()].pop()


class _Items:
    """Iterates until the head ends. It holds no item, and an exception shows no frame of it."""

    __slots__ = ("_iterator", "_loop")

    def __init__(self, loop: Loop, iterator: Iterator[object]) -> None:
        self._loop = loop
        self._iterator = iterator

    def __iter__(self) -> Iterator[object]:
        return self

    def __del__(self) -> None:
        self._loop._pause()  # after a `break` or an exception, too

    def __next__(self) -> object:
        try:
            if self._loop._turn(sees_end=True):
                return next(self._iterator)
        except StopIteration:
            self._loop._pause()
            self._loop._left.put(())
            raise
        except BaseException as error:
            prune_traceback(error)
            raise
        self._loop._left.put(self._iterator)
        raise StopIteration


class _Iterable:
    """An iterator that is not iterable itself, which a ``for`` accepts as the result of ``iter``."""

    def __init__(self, iterator: object) -> None:
        self._iterator = iterator

    def __iter__(self) -> object:
        return self._iterator


class _Inert:
    """A loop in another process, where code was sent: the plain loop."""

    live = False

    def __init__(self) -> None:
        self._left = _Left()

    def head(self, iterable: Iterable[object]) -> object:
        self._left.put(iter(iterable))
        return ()

    rest = Loop.rest
    left = Loop.left
    ends = Loop.ends

    def stays(self) -> bool:
        self._left.put(True)
        return False
