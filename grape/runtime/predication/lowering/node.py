"""The lowering of a capture: conditional nodes where the backend has them, selects where they are cheaper.

A node's body runs at replay where its condition is true, so nothing has to be given back and nothing can fail for
values that do not occur. Results of two bodies are picked by a select after both: what a skipped body would have made
lies in memory that nobody else has, and is not picked. A WHILE body works on copies of the carried values at fixed
addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch

from ...backends.protocol import Backend
from ..arms import Arms
from ..costs.costs import BodyWork, Choice
from ..costs.work import Work
from ..loop_state import Key, LoopState, Unsuited
from ..python_state import unchanged
from .active import noted
from .flag import Flag, as_predicate
from .lowering import Body, Check, State, Test
from .merge import NOTHING
from .select import SelectLowering


class NodeLowering(SelectLowering):
    """Lowers control flow for one capture on `backend`.

    `choices` says for a decision what it becomes ("node" where it says nothing and the backend has conditional
    bodies). `works` tells afterwards what the bodies of each do. `outside` wraps what belongs to the capture and not to
    the program, so that a trace does not show it.
    """

    def __init__(
        self,
        backend: Backend,
        choices: Mapping[Key, Choice],
        outside: Callable[[], AbstractContextManager[object]],
    ) -> None:
        super().__init__(backend.device)
        backend.prepare_bodies()
        self._backend = backend
        self._choices = choices
        self._outside = outside
        self._path: Key = ()
        self._met: dict[Key, int] = {}
        self._at_work: list[Work] = []
        self.works: dict[Key, list[BodyWork]] = {}
        self.arms = Arms(backend.device)

    @contextmanager
    def active(self) -> Iterator[None]:
        with self._outside(), torch.no_grad():
            self.arms.clear()
        with super().active():
            yield

    def while_loop(
        self, cond_fn: Test, body_fn: Body, carried: State, *, test: torch.Tensor | Flag, live: tuple[bool, ...]
    ) -> State:
        key = self._key()
        if self._choice(key) == "node" and any(value is NOTHING for value in carried):
            # What a `return` in the loop gives has no shape before the first iteration: that one is a branch.
            with self._within(key, 1):
                carried, again = self.cond(
                    as_predicate(test), lambda: _once(cond_fn, body_fn, carried), lambda: (carried, False)
                )
            test = again if isinstance(again, Flag) else Flag(torch.full((), again, device=self.device))
        return self._while(key, cond_fn, body_fn, carried, test=test, live=live)

    def repeat(self, times: int, body_fn: Body, carried: State, *, stop: int, live: tuple[bool, ...]) -> State:
        """A WHILE node whose state has the number of iterations that are left, on the device."""
        key = self._key()
        if self._choice(key) == "select":
            with self._within(key, 0):
                return super().repeat(times, body_fn, carried, stop=stop, live=live)

        def test(left: torch.Tensor, *state: object) -> Flag:
            going = left > 0
            stopped = state[stop]
            if isinstance(stopped, Flag):
                going = torch.logical_and(going, torch.logical_not(stopped.tensor))
            elif stopped:
                going = torch.zeros_like(going)
            return Flag(going)

        def body(left: torch.Tensor, *state: object) -> State:
            return left - 1, *body_fn(*state)

        with torch.no_grad():
            left = torch.full((), times, dtype=torch.int64, device=self.device)
        state = (left, *carried)
        return self._while(key, test, body, state, test=test(left, *carried), live=(False, *live))[1:]

    def _while(
        self,
        key: Key,
        cond_fn: Test,
        body_fn: Body,
        carried: State,
        *,
        test: torch.Tensor | Flag,
        live: tuple[bool, ...],
    ) -> State:
        first = as_predicate(test)
        with torch.no_grad():
            self._mark(self._mode.mask(), torch.logical_not(first))
        if self._choice(key) == "select":
            self._mark(self._mode.mask(), first)
            with self._within(key, 0):
                return super().while_loop(cond_fn, body_fn, carried, test=test, live=live)
        for work in self._at_work:
            work.body.selectable = False
        checked = len(self.checks)
        state = LoopState(self._mode, self.device, key, carried)
        with torch.no_grad():
            on = as_predicate(first, out=torch.empty_like(first))
        with self._backend.while_body(on), self._within(key, 0), self._mode.observed(state):
            with self._checked():
                self._mark_iteration()
                with unchanged(body_fn, state.values):
                    after = body_fn(*state.values)
                state.advance(after)
                with unchanged(cond_fn, state.values):
                    again = cond_fn(*state.values)
                if not isinstance(again, (torch.Tensor, Flag)):
                    raise noted(Unsuited(key, "the host ends a loop that the device continues"))
                with torch.no_grad(), self._mode.aside():
                    as_predicate(again, out=on)
            if len(self.checks) > checked:
                with torch.no_grad(), self._mode.aside(), self._outside():
                    on.logical_and_(self.arms.failed.logical_not())
        return state.finish()

    @contextmanager
    def predicated(self, pred: torch.Tensor) -> Iterator[None]:
        with torch.no_grad():
            self._mark(self._mode.mask(), torch.logical_not(pred))
        with super().predicated(pred):
            yield

    def check(self, check: Check) -> None:
        with torch.no_grad(), self._mode.aside(), self._outside():
            self.arms.failed.logical_or_(self._under_blocks(check.failed))
        super().check(check)

    def _following(self, going: torch.Tensor) -> AbstractContextManager[None]:
        if not self._backend.conditional_bodies or self._mode.mask() is not None:
            return super()._following(going)
        return self._backend.if_body(going)

    def _key(self) -> Key:
        number = self._met[self._path] = self._met.get(self._path, -1) + 1
        return (*self._path, number)

    @contextmanager
    def _within(self, key: Key, arm: int) -> Iterator[None]:
        before, self._path = self._path, (*key, arm)
        try:
            yield
        finally:
            self._path = before

    def _choice(self, key: Key) -> Choice:
        # A node within a block of a select would keep old contents in memory that the node may not have written.
        if not self._backend.conditional_bodies or self._mode.mask() is not None:
            return "select"
        return self._choices.get(key, "node")

    @contextmanager
    def _body(self, key: Key, pred: torch.Tensor, *, certain: bool = False) -> Iterator[None]:
        work = Work(marked=not certain)
        works = self.works.setdefault(key, [])
        with ExitStack() as stack:
            if self._choice(key) == "node":
                stack.enter_context(self._backend.if_body(pred))
                if not certain:
                    self._mark(None, None)
            else:
                if not certain:
                    self._mark(self._mode.mask(), pred)
                stack.enter_context(self._mode.block(pred))
            stack.enter_context(self._mode.observed(work))
            stack.enter_context(self._within(key, len(works)))
            self._at_work.append(work)
            stack.callback(self._at_work.remove, work)
            yield
        works.append(work.body)

    def _mark_iteration(self) -> None:
        with torch.no_grad(), self._mode.aside(), self._outside():
            self.arms.iteration()

    def _mark(self, mask: torch.Tensor | None, pred: torch.Tensor | None) -> None:
        """Note at replay that this place was reached where `mask` and `pred` are true (None: always)."""
        with torch.no_grad(), self._mode.aside(), self._outside():
            place = self.arms.new()
            conditions = [one for one in (mask, pred) if one is not None]
            if not conditions:
                place.fill_(True)
            elif len(conditions) == 1:
                place.logical_or_(conditions[0])
            else:
                place.logical_or_(torch.logical_and(*conditions))


def _once(cond_fn: Test, body_fn: Body, carried: State) -> tuple[State, object]:
    """One iteration: the state after it, and whether there is a next one."""
    after = body_fn(*carried)
    again = cond_fn(*after)
    return after, Flag(as_predicate(again)) if isinstance(again, torch.Tensor) else again
