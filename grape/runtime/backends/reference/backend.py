"""The reference backend: a CUDA graph's rules on the CPU, so that the runtime is tested without a GPU.

Addresses are fixed at capture, shapes are frozen, nothing executes on data during capture, the host cannot read
values during capture, a replay overwrites what the replay before it wrote, and all graphs of one backend share one
arena (`tape_memory`). Memory made in a capture is poisoned, and stays so until the first replay.

Where the tape differs from a GPU:

- everything is on the CPU, so it cannot tell a host constant or a host copy from device work. `torch.tensor(...)` in a
  body is frozen as a constant, where CUDA refuses the copy; `.cpu()` is no transfer;
- `.item()` of a tensor that a GPU program keeps on the host is refused too;
- random operators draw from the default CPU generator at replay, and so follow the eager stream; setting the seed in
  a body is refused (GR405), for a replay would not set it;
- a body that saves and restores the generator (`fork_rng`) is not noticed, and a few kernels choose another algorithm
  under any dispatch mode (`linalg.eigvalsh`, `linalg.svdvals`): the comparison with an eager run catches both;
- it gains nothing on the device, and reports must not say so.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Literal, TypeVar

import torch

from ....model.overlap import OverlapPlan
from ....profiling import HostCallTimer
from ....quiet import without_collections
from ..autocast_cache import autocast_cache_off
from ..protocol import CaptureFailed, MemoryAccount, Pool
from .branches import ReferenceBranches
from .capture import CaptureMode
from .executable import ReferenceExecutable, ReferenceGraph
from .graph import IfStep, IterationBound, LaunchQueue, Program, WhileStep, every_step
from .host_reads import HostReads
from .memory import Arena, Lenders, Room, bare

T = TypeVar("T")

_capturing = threading.RLock()
_depth = 0


@contextmanager
def _exclusive() -> Iterator[None]:
    """One capture a process: host reads are guarded on `torch.Tensor`, which must be undone in reverse order."""
    global _depth
    with _capturing:
        if _depth:
            raise CaptureFailed("GR405", "a capture is already running in this thread")
        _depth += 1
        try:
            yield
        finally:
            _depth -= 1


class LaggingPoll:
    """Implements `FlagPoll` as a busy device would: a value arrives once `lag` more were posted, or somebody waits."""

    def __init__(self, queue: LaunchQueue, lag: int) -> None:
        self._queue = queue
        self._lag = lag
        self._posted: deque[torch.Tensor] = deque()

    @property
    def pending(self) -> int:
        return len(self._posted)

    def post(self, flag: torch.Tensor) -> None:
        with bare():
            arrived = torch.empty((), dtype=torch.bool, device="cpu")
        self._queue.submit(partial(_copy, [arrived], [flag]))
        self._posted.append(arrived)

    def take(self, *, wait: bool) -> bool | None:
        if wait:
            self._queue.drain()
        elif len(self._posted) <= self._lag:
            return None
        with bare():
            return bool(self._posted.popleft())

    def clear(self) -> None:
        self._posted.clear()


def _copy(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    with torch.inference_mode():
        torch._foreach_copy_(targets, sources)


class ReferenceBackend:
    """Implements `Backend`. `poison=True` also fills outputs before and scratch memory after every replay.

    A tape needs no memory for executables; each pretends to need `node_bytes` per node of `capacity_bytes` in all, so
    that budgets can be tried. A graph pretends to need as much on the host. `flag_lag` is that of `flag_poll`.
    """

    kind: Literal["tape"] = "tape"
    updatable = True
    conditional_bodies = True
    overlaps = True
    flag_lag = 2

    def __init__(self, *, poison: bool = False, node_bytes: int = 0, capacity_bytes: int | None = None) -> None:
        self.device = torch.device("cpu")
        self._arena = Arena()
        self._lenders = Lenders()
        self._pools: weakref.WeakSet[Arena] = weakref.WeakSet()
        self._graphs: weakref.WeakSet[ReferenceGraph] = weakref.WeakSet()
        self._poison = poison
        self._capture: CaptureMode | None = None
        self._queue = LaunchQueue()
        self._node_bytes = node_bytes
        self._capacity_bytes = capacity_bytes
        self._executable_bytes = 0

    def empty_strided(self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        with torch.inference_mode(False):
            made = torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device="cpu")
        self._lenders.add(made)
        return made

    def reserve(self, nbytes: int) -> Room:
        room = Room(nbytes)
        self._lenders.add(room)
        return room

    def prepare(self) -> None:
        """Nothing to prepare."""

    def open_pool(self) -> Arena:
        arena = Arena()
        self._pools.add(arena)
        return arena

    def capture(self, body: Callable[[], T], pool: Pool | None = None) -> tuple[ReferenceGraph, T]:
        """See `Backend.capture`. Graphs of autograd that `body` leaves behind are the caller's to let go.

        A refusal counts even where `body` caught it. `CaptureFailed.code` is GR101 for host reads, GR103 for shapes
        that depend on data, GR405 for what the tape cannot record.
        """
        with _exclusive(), without_collections():
            state = torch.get_rng_state()
            # One draw on: a body that sets the very seed that the caller has just set is noticed too.
            with bare():
                torch.rand((), device="cpu")
            mark = torch.get_rng_state()
            assert pool is None or isinstance(pool, Arena)
            mode = self._capture = CaptureMode(pool or self._arena, self._lenders)
            try:
                with autocast_cache_off(), mode, HostReads(mode.refuse):
                    result = body()
            except Exception as error:
                if mode.failure is not None and mode.failure is not error:
                    raise mode.failure from error
                raise
            finally:
                self._capture = None
                moved = not torch.equal(mark, torch.get_rng_state())
                torch.set_rng_state(state)
            if mode.failure is not None:
                raise mode.failure
            if moved:
                raise CaptureFailed("GR405", "the region sets the random seed, which a replay would not repeat")
            program = mode.finish(debug_poison=self._poison)
        graph = ReferenceGraph(program, self._queue, self._instantiate, self._node_bytes)
        if pool is None:
            self._graphs.add(graph)
        return graph, result

    def _instantiate(self, program: Program) -> ReferenceExecutable:
        nbytes = self._node_bytes * sum(1 for _ in every_step(program.steps))
        if self._capacity_bytes is not None and self._executable_bytes + nbytes > self._capacity_bytes:
            raise torch.OutOfMemoryError(f"no room for an executable of {nbytes} bytes")
        executable = ReferenceExecutable(program, self._queue, nbytes, self._give_back)
        self._executable_bytes += nbytes
        return executable

    def _give_back(self, nbytes: int) -> None:
        self._executable_bytes -= nbytes

    def prepare_bodies(self) -> None:
        """Nothing to prepare."""

    def prepare_branches(self, plan: OverlapPlan) -> None:
        """Nothing to prepare."""

    @contextmanager
    def branches(self, plan: OverlapPlan) -> Iterator[ReferenceBranches]:
        branches = self._recording().branches(plan)
        yield branches
        branches.join()

    def if_body(self, pred: torch.Tensor) -> AbstractContextManager[None]:
        return self._recording().body(pred, IfStep)

    def while_body(self, pred: torch.Tensor) -> AbstractContextManager[None]:
        return self._recording().body(pred, WhileStep)

    @contextmanager
    def bounded(self, iterations: int) -> Iterator[Callable[[], bool]]:
        bound = IterationBound(iterations)
        before, WhileStep.bound = WhileStep.bound, bound
        try:
            yield lambda: bound.reached
        finally:
            WhileStep.bound = before

    def _recording(self) -> CaptureMode:
        if self._capture is None:
            raise CaptureFailed("GR405", "a conditional body outside of a capture")
        return self._capture

    def copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        if targets:
            # `.data`: what is held back must not count as a change later, when it runs.
            self._queue.submit(partial(_copy, [target.data for target in targets], list(sources)))

    def clone(self, source: torch.Tensor) -> torch.Tensor:
        made = torch.empty_like(source)
        self.copy([made], [source])
        return made

    def synchronize(self) -> None:
        """CPU operators are done when they return; only held launches wait."""
        self._queue.drain()

    def timer(self) -> HostCallTimer:
        return HostCallTimer()

    def flag_poll(self) -> LaggingPoll:
        return LaggingPoll(self._queue, self.flag_lag)

    def rng_state(self) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: object) -> None:
        assert isinstance(state, torch.Tensor)
        torch.set_rng_state(state)

    def memory(self) -> MemoryAccount:
        """`pool_bytes`: all arenas. `executable_bytes`: pretended."""
        return MemoryAccount(
            pool_bytes=sum(arena.nbytes for arena in (self._arena, *self._pools)),
            executable_bytes=self._executable_bytes,
        )

    def close(self) -> None:
        for graph in list(self._graphs):
            graph.release()
        self._graphs.clear()
        self._arena.close()
