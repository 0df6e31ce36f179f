"""What the calls of one shape took in the cell that runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from ...originals import perf_counter_ns
from ...tracing import Tracer
from .attention import TRACING, Attention, Purpose

_AROUND_MS = 10.0
"""In a traced call the person's code takes so much beside `TRACING`. What it takes beyond that and beyond a plain call,
it did itself: it loaded libraries, say, or made plans."""


class _Watched(Protocol):
    """Who traces the call, and knows when the person's code ran in it and what it took to see that."""

    @property
    def watched_ns(self) -> int: ...

    @property
    def body_ns(self) -> tuple[int, int]: ...


@dataclass(slots=True)
class Tally:
    """Of one shape in the cell that runs. `watched` counts calls by what they were watched for. `replay_ns` is what
    replays took the host, `ahead_ns` what it took until they began: in a cell that is observed that is Grape's own.
    `profiled_ns` are replays under the profiler, which `replays` does not count; `traced_ns` are, of each traced call,
    what it took and what of it the tracer did.
    """

    watched: Counter[Purpose] = field(default_factory=Counter)
    replays: int = 0
    replay_ns: int = 0
    ahead_ns: int = 0
    profiled_ns: list[int] = field(default_factory=list)
    traced_ns: list[tuple[int, int]] = field(default_factory=list)

    @contextmanager
    def tracing(self, attention: Attention, tracer: Tracer, observer: _Watched) -> Iterator[None]:
        """Inside, a call is traced. Where the rest of it is left to itself, that is the person's, and so is what the
        first part took beyond what tracing explains.
        """
        handed_back, own_ns, began = attention.handed_back_ns, tracer.own_ns, perf_counter_ns()
        try:
            yield
        finally:  # what a call that raises took is the person's all the same
            tracer_ns, first_part = tracer.own_ns - own_ns + observer.watched_ns, attention.handed_back_ns - handed_back
            body_began, body_ended = observer.body_ns
            if body_began < began:
                pass  # it never came to the person's code
            elif first_part:
                attention.book("record", -max(0.0, first_part - (body_began - began) - explained_ns(tracer_ns)))
            else:
                self.traced_ns.append((body_ended - body_began, tracer_ns))

    def replayed(self, ns: int, ahead_ns: int, *, profiled: bool = False) -> None:
        """One more replay."""
        if profiled:
            self.profiled_ns.append(ns)
        else:
            self.replays += 1
            self.replay_ns += ns
            self.ahead_ns += ahead_ns


def explained_ns(tracer_ns: int) -> float:
    """Of a traced call, what tracing explains."""
    return TRACING * tracer_ns + _AROUND_MS * 1e6
