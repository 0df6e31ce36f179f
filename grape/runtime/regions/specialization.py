"""The record of the calls of a region that have one guard key."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...model import Decision, Trace
from ..accounts.samples import CallTimes
from ..accounts.tally import Tally
from ..guarding.input_guard import InputGuard
from ..replaying.entry import Entry
from ..training import Backwards


@dataclass(frozen=True, slots=True)
class Found:
    """The state that a call found when it began: which leaf tensors had gradients, and the `GuardSet.form` of what it
    reads.
    """

    graded: tuple[bool, ...] = ()
    form: tuple[object, ...] = ()


@dataclass(slots=True)
class Specialization:
    """`paths` and `sizes` are of its tensors, `order` is the number of the first call, `modes` the environment.

    `seen` counts calls of the current cell, `runs` the cells that had this shape, `run` numbers the last of them;
    `before` and `after` are the times of eager calls and replays. `successor` came next last time. `closed`: captured
    no more.
    """

    paths: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]
    order: int
    modes: tuple[object, ...]
    input_guard: InputGuard | None = None
    successor: Specialization | None = None
    calls: int = 0
    seen: int = 0
    run: int = -1
    runs: int = 0
    recalled: int = 0
    """Of `runs`, those in another process."""
    before: CallTimes = field(default_factory=CallTimes)
    after: CallTimes = field(default_factory=CallTimes)
    tally: Tally = field(default_factory=Tally)
    """Of the cell that runs."""
    replay_ms: float | None = None
    """Milliseconds that a replay takes on the device, as it was timed last."""
    entries: list[Entry] = field(default_factory=list)
    decision: Decision | None = None
    traces: list[tuple[Found, Trace]] = field(default_factory=list)
    """With each, what the call found when it began."""
    captures: int = 0
    strays: int = 0
    blocked: int = 0
    """Calls that ran eagerly because every graph of the shape would have overwritten what somebody holds."""
    unsettled: int = 0
    closed: bool = False
    holds_objects: bool = False
    """True where modules, optimizers, functions or classes came as arguments; calls with others have another shape."""
    backwards: Backwards = field(default_factory=Backwards)
    """The fate of results that carried an autograd graph."""
    settled_calls: int = 0
    """Calls until the last cell ended."""
    over_budget_at: int | None = None
    """The memory budget that was too small for this shape, 0 for a full device; a larger one opens it again."""

    @property
    def is_new(self) -> bool:
        """True in the first cell of this process that has the shape."""
        return self.runs - self.recalled == 1

    @property
    def shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Path and size of each tensor."""
        return tuple(zip(self.paths, self.sizes, strict=True))

    def let_go(self) -> None:
        """No call comes here any more. What was told of it refers to it still, and holds nothing of the person's."""
        self.input_guard = self.successor = None
        self.traces.clear()

    def count(self, run: int | None) -> None:
        """One more call. `run` numbers the cell that observes it; None where none does."""
        self.calls += 1
        if run is None:
            return
        if self.run != run:
            self.run = run
            self.seen = 0
            self.runs += 1
        self.seen += 1

    def uncount(self, *, observing: bool) -> None:
        """The last call only looked as if it had this shape."""
        self.calls -= 1
        if observing:
            self.seen -= 1
