"""Which operators of a call may run beside each other: computed from its trace, followed by its capture.

The idea is Opara's ("Exploiting Operator Parallelism for Expediting DNN Inference on GPUs"): operators that need
nothing of each other are captured on several streams, so that the graph has branches where the code has none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from .trace import OpRecord, Trace

MOST_LANES = 8
"""Each takes a workspace of cuBLAS, 32 MiB on Hopper."""
WORTH = 1.15
"""A plan is made where its lanes are expected to take so much less; what they do take is measured."""
ALIKE = 0.95
"""Fewer lanes that gain so much of what all gain are taken: each has memory of its own."""
FEWEST = 8
"""Operators below which nothing is planned."""
BYTES = 16e6
"""An operator that reads and writes so much takes, roughly, as long again as one that reads and writes nothing."""
CROSSING = 0.1
"""The cost of waiting for another lane, in operators."""

_WORKS = frozenset({"compute", "transfer-in"})
_IDLE = frozenset({"view", "host-read", "host"})
_OF_TORCH = ("aten.", "prims.")
"""What others bring may write memory that no trace shows: its place among all the others is that in the code."""
_ONE_HANDLE = ("aten.linalg_", "aten._linalg_", "aten.cholesky", "aten.lu_", "aten.geqrf", "aten.ormqr")
"""A library does them that has one handle for all streams: they keep their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapPlan:
    """The lane of each operator that works on the device, by ordinal; lane 0 is the stream that is captured anyway.

    Inside of a lane operators keep their order. `waits` names, by ordinal, operators of other lanes that have to be
    done before. What operators named in `held` made is used in several lanes: nobody may get its memory before the lane
    that made it has waited for all of them, for an allocator orders reuse inside of one stream only. That is so when
    the operator that names it in `freed` is about to be issued, else when the capture is over. `operators` are all that
    work, `chain` are those of the longest chain in which each needs the one before.
    """

    lanes: int
    lane: Mapping[int, int]
    waits: Mapping[int, tuple[int, ...]]
    held: frozenset[int]
    freed: Mapping[int, tuple[int, ...]]
    operators: int
    chain: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlapped:
    """A graph with branches beside the same graph in one chain: milliseconds of a launch on the device.

    `applied`: the branches were measured to be faster. Else the next graph is a chain.
    """

    operators: int
    chain: int
    lanes: int
    chained_ms: float
    branched_ms: float
    applied: bool


def plan_overlap(trace: Trace, alone: Collection[int] = ()) -> OverlapPlan | None:
    """A plan; None where it could not be right, or is not expected to pay.

    Only calls that leave nothing but results have one: nothing from outside is written, no gradient recorded, no random
    number drawn. Operators named in `alone` write memory that others may know by another name: what comes before them
    in the code is done before, what comes behind waits for them.
    """
    operators = sum(map(_works, trace.ops))
    if operators < FEWEST or not _may_overlap(trace):
        return None
    chain = longest_chain(trace)
    if operators < WORTH * chain:  # most calls are a chain, and a schedule takes ten times as long as this
        return None
    schedule = _scheduled(trace, alone, MOST_LANES)
    lanes = 1 + max(schedule.lane.values())
    if lanes == 1 or schedule.gain < WORTH:
        return None
    for fewer in range(2, lanes, 2):
        few = _scheduled(trace, alone, fewer)
        if few.gain > ALIKE * schedule.gain:
            schedule, lanes = few, 1 + max(few.lane.values())
            break
    return OverlapPlan(
        lanes=lanes,
        lane=schedule.lane,
        waits={ordinal: found for ordinal, found in schedule.waits.items() if found},
        held=frozenset(schedule.crossing),
        freed=schedule.freed(),
        operators=operators,
        chain=chain,
    )


def expected_gain(trace: Trace) -> float:
    """How many times faster lanes are expected to be than a chain, were nothing in their way: 1 for a chain."""
    return _scheduled(trace, (), MOST_LANES).gain


def _scheduled(trace: Trace, alone: Collection[int], lanes: int) -> _Schedule:
    schedule = _Schedule(lanes)
    for op in trace.ops:
        if _works(op):
            schedule.place(op, is_alone=op.ordinal in alone or _is_foreign(op))
    return schedule


def longest_chain(trace: Trace) -> int:
    """Operators that work on the device and need each other, one behind the other: no graph can have a shorter path."""
    flow = _Flow()
    depth: dict[int, int] = {}
    for op in trace.ops:
        if _works(op):
            depth[op.ordinal] = 1 + max((depth[needed] for needed in flow.needs(op)), default=0)
    return max(depth.values(), default=0)


def _works(op: OpRecord) -> bool:
    """On the device. A view of nothing that was there is a constant, which is brought there just before."""
    return op.kind in _WORKS or op.kind == "random" or (op.kind == "view" and bool(op.born))


def _is_foreign(op: OpRecord) -> bool:
    return op.kind == "compute" and not op.name.startswith(_OF_TORCH)


def _grows(op: OpRecord) -> bool:
    """What is written gets other memory, of another lane than whoever made it, and lets go of what it had."""
    had: dict[int, int] = {}
    for view in op.tensors():
        had[view.storage] = max(view.nbytes, had.get(view.storage, 0))
    return any(view.storage in op.written and view.nbytes > had.get(view.storage, 0) for view in op.outputs)


