"""Counts of what operator streams did in a cell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from .location import Position

WAITING = "not worth a capture yet"
"""Why operators run as written that will be deferred once there were enough of them: a reason in `as_written`."""
NO_ROOM = "no room for its results"
"""The same of those whose results are larger than the memory budget."""

READ = "host read"
"""Why operators run as written whose value, or the length of whose result, the CPU waits for."""
COLD = "sizes met for the first time"
"""Of `StreamEvidence.cold`: nothing was in the way."""
CHANGED = "number changed"
GROWS = "sizes that grow"
ON_THE_CPU = "a tensor on the CPU"
SHARED = "memory that is not torch's alone"
"""Others of these reasons that findings know."""
COMPILED = "compiled code"
"""Why launches of code that `torch.compile` made are as it makes them: training, other devices than one GPU, operators
of other libraries.
"""
_NOT_OFTEN = "nothing recorded yet"
_FOR_GOOD = ("beside torch.distributed.rpc",)
"""Reasons that hold from when they first came: later runs of a cell have them, too."""
MOST_STOPS = 20
"""Rows of `StreamEvidence.reads`, and of `stops`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Operators of one name that ran as written at one line, for one reason, inside of what was recorded.

    `user` is the line of the person's code, `inner` the innermost of all; None where no line is known, as on a thread
    of autograd's own, which none calls. `total_ns` is the host's time in them, with what it waited; `segments` are
    those that were issued there for them.
    """

    operator: str
    reason: str
    user: Position | None
    inner: Position | None
    times: int
    total_ns: int
    segments: int

    @property
    def what(self) -> tuple[object, ...]:
        """The facts that two rows have in common that are counted together."""
        return (self.operator, self.reason, self.user, self.inner)

    def plus(self, other: Stop) -> Stop:
        """With what `other` counted, which is the same otherwise."""
        times, total_ns = self.times + other.times, self.total_ns + other.total_ns
        return replace(self, times=times, total_ns=total_ns, segments=self.segments + other.segments)

    def to_dict(self) -> dict[str, object]:
        return {
            "operator": self.operator,
            "reason": self.reason,
            "file": self.user.file if self.user else None,
            "line": self.user.line if self.user else None,
            "function": self.user.function if self.user else None,
            "times": self.times,
            "total_ms": self.total_ns / 1e6,
            "segments": self.segments,
        }


def added(stops: Iterable[Stop], later: Iterable[Stop]) -> tuple[Stop, ...]:
    """Both, with one row for each place, name and reason; what took most time first."""
    found: dict[object, Stop] = {}
    for stop in (*stops, *later):
        known = found.get(stop.what)
        found[stop.what] = stop if known is None else known.plus(stop)
    return tuple(sorted(found.values(), key=lambda stop: -stop.total_ns))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvidence:
    """One stream in one cell, counted in operators unless named otherwise. `as_written` is by reason."""

    name: str
    operators: int
    matched: int
    issued: int
    recorded: int
    as_written: tuple[tuple[str, int], ...]
    segments: int
    partial: int
    """Segments that something cut short."""
    iterations: int
    """Times that a fragment began: operators that were recorded one behind the other."""
    diverged: int
    last_divergence: str | None
    fragments: int
    """All that are known now, also from other cells."""
    steps: int
    """Operators of all fragments."""
    bytes: int
    """Of the memory that their results have."""
    copies: int
    copied_bytes: int
    kept: int
    """Results that outlived a pass, whose memory was given away."""
    own_ms: float
    """Milliseconds that comparing, observing and recording took: an estimate."""
    passing_ms: float = 0.0
    """Likewise, of operators that no recorded loop was around, with what torch took to hand them over."""
    captured: int = 0
    """Segments, in `capture_ms`."""
    capture_ms: float = 0.0
    lost: int = 0
    """Fragments that were slower than code as written, and serve no more."""
    saved_ms: float = 0.0
    """That `timed` of the matched operators took less than as written, which was timed in between; below 0: more."""
    waits_ms: float = 0.0
    """That some of their rounds took longer than twice the usual: they waited for the GPU."""
    timed: int = 0
    rested: int = 0
    """Passes of fragments that ran as written, because captures and copies had cost as much as a run may lose."""
    doubted: int = 0
    """Operators that ran as written to see what deferring them saves."""
    backwards: int = 0
    """Backward passes that began."""
    reads: tuple[Stop, ...] = ()
    """Where the CPU waited for values, inside of what was recorded; at most `MOST_STOPS`, the costliest first."""
    stops: tuple[Stop, ...] = ()
    """Others that ran as written there, likewise."""
    cold: tuple[Stop, ...] = ()
    """Operators that took longer where they met sizes for the first time: as many `times`, so much longer, likewise."""

    @property
    def waiting(self) -> int:
        """Operators that repeat, and will be deferred once there were enough of them."""
        return dict(self.as_written).get(WAITING, 0)

    @property
    def without_room(self) -> int:
        """Operators that repeat, and whose results are too large for the memory budget."""
        return dict(self.as_written).get(NO_ROOM, 0)

    @property
    def kept_out(self) -> tuple[str, int] | None:
        """Why most operators ran as written however often they come, and how many did; None where no one reason is."""
        why, times = max(self.as_written, key=lambda row: row[1], default=(_NOT_OFTEN, 0))
        lasts = why in _FOR_GOOD or (not self.recorded and why != _NOT_OFTEN)
        return (why, times) if lasts and 2 * times > self.operators else None

    def to_dict(self) -> dict[str, object]:
        counts = {field.name: getattr(self, field.name) for field in fields(self)}
        listed = {name: [stop.to_dict() for stop in getattr(self, name)] for name in ("reads", "stops", "cold")}
        return counts | {"as_written": dict(self.as_written)} | listed
