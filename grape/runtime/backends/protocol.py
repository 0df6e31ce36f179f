"""The interface of a device to the runtime. Two implementations: `cuda` (real CUDA graphs) and `tape` (the CPU
reference).

The rules are those of a CUDA graph, for both: addresses are fixed at capture, shapes are frozen, nothing executes
during capture, the host cannot read values during capture, and a replay overwrites what the replay before it wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import torch

from ...errors import CaptureError
from ...model import Later, Reason, Refused, RetryLater
from ...model.overlap import OverlapPlan
from ...profiling import CallTimer

T = TypeVar("T")


_REASONS = {
    "GR101": Reason.CAPTURE_READS,
    "GR102": Reason.CAPTURE_BRANCHES,
    "GR103": Reason.CAPTURE_SHAPES,
    "GR404": Reason.CAPTURE_STATE,
    "GR405": Reason.CAPTURE_UNSUPPORTED,
}


class CaptureFailed(CaptureError):
    """A capture ended without a graph; the process is as it was before. `code` is a finding code."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code

    @property
    def outcome(self) -> Refused | RetryLater:
        return Refused.because(_REASONS[self.code], what=self)


class OverlapLost(CaptureFailed):
    """A graph cannot have the branches that were planned: the call is captured anew as a chain."""

    def __init__(self, why: str = "the device got work without an operator") -> None:
        super().__init__("GR405", why)

    @property
    def outcome(self) -> RetryLater:
        return RetryLater(later=Later.OVERLAP, refused=Refused.because(Reason.CAPTURE_UNSUPPORTED, what=self))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAccount:
    """Bytes by store: `pool` (graph-private memory), `executables` (on the device)."""

    pool_bytes: int
    executable_bytes: int


class MemoryMoved(RuntimeError):
    """A graph was not replayed, because memory that it reads was freed or moved."""


