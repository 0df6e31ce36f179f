"""A captured tape: a sequence of steps that read and write fixed addresses."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from ....model.call import Args, Kwargs
from ....tracing import Operator
from ..protocol import MemoryMoved
from .memory import Room, bare, poison


class Step(Protocol):
    """One device activity of a graph. A step may hold further steps: a conditional body is a step of its own."""

    def run(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """`func` on aliases of its arguments; `targets` are the fixed places of its results, None for those in place."""

    func: Operator
    args: Args
    kwargs: Kwargs
    targets: tuple[torch.Tensor | None, ...]

    def run(self) -> None:
        results = tree_leaves(self.func(*self.args, **self.kwargs))
        for target, result in zip(self.targets, results, strict=True):
            if target is None:
                continue
            if target.shape != result.shape:
                raise RuntimeError(f"{self.func} returned {tuple(result.shape)}, captured as {tuple(target.shape)}")
            target.copy_(result)


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A value that the host made in the body; every replay writes it afresh, for a later step may overwrite it."""

    value: torch.Tensor
    target: torch.Tensor

    def run(self) -> None:
        self.target.copy_(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class IfStep:
    """Steps that run where `pred`, read when the replay gets here, is true."""

    pred: torch.Tensor
    steps: tuple[Step, ...]

    def run(self) -> None:
        if bool(self.pred):
            for step in self.steps:
                step.run()


@dataclass(slots=True)
class IterationBound:
    """How often a loop may run its body; `reached` once one was ended by it."""

    iterations: int
    reached: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class WhileStep:
    """Steps that run as long as `pred`, which they write, is true. `bound` is that of all replays of the moment."""

    bound: ClassVar[IterationBound | None] = None

    pred: torch.Tensor
    steps: tuple[Step, ...]

    def run(self) -> None:
        bound = WhileStep.bound
        runs = 0
        while bool(self.pred):
            if bound is not None and runs >= bound.iterations:
                bound.reached = True
                return
            runs += 1
            for step in self.steps:
                step.run()


def every_step(steps: Sequence[Step]) -> Iterator[Step]:
    """The steps in order, each conditional one followed by those of its body."""
    for step in steps:
        yield step
        if isinstance(step, (IfStep, WhileStep)):
            yield from every_step(step.steps)


@dataclass(frozen=True, slots=True, eq=False)
class External:
    """Memory that the graph uses and does not own. Somebody else must keep it alive and in its place: the storage
    itself, or whoever lent it its memory."""

    ref: StorageWeakRef | weakref.ref[Room]
    address: int

    def in_place(self) -> bool:
        if isinstance(self.ref, weakref.ref):
            room = self.ref()
            return room is not None and room.nbytes > 0
        storage: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(self.ref.cdata)
        return storage is not None and storage.data_ptr() == self.address


@dataclass(frozen=True, slots=True, eq=False)
class Attachment:
    """Keeps what the memory of a graph's addresses needs besides its nodes: what must be in place, what must live, and,
    for `debug_poison`, what was alive (`outputs`) and dead (`scratch`) when the capture ended."""

    externals: tuple[External, ...]
    kept: tuple[object, ...]
    outputs: tuple[torch.Tensor, ...]
    scratch: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The work of one launch. It never changes: a launch that waits in a queue does what it was when it was issued."""

    steps: tuple[Step, ...]
    attachment: Attachment

    def run(self) -> None:
        """Run the steps in order, whatever modes, autocast or grad mode the caller has on.

        Raises `MemoryMoved` where a device would fault: memory that a step reads was freed or moved. What an operator
        raises for bad data (an index out of range) propagates.
        """
        if not all(external.in_place() for external in self.attachment.externals):
            raise MemoryMoved("the graph uses memory that was freed or moved since its capture; keep it alive")
        with bare(), torch.inference_mode():
            for tensor in self.attachment.outputs:
                poison(tensor)
            for step in self.steps:
                step.run()
            for tensor in self.attachment.scratch:
                poison(tensor)


class LaunchQueue:
    """Work in the order in which it was issued: done at once, or, while `held`, when somebody waits for it."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []
        self.held = False

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def submit(self, work: Callable[[], None]) -> None:
        if self.held:
            self._waiting.append(work)
        else:
            work()

    def drain(self) -> None:
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            work()
