"""Which line issued which operator: the profiler's events matched with an operator trace of the same code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..model import Event, Position, Trace

PositionOf = Callable[[Sequence[Event]], Sequence[Position | None]]
"""Given the operators of one window, ordered by start (a caller before what it calls), the position of each."""


def trace_positions(trace: Trace, *, inner: bool = False) -> PositionOf:
    """Positions by walking `trace` beside the profiled operators: the person's lines, with `inner` the lines (often a
    library's) that issued the operators.

    The profiler also sees composite operators around the traced ones (`aten::linear` around `aten::addmm`) and the
    operators that those call. A traced operator matches the next profiled one of its name; what runs inside it, and
    what encloses it, gets its line. Several calls in one window match the trace again and again. Where the code does
    not do what was traced, positions end there; none is guessed.
    """

    def find(events: Sequence[Event]) -> Sequence[Position | None]:
        return _match(
            [(_profiler_name(op.name), op.inner if inner else op.user or op.inner) for op in trace.ops], events
        )

    return find


def _profiler_name(name: str) -> str:
    """``aten.addmm.default`` as the profiler writes it: ``aten::addmm``."""
    return "::".join(name.split(".")[:2])


def _match(steps: Sequence[tuple[str, Position | None]], events: Sequence[Event]) -> list[Position | None]:
    found: list[Position | None] = [None] * len(events)
    if not steps or not events:
        return found
    thread = events[0].thread
    matched: list[int] = []
    within: tuple[int, Position | None] = (-1, None)
    step = 0
    for index, event in enumerate(events):
        if event.thread != thread:
            continue
        if event.start_ns < within[0]:
            found[index] = within[1]
        elif event.name == steps[step][0]:
            found[index] = steps[step][1]
            within = (event.end_ns, steps[step][1])
            matched.append(index)
            step = (step + 1) % len(steps)
    _fill_callers(events, found, matched)
    return found


def _fill_callers(events: Sequence[Event], found: list[Position | None], matched: Sequence[int]) -> None:
    """A composite operator stands where the first traced operator inside it stands."""
    following: int | None = None
    remaining = list(matched)
    for index in range(len(events) - 1, -1, -1):
        if remaining and remaining[-1] == index:
            following = remaining.pop()
        elif following is not None and found[index] is None:
            event, inner = events[index], events[following]
            if event.thread == inner.thread and inner.start_ns < event.end_ns:
                found[index] = found[following]
