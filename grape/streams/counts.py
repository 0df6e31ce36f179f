"""How a stream is set, and what it has counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from ..model.stream import Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How streams are found and cut."""

    longest: int = 100  # operators of a segment
    shortest: int = 32  # operators of a fragment that leads back to its own begin
    furthest: int = 4000  # operators of a fragment that is no iteration
    iteration: int = 16000  # of one that is
    settled: int = 1000  # operators for which a period without a host read holds before it is recorded
    hot: int = 3  # of what has no period: times that a context is met before what follows is recorded
    patience: int = 4000  # and operators since the first of them
    budget: int | None = None  # bytes of all homes; None: an eighth of the device's memory, on the CPU 4 GiB
    strays: int = 16  # operators in a row that may come in between
    issue: bool = True  # False: nothing is computed, to measure what matching alone takes
    device: Literal["auto", "cpu", "pretended", "cuda"] = "auto"
    """Whose operators are deferred; the others run as if there were no stream. "pretended": those of the CPU, with
    graphs that freeze what CUDA graphs freeze, to test that.
    """
    draws: bool = True  # operators that draw random numbers are deferred, too
    steady: int = 2  # launches of a segment over the same memory before it is captured, more with each capture
    captures: int = 6  # of one segment
    price: float = 0.5  # milliseconds of a capture beside its operators, until measured; 0: nothing has to be earned
    unused: int = 50_000  # operators for which a fragment does not serve, before others may have its memory
    doubt: int = 32  # laps of a fragment after which it is compared with code as written; 0: never


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Counts of what a stream did, in operators unless named otherwise."""

    seen: int
    matched: int
    issued: int
    written: Mapping[str, int]  # run as written, by reason
    segments: int
    partial: int  # segments that something cut short
    diverged: int
    entered: int  # times that a fragment began
    recorded: int
    raised: int
    lost: int  # fragments that were slower than code as written, and serve no more
    saved_ns: int  # that `timed` operators took less than as written, by the laps of their fragments; below 0: more
    waits_ns: int  # that some of the laps took longer than twice the usual, where what they issued had its graph
    timed: int
    record_ns: int  # beside the operators
    rested: int  # laps of fragments that ran as written because too much was spent
    doubted: int  # operators that ran as written to see what deferring them is worth
    backwards: int  # passes that began
    fragments: int
    steps: int  # operators of all fragments
    copied_in: int
    copied_out: int
    copied_bytes: int
    kept: int  # homes whose results outlived a pass
    captured: int  # segments
    launched: int  # graphs
    stale: int  # graphs dropped, for memory that they name had moved
    uncaptured: Mapping[str, int]  # captures that failed, by reason
    capture_ns: int
    own_ns: int  # estimated from every 64th operator, what is issued apart
    passing_ns: int  # likewise, of operators while nothing served, with what torch takes to hand them over
    bytes: int = 0  # of all homes now
    last_divergence: str = ""
    stops: tuple[Stop, ...] = ()
    """Operators that ran as written inside of fragments, and where; what took most time first."""

    def since(self, earlier: Evidence) -> Evidence:
        """The counts since `earlier`, of the same stream. Fragments, steps and bytes stay what there is now."""
        counted = {name: getattr(self, name) - getattr(earlier, name) for name in _COUNTED}
        by_reason = {
            name: {why: n - getattr(earlier, name).get(why, 0) for why, n in getattr(self, name).items()}
            for name in _BY_REASON
        }
        kept: dict[str, Any] = {name: {why: n for why, n in found.items() if n} for name, found in by_reason.items()}
        last = self.last_divergence if counted["diverged"] else ""
        return replace(self, **counted, **kept, last_divergence=last)

    def plus(self, later: Evidence) -> Evidence:
        """This and what `later` counted."""
        counted = {name: getattr(self, name) + getattr(later, name) for name in _COUNTED}
        by_reason: dict[str, Any] = {
            name: dict(Counter(getattr(self, name)) + Counter(getattr(later, name))) for name in _BY_REASON
        }
        return replace(later, **counted, **by_reason, last_divergence=later.last_divergence or self.last_divergence)


@dataclass(kw_only=True)
class Launches:
    """Of code that `torch.compile` made, counted as its source has them; times are of the host."""

    seen: int = 0
    matched: int = 0
    segments: int = 0
    captured: int = 0
    recorded: int = 0
    capture_ns: int = 0
    own_ns: int = 0
    saved_ns: int = 0
    bytes: int = 0
    written: Counter[str] = field(default_factory=Counter)


def with_compiled(counts: Evidence, code: Launches) -> Evidence:
    """Both: a launch of compiled code stands for an operator, and a graph of it for a segment."""
    names = ("seen", "matched", "segments", "captured", "recorded", "capture_ns", "own_ns", "saved_ns", "bytes")
    both = {name: getattr(counts, name) + getattr(code, name) for name in names}
    both |= {"timed": counts.timed + code.matched, "launched": counts.launched + code.segments}
    return replace(counts, **both, written=dict(Counter(counts.written) + code.written))


_BY_REASON = ("written", "uncaptured")


_NOW = (*_BY_REASON, "fragments", "steps", "bytes", "last_divergence", "stops")


_COUNTED = tuple(one.name for one in fields(Evidence) if one.name not in _NOW)


FROM_THE_ENGINE = tuple(one.name for one in fields(Evidence) if one.name != "stops")
