"""The select lowering: both branches run on the device, and a select picks results and written memory.

It needs nothing but ordinary operators, so it works in any capture; it is refused where a body has host effects,
random numbers, other shapes or dtypes than the other one, or operators that may fail on values that do not occur.
The idea of nullified writes is Grape's (Zheng et al., MICRO 2023, "predication contexts"), there by patched kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch

from ..loop_state import Key
from ..python_state import unchanged
from .active import refuse
from .flag import Flag, as_predicate
from .lowering import Arm, Body, Check, State, Test, lowered
from .merge import UNBOUND, Unbound, merge_values, same_plain, select_bits
from .truth import negate
from .writes import Ties, WriteMode

MAX_ITERATIONS = 64
"""A loop that only data can end, and that the host does not end before that, is refused."""


class SelectLowering:
    """Carries out control flow by selects, for conditions on `device`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._mode = WriteMode(strict=True)
        self.checks: list[Check] = []
        self._rest: list[ExitStack] = []

    @contextmanager
    def active(self) -> Iterator[None]:
        """Lower control flow this way inside the block, on this thread. Not reentrant."""
        with self._mode, lowered(self), self._checked():
            yield

    @property
    def ties(self) -> Ties:
        """Tensors that may share memory in a plain program; see `Ties.pairs`."""
        return self._mode.ties

    @property
    def device(self) -> torch.device:
        return self._device

    def takes(self, condition: torch.Tensor) -> bool:
        return condition.device.type == self._device.type

    def cond(self, pred: torch.Tensor, true_fn: Arm, false_fn: Arm, *, certain: bool = False) -> Any:
        key = self._key()
        with torch.no_grad():
            opposite = torch.logical_not(pred)
        with self._body(key, pred), unchanged(true_fn), self._checked():
            if_true = true_fn()
        with self._body(key, opposite, certain=certain), unchanged(false_fn), self._checked():
            if_false = false_fn()
        return self._merge(pred, if_true, if_false)

    def _key(self) -> Key:
        """The name of the next decision."""
        return ()

    def _body(self, key: Key, pred: torch.Tensor, *, certain: bool = False) -> AbstractContextManager[None]:
        """A block whose work takes effect only where `pred` is true."""
        return self._mode.block(pred)

    def while_loop(
        self, cond_fn: Test, body_fn: Body, carried: State, *, test: torch.Tensor | Flag, live: tuple[bool, ...]
    ) -> State:
        """Unroll: every iteration runs, nullified once the condition has been false, until the host ends the loop."""
        on = as_predicate(test)
        drifting = [False] * len(carried)
        for _ in range(MAX_ITERATIONS):
            with self._mode.block(on), unchanged(body_fn, carried), self._checked():
                after = body_fn(*carried)
            carried = self._advance(on, after, carried, drifting)
            with self._mode.block(on), unchanged(cond_fn, carried), self._checked():
                again = cond_fn(*carried)
            if isinstance(again, (torch.Tensor, Flag)):
                with torch.no_grad():
                    on = torch.logical_and(on, as_predicate(again))
            elif not again:
                return _finished(carried, drifting, live)
        raise refuse(
            f"a loop that only data ends, and that {MAX_ITERATIONS} iterations of its host state do not end",
            "GR102",
        )

    def repeat(self, times: int, body_fn: Body, carried: State, *, stop: int, live: tuple[bool, ...]) -> State:
        """Every iteration is issued, in a branch that is taken where the loop goes on."""
        drifting = [False] * len(carried)
        for _ in range(times):
            going = negate(carried[stop])
            if isinstance(going, Flag):
                carried = self._guarded(going.tensor, body_fn, carried, drifting)
            elif going:
                carried = body_fn(*carried)
            else:
                break
        return _finished(carried, drifting, live)

    def _guarded(self, going: torch.Tensor, body_fn: Body, before: State, drifting: list[bool]) -> State:
        """One iteration of `repeat`. Plain values that count go on as in `_advance`."""
        counts: dict[int, object] = {}

        def run() -> State:
            after = body_fn(*before)
            for position, (new, old) in enumerate(zip(after, before, strict=True)):
                if _is_host_value(new) and _is_host_value(old):
                    counts[position] = new
                    drifting[position] |= not same_plain(new, old)
            return without_counts(after)

        def without_counts(state: State) -> State:
            return tuple(None if position in counts else value for position, value in enumerate(state))

        merged = self.cond(going, run, lambda: without_counts(before))
        return tuple(counts.get(position, value) for position, value in enumerate(merged))

    @contextmanager
    def predicated(self, pred: torch.Tensor) -> Iterator[None]:
        with self._body(self._key(), pred), self._checked():
            yield

    def check(self, check: Check) -> None:
        with torch.no_grad():
            failed = self._under_blocks(check.failed)
            going = torch.logical_not(failed)
        self.checks.append(replace(check, failed=failed))
        self._rest[-1].enter_context(self._following(going))

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """A body. What follows an assertion in it is guarded to its end: a failed one protects what comes after."""
        with ExitStack() as stack:
            self._rest.append(stack)
            try:
                yield
            finally:
                self._rest.pop()

    def _following(self, going: torch.Tensor) -> AbstractContextManager[None]:
        """A block that takes effect only where `going` is true; its results are not used elsewhere."""
        return self._mode.block(going)

    def _under_blocks(self, failed: torch.Tensor) -> torch.Tensor:
        mask = self._mode.mask()
        with torch.no_grad():
            return failed if mask is None else torch.logical_and(mask, failed)

    def _merge(self, pred: torch.Tensor, if_true: object, if_false: object) -> object:
        def select(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            if one.device != pred.device:
                raise refuse(f"the branches give tensors on {one.device}, the condition is on {pred.device}")
            merged = select_bits(pred, one, other)
            self._mode.ties.tie(merged, one)
            self._mode.ties.tie(merged, other)
            return merged

        return merge_values(pred, if_true, if_false, select)

    def _advance(self, on: torch.Tensor, after: State, before: State, drifting: list[bool]) -> State:
        """The state after one iteration that may be nullified.

        A plain value goes on as if the loop had not ended: only nullified iterations see it. After the loop it is
        not known, which `drifting` notes.
        """
        state = []
        for position, (new, old) in enumerate(zip(after, before, strict=True)):
            if _is_host_value(new) and _is_host_value(old):
                drifting[position] |= not same_plain(new, old)
                state.append(new)
            else:
                state.append(self._merge(on, new, old))
        return tuple(state)


def _is_host_value(value: object) -> bool:
    """A Python number or string that counts iterations; truth values become flags instead."""
    return isinstance(value, (int, float, complex, str)) and not isinstance(value, bool)


def _finished(carried: State, drifting: list[bool], live: tuple[bool, ...]) -> State:
    for value, drifts, wanted in zip(carried, drifting, live, strict=True):
        if drifts and wanted:
            raise refuse(f"a Python value that counts the iterations of a loop ({value!r} at its end) is used after it")
    return tuple(
        UNBOUND if drifts and not isinstance(value, Unbound) else value
        for value, drifts in zip(carried, drifting, strict=True)
    )
