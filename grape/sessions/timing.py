"""The time of a cell, of the plain cell, and how that is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from ..model import CallsAccount, CellTime, OwnTime, Served, StreamEvidence
from ..originals import perf_counter

if TYPE_CHECKING:
    from ..runtime.accounts.attention import Attention, Purpose

NEARLY_PLAIN = 0.05
"""A run in which nothing was replayed and Grape took less than this share tells what the plain cell takes."""
LEAST_LEFT = 0.001
"""What Grape takes of operators is estimated by samples: where it leaves less of a run than this, it tells nothing."""
AGREES = 0.25
"""The time of an earlier run is the plain time of this one only where the estimate is no further off than this: the
same cell may have more to do than last time."""
LEAST_TIMED = 0.5
"""Of the operators that streams matched; where it is known of fewer what they take as written, the rest may be
otherwise."""
FEW_MATCHED = 0.5
"""Of the operators of a cell: where fewer match, an earlier run as written tells rather than a larger estimate, which
contains most of what it takes to look at the others."""
MOST_UNKNOWN = 0.25
"""Of all operators of a cell: where no more matched without that being known, they are taken to have saved nothing."""

_DURING: tuple[Purpose, ...] = ("observe", "record", "capture", "verify")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRun:
    """A run of a cell that was plain but for a little of Grape's own time, which `ms` leaves out."""

    number: int
    ms: float


@dataclass(slots=True)
class CellRuns:
    """Of one cell: how often it ran under Grape, and its last plain run but for the first, which is cold."""

    count: int = 0
    torch_ran: bool = False
    plain: PlainRun | None = None


@dataclass(slots=True)
class CellClock:
    """From when the person began to wait (`since`; None: when the session opened, less what Grape took before) until
    the report is there. `clock` gives seconds; `ahead_ms` is what Grape took before the session opened.
    """

    attention: Attention
    clock: Callable[[], float] = perf_counter
    ahead_ms: float = 0.0
    since: float | None = None
    _opened: float = 0.0
    _ended: float = 0.0
    _own_ms: dict[Purpose, float] = field(default_factory=lambda: dict.fromkeys(_DURING, 0.0))

    def __post_init__(self) -> None:
        self._opened = self._ended = self.clock()
        if self.since is None:
            self.since = self._opened - self.ahead_ms / 1e3

    def start(self) -> None:
        """Everything is installed, the account was opened, the cell begins."""
        self._own_ms["observe"] = self.ahead_ms + (self.clock() - self._opened) * 1e3 - self.attention.spent_ms()

    def end(self) -> float:
        """The cell's own work is done; what comes now is the report. The milliseconds until here."""
        self._ended = self.clock()
        for name in _DURING:
            self._own_ms[name] += self.attention.spent_ms(name)
        return self._waited_ms(self._ended)

    @property
    def work_ms(self) -> float:
        """Milliseconds until the cell's own work was done, without what Grape took of them."""
        return max(0.0, self._waited_ms(self._ended) - sum(self._own_ms.values()))

    def _waited_ms(self, until: float) -> float:
        assert self.since is not None
        return (until - self.since) * 1e3

    def book(self, settle: Callable[[], T]) -> T:
        """Run `settle`, and count what it books as time of the cell, and not the time that it takes."""
        before = {name: self.attention.spent_ms(name) for name in _DURING}
        result = settle()
        for name, ms in before.items():
            self._own_ms[name] += self.attention.spent_ms(name) - ms
        return result

    def time(self, account: CallsAccount, runs: CellRuns, *, finished: bool) -> CellTime:
        """As of now: the report is there. `finished`: the cell ran to its end."""
        return estimate(*self._waited_and_own(), account, runs, finished=finished)

    def streamed_time(
        self, found: StreamEvidence, runs: CellRuns, *, drained_ms: float, same_work: bool = True
    ) -> CellTime:
        """As of now, of a cell that streams served: see `estimate_streamed`."""
        wall_ms, own = self._waited_and_own()
        return estimate_streamed(wall_ms, own, found, runs, drained_ms=drained_ms, same_work=same_work)

    def _waited_and_own(self) -> tuple[float, OwnTime]:
        now = self.clock()
        during = {f"{name}_ms": max(0.0, ms) for name, ms in self._own_ms.items()}
        return self._waited_ms(now), OwnTime(**during, report_ms=(now - self._ended) * 1e3)


