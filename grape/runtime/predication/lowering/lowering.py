"""How control flow that depends on a tensor is carried out: the protocol, and which implementation is active.

Outside of a capture none is active: a tensor condition is read on the host, as plain Python does. A capture backend
activates its own for the time of the capture (`lowered`), because the host must not read values there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

import torch

from .active import active
from .flag import Flag
from .writes import Ties

State: TypeAlias = tuple[object, ...]
"""The values that a loop carries."""
Test: TypeAlias = Callable[..., object]
"""The condition of a loop, as a function of its state."""
Body: TypeAlias = Callable[..., State]
"""An iteration of a loop: the next state, as a function of the last one."""
Arm: TypeAlias = Callable[[], object]
"""A branch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A condition that the person asserted. `failed` is a 0-dim bool tensor on the device, true where it did not hold.

    `line` counts in `file`, from 1; `text` is the assertion's literal message, or None.
    """

    failed: torch.Tensor
    file: str
    line: int
    text: str | None


class Lowering(Protocol):
    """Carries out control flow on the device. Every method may raise `CaptureFailed` with a code and a reason.

    Bodies are Python callables without arguments. They may write to memory that existed before them (in place,
    `out=`), and return a value: tensors, truth values (`Flag`), plain values, tuples of these. Bodies run at most
    once each while the program is recorded; which of their writes and results take effect is decided on the device.
    Whatever differs between two results must be merged by `merge.merge_values`, which holds the rules.
    """

    @property
    def device(self) -> torch.device:
        """Where predicates live."""

    @property
    def ties(self) -> Ties:
        """Tensors that may share memory in a plain program."""

    def takes(self, condition: torch.Tensor) -> bool:
        """True where this condition lives where the lowering decides; others are read on the host."""

    def cond(self, pred: torch.Tensor, true_fn: Arm, false_fn: Arm, *, certain: bool = False) -> Any:
        """The result of `true_fn()` or `false_fn()`; writes of the other one do not happen. `pred` is 0-dim bool.

        `certain`: `false_fn` does no work, so a replay that takes it needs no comparison.
        """

    def while_loop(
        self, cond_fn: Test, body_fn: Body, carried: State, *, test: torch.Tensor | Flag, live: tuple[bool, ...]
    ) -> State:
        """`carried` after the loop. `cond_fn(*carried)` gives a bool, a tensor with one element or a `Flag`.

        `test` is what it gave for `carried`, so that it is not asked twice. `body_fn(*carried)` returns the next
        `carried`. Where `live` is False, nobody looks at that value after the loop, and anything may be returned in
        its place.
        """

    def repeat(self, times: int, body_fn: Body, carried: State, *, stop: int, live: tuple[bool, ...]) -> State:
        """`carried` after `body_fn` has run at most `times` times, and not again once `carried[stop]` is true."""

    def predicated(self, pred: torch.Tensor) -> AbstractContextManager[object]:
        """A block whose device writes to memory from before it take effect only where `pred` is true."""

    def check(self, check: Check) -> None:
        """Remember an assertion. What follows it in its body has no effect where it failed.

        Whoever replays reads whether one failed once the replay is done, and then does not use it.
        """


def active_lowering() -> Lowering | None:
    """The lowering of this thread's capture; None outside of one."""
    return cast("Lowering | None", active.lowering)


@contextmanager
def lowered(lowering: Lowering | None) -> Iterator[None]:
    """Activate a lowering for this thread. None reads conditions on the host, also inside of another lowering.

    Raises the first refusal at the end, where the code inside caught it.
    """
    before = active.lowering, active.refusals
    active.lowering, active.refusals = lowering, []
    try:
        yield
        if active.refusals:
            raise active.refusals[0]
    finally:
        active.lowering, active.refusals = before
