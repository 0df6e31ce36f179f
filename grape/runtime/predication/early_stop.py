"""Loops that the host drives and the device ends: iterations are issued ahead, and a wasted one changes nothing.

Where a loop does not become a WHILE node, its iteration becomes a region of its own, under a predicate: where the loop
has been left it does nothing. The flag that says so is read some iterations later, when it has arrived, so that
neither side waits for the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any, Protocol, TypeGuard

import torch

from ..backends.protocol import FlagPoll
from .functions import lowering_for
from .merge import NOTHING, UNBOUND
from .truth import Flag, negate, truth

__all__ = ["AHEAD", "Step", "Stepper", "Stopped", "run_ahead", "set_stepper", "step_of", "while_ahead"]

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

    def step(self, body: FunctionType, test: FunctionType | None, stop: int) -> Step | None:
        """The region of the code of `step_of(body, test, stop)`; None where it is none, now or for good."""
        ...


class _Active(threading.local):
    stepper: Stepper | None = None


_active = _Active()


def set_stepper(stepper: Stepper | None) -> None:
    """From now on loops of this thread may become regions of `stepper`, or of nobody."""
    _active.stepper = stepper


def step_of(
    body: FunctionType, test: FunctionType | None, stop: int, device: torch.device
) -> Callable[..., tuple[Any, ...]]:
    """One iteration of the loop with this body under a predicate, as a function of what the loop's functions close
    over and of its state. `state[stop]` is a 0-dim bool tensor on `device`.

    With a `test`, that is the last of the state, and no name of the body's: whether the test was false.
    """
    run_of = _maker(body)
    test_of = _maker(test) if test is not None else None

    def step(closure: tuple[tuple[Any, ...], ...], state: tuple[Any, ...]) -> tuple[Any, ...]:
        run = run_of(closure[0])
        names = state if test_of is None else state[:stop]

        def iterate() -> tuple[Any, ...]:
            result = run(*names)
            after = (result,) if len(names) == 1 else () if not names else tuple(result)
            return after if test_of is None else (*after, negate(test_of(closure[1])(*after)))

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


def _maker(function: FunctionType) -> Callable[[tuple[Any, ...]], Callable[..., Any]]:
    code, namespace, name = function.__code__, function.__globals__, function.__name__
    return lambda closure: FunctionType(code, namespace, name, None, tuple(map(CellType, closure)))


def _own(new: Any, old: Any) -> Any:
    """Memory of its own, whichever way the data went; but what the body hands on as it is stays what it is."""
    return new.clone() if isinstance(new, torch.Tensor) and new is not old else new


def _flag(value: Any, device: torch.device) -> torch.Tensor:
    if isinstance(value, Flag):
        return value.tensor
    if isinstance(value, torch.Tensor):
        return (value != 0).reshape(())
    return torch.full((), bool(value), dtype=torch.bool, device=device)


def while_ahead(test: Callable[..., Any], body: Callable[..., Any], carried: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """`while test(*carried)`, which is true now. The rest is as in `run_ahead`."""
    ran = _run_ahead(None, body, test, (*carried, False), len(carried))
    return ran[:-1] if ran is not None else None


def run_ahead(times: int, body: Callable[..., Any], carried: tuple[Any, ...], stop: int) -> tuple[Any, ...] | None:
    """The state after up to `times` iterations, the last of which may be wasted; `state[stop]` is a bool again.

    None, and nothing has been done, where the loop's iteration is no region.
    """
    return _run_ahead(times, body, None, carried, stop)


def _run_ahead(
    times: int | None, body: Callable[..., Any], test: Callable[..., Any] | None, carried: tuple[Any, ...], stop: int
) -> tuple[Any, ...] | None:
    stepper = _active.stepper
    if stepper is None or not _is_plain(body) or not (test is None or _is_plain(test)):
        return None
    if any(value is UNBOUND or value is NOTHING for value in carried):
        return None
    try:
        closure = tuple(
            [tuple([cell.cell_contents for cell in one.__closure__ or ()]) for one in (body, test) if one is not None]
        )
    except ValueError:  # a name that is not bound yet
        return None
    step = stepper.step(body, test, stop)
    # The flag lies where the loop works: beside a GPU a tensor of the CPU may be carried along.
    devices = [value.device for value in carried if isinstance(value, torch.Tensor)]
    device = next((one for one in devices if one.type != "cpu"), devices[0] if devices else None)
    if step is None or device is None:
        return None
    poll = stepper.poll()
    state = (*carried[:stop], _flag(carried[stop], device), *carried[stop + 1 :])
    stopped_at: int | None = None
    known = issued = 0
    while (times is None or issued < times) and stopped_at is None:
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


def _is_plain(function: Callable[..., Any]) -> TypeGuard[FunctionType]:
    return isinstance(function, FunctionType) and not function.__defaults__ and not function.__kwdefaults__
