"""What was found in a trace is kept as long as the trace: that of a refused region is the same one in every run."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from ..model import Trace

__all__ = ["PerTrace"]

_T = TypeVar("_T")


class PerTrace(Generic[_T]):
    """`of(trace)` is `find(trace)`, found once for each trace that lives. Traces are told apart by identity."""

    def __init__(self, find: Callable[[Trace], _T]) -> None:
        self._find = find
        self._known: dict[int, tuple[weakref.ref[Trace], _T]] = {}

    def of(self, trace: Trace) -> _T:
        number = id(trace)
        known = self._known.get(number)
        if known is None or known[0]() is not trace:
            known = weakref.ref(trace, lambda _: self._forget(number)), self._find(trace)
            self._known[number] = known
        return known[1]

    def _forget(self, number: int) -> None:
        known = self._known.get(number)
        if known is not None and known[0]() is None:  # else the number is another trace's by now
            del self._known[number]
