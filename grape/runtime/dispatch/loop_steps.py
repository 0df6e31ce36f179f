"""Iterations of loops as regions, for code that no graph holds as a whole; see `predication.early_stop`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType

from ...model import Position
from ...model.call import Args, Kwargs
from ..backends.protocol import FlagPoll
from ..predication.early_stop import Iteration
from ..regions.context import RegionContext
from ..regions.region import Region


@dataclass(frozen=True, slots=True)
class LoopStep:
    """Implements `IterationStep` by a region that is called through `enter`."""

    region: Region
    iteration: Iteration
    enter: Callable[[Region, Args, Kwargs], object]

    @property
    def replays(self) -> int:
        return self.region.replays

    @property
    def moved(self) -> Collection[int]:
        return self.iteration.moved

    def waste(self, count: int) -> None:
        self.region.wasted += count

    def __call__(self, closure: tuple[object, ...], state: tuple[object, ...]) -> tuple[object, ...]:
        result = self.enter(self.region, (closure, state), {})
        assert isinstance(result, tuple)
        return result


@dataclass(frozen=True, slots=True)
class LoopSteps:
    """Implements `Stepper`. `free` tells whether a call may become a region now; `name_of` what to call a file."""

    context: RegionContext
    free: Callable[[], bool]
    enter: Callable[[Region, Args, Kwargs], object]
    name_of: Callable[[str], str]
    known: dict[tuple[CodeType, CodeType | None, int], LoopStep] = field(default_factory=dict)

    @property
    def regions(self) -> list[Region]:
        return [step.region for step in self.known.values()]

    def poll(self) -> FlagPoll:
        return self.context.backend.flag_poll()

    def step(self, body: FunctionType, test: FunctionType | None, stop: int) -> LoopStep | None:
        if not self.free():
            return None
        key = body.__code__, test.__code__ if test is not None else None, stop
        known = self.known.get(key)
        if known is None:
            if not self.context.observing:
                return None
            known = self.known[key] = self._step(body, test, stop)
        if known.region.refused is not None or not (self.context.observing or known.region.entries):
            return None
        return known

    def _step(self, body: FunctionType, test: FunctionType | None, stop: int) -> LoopStep:
        code = body.__code__
        root = _without_closure(body)
        if test is not None:
            root.__dict__["test"] = _without_closure(test)
        at = Position(file=self.name_of(code.co_filename), line=code.co_firstlineno, function=code.co_qualname)
        iteration = Iteration(body, test, stop, self.context.backend.device)
        around = code.co_qualname.partition(".<locals>")[0]
        region = Region(self.context, iteration, root, f"loop of {around}", at)
        return LoopStep(region, iteration, self.enter)


def _without_closure(function: FunctionType) -> FunctionType:
    """The function without its closure. What it closes over comes in as an argument of each call; the guards follow the
    rest of its names.
    """
    code = function.__code__
    return FunctionType(code, function.__globals__, code.co_name, None, tuple(CellType() for _ in code.co_freevars))