def estimate(wall_ms: float, own: OwnTime, account: CallsAccount, runs: CellRuns, *, finished: bool = True) -> CellTime:
    """The time of the plain cell, from this run or from an earlier one of the same cell, which `runs` remembers."""
    runs.count += 1
    work_ms = max(0.0, wall_ms - own.total_ms)
    replayed_ms = min(account.replayed_ms, work_ms)
    served = Served(regions=replayed_ms / work_ms if work_ms else 0.0)
    plain_ms: float | None = max(0.0, work_ms - replayed_ms + account.eager_ms - account.cold_ms)
    samples: int | None = None
    if not account.replays:
        basis = "this run, without what Grape took of it"
        if work_ms < LEAST_LEFT * wall_ms:
            plain_ms, basis = None, "what Grape took of this run is an estimate, which leaves nothing of it"
        elif finished and runs.count > 1 and own.total_ms - own.report_ms <= NEARLY_PLAIN * work_ms:
            runs.plain = PlainRun(number=runs.count, ms=work_ms)
    elif runs.plain is not None and account.unknown is None and _agree(runs.plain.ms, plain_ms):
        plain_ms, basis = runs.plain.ms, f"measured in run {runs.plain.number} of this cell"
    elif account.replayed_ms > work_ms:
        plain_ms, basis = None, "events around replays add up to more than the cell took: they waited for other work"
    elif account.unknown is not None:
        plain_ms, basis = None, f"no warm call of {account.unknown} as written was timed"
    else:
        basis = f"this run, its replays at what {account.samples} calls as written took"
        samples = account.samples
        if account.paired and plain_ms is not None and plain_ms < wall_ms:
            plain_ms, basis = None, "backward passes were replayed, whose time as written is not known"
    return CellTime(
        wall_ms=wall_ms,
        plain_ms=plain_ms,
        basis=basis,
        own=own,
        served=served,
        cold_ms=account.cold_ms,
        samples=samples,
    )


def estimate_streamed(
    wall_ms: float, own: OwnTime, found: StreamEvidence, runs: CellRuns, *, drained_ms: float, same_work: bool = True
) -> CellTime:
    """The time of the plain cell, from a run in which streams matched operators: with what they saved, by what the same
    loops took as written in between. Where that is known of too few, or agrees with an earlier run that was as written,
    that one tells, if it had the `same_work`.

    `drained_ms`: what the GPU still had to do when the cell's code was done. Code as written would have spent so much
    of the time saved while the GPU worked, and so much of it as single rounds of a loop waited for the GPU.
    """
    runs.count += 1
    own = replace(own, capture_ms=own.capture_ms + found.capture_ms)
    served = Served(streams=found.matched / found.operators)
    plain_ms: float | None = None
    many = found.timed >= LEAST_TIMED * found.matched
    if many or found.matched - found.timed <= MOST_UNKNOWN * found.operators:
        more = found.matched / found.timed if many and found.timed else 1.0
        saved_ms = found.saved_ms * more
        saved_ms = max(0.0, saved_ms - drained_ms - found.waits_ms * more) if saved_ms > 0 else saved_ms
        plain_ms = max(0.0, wall_ms - own.total_ms - found.passing_ms + saved_ms)
        basis = "this run, what streams deferred at what the same loops took as written in between"
    elif runs.plain is None:
        basis = "no run of this cell as written was timed"
    elif not same_work:
        basis = "this run had more or less to do than the one that was timed"
    timed = runs.plain if same_work else None
    few = found.matched < FEW_MATCHED * found.operators
    if timed is not None and (plain_ms is None or (few and plain_ms > timed.ms) or _agree(timed.ms, plain_ms)):
        plain_ms, basis = timed.ms, f"measured in run {timed.number} of this cell"
    return CellTime(wall_ms=wall_ms, plain_ms=plain_ms, basis=basis, own=own, served=served)


def _agree(measured_ms: float, estimated_ms: float | None) -> bool:
    return estimated_ms is not None and abs(measured_ms - estimated_ms) <= AGREES * measured_ms