def _may_overlap(trace: Trace) -> bool:
    if trace.needs_grad or trace.cut:
        return False
    born: set[int] = set()
    for op in trace.ops:
        if op.kind not in _WORKS | _IDLE or not born.issuperset(op.written):
            return False
        if op.written and _grows(op):
            return False
        born.update(op.born)
    return True


class _Flow:
    """Who wrote each storage last, and who has read it since."""

    def __init__(self) -> None:
        self._wrote: dict[int, int] = {}
        self._read: dict[int, list[int]] = {}

    def needs(self, op: OpRecord) -> set[int]:
        """Ordinals of the operators before that this one needs, which is the next."""
        given, changed = {view.storage for view in op.tensors()}, set(op.written)
        found = {self._wrote[storage] for storage in given | changed if storage in self._wrote}
        for storage in changed:
            found.update(self._read.get(storage, ()))
        for storage in given - changed:
            self._read.setdefault(storage, []).append(op.ordinal)
        for storage in changed.union(op.born):
            self._wrote[storage], self._read[storage] = op.ordinal, []
        return found


class _Schedule:
    """Operators in the order of the code, each where it is expected to begin first."""

    def __init__(self, most: int) -> None:
        self.ends = [0.0] * most
        self.serial = 0.0
        self.lane: dict[int, int] = {}
        self.waits: dict[int, tuple[int, ...]] = {}
        self._flow = _Flow()
        self._done: dict[int, float] = {}
        self._last: list[int | None] = [None] * most
        self._known: list[dict[int, int]] = [{} for _ in range(most)]
        """For each lane, by other lane: how far that one is known to be done."""
        self._knew: dict[int, dict[int, int]] = {}
        self._fence: int | None = None
        self._home: dict[int, int] = {}
        """By storage: the operator that made it."""
        self.crossing: dict[int, dict[int, int]] = {}
        """By operator whose results cross lanes: by lane, the last operator there that touches them."""
        self._touched: dict[int, dict[int, int]] = {}

    @property
    def gain(self) -> float:
        return self.serial / max(self.ends) if self.serial else 1.0

    def place(self, op: OpRecord, *, is_alone: bool) -> None:
        needs = self._flow.needs(op)
        if is_alone:
            needs.update(last for last in self._last if last is not None)
        if self._fence is not None:
            needs.add(self._fence)
        cost = 1 + sum(view.nbytes for view in (*op.tensors(), *op.outputs)) / BYTES
        is_ordered = is_alone or op.kind not in ("compute", "random") or op.name.startswith(_ONE_HANDLE)
        lane = 0 if is_ordered else self._best(needs)
        begins = self._begins(lane, needs)
        self._wait(op.ordinal, lane, needs)
        self.lane[op.ordinal], self._last[lane] = lane, op.ordinal
        self.ends[lane] = self._done[op.ordinal] = begins + cost
        self.serial += cost
        self._known[lane][lane] = op.ordinal
        self._knew[op.ordinal] = dict(self._known[lane])
        if is_alone:
            self._fence = op.ordinal
        self._note_memory(op, lane)

    def freed(self) -> dict[int, tuple[int, ...]]:
        """By operator: those whose results nothing in another lane touches any more, as its own lane knows by then."""
        waiting: dict[int, list[int]] = {}
        for made in self.crossing:
            waiting.setdefault(self.lane[made], []).append(made)
        freed: dict[int, list[int]] = {}
        for ordinal, lane in self.lane.items():
            known = self._knew[ordinal]
            left: list[int] = []
            for made in waiting.get(lane, ()):
                touches = self.crossing[made].items()
                free = ordinal > made and all(known.get(one, -1) >= last for one, last in touches if one != lane)
                (freed.setdefault(ordinal, []) if free else left).append(made)
            waiting[lane] = left
        return {ordinal: tuple(made) for ordinal, made in freed.items()}

    def _best(self, needs: set[int]) -> int:
        last = [self._last[lane] in needs for lane in range(len(self.ends))]
        return min(range(len(self.ends)), key=lambda lane: (self._begins(lane, needs), not last[lane], lane))

    def _begins(self, lane: int, needs: set[int]) -> float:
        done = (self._done[needed] + (CROSSING if self.lane[needed] != lane else 0) for needed in needs)
        return max(self.ends[lane], *done, 0.0)

    def _wait(self, ordinal: int, lane: int, needs: set[int]) -> None:
        """Of the latest operator in each other lane only, and not for what the lane has waited for already."""
        known, waits = self._known[lane], []
        for needed in sorted(needs, reverse=True):
            other = self.lane[needed]
            if other != lane and known.get(other, -1) < needed:
                waits.append(needed)
                for one, done in self._knew[needed].items():
                    known[one] = max(known.get(one, -1), done)
        self.waits[ordinal] = tuple(waits)

    def _note_memory(self, op: OpRecord, lane: int) -> None:
        for storage in op.born:
            self._home[storage] = op.ordinal
        for view in (*op.tensors(), *op.outputs):
            home = self._home.get(view.storage)
            if home is not None:
                touched = self._touched.setdefault(home, {})
                touched[lane] = op.ordinal
                if self.lane[home] != lane:
                    self.crossing[home] = touched
