"""The lowering of a capture: conditional nodes where the backend has them, selects where they are cheaper.

A node's body runs at replay where its condition is true, so nothing has to be given back and nothing can fail for
values that do not occur. Results of two bodies are picked by a select after both: what a skipped body would have made
lies in memory that nobody else has, and is not picked. A WHILE body works on copies of the carried values at fixed
addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from ..backends.protocol import Backend, CaptureFailed
from .arms import Arms
from .costs import BodyWork, Choice
from .lowering import lowered, noted, refuse
from .merge import UNBOUND, Unbound, copy_bits, require_alike, same_plain
from .python_state import unchanged
from .safety import refuse_unsafe
from .select import SelectLowering
from .truth import Flag, as_predicate
from .writes import written_by

__all__ = ["Key", "NodeLowering", "Unsuited"]


Key = tuple[int, ...]
"""A decision: its number in the program, or in the body that holds it, after that body's own (key, arm)."""


class Unsuited(CaptureFailed):
    """The decision with this key cannot be a node, but perhaps a select."""

    def __init__(self, key: Key, why: str) -> None:
        super().__init__("GR102", why)
        self.key = key


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
        outside: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        super().__init__(backend.device)
        backend.prepare_bodies()
        self._backend = backend
        self._choices = choices
        self._outside = outside
        self._path: Key = ()
        self._met: dict[Key, int] = {}
        self._at_work: list[_Work] = []
        self.works: dict[Key, list[BodyWork]] = {}
        self.arms = Arms(backend.device)

    @contextmanager
    def active(self) -> Iterator[None]:
        with self._outside(), torch.no_grad():
            self.arms.clear()
        with super().active():
            yield

    def cond(self, pred: torch.Tensor, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
        key = self._key()
        with torch.no_grad():
            opposite = torch.logical_not(pred)
        checked = len(self.checks)
        with self._body(key, pred), unchanged(true_fn):
            if_true = true_fn()
        self._leave(pred, checked)
        checked = len(self.checks)
        with self._body(key, opposite), unchanged(false_fn):
            if_false = false_fn()
        self._leave(opposite, checked)
        return self._merge(pred, if_true, if_false)

    def while_loop(
        self,
        cond_fn: Callable[..., Any],
        body_fn: Callable[..., tuple[Any, ...]],
        carried: tuple[Any, ...],
        *,
        test: torch.Tensor | Flag,
        live: tuple[bool, ...],
    ) -> tuple[Any, ...]:
        return self._while(self._key(), cond_fn, body_fn, carried, test=test, live=live)

    def repeat(
        self,
        times: int,
        body_fn: Callable[..., tuple[Any, ...]],
        carried: tuple[Any, ...],
        *,
        stop: int,
        live: tuple[bool, ...],
    ) -> tuple[Any, ...]:
        """A WHILE node whose state has the number of iterations that are left, on the device."""
        key = self._key()
        if self._choice(key) == "select":
            with self._within(key, 0):
                return super().repeat(times, body_fn, carried, stop=stop, live=live)

        def test(left: torch.Tensor, *state: Any) -> Flag:
            going = left > 0
            stopped = state[stop]
            if isinstance(stopped, Flag):
                going = torch.logical_and(going, torch.logical_not(stopped.tensor))
            elif stopped:
                going = torch.zeros_like(going)
            return Flag(going)

        def body(left: torch.Tensor, *state: Any) -> tuple[Any, ...]:
            return left - 1, *body_fn(*state)

        with torch.no_grad():
            left = torch.full((), times, dtype=torch.int64, device=self.device)
        state = (left, *carried)
        return self._while(key, test, body, state, test=test(*state), live=(False, *live))[1:]

    def _while(
        self,
        key: Key,
        cond_fn: Callable[..., Any],
        body_fn: Callable[..., tuple[Any, ...]],
        carried: tuple[Any, ...],
        *,
        test: torch.Tensor | Flag,
        live: tuple[bool, ...],
    ) -> tuple[Any, ...]:
        first = as_predicate(test)
        with torch.no_grad():
            self._mark(self._mode.mask(), torch.logical_not(first))
        if self._choice(key) == "select":
            self._mark(self._mode.mask(), first)
            with self._within(key, 0):
                return super().while_loop(cond_fn, body_fn, carried, test=test, live=live)
        for work in self._at_work:
            work.selectable = False
        checked = len(self.checks)
        state = _LoopState(self, key, carried)
        with torch.no_grad():
            on = first.clone()
        with self._backend.while_body(on), self._within(key, 0), self._mode.observed(state):
            self._mark_iteration()
            with unchanged(body_fn, state.values):
                after = body_fn(*state.values)
            state.advance(after)
            with unchanged(cond_fn, state.values):
                again = cond_fn(*state.values)
            if not isinstance(again, (torch.Tensor, Flag)):
                raise noted(Unsuited(key, "the host ends a loop that the device continues"))
            with torch.no_grad(), self._mode.aside():
                on.copy_(as_predicate(again))
        if len(self.checks) > checked:
            raise refuse("a loop that only the device ends holds an assertion")
        return state.finish()

    @contextmanager
    def predicated(self, pred: torch.Tensor) -> Iterator[None]:
        key = self._key()
        with torch.no_grad():
            self._mark(self._mode.mask(), torch.logical_not(pred))
        checked = len(self.checks)
        with self._body(key, pred):
            yield
        self._leave(pred, checked)

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
    def _body(self, key: Key, pred: torch.Tensor) -> Iterator[None]:
        work = _Work()
        works = self.works.setdefault(key, [])
        with ExitStack() as stack:
            if self._choice(key) == "node":
                stack.enter_context(self._backend.if_body(pred))
                self._mark(None, None)
            else:
                self._mark(self._mode.mask(), pred)
                stack.enter_context(self._mode.block(pred))
            stack.enter_context(self._mode.observed(work))
            stack.enter_context(self._within(key, len(works)))
            self._at_work.append(work)
            stack.callback(self._at_work.remove, work)
            yield
        works.append(work.total())

    def _leave(self, pred: torch.Tensor, checked: int) -> None:
        """Assertions of a body count only where it ran; a skipped node leaves anything in their tensors."""
        with torch.no_grad():
            self.checks[checked:] = [
                replace(check, failed=torch.logical_and(pred, check.failed)) for check in self.checks[checked:]
            ]

    def _mark_iteration(self) -> None:
        """Tell one iteration from several: only the second sees what the first handed on."""
        with torch.no_grad(), self._mode.aside(), self._outside():
            ran, ran_again = self.arms.new(), self.arms.new()
            ran_again.logical_or_(ran)
            ran.fill_(True)

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


@dataclass(slots=True, eq=False)
class _Work:
    """Counts what a body does; see `BodyWork`. Works of bodies inside count too."""

    kernels: int = 0
    nbytes: int = 0
    writes: int = 0
    written_nbytes: int = 0
    selectable: bool = True
    _own: dict[int, StorageWeakRef] = field(default_factory=dict)

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not isinstance(func, torch._ops.OpOverload) or func.is_view:
            return
        self.kernels += 1
        self.nbytes += sum(leaf.nbytes for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        for tensor in written_by(func, args, kwargs):
            if tensor.untyped_storage()._cdata not in self._own:
                self.writes += 1
                self.written_nbytes += tensor.nbytes
        if self.selectable:
            try:
                with lowered(None):  # a question, no refusal of the program
                    refuse_unsafe(func, args, kwargs)
            except CaptureFailed:
                self.selectable = False

    def made(self, func: Any, result: Any) -> None:
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and not getattr(func, "is_view", False):
                self.nbytes += leaf.nbytes
                storage = leaf.untyped_storage()
                if not func._schema.is_mutable:
                    self._own.setdefault(storage._cdata, StorageWeakRef(storage))

    def total(self) -> BodyWork:
        return BodyWork(
            kernels=self.kernels,
            nbytes=self.nbytes,
            writes=self.writes,
            written_nbytes=self.written_nbytes,
            selectable=self.selectable,
        )


class _LoopState:
    """The carried values of a WHILE body at fixed addresses, and what the body does to the originals.

    The body sees copies. A plain program sees the originals in its first iteration, which shows only where it writes
    a carried tensor in place. That is right again if it hands on the very tensor that it wrote: then the copy's
    contents are written back to the original after the loop. Everything else is refused.
    """

    def __init__(self, lowering: NodeLowering, key: Key, carried: tuple[Any, ...]) -> None:
        self._mode = lowering._mode
        self._key = key
        self._carried = carried
        self._touched: set[int] = set()
        self._overwritten: set[int] = set()
        self._own: dict[int, StorageWeakRef] = {}
        self._after: tuple[Any, ...] = ()
        with torch.no_grad(), self._mode.aside():
            self.values = tuple([self._fixed(value, lowering.device) for value in carried])

    def _fixed(self, value: Any, device: torch.device) -> Any:
        if isinstance(value, bool):
            return Flag(torch.full((), value, dtype=torch.bool, device=device))
        if isinstance(value, Flag):
            return Flag(value.tensor.clone())
        if not isinstance(value, torch.Tensor):
            return value
        require_alike(value, value)
        if value.device.type != device.type:
            raise refuse(f"a loop on {device} carries a tensor on {value.device}")
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        if any(size > 1 and step == 0 for size, step in zip(value.shape, value.stride(), strict=True)):
            raise refuse("a loop carries a tensor that overlaps itself")
        copy_bits(made, value)
        return made

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        self._touched.update(_storage(tensor) for tensor in tensors)
        self._overwritten.update(_storage(tensor) for tensor in written_by(func, args, kwargs))

    def made(self, func: Any, result: Any) -> None:
        if func.is_view or func._schema.is_mutable:
            return
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                # The weak reference keeps the address of the storage object from being used again.
                self._own.setdefault(_storage(leaf), StorageWeakRef(leaf.untyped_storage()))

    def advance(self, after: tuple[Any, ...]) -> None:
        """Record that the next iteration sees `after`."""
        self._after = after
        with torch.no_grad(), self._mode.aside():
            copies = []
            mine = {_storage(tensor) for tensor in map(_tensor, self.values) if tensor is not None}
            for value, new in zip(self.values, after, strict=True):
                if value is new:
                    continue
                target, source = self._pair(value, new)
                if target is not None and source is not None:
                    # A body may hand on another carried value: all are read before any is written.
                    copies.append((target, source.clone() if _storage(source) in mine else source))
            for target, source in copies:
                copy_bits(target, source)

    def _pair(self, value: Any, new: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if isinstance(value, Flag):
            if isinstance(new, (bool, Flag)):
                made = new.tensor if isinstance(new, Flag) else torch.full_like(value.tensor, new)
                return value.tensor, made
            if isinstance(new, torch.Tensor) and new.numel() == 1:
                return value.tensor, as_predicate(new)
        elif isinstance(value, torch.Tensor) and isinstance(new, torch.Tensor):
            require_alike(value, new)
            return value, new
        elif isinstance(value, Unbound) or same_plain(value, new):
            # Bound in the loop only: unbound afterwards and at the start of each iteration, so that a use fails.
            return None, None
        raise noted(
            Unsuited(self._key, f"a Python value changes in a loop that the device ends ({value!r} -> {new!r})")
        )

    def finish(self) -> tuple[Any, ...]:
        """The values after the loop."""
        originals: dict[int, int] = {}
        for value in map(_tensor, self._carried):
            if value is not None:
                originals[_storage(value)] = originals.get(_storage(value), 0) + 1
        results: list[Any] = []
        for value, fixed, new in zip(self._carried, self.values, self._after, strict=True):
            if isinstance(value, torch.Tensor):
                results.append(self._result(value, fixed, new, originals[_storage(value)]))
            elif isinstance(fixed, Flag):
                results.append(value if fixed is new else fixed)
            else:
                results.append(value if value is new or same_plain(value, new) else UNBOUND)
        return tuple(results)

    def _result(self, value: torch.Tensor, fixed: torch.Tensor, new: Any, sharing: int) -> torch.Tensor:
        if _storage(value) in self._overwritten:
            raise refuse("a loop writes to a carried tensor by another name", "GR102")
        if _storage(fixed) not in self._overwritten:
            if fixed is new:
                return value
            shared = self._mode.ties.partners(new) | ({_storage(new)} - self._own.keys())
            if shared & self._overwritten:
                # The next iteration of a plain program would see later writes; a copy does not.
                raise refuse("a loop hands on memory that it writes", "GR102")
            self._mode.ties.tie(fixed, value)
            self._mode.ties.tie(fixed, new)
            return fixed
        if fixed is not new or sharing > 1 or _storage(value) in self._touched:
            raise refuse("a loop writes to a carried tensor in place, and hands on another one", "GR102")
        with torch.no_grad():
            copy_bits(value, fixed)
        return value


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensor(value: Any) -> torch.Tensor | None:
    return value.tensor if isinstance(value, Flag) else value if isinstance(value, torch.Tensor) else None
