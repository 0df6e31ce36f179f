"""Finds candidate regions while a cell runs, and stands between the caller and the callable.

Candidates are root `nn.Module` calls (also those that a library makes, as `generate` does) and functions that the
person wrote. Which of those that are called becomes a region, `active_region` decides.
"""

from __future__ import annotations

import os
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from functools import partial, update_wrapper
from threading import get_ident
from typing import Any, TypeVar

import torch

from ...streams import shared as streams
from ...tracing import (
    around_compilation,
    before_compiled,
    busy,
    grape_works,
    is_watched,
    process_group,
    when_imported,
)
from ..buffers.handed_out import watch_results
from ..guarding.environment import foreign_function_mode
from ..guarding.levels import count_from_outside
from ..predication.early_stop import set_stepper
from ..regions.context import RegionContext
from ..regions.region import Region
from ..state import MODULE
from .abandoned import release_abandoned
from .active_region import ActiveRegion, inside_module
from .afterwards import CallsAfterwards
from .candidates import call_by, call_in_their_own_way, compiles, tell_plain_call
from .frames import brings_watchers, mentioned_in, modules_look_at_frames
from .function_regions import FunctionRegions
from .interrupts import held, hold_off, let_through
from .loop_steps import LoopSteps
from .module_map import number_of
from .module_regions import ModuleRegions
from .replaced import torch_is_replaced
from .trampoline import prune_traceback

T = TypeVar("T")


