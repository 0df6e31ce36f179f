"""Lines that operator streams ran as written inside of what they had recorded, by line and reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..model import CellEvidence, OpRecord, Position, Severity, Stop
from ..model.location import line_of
from ..model.stream import READ
from .cost import HINT_BELOW
from .words import in_library, milliseconds, operator_name

WORTH_A_WORD = 0.001
"""Of the time of a cell on a GPU; of what takes less nothing is said."""
_MOST = 5
"""Lines that are told of, for one reason."""

_ALWAYS_CPU = ("/torch/optim/", "/torch/utils/data/")
_VALUES = frozenset({"_local_scalar_dense", "item", "is_nonzero", "equal"})
_COPIES = frozenset({"_to_copy", "copy_"})
_DYNAMIC = ("nonzero", "masked_select", "unique", "index", "unsafe_index", "repeat_interleave", "bincount", "argwhere")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """One line whose operators a stream ran as written for one reason. `ms` is the host's time in all of them."""

    user: Position | None
    inner: Position | None
    operators: tuple[str, ...]
    times: int
    ms: float
    segments: int
    share: float
    """Of the cell's time, in [0, 1]."""

    @property
    def at(self) -> Position | None:
        return self.user or self.inner

    @property
    def spoken(self) -> str:
        """``mul`` and 2 operators more."""
        others = len(self.operators) - 1
        first = operator_name(OpRecord(0, dotted(self.operators[0]), "compute", (), (), (), (), (), None, None))
        return first if not others else f"{first} and {others} operator{'s' if others > 1 else ''} more"

    @property
    def in_library(self) -> tuple[tuple[str, str], ...]:
        return in_library(self.user, self.inner)

    @property
    def counted(self) -> tuple[tuple[str, object], ...]:
        """For a finding's evidence."""
        return (("operators", self.operators), ("executions_at_least", self.times), ("segments", self.segments))

    def cost(self, evidence: CellEvidence) -> str:
        """In parentheses, the host's time in each; empty where no GPU was timed."""
        return f" ({milliseconds(self.ms / self.times)} each)" if evidence.cuda else ""

    def severity(self, evidence: CellEvidence) -> Severity:
        """By the measured share; without a GPU nothing was measured that counts."""
        return "costly" if evidence.cuda and self.share >= HINT_BELOW else "hint"


def stays_on_the_cpu(evidence: CellEvidence, inner: Position | None) -> bool:
    """True on the tape for what torch keeps in CPU memory on a GPU as well: step counters of optimizers, samplers."""
    return not evidence.cuda and inner is not None and any(part in inner.file for part in _ALWAYS_CPU)


def waits_in_streams(evidence: CellEvidence) -> tuple[Stop, ...]:
    """The reads that are worth a word, the costliest first."""
    known = (stop for stop in _rows(evidence, READ) if read_kind(stop) is not None)
    return tuple(known)[:_MOST]


def stopped_for(evidence: CellEvidence, reason: str) -> tuple[Stopped, ...]:
    """The lines whose operators ran as written for `reason`, as far as they are worth a word, the costliest first."""
    return tuple(sorted(_lines(evidence, reason), key=lambda stopped: -stopped.ms)[:_MOST])


def _lines(evidence: CellEvidence, reason: str) -> list[Stopped]:
    lines: dict[object, list[Stop]] = {}
    for stop in _rows(evidence, reason):
        lines.setdefault((line_of(stop.user), None if stop.user else line_of(stop.inner)), []).append(stop)
    return [_together(evidence, stops) for stops in lines.values()]


def stopped_lines(evidence: CellEvidence) -> tuple[tuple[str, Stopped], ...]:
    """All lines with the reason, as far as they are worth a word, the costliest first."""
    reasons = dict.fromkeys(stop.reason for stream in evidence.streams for stop in (*stream.reads, *stream.stops))
    found = [(reason, stopped) for reason in reasons for stopped in _lines(evidence, reason)]
    return tuple(sorted(found, key=lambda line: -line[1].ms))


def read_kind(stop: Stop) -> str | None:
    """ "host-read", "transfer-out" or "dynamic" as in a trace; None for an operator that only returns a number."""
    name = stop.operator.partition("::")[2]
    if name in _VALUES:
        return "host-read"
    if name in _COPIES:
        return "transfer-out"
    return "dynamic" if name.strip("_").startswith(_DYNAMIC) else None


def record_of(stop: Stop, kind: str) -> OpRecord:
    """As a trace would have it, without what it was given."""
    return OpRecord(0, dotted(stop.operator), kind, (), (), (), (), (), stop.user, stop.inner)


def dotted(operator: str) -> str:
    """``aten::mul`` as a trace names it."""
    return operator.replace("::", ".")


def _rows(evidence: CellEvidence, reason: str) -> Iterator[Stop]:
    for stream in evidence.streams:
        for stop in stream.reads if reason == READ else stream.stops:
            small = evidence.cuda and _share(evidence, stop.total_ns) < WORTH_A_WORD
            of_the_cpu = reason == READ and stays_on_the_cpu(evidence, stop.inner)
            if stop.reason == reason and not small and not of_the_cpu:
                yield stop


def _together(evidence: CellEvidence, stops: list[Stop]) -> Stopped:
    total_ns = sum(stop.total_ns for stop in stops)
    return Stopped(
        user=stops[0].user,
        inner=stops[0].inner,
        operators=tuple(dict.fromkeys(stop.operator for stop in stops)),
        times=sum(stop.times for stop in stops),
        ms=total_ns / 1e6,
        segments=sum(stop.segments for stop in stops),
        share=_share(evidence, total_ns),
    )


def _share(evidence: CellEvidence, total_ns: int) -> float:
    return total_ns / 1e6 / evidence.wall_ms if evidence.wall_ms > 0 else 0.0
