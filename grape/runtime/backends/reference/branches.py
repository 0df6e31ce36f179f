"""Branches on the tape: steps of a capture run, at replay, in an order that the plan allows and the code does not have.

A device may run lanes against each other in any way. The tape does what is worst: of the steps that may come next,
always the one that comes last in the code. A plan that misses a need gives other bits here, and always the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from ....model.overlap import OverlapPlan
from ..operators import memory_of
from .graph import Step
from .memory import Arena


class ReferenceBranches:
    """Implements `Branches`, over the steps of a capture that are recorded from here on."""

    def __init__(self, plan: OverlapPlan, steps: list[Step], arena: Arena) -> None:
        self._plan = plan
        self._steps = steps
        self._arena = arena
        self._begin = len(steps)
        self._ordinals: dict[int, int] = {}
        """By number of the step; one without was made by no operator that the plan knows."""
        self._held: dict[int, object] = {}

    @contextmanager
    def on_lane(self, ordinal: int) -> Iterator[None]:
        lane = self._plan.lane.get(ordinal)
        if lane is None:
            yield
            return
        for made in self._plan.freed.get(ordinal, ()):
            self._held.pop(made, None)
        begin, self._arena.lane = len(self._steps), lane
        try:
            yield
        finally:
            self._arena.lane = 0
        self._ordinals.update(dict.fromkeys(range(begin, len(self._steps)), ordinal))

    def keep(self, ordinal: int, result: object) -> None:
        if ordinal in self._plan.held:
            self._held[ordinal] = memory_of(result)

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def join(self) -> None:
        """The steps, in the order in which they will run."""
        self._held.clear()
        self._steps[self._begin :] = [self._steps[number] for number in self._order()]

    def _order(self) -> list[int]:
        needs = self._needs()
        after: dict[int, list[int]] = {number: [] for number in needs}
        for number, needed in needs.items():
            for one in needed:
                after[one].append(number)
        ready = [number for number, needed in needs.items() if not needed]
        order = []
        while ready:
            ready.sort()
            number = ready.pop()
            order.append(number)
            for target in after[number]:
                needs[target].discard(number)
                if not needs[target]:
                    ready.append(target)
        return order

    def _needs(self) -> dict[int, set[int]]:
        """By step: those that come before. One that no operator of the plan made comes behind all, and before all."""
        needs: dict[int, set[int]] = {}
        last: dict[int, int] = {}
        done: dict[int, int] = {}
        fence: int | None = None
        for number in range(self._begin, len(self._steps)):
            ordinal = self._ordinals.get(number)
            if ordinal is None:
                needs[number], fence = set(last.values()), number
                last = dict.fromkeys(last, number)
                continue
            lane = self._plan.lane[ordinal]
            needs[number] = {done[other] for other in self._plan.waits.get(ordinal, ()) if other in done}
            needs[number].update(one for one in (last.get(lane), fence) if one is not None)
            last[lane] = done[ordinal] = number
        return needs
