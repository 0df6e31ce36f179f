"""Loops that the host drives and the device ends: iterations are issued ahead, and a wasted one changes nothing.

Where a loop does not become a WHILE node, its iteration becomes a region of its own, under a predicate: where the loop
has been left it does nothing. The flag that says so is read some iterations later, when it has arrived, so that
neither side waits for the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any, Protocol

import torch

from ..backends.protocol import FlagPoll
from .functions import lowering_for
from .merge import NOTHING, UNBOUND
from .truth import Flag, negate, truth

__all__ = ["AHEAD", "Step", "Stepper", "Stopped", "run_ahead", "set_stepper", "step_of"]

AHEAD = 4
"""So many iterations may be issued whose flags are not known yet. As many can be wasted, at most."""


class Stopped(Exception):
    """An iteration that ran as ordinary Python was told that the loop has been left. Nothing has been done."""


class Step(Protocol):
    """One iteration as a region. `replays` counts calls served by a graph."""

    @property
    def replays(self) -> int: ...

    def waste(self, count: int) -> None:
        """Note that so many calls did nothing."""
        ...

    def __call__(self, closure: tuple[Any, ...], state: tuple[Any, ...]) -> tuple[Any, ...]: ...


class Stepper(Protocol):
    """Who makes regions of iterations."""

    def poll(self) -> FlagPoll: ...

    def step(self, body: FunctionType, stop: int) -> Step | None:
        """The region of this body's code; None where it is none, now or for good."""
        ...


class _Active(threading.local):
    stepper: Stepper | None = None


_active = _Active()


def set_stepper(stepper: Stepper | None) -> None:
    """From now on loops of this thread may become regions of `stepper`, or of nobody."""
    _active.stepper = stepper


def step_of(body: FunctionType, stop: int, device: torch.device) -> Callable[..., tuple[Any, ...]]:
    """One iteration of the loop with this body under a predicate, as a function of what the body closes over and of
    the loop's state. `state[stop]` is a 0-dim bool tensor on `device`.
    """
    code, namespace, name = body.__code__, body.__globals__, body.__name__

    def step(closure: tuple[Any, ...], state: tuple[Any, ...]) -> tuple[Any, ...]:
        run = FunctionType(code, namespace, name, None, tuple(map(CellType, closure)))

        def iterate() -> tuple[Any, ...]:
            result = run(*state)
            return result if isinstance(result, tuple) and len(state) > 1 else (result,)

        going = negate(state[stop])
        if isinstance(going, Flag):
            lowering = lowering_for(going)
            assert lowering is not None
            after = lowering.cond(going.tensor, iterate, lambda: state, certain=True)
        elif going:
            after = iterate()
        else:
            raise Stopped
        return tuple(
            _flag(new, device) if position == stop else _own(new, old)
            for position, (new, old) in enumerate(zip(after, state, strict=True))
        )

    return step


def _own(new: Any, old: Any) -> Any:
    """Memory of its own, whichever way the data went; but what the body hands on as it is stays what it is."""
    return new.clone() if isinstance(new, torch.Tensor) and new is not old else new


def _flag(value: Any, device: torch.device) -> torch.Tensor:
    if isinstance(value, Flag):
        return value.tensor
    if isinstance(value, torch.Tensor):
        return (value != 0).reshape(())
    return torch.full((), bool(value), dtype=torch.bool, device=device)


def run_ahead(times: int, body: Callable[..., Any], carried: tuple[Any, ...], stop: int) -> tuple[Any, ...] | None:
    """The state after up to `times` iterations, the last of which may be wasted; `state[stop]` is a bool again.

    None, and nothing has been done, where the loop's iteration is no region.
    """
    stepper = _active.stepper
    if stepper is None or not isinstance(body, FunctionType) or body.__defaults__ or body.__kwdefaults__:
        return None
    if any(value is UNBOUND or value is NOTHING for value in carried):
        return None
    try:
        closure = tuple([cell.cell_contents for cell in body.__closure__ or ()])
    except ValueError:  # a name that is not bound yet
        return None
    step = stepper.step(body, stop)
    device = next((value.device for value in carried if isinstance(value, torch.Tensor)), None)
    if step is None or device is None:
        return None
    poll = stepper.poll()
    state = (*carried[:stop], _flag(carried[stop], device), *carried[stop + 1 :])
    stopped_at: int | None = None
    known = issued = 0
    while issued < times and stopped_at is None:
        replays = step.replays
        try:
            state = step(closure, state)
        except Stopped:
            stopped_at = issued  # by an earlier iteration: its flag is on the way
            break
        issued += 1
        if step.replays == replays:  # it ran as ordinary Python, which waits for its values anyway
            known = issued
            poll.clear()
            stopped_at = issued if truth(state[stop]) else None
            continue
        poll.post(state[stop])
        while stopped_at is None and poll.pending:
            flag = poll.take(wait=poll.pending > AHEAD)
            if flag is None:
                break
            known += 1
            stopped_at = known if flag else None
    while poll.pending and (stopped_at is None or known < stopped_at):
        known += 1
        if poll.take(wait=True):
            stopped_at = known
    poll.clear()
    if stopped_at is not None:
        step.waste(issued - stopped_at)
    return (*state[:stop], stopped_at is not None, *state[stop + 1 :])
