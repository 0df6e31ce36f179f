"""Loops that the host drives and the device ends: iterations are issued ahead, and a wasted one changes nothing.

Where a loop does not become a WHILE node, its iteration becomes a region of its own, under a predicate: where the loop
has been left it does nothing. The flag that says so is read some iterations later, when it has arrived, so that
neither side waits for the other.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection
from types import CellType, FunctionType
from typing import Protocol, TypeGuard

import torch
from torch.utils._pytree import tree_leaves

from ...model import Later, Reason, Refused, RetryLater
from ..backends.protocol import CaptureFailed, FlagPoll
from .functions import as_state, needed_lowering
from .holders import Holders, storage_of
from .lowering.active import noted
from .lowering.flag import Flag
from .lowering.lowering import Body, State, active_lowering
from .lowering.merge import NOTHING, UNBOUND
from .lowering.truth import negate, truth

AHEAD = 4
"""So many iterations may be issued whose flags are not known yet. As many can be wasted, at most."""


class _NamesMoved(CaptureFailed):
    """Which names stay depends on data: the iteration copies them from now on, and is captured at a later call."""

    def __init__(self) -> None:
        super().__init__(Reason.NAMES_STAY.code, Reason.NAMES_STAY.sentence)

    @property
    def outcome(self) -> RetryLater:
        return RetryLater(later=Later.MOVED, refused=Refused.because(Reason.NAMES_STAY))


class Stopped(Exception):
    """An iteration that ran as ordinary Python was told that the loop has been left. Nothing has been done."""


class IterationStep(Protocol):
    """One iteration as a region. `replays` counts calls served by a graph; for `moved` see `Iteration`."""

    @property
    def replays(self) -> int: ...

    @property
    def moved(self) -> Collection[int]: ...

    def waste(self, count: int) -> None:
        """Note that so many calls did nothing."""

    def __call__(self, closure: State, state: State) -> State: ...


class Stepper(Protocol):
    """Who makes regions of iterations."""

    def poll(self) -> FlagPoll: ...

    def step(self, body: FunctionType, test: FunctionType | None, stop: int) -> IterationStep | None:
        """The region of `Iteration(body, test, stop)`; None where it is none, now or for good."""


class _Active(threading.local):
    stepper: Stepper | None = None


_active = _Active()


def set_stepper(stepper: Stepper | None) -> None:
    """From now on loops of this thread may become regions of `stepper`, or of nobody."""
    _active.stepper = stepper


class Iteration:
    """One iteration of the loop with this body under a predicate, as a function of what the loop's functions close
    over and of its state. `state[stop]` is a 0-dim bool tensor on `device`.

    With a `test`, that is the last of the state, and no name of the body's: whether the test was false.

    In ordinary Python it gives what the body gives, the same objects. On the device a name that is bound in one branch
    only has a tensor of its own, whichever way the data went. `moved` has the positions of such tensors: what is given
    there may live on in the state after the iteration, by its name or by another. Once a capture has found them,
    ordinary Python gives copies there too, so that both ways give alike; it must be called only where nobody else
    holds them.
    """

    def __init__(self, body: FunctionType, test: FunctionType | None, stop: int, device: torch.device) -> None:
        self._run_of = _maker(body)
        self._test_of = _maker(test) if test is not None else None
        self._stop = stop
        self._device = device
        self.moved: set[int] = set()

    def __call__(self, closure: tuple[State, ...], state: State) -> State:
        """The next state. Raises `Stopped` in ordinary Python, where the loop has been left."""
        going = negate(state[self._stop])
        if isinstance(going, Flag):
            after = self._lowered(going, closure, state)
        elif going:
            after = self._copied(self._once(closure, state), state)
        else:
            raise Stopped
        return tuple([_flag(new, self._device) if at == self._stop else new for at, new in enumerate(after)])

    def _once(self, closure: tuple[State, ...], state: State) -> State:
        names = state if self._test_of is None else state[: self._stop]
        after = as_state(self._run_of(closure[0])(*names), len(names))
        if self._test_of is not None:
            after = (*after, negate(self._test_of(closure[1])(*after)))
        return after

    def _lowered(self, going: Flag, closure: tuple[State, ...], state: State) -> State:
        lowering = needed_lowering()

        def iterate() -> tuple[object, object]:
            after = self._once(closure, state)
            stays = tuple([new is old for new, old in zip(after, state, strict=True)])
            return after, (stays, tuple([_may_be(new) for new in after]))

        after: State
        after, (stays, may_be) = lowering.cond(going.tensor, iterate, lambda: (state, NOTHING), certain=True)
        made = {
            at: new
            for at, new in enumerate(after)
            if isinstance(new, torch.Tensor) and not stays[at] and at != self._stop
        }
        given = {at: old for at, old in enumerate(state) if isinstance(old, torch.Tensor)}
        moved = {at for at, old in given.items() if any(storage_of(old) in may_be[new] for new in made)} - {self._stop}
        if not moved <= self.moved:
            self.moved |= moved
            raise noted(_NamesMoved())
        # A wasted iteration hands on what is there already: that ties everything to everything, and nobody sees it.
        # What a name alone held, and what no second name has now, is only known by its new name from here on.
        times = Counter(storage_of(leaf) for leaf in tree_leaves((closure, state)) if isinstance(leaf, torch.Tensor))
        gone = [old for at, old in given.items() if not stays[at] and times[storage_of(old)] == 1]
        for at, new in made.items():
            for old in gone:
                lowering.ties.part(new, old)
            for other_at, other in made.items():
                if other_at != at and not may_be[at] & may_be[other_at]:
                    lowering.ties.part(new, other)
        return after

    def _copied(self, after: State, state: State) -> State:
        moved = {storage_of(old) for old in (state[at] for at in self.moved) if isinstance(old, torch.Tensor)}
        return tuple(
            new.clone() if isinstance(new, torch.Tensor) and at != self._stop and storage_of(new) in moved else new
            for at, new in enumerate(after)
        )


def _maker(function: FunctionType) -> Callable[[State], Callable[..., object]]:
    code, namespace, name = function.__code__, function.__globals__, function.__name__
    return lambda closure: FunctionType(code, namespace, name, None, tuple(map(CellType, closure)))


def _may_be(value: object) -> frozenset[int]:
    """The storages of which one may be that of `value`, in a plain program."""
    lowering = active_lowering()  # not from a closure: what a body can reach there, it may not change
    if lowering is None or not isinstance(value, torch.Tensor):
        return frozenset()
    return frozenset({storage_of(value), *lowering.ties.partners(value)})


def _flag(value: object, device: torch.device) -> torch.Tensor:
    if isinstance(value, Flag):
        return value.tensor
    if isinstance(value, torch.Tensor):
        return (value != 0).reshape(())
    return torch.full((), bool(value), dtype=torch.bool, device=device)


def while_ahead(
    test: Callable[..., object],
    body: Callable[..., object],
    carried: State,
    initial: State = (),
) -> State | None:
    """`while test(*carried)`, which is true now. The rest is as in `run_ahead`."""
    ran = _run_ahead(None, body, test, (*carried, False), len(carried), Holders(initial, (carried,)))
    return ran[:-1] if ran is not None else None


def run_ahead(times: int, body: Callable[..., object], carried: State, stop: int, initial: State = ()) -> State | None:
    """The state after up to `times` iterations, the last of which may be wasted; `state[stop]` is a bool again.

    `initial` is the state before the loop, which the names of the loop still hold. None, and nothing has been done,
    where the loop's iteration is no region.
    """
    return _run_ahead(times, body, None, carried, stop, Holders(initial, (carried,)))


def _run_ahead(
    times: int | None,
    body: Callable[..., object],
    test: Callable[..., object] | None,
    given: State,
    stop: int,
    holders: Holders,
) -> State | None:
    stepper = _active.stepper
    if stepper is None or not _is_plain(body) or not (test is None or _is_plain(test)):
        return None
    if any(value is UNBOUND or value is NOTHING for value in given):
        return None
    try:
        closure = tuple(
            [tuple([cell.cell_contents for cell in one.__closure__ or ()]) for one in (body, test) if one is not None]
        )
    except ValueError:  # a name that is not bound yet
        return None
    step = stepper.step(body, test, stop)
    # The flag lies where the loop works: beside a GPU a tensor of the CPU may be carried along.
    device = _device_of(given)
    if step is None or device is None:
        return None
    state = (*given[:stop], _flag(given[stop], device), *given[stop + 1 :])
    given = ()
    if not _alone(holders, state, step.moved):
        return None
    poll = stepper.poll()
    run: Body = step
    stopped_at: int | None = None
    known = issued = 0
    while (times is None or issued < times) and stopped_at is None:
        if run is step and not _alone(holders, state, step.moved):
            run = Iteration(body, test, stop, device)
        before, replays = state, step.replays
        try:
            state = run(closure, state)
        except Stopped:
            stopped_at = issued  # by an earlier iteration: its flag is on the way
            break
        issued += 1
        if step.replays == replays:  # it ran as ordinary Python, which waits for its values anyway
            holders.ran(state)
            del before
            known = issued
            poll.clear()
            stopped_at = issued if truth(state[stop]) else None
            continue
        holders.replayed(before, state)
        del before
        stopped = state[stop]
        assert isinstance(stopped, torch.Tensor)
        poll.post(stopped)
        del stopped  # the next replay finds its place free
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


def _device_of(values: State) -> torch.device | None:
    devices = [value.device for value in values if isinstance(value, torch.Tensor)]
    return next((one for one in devices if one.type != "cpu"), devices[0] if devices else None)


def _alone(holders: Holders, state: State, moved: Collection[int]) -> bool:
    return all(holders.alone(state, position) for position in moved if isinstance(state[position], torch.Tensor))


def _is_plain(function: Callable[..., object]) -> TypeGuard[FunctionType]:
    return isinstance(function, FunctionType) and not function.__defaults__ and not function.__kwdefaults__
