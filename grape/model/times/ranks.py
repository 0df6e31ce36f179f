"""The ranks of a process group beside each other: what each took, and who was late at collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ..location import Position, line_of

LEAST_LATE_MS = 0.1
"""Behind the next to last; what is less, clocks and schedulers make as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """One collective, as rank 0 issued it. `goes_on`: in the same backward pass as the one before, where the next ones
    are issued before it is waited for.
    """

    operator: str
    user: Position | None
    inner: Position | None
    goes_on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """What one rank said of its run of the cell, in operators unless named otherwise."""

    rank: int
    wall_ms: float
    operators: int
    matched: int
    """Launched in groups."""
    collectives: int | None
    """None where nobody counted them, as streams did not serve."""
    waits_ms: float | None = None
    """That it was at collectives before the last of the ranks; None where that was not measured."""
    error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """The exchanges at one line to which one rank came last; `ms`: behind the next to last, in all."""

    rank: int
    operator: str
    user: Position | None
    inner: Position | None
    times: int
    ms: float

    def to_dict(self) -> dict[str, object]:
        return {
            "rank": self.rank,
            "operator": self.operator,
            "file": self.user.file if self.user else None,
            "line": self.user.line if self.user else None,
            "function": self.user.function if self.user else None,
            "times": self.times,
            "ms": self.ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksEvidence:
    """Seen from `rank`, one of `size`. Rank 0 has what all said in time; others know of themselves only."""

    rank: int
    size: int
    shown: tuple[RankTimes, ...] = ()
    late: tuple[Late, ...] = ()
    """The costliest first."""
    window_ms: float | None = None
    """Milliseconds of the cell in which arrivals were compared; None where they were not."""
    apart: str | None = None
    """Why they were not."""

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that said nothing in time."""
        said = {one.rank for one in self.shown}
        return tuple(rank for rank in range(self.size) if rank not in said) if self.shown else ()

    def to_dict(self) -> dict[str, object]:
        return {
            "rank": self.rank,
            "size": self.size,
            "shown": [asdict(one) for one in self.shown],
            "missing": list(self.missing),
            "late": [one.to_dict() for one in self.late],
            "window_ms": self.window_ms,
            "apart": self.apart,
        }


def compared(meetings: Sequence[Meeting], at_ns: Sequence[Sequence[int]]) -> tuple[tuple[float, ...], tuple[Late, ...]]:
    """What each rank waited for others at collectives, in milliseconds, and who was late at which lines. `at_ns[rank]`
    has when a rank arrived at each of `meetings`, on one clock; 0 is unknown.

    Collectives that are issued before others are waited for count as one exchange, with the longest of their waits: it
    may have cost more, and did not cost less.
    """
    waits = [0.0] * len(at_ns)
    late: dict[object, Late] = {}
    for exchange in _exchanges(meetings, at_ns):
        for rank, times in enumerate(at_ns):
            waits[rank] += max(_last(at_ns, n) - times[n] for n in exchange) / 1e6
        worst = max(exchange, key=lambda n: _behind(at_ns, n))
        ms = _behind(at_ns, worst) / 1e6
        if ms >= LEAST_LATE_MS:
            rank = max(range(len(at_ns)), key=lambda one: at_ns[one][worst])
            met = meetings[worst]
            key = rank, line_of(met.user), met.operator
            known = late.get(key)
            late[key] = Late(
                rank=rank,
                operator=met.operator,
                user=met.user,
                inner=met.inner,
                times=1 + (known.times if known else 0),
                ms=ms + (known.ms if known else 0.0),
            )
    return tuple(waits), tuple(sorted(late.values(), key=lambda one: -one.ms))


def _exchanges(meetings: Sequence[Meeting], at_ns: Sequence[Sequence[int]]) -> list[list[int]]:
    """Consecutive collectives, together where a rank went on before the last one came."""
    found: list[list[int]] = []
    for n in range(min(len(meetings), *map(len, at_ns))):
        if not all(times[n] for times in at_ns):
            continue
        before = found[-1][-1] if found else None
        if before is not None and (meetings[n].goes_on or any(times[n] < _last(at_ns, before) for times in at_ns)):
            found[-1].append(n)
        else:
            found.append([n])
    return found


def _last(at_ns: Sequence[Sequence[int]], n: int) -> int:
    return max(times[n] for times in at_ns)


def _behind(at_ns: Sequence[Sequence[int]], n: int) -> int:
    *_, next_to_last, last = sorted(times[n] for times in at_ns)
    return last - next_to_last