class Interceptor:
    """Owns the patch of `nn.Module.__call__` and the trampolines; `remove` takes all of them back."""

    def __init__(self, context: RegionContext, name_of: Callable[[str], str]) -> None:
        self.context = context
        self.active = ActiveRegion(context, lambda: self.regions)
        self.active.free = True
        self._thread: int | None = get_ident()
        self._modules = ModuleRegions(context, self.active)
        self._functions = FunctionRegions(
            context, self.active, name_of, serves=lambda: self.serves, stands_aside=self._stands_aside
        )
        self._installed = False
        self._original: Callable[..., object] | None = None
        self._patch: object = None
        self._unwatch: Callable[[], None] = lambda: None
        self._uncompiled: Callable[[], None] = lambda: None
        self._undone: tuple[Callable[[], None], ...] = ()
        self._uncounted: Callable[[], None] = lambda: None
        self._compiler_came = False
        """In this cell it takes functions into graphs of its own."""
        self._steps = LoopSteps(context, self._may_step, self.active.enter, name_of)
        self.withdrawn = False
        """True where the rest of this cell runs as if Grape were not there: somebody looks at its frames."""
        self.on_withdrawal: Callable[[], None] = lambda: None
        self.afterwards: CallsAfterwards | None = None
        """Looks at one module in the rest of a cell that nobody looks at; a library may have bound `__call__` before.
        """
        self.outlined: list[Region] = []
        """Statements of loops of a cell; who makes these regions calls them through `enter`."""
        _all.add(self)

    @property
    def regions(self) -> list[Region]:
        """All regions found so far, modules first."""
        return [*self._modules.regions, *self._functions.regions, *self.outlined, *self._steps.regions]

    @property
    def is_here(self) -> bool:
        """True where this is the thread that meets Grape."""
        return get_ident() == self._thread

    @property
    def serves(self) -> bool:
        """True if a call that comes now on this thread may be looked at, or replayed. Beside a process group none may;
        `context.beside_group` notes that there was one. Nor may one inside an operator stream: a graph would read
        what is pending.
        """
        if get_ident() != self._thread or streams.inside:
            return False
        if process_group():
            self.context.beside_group = True
            return False
        return True

    @property
    def codes(self) -> frozenset[types.CodeType]:
        """The code of the functions that are candidates now."""
        return self._functions.codes

    def install(self) -> None:
        """Stand between from now on, in the calling thread."""
        self._thread = get_ident()
        self.active.free = True
        busy.now = self.withdrawn = self._compiler_came = False
        busy.thread = self._thread
        self._modules.late.clear()
        self.outlined = [
            region for region in self.outlined if region.refused is None or region.over_budget_at is not None
        ]
        hold_off(self)
        if not self._installed:
            self._installed = True
            set_stepper(self._steps)
            self._unwatch = watch_results(self.context.store)
            self._uncompiled = before_compiled(self._leave_to_compiler)
        self._uncounted()
        self._uncounted = count_from_outside()
        if self._original is None and (self.context.observing or self._modules.serve):
            self._patch_modules()

    def _patch_modules(self) -> None:
        original, active, modules = torch.nn.Module.__call__, self.active, self._modules
        self._original = original
        context, bystanders, predictor = self.context, self._modules.bystanders.by_number, self.context.predictor
        is_traced = torch.compiler.is_dynamo_compiling  # a constant for those who trace, who can read no more

        def __call__(module: torch.nn.Module, *args: object, **kwargs: object) -> object:
            if is_traced():
                return original(module, *args, **kwargs)
            afterwards = self.afterwards
            if afterwards is not None and afterwards.takes(module):
                try:
                    return afterwards.call(original, module, args, kwargs)
                except BaseException as error:
                    prune_traceback(error)
                    raise
            if not context.observing and number_of(module) in bystanders:
                return original(module, *args, **kwargs)
            if (
                torch.compiler.is_compiling()
                or busy.now
                or get_ident() != self._thread
                or self._original is not original
            ):
                return original(module, *args, **kwargs)
            if predictor.paused and active.counts is None:  # it is paused where the active region is not free
                return original(module, *args, **kwargs)
            since = context.attention.now() if context.observing else None
            busy.now = True  # to look at frames is an audit event
            passes = (
                not self.serves
                or (predictor.paused and not active.repeats(module, code))
                or self._stands_aside()
                or inside_module(code)
            )
            busy.now = False
            if passes:
                return original(module, *args, **kwargs)
            try:
                result = modules.call(original, module, args, kwargs, since)
                if held.since is not None:
                    held.come(sys._getframe(1))
                return result
            except BaseException as error:
                prune_traceback(error)
                raise

        update_wrapper(__call__, original)
        self._patch, code = __call__, __call__.__code__  # not asked for at each call: that is an audit event
        torch.nn.Module.__call__ = __call__  # type: ignore[method-assign]
        begins, ends = partial(call_by, __call__, original), partial(call_by, original, __call__)
        self._undone = (
            around_compilation(partial(begins, self._is_patched), partial(ends, self._is_patched)),
            when_imported("torch._dynamo.utils", partial(tell_plain_call, __call__, original)),
        )

    def adopt(self, namespace: Mapping[str, object]) -> None:
        """Make candidates of the functions in `namespace` that the person wrote, and of methods of their classes.

        Where something in it is compiled, functions are left alone: the compiler may inline any of them, and cannot
        read the code of a trampoline. Modules stay candidates.
        """
        self._modules.namespace = namespace
        self.context.predictor.allowed = not (self._compiler_came or compiles(namespace))
        if not self.context.predictor.allowed:
            self._leave_as_they_are()
            return
        self._functions.adopt(namespace)

    def _is_patched(self) -> bool:
        return self._original is not None

    def _leave_to_compiler(self) -> None:
        """The compiler is about to look at frames, also where torch calls it by itself (`torch.cond`).

        Its guards see the patch behind modules with a `__call__` of their own, which calls torch's.
        """
        if self._installed and not self._compiler_came:
            self._compiler_came = True
            self.context.predictor.allowed = False
            self._leave_as_they_are()
            if call_in_their_own_way():
                self._unpatch_modules()

    def _leave_as_they_are(self) -> None:
        """The compiler knows functions by identity, and cannot read the code of a trampoline."""
        self.context.predictor.forget()
        self._functions.give_back_all()
        self._uncounted()

    def withdraw_before(self, code: types.CodeType | None, namespace: Mapping[str, object]) -> None:
        """Let the rest of the cell run as if Grape were not there, where somebody looks at its frames already, `code`,
        the statement that comes now, may bring somebody in, or what Grape calls of torch is the person's.
        """
        if self.withdrawn:
            return
        brings = code is not None and brings_watchers(mentioned_in(code), namespace)
        if brings or torch_is_replaced() or MODULE.has_functions() or is_watched() or modules_look_at_frames(namespace):
            self._withdraw()

    def _withdraw(self) -> None:
        with grape_works():
            self.withdrawn = True
            if self.context.observing:
                self.context.stand_aside()
            self.remove()
            self.on_withdrawal()

    def _stands_aside(self) -> bool:
        """True where the call that comes now runs as written, because somebody would see Grape at work on it."""
        if is_watched() or torch_is_replaced():
            if self.context.observing and not self.withdrawn:
                self._withdraw()
            return True
        if self.context.tracer.is_called or busy.profiles:
            return True
        return torch._C._len_torch_function_stack() > 0 and foreign_function_mode()

    def settle(self) -> None:
        """The cell is over: keep only what replays graphs, give everything else back."""
        self._functions.settle()
        self._modules.find_bystanders(self.regions)
        if not any(region.entries for region in self.regions):
            self._unpatch()
        elif not self._modules.serve:
            self._unpatch_modules()

    def release_abandoned(self, namespace: Mapping[str, object]) -> None:
        """A cell has ended: release the graphs of what the person has let go of, unless this cell still used them."""
        self._modules.namespace = {}
        self._functions.release_abandoned(namespace)
        release_abandoned(self.regions)

    def remove(self) -> None:
        """Take back every patch. Regions keep what they know."""
        self._functions.give_back_all()
        self._unpatch()

    def forget(self) -> None:
        """Take back every patch and forget every region."""
        self.remove()
        self.context.predictor.forget()
        for region in list(self.context.regions):
            region.release()
        self._modules.forget()
        self._functions.forget()
        self.outlined.clear()
        self._steps.known.clear()

    def _unpatch(self) -> None:
        self._unpatch_modules()
        if self._installed:
            self._installed = False
            set_stepper(None)
            self._unwatch()
            self._uncompiled()
            let_through(self)
        if not self.context.tracer.on_stack:  # in a block that it cannot leave its frames stand between still
            self._uncounted()

    def _unpatch_modules(self) -> None:
        if self._original is not None:
            if torch.nn.Module.__call__ is self._patch:
                torch.nn.Module.__call__ = self._original  # type: ignore[method-assign]
            self._original = self._patch = None  # under a function of the person's it stays, and passes calls on
            for undo in self._undone:
                undo()

    # -- candidates --------------------------------------------------------------------------------------------------

    def enter(self, region: Region, arguments: dict[str, object]) -> Any:
        """Call one of the `outlined` regions, which is a candidate as any other, with the values of names."""
        free = self.active.free
        if busy.now or not self.serves or not (free or self.active.repeats(region, None)) or self._stands_aside():
            return region.function(**arguments)
        return self.active.enter(region, (), arguments)

    def undisturbed(self, body: Callable[[], T]) -> T:
        """Run `body` while no region is released because its module died: it looks through what regions hold."""
        return self.active.undisturbed(body)

    def _may_step(self) -> bool:
        """True where the iteration of a loop that runs now may become a region: no callable around it is active."""
        return self.active.free and not busy.now and self.serves and not self._stands_aside()


_all: weakref.WeakSet[Interceptor] = weakref.WeakSet()


def observed_here() -> bool:
    """True where a cell is observed that runs on this thread: the call that comes now may be traced."""
    return bool(_all) and any(one.is_here and one.context.observing for one in list(_all))


def apart(function: Callable[..., T]) -> Callable[..., T]:
    """`function` as somebody calls it who looks at it himself: in cells that nobody observes, no interceptor stands
    between inside it, whose work would be taken for the person's."""

    def run(*args: object, **kwargs: object) -> T:
        body = partial(function, *args, **kwargs)
        for one in list(_all):
            if one.is_here and one.active.free and not one.context.observing:
                body = partial(one.active.closed, body)
        return body()

    return run


def _forked() -> None:
    """A data loader's worker: its thread has the number of the one it comes from, but no device to replay on."""
    for interceptor in _all:
        interceptor._thread = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