class Graph(Protocol):
    """One captured, instantiated graph. `nodes` counts its device activities, `nbytes` its executable's memory."""

    @property
    def nodes(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def replay(self) -> None:
        """Enqueue the graph on the current stream. Reads and writes the addresses of the capture."""

    def release(self) -> None:
        """Give back what the graph holds. Idempotent. Tensors made in the capture stay readable while referenced."""


class Prepared(Protocol):
    """Parameters for some nodes, ready to be written as often as they are needed. `nbytes` on the host."""

    @property
    def nbytes(self) -> int: ...


class Reservation(Protocol):
    """A range of device addresses, of which the first `nbytes` have memory behind them."""

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def grow(self, nbytes: int) -> bool:
        """Have at least so many bytes at the same address; False past the end of the range.

        What lies there stays as it is. Raises torch.OutOfMemoryError.
        """

    def release(self) -> None:
        """Give back memory and addresses. The device must be done with them. Idempotent."""


class Pool(Protocol):
    """Memory of a few graphs, which no graph outside writes: what one leaves there, another of them finds.

    It is given back when its graphs are released and nothing refers to what was made in it.
    """

    @property
    def nbytes(self) -> int: ...


class Branches(Protocol):
    """Issues the operators of a capture in lanes, which are branches of the graph."""

    def on_lane(self, ordinal: int) -> AbstractContextManager[None]:
        """Within the block the operator with this ordinal is issued, behind those that it waits for.

        Raises `OverlapLost` where something that was no operator has been issued since the last one.
        """

    def keep(self, ordinal: int, result: object) -> None:
        """The operator made this: its memory is kept until the capture is over where other lanes use it."""

    def aside(self) -> AbstractContextManager[None]:
        """What is issued within the block, on the stream of the capture and outside of `on_lane`, is right there.

        Raises `OverlapLost` as `on_lane` does.
        """


class FlagPoll(Protocol):
    """Brings truth values to the host without making anybody wait: what is posted arrives some time later, in order."""

    @property
    def pending(self) -> int:
        """How many were posted and not taken."""

    def post(self, flag: torch.Tensor) -> None:
        """Send a 0-dim bool tensor, as it will be when the work issued so far is done."""

    def take(self, *, wait: bool) -> bool | None:
        """The oldest of the pending values, or None where it has not arrived; with `wait` the host waits for it."""

    def clear(self) -> None:
        """Forget what is pending."""


class Backend(Protocol):
    """A device on which graphs are captured and replayed."""

    @property
    def kind(self) -> Literal["cuda", "tape"]: ...

    @property
    def device(self) -> torch.device: ...

    def empty_strided(self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Uninitialized memory for a placeholder; it stays at its address while the tensor lives."""

    def reserve(self, nbytes: int) -> Reservation | None:
        """A range that starts with so many bytes and can grow; None where the device cannot do that."""

    def prepare(self) -> None:
        """Do once what the first capture needs, so that its time is that of a capture. Idempotent."""

    def capture(self, body: Callable[[], T], pool: Pool | None = None) -> tuple[Graph, T]:
        """Run `body` while its device work is recorded instead of executed; return the graph and `body`'s result.

        Tensors that `body` made live in the graph's private memory; the caller may keep them as outputs. An
        exception of `body` ends the capture, leaves allocator, generator and stream usable, and propagates.
        With a `pool` the graph's memory lies there, it has an executable of its own, and `close` leaves it alone: who
        asked for it releases it. Raises `CaptureFailed` where the device refused.
        """

    def open_pool(self) -> Pool:
        """A new pool for graphs that belong together."""

    @property
    def updatable(self) -> bool:
        """True where `capture` gives an `UpdatableGraph`, which has no executable before `instantiate`."""

    @property
    def conditional_bodies(self) -> bool:
        """True where a capture can record bodies that each replay decides on: `if_body`, `while_body`."""

    @property
    def overlaps(self) -> bool:
        """True where a capture can have branches."""

    def prepare_branches(self, plan: OverlapPlan) -> None:
        """Do what the first capture with so many lanes needs. Idempotent; not inside a capture."""

    def branches(self, plan: OverlapPlan) -> AbstractContextManager[Branches]:
        """Within `capture`: operators that are issued in the block run, at replay, in the lanes of the plan.

        Raises `OverlapLost` at the end of the block, too.
        """

    def prepare_bodies(self) -> None:
        """Do what the first body needs, so that a capture can hold one. Idempotent; not inside a capture.

        `conditional_bodies` may turn False here, where the device cannot do it after all.
        """

    def if_body(self, pred: torch.Tensor) -> AbstractContextManager[None]:
        """Within `capture`: what is recorded in the block runs, at replay, only where `pred` is true then.

        `pred` is a 0-dim bool tensor on the device. Bodies nest. Random operators are refused in one, because the
        offsets of the generator cannot depend on data. Memory allocated in a body belongs to the graph like any
        other; what lies there after a replay that skipped the body is undefined.
        Raises `CaptureFailed` where the backend has no conditional bodies, or outside of a capture.
        """

    def while_body(self, pred: torch.Tensor) -> AbstractContextManager[None]:
        """Like `if_body`, but run again and again as long as `pred` is true; the body writes `pred`.

        Memory from before the body that the body reads is not given to anything else before the body ends.
        """

    def bounded(self, iterations: int) -> AbstractContextManager[Callable[[], bool]]:
        """Within the block, a loop of a replay that is issued runs its body at most so many times.

        Then it ends as if its condition were false. The block gives a function that tells, once the work is done,
        whether a loop was ended so. Outside of such blocks loops have no bound. On a device the kernel that sets the
        condition counts in memory of the graph, and compares with a limit that the host writes before the launch.
        """

    def copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        """Copy each source into its target, in as few launches as possible. Not inside a capture."""

    def clone(self, source: torch.Tensor) -> torch.Tensor:
        """A copy of a dense tensor in memory of its own, in the order of launches. Not inside a capture."""

    def synchronize(self) -> None:
        """Wait until all work that was issued to the device is done."""

    def timer(self) -> CallTimer: ...

    def flag_poll(self) -> FlagPoll: ...

    def rng_state(self) -> object:
        """The state of the device's default generator and of the CPU's, to be given to `set_rng_state`."""

    def set_rng_state(self, state: object) -> None: ...

    def memory(self) -> MemoryAccount: ...

    def close(self) -> None:
        """Release every graph and the private pool. Idempotent."""
