"""`grape.stream`: operator streams for the calls of one function, without a notebook."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from ...errors import UsageError
from ...options import budget_bytes
from ...render.units import count, plural
from ...streams import Evidence, Settings, Stream, shared
from ..process import engine
from .by_streams import hindrance, settings_for
from .cell import StreamedSession

P = ParamSpec("P")
R = TypeVar("R")


class StreamedFunction(Generic[P, R]):
    """Calls `fn`, whose operators are matched with those of earlier calls. Made by `grape.stream`.

    Its Python runs at every call, and what it returns is what `fn` alone would return. As a context manager it closes
    at the end of the block.
    """

    def __init__(self, fn: Callable[P, R], settings: Settings) -> None:
        functools.update_wrapper(self, fn)
        from ...runtime import hold_off

        self._fn = fn
        self._settings = settings
        self._evidence: Evidence | None = None
        self._closed = False
        self._served = False
        self.as_written: str | None = None
        """Why the last call ran as written; None where it was served, and before the first."""
        hold_off(self)
        self._user = user = object()
        shared.hold(user)
        self._release = weakref.finalize(self, shared.release, user)
        self._release.atexit = False

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        from ...runtime import held, prune_traceback

        self.as_written = self._hindrance()
        if self.as_written is not None:
            return self._fn(*args, **kwargs)
        entered = shared.enter(self._user, self._settings)
        if not isinstance(entered, Stream):
            self.as_written = entered.reason
            return self._fn(*args, **kwargs)
        if not self._served:
            self._served = True
            if engine().session is None:  # else the cell's run says what may be spent
                shared.look_anew(first=True)
        try:
            try:
                result = self._fn(*args, **kwargs)
            finally:
                shared.leave()
            if held.since is not None:
                held.come(sys._getframe(1))
            return result
        except BaseException as error:
            prune_traceback(error)
            raise

    def __repr__(self) -> str:
        return f"<grape.stream of {getattr(self, '__name__', type(self._fn).__name__)}: {self._state()}>"

    def _state(self) -> str:
        found = self.evidence()
        seen = found.seen if found is not None else 0
        counts = "not served yet"
        if found is not None and seen:
            counts = f"{plural(seen, 'operator')}, {count(found.matched)} as recorded"
        if self._closed:
            return f"{counts}, closed"
        return counts if self.as_written is None else f"{counts}, the last call ran as written: {self.as_written}"

    def _hindrance(self) -> str | None:
        if self._closed:
            return "it was closed"
        owner = engine()
        if owner.session is not None and not isinstance(owner.session, StreamedSession):
            return "a Grape session looks on, whose engine is regions"
        return hindrance(owner)

    def evidence(self) -> Evidence | None:
        """Counts of what served its calls, all together; None where none was. Inside a cell that streams serve, its
        operators are the cell's.
        """
        return self._evidence if self._closed else shared.evidence(self._user)

    def fragments(self) -> list[dict[str, Any]]:
        """A row for each piece of a loop that the stream of this process recorded, in whichever cell or function: how
        many `operators`, `segments` and `graphs` it has, how many results those copy to where other graphs read them
        (`copied`), whether it serves (`live`), what its operators have `earned_ms` of the `price_ms` of its graphs,
        what it `saved_ms`, and how many run `as_written`, by reason.
        """
        return shared.stream.fragments() if shared.stream is not None else []

    def close(self) -> None:
        """Give back what was recorded, unless others are served by it. Calls run as written from then on."""
        if not self._closed:
            from ...runtime import let_through

            self._closed = True
            self._release()
            self._evidence = shared.evidence(self._user, forget=True)
            let_through(self)

    def __enter__(self) -> StreamedFunction[P, R]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def stream(fn: Callable[P, R], *, memory_budget: int | str | None = None) -> StreamedFunction[P, R]:
    """`fn`, whose calls are served by an operator stream that stays open between them.

    Its operators are compared with those of earlier calls; those that match are issued together, without the launches
    in between. `memory_budget` is what their results may hold, in bytes or as text (``"2GB"``). Where streams cannot
    serve a call, it runs as written, and `as_written` of the result says why: no GPU and no ``GRAPE_REFERENCE=1`` in
    the environment, no C++ compiler, while the extension is compiled in the background at first use, another thread.
    Graphs of cells replay nothing inside. There is one stream in a process: two functions share what was recorded where
    their budgets are the same.

    Raises `UsageError` where `fn` cannot be called, or the budget is no size. What `fn` raises propagates; an error of
    an operator that was issued late is raised by the call it belongs to, at its end at the latest.
    """
    if not callable(fn):
        raise UsageError(f"grape.stream takes something to call, not {type(fn).__name__}")
    return StreamedFunction(fn, settings_for(budget_bytes(memory_budget)))
