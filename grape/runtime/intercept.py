"""Finds candidate regions while a cell runs, and stands between the caller and the callable.

Candidates are root `nn.Module` calls (also those that a library makes, as `generate` does) and functions that the
person wrote. Which of those that are called becomes a region, `floor` decides.
"""

from __future__ import annotations

import os
import sys
import types
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from threading import get_ident
from typing import Any, Generic, TypeVar

import torch

from ..model import Position, Reason
from ..streams import shared as streams
from ..tracing import busy, grape_works, is_profiled, is_watched, process_group
from .abandoned import release_abandoned
from .afterwards import CallsAfterwards
from .candidates import candidates, compiles, is_compiled, last_line
from .environment import foreign_function_mode
from .floor import Floor, inside_module
from .frames import brings_watchers, mentioned_in, modules_look_at_frames, stays_as_written
from .handed_out import watch_results
from .interrupts import held, hold_off, let_through
from .loop_steps import LoopSteps
from .predication.early_stop import set_stepper
from .region import Region
from .situation import Situation
from .state import MODULE
from .trampoline import Trampoline, prune_traceback, written_code

T = TypeVar("T")

__all__ = ["Interceptor", "apart", "candidates", "compiles", "last_line", "observed_here"]

SHORT_LIVED = 4
"""Where so many modules of one class, called from one line, have died before a graph served them, the code makes them
anew each time: the next ones are let be."""
MOST_LATE = 256
"""Of modules that died in the cell so many are told of."""


number_of = object.__hash__
"""Another for each object that lives. `id` is an audit event."""


class _OfModules(Generic[T]):
    """Values for modules that live, by identity: two may be equal, and not every one has a hash."""

    def __init__(self) -> None:
        self.by_number: dict[int, tuple[weakref.ref[torch.nn.Module], T]] = {}

    def get(self, module: torch.nn.Module) -> T | None:
        found = self.by_number.get(number_of(module))
        return found[1] if found is not None and found[0]() is module else None

    def __setitem__(self, module: torch.nn.Module, value: T) -> None:
        known, number = self.by_number, number_of(module)

        def gone(reference: weakref.ref[torch.nn.Module]) -> None:
            found = known.get(number)
            if found is not None and found[0] is reference:
                del known[number]

        known[number] = weakref.ref(module, gone), value

    def items(self) -> list[tuple[torch.nn.Module, T]]:
        return [(module, value) for one, value in list(self.by_number.values()) if (module := one()) is not None]

    def values(self) -> list[T]:
        return [value for _, value in list(self.by_number.values())]

    def clear(self) -> None:
        self.by_number.clear()


class Interceptor:
    """Owns the patch of `nn.Module.__call__` and the trampolines; `remove` takes all of them back."""

    def __init__(self, situation: Situation, name_of: Callable[[str], str]) -> None:
        self.situation = situation
        self.floor = Floor(situation, lambda: self.regions)
        self.floor.free = True
        self._name_of = name_of
        self._thread: int | None = get_ident()
        self._modules: _OfModules[Region] = _OfModules()
        self._functions: dict[types.CodeType, tuple[Region, Trampoline]] = {}
        self._trampolines: weakref.WeakKeyDictionary[types.FunctionType, Trampoline] = weakref.WeakKeyDictionary()
        self._installed = False
        self._original: Any = None
        self._patch: Any = None
        self._unwatch: Callable[[], None] = lambda: None
        self._namespace: Mapping[str, Any] = {}
        self._steps = LoopSteps(situation, self._may_step, self.floor.enter, name_of)
        self._finalizers: _OfModules[weakref.finalize[Any, Any]] = _OfModules()
        self._bystanders: _OfModules[bool] = _OfModules()
        self._died: Counter[tuple[str, Position]] = Counter()
        self._late: list[Region] = []
        self.withdrawn = False
        """True where the rest of this cell runs as if Grape were not there: somebody looks at its frames."""
        self.on_withdrawal: Callable[[], None] = lambda: None
        self.afterwards: CallsAfterwards | None = None
        """Looks at one module in the rest of a cell that nobody looks at; a library may have bound `__call__` before.
        """
        self.hoisted: list[Region] = []
        """Statements of loops of a cell; who makes these regions calls them through `enter`."""
        _all.add(self)

    @property
    def regions(self) -> list[Region]:
        """All regions found so far, modules first; those of deleted modules until the next cell."""
        functions = (region for region, _ in self._functions.values())
        return [*self._modules.values(), *self._late, *functions, *self.hoisted, *self._steps.regions]

    @property
    def is_here(self) -> bool:
        """True where this is the thread that meets Grape."""
        return get_ident() == self._thread

    @property
    def serves(self) -> bool:
        """True if a call that comes now on this thread may be looked at, or replayed. Beside a process group none may;
        `situation.beside_group` notes that there was one. Nor may one inside an operator stream: a graph would read
        what is pending.
        """
        if get_ident() != self._thread or streams.inside:
            return False
        if process_group():
            self.situation.beside_group = True
            return False
        return True

    @property
    def codes(self) -> frozenset[types.CodeType]:
        """The code of the functions that are candidates now."""
        return frozenset(trampoline.code for trampoline in self._trampolines.values())

    def install(self) -> None:
        """Stand between from now on, in the calling thread."""
        self._thread = get_ident()
        self.floor.free = True
        busy.now = self.withdrawn = False
        busy.thread = self._thread
        self._late.clear()
        self.hoisted = [region for region in self.hoisted if region.refused is None or region.starved_at is not None]
        hold_off(self)
        if not self._installed:
            self._installed = True
            set_stepper(self._steps)
            self._unwatch = watch_results(self.situation.store)
        if self._original is None and (self.situation.observing or self._serves_modules):
            self._patch_modules()

    def _patch_modules(self) -> None:
        original, floor = torch.nn.Module.__call__, self.floor
        self._original = original
        situation, bystanders = self.situation, self._bystanders.by_number
        is_traced = torch.compiler.is_dynamo_compiling  # a constant for those who trace, who can read no more

        def __call__(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if is_traced():
                return original(module, *args, **kwargs)
            afterwards = self.afterwards
            if afterwards is not None and afterwards.takes(module):
                try:
                    return afterwards.call(original, module, args, kwargs)
                except BaseException as error:
                    prune_traceback(error)
                    raise
            if not situation.observing and number_of(module) in bystanders:
                return original(module, *args, **kwargs)
            if (
                torch.compiler.is_compiling()
                or busy.now
                or get_ident() != self._thread
                or self._original is not original
            ):
                return original(module, *args, **kwargs)
            if not floor.free and floor.counts is None:
                return original(module, *args, **kwargs)
            since = situation.attention.now() if situation.observing else None
            busy.now = True  # to look at frames is an audit event
            passes = (
                not self.serves
                or (not floor.free and not floor.repeats(module, code))
                or self._stands_aside()
                or inside_module(code)
            )
            busy.now = False
            if passes:
                return original(module, *args, **kwargs)
            try:
                result = self._module(module, args, kwargs, since)
                if held.since is not None:
                    held.come(sys._getframe(1))
                return result
            except BaseException as error:
                prune_traceback(error)
                raise

        __call__.__wrapped__ = original  # type: ignore[attr-defined]
        self._patch, code = __call__, __call__.__code__  # not asked for at each call: that is an audit event
        torch.nn.Module.__call__ = __call__  # type: ignore[method-assign]

    def adopt(self, namespace: Mapping[str, Any]) -> None:
        """Make candidates of the functions in `namespace` that the person wrote, and of methods of their classes.

        Where something in it is compiled, functions are left alone: the compiler may inline any of them, and cannot
        read the code of a trampoline. Modules stay candidates.
        """
        self._namespace = namespace
        self.situation.predictor.allowed = not compiles(namespace)
        if not self.situation.predictor.allowed:
            self.situation.predictor.forget()
            for trampoline in list(self._trampolines.values()):
                self._give_back(trampoline)
            return
        for function in candidates(namespace):
            if function not in self._trampolines:
                self._take_over(function)

    def withdraw_before(self, code: types.CodeType | None, namespace: Mapping[str, Any]) -> None:
        """Let the rest of the cell run as if Grape were not there, where somebody looks at its frames already, or
        `code`, the statement that comes now, may bring somebody in, or where `nn.Module` does not do what torch's does.
        """
        if self.withdrawn:
            return
        brings = code is not None and brings_watchers(mentioned_in(code), namespace)
        replaced = MODULE.own_functions()  # Grape calls modules, and looks at their attributes, itself
        if brings or replaced or is_watched() or modules_look_at_frames(namespace):
            self._withdraw()

    def _withdraw(self) -> None:
        with grape_works():
            self.withdrawn = True
            if self.situation.observing:
                self.situation.stand_aside()
            self.remove()
            self.on_withdrawal()

    def _stands_aside(self) -> bool:
        """True where the call that comes now runs as written, because somebody would see Grape at work on it."""
        if is_watched():
            if self.situation.observing and not self.withdrawn:
                self._withdraw()
            return True
        if self.situation.tracer.is_called or is_profiled():
            return True
        return torch._C._len_torch_function_stack() > 0 and foreign_function_mode()

    def settle(self) -> None:
        """The cell is over: keep only what replays graphs, give everything else back."""
        for trampoline in list(self._trampolines.values()):
            region = self._functions[trampoline.code][0]
            if not region.entries:
                self._give_back(trampoline)
        self._find_bystanders()
        if not any(region.entries for region in self.regions):
            self._unpatch()
        elif not self._serves_modules:
            self._unpatch_modules()

    @property
    def stands(self) -> bool:
        """True where anything of the person's or of torch's is replaced just now."""
        return self._installed or bool(self._trampolines)

    @property
    def _serves_modules(self) -> bool:
        """True where there is a module in which something replays."""
        return any(self._bystanders.get(module) is None for module, _ in self._modules.items())

    def _find_bystanders(self) -> None:
        """Modules in which nothing replays: cells that nobody observes call them as if Grape were not there."""
        callers = {region.name: region.parent for region in self.regions}
        around = {region.parent for region in self.regions if region.entries}
        for _ in callers:
            around |= {callers.get(name) for name in around if name is not None}
        self._bystanders.clear()
        for module, region in self._modules.items():
            if region.name not in around and not self._replays_in(module):
                self._bystanders[module] = True

    def _replays_in(self, module: torch.nn.Module) -> bool:
        known = [self._modules.get(one) for one in _parts(module)]
        return any(region is not None and region.entries for region in known)

    def release_abandoned(self, namespace: Mapping[str, Any]) -> None:
        """A cell has ended: release the graphs of what the person has let go of, unless this cell still used them."""
        self._namespace = {}
        defined = {written_code(function) for function in candidates(namespace)}
        for code, (region, trampoline) in list(self._functions.items()):
            if trampoline.target() is not None:
                continue
            for other in [other for other in self._trampolines.values() if other.code == code]:
                self._give_back(other)  # a twin that lives on, to be found again where it has a name
            if region.is_idle and code not in defined:
                region.release()
                del self._functions[code]
        release_abandoned(self.regions)

    def remove(self) -> None:
        """Take back every patch. Regions keep what they know."""
        for trampoline in list(self._trampolines.values()):
            self._give_back(trampoline)
        self._unpatch()

    def forget(self) -> None:
        """Take back every patch and forget every region."""
        self.remove()
        self.situation.predictor.forget()
        for finalizer in self._finalizers.values():
            finalizer.detach()
        self._finalizers.clear()
        for region in list(self.situation.regions):
            region.release()
        self._modules.clear()
        self._died.clear()
        self._bystanders.clear()
        self._late.clear()
        self._functions.clear()
        self.hoisted.clear()
        self._steps.clear()

    def _unpatch(self) -> None:
        self._unpatch_modules()
        if self._installed:
            self._installed = False
            set_stepper(None)
            self._unwatch()
            let_through(self)

    def _unpatch_modules(self) -> None:
        if self._original is not None:
            if torch.nn.Module.__call__ is self._patch:
                torch.nn.Module.__call__ = self._original  # type: ignore[method-assign]
            self._original = self._patch = None  # under a function of the person's it stays, and passes calls on

    # -- candidates --------------------------------------------------------------------------------------------------

    def _take_over(self, function: types.FunctionType) -> None:
        known = self._functions.get(function.__code__)
        if known is not None and _has_own_code(known[0]):
            return
        if not self.situation.observing and (known is None or not known[0].entries):
            return
        if stays_as_written(function):
            return

        def receive(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            since = self.situation.attention.now() if self.situation.observing else None
            trampoline.follow()
            if busy.now or not self.serves:
                return trampoline.original(*args, **kwargs)
            args, kwargs = trampoline.given(args, kwargs)
            if (not self.floor.free and not self.floor.repeats(trampoline, None)) or self._stands_aside():
                return trampoline.original(*args, **kwargs)
            result = self._function(trampoline, args, kwargs, since)
            if held.since is not None:
                held.come()
            return result

        trampoline = Trampoline(function, receive)
        self._trampolines[function] = trampoline
        code = trampoline.code
        if known is not None and _same_binding(known[1], trampoline):
            known[0].function = trampoline.original
            self._functions[code] = (known[0], trampoline)
            return
        if known is not None:  # the same code with another closure or other defaults
            known[0].release()
        at = Position(
            file=self._name_of(code.co_filename), line=code.co_firstlineno, function=code.co_qualname, instruction=-1
        )
        region = Region(self.situation, trampoline.original, trampoline.original, code.co_qualname, at, last_line(code))
        self._functions[code] = (region, trampoline)

    def enter(self, region: Region, arguments: dict[str, Any]) -> Any:
        """Call one of the `hoisted` regions, which is a candidate as any other, with the values of names."""
        if busy.now or not self.serves or (not self.floor.free and not self.floor.repeats(region, None)):
            return region.function(**arguments)
        if self._stands_aside():
            return region.function(**arguments)
        return self.floor.enter(region, (), arguments)

    def _give_back(self, trampoline: Trampoline) -> None:
        with grape_works():
            trampoline.undo()
            function = trampoline.target()
            if function is not None:
                self._trampolines.pop(function, None)

    def _function(
        self, trampoline: Trampoline, args: tuple[Any, ...], kwargs: dict[str, Any], since: int | None
    ) -> Any:
        region, current = self._functions[trampoline.code]
        if current is not trampoline:
            return trampoline.original(*args, **kwargs)
        try:
            return self.floor.enter(region, args, kwargs, since)
        finally:
            if _has_own_code(region):
                self._give_back(trampoline)

    def _module(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], since: int | None) -> Any:
        region = self._modules.get(module)
        if region is None:
            if isinstance(module, torch.jit.ScriptModule) or is_compiled(module):
                return self.floor.closed(lambda: self._original(module, *args, **kwargs))
            if not self.situation.observing:
                if self._replays_in(module):
                    return self.floor.closed(lambda: self._original(module, *args, **kwargs))
                self._bystanders[module] = True
                return self._original(module, *args, **kwargs)
            at = self._caller(Position(file="?", line=0, function="?"))
            kind = (type(module).__qualname__, at)
            if self._died[kind] >= SHORT_LIVED:
                return self.floor.closed(lambda: self._original(module, *args, **kwargs))
            region = self._region_of(module, at)
            self._modules[module] = region
            finalizer = weakref.finalize(module, self._bury, region, kind)
            finalizer.atexit = False
            self._finalizers[module] = finalizer
        elif self.situation.observing and region.called_in != self.situation.run:
            region.called_from(self._caller(region.at))
        return self.floor.enter(region, args, kwargs, since)

    def _bury(self, region: Region, kind: tuple[str, Position]) -> None:
        if not region.replays:
            self._died[kind] += 1
        if self.situation.observing and len(self._late) < MOST_LATE:
            self._late.append(region)  # the report tells of it
        self.floor.release_later(region)

    def undisturbed(self, body: Callable[[], T]) -> T:
        """Run `body` while no region is released because its module died: it looks through what regions hold."""
        return self.floor.undisturbed(body)

    def _may_step(self) -> bool:
        """True where the iteration of a loop that runs now may become a region: no callable around it has the floor."""
        return self.floor.free and not busy.now and self.serves and not self._stands_aside()

    def _caller(self, otherwise: Position) -> Position:
        """The line that calls the module."""
        user, inner = self.situation.tracer.positions.find()
        frame = user or inner
        return self.situation.tracer.positions.at(frame) if frame is not None else otherwise

    def _region_of(self, module: torch.nn.Module, at: Position) -> Region:
        original = self._original
        reference = weakref.ref(module)

        def run(*args: Any, **kwargs: Any) -> Any:
            return original(reference(), *args, **kwargs)

        variables = [name for name, value in self._namespace.items() if value is module and not name.startswith("_")]
        name = type(module).__name__ + (f" ({variables[0]})" if variables else "")
        return Region(self.situation, run, module, name, at)


_all: weakref.WeakSet[Interceptor] = weakref.WeakSet()


def observed_here() -> bool:
    """True where a cell is observed that runs on this thread: the call that comes now may be traced."""
    return bool(_all) and any(one.is_here and one.situation.observing for one in list(_all))


def apart(function: Callable[..., T]) -> Callable[..., T]:
    """`function` as somebody calls it who looks at it himself: in cells that nobody observes, no interceptor stands
    between inside it, whose work would be taken for the person's."""

    def run(*args: Any, **kwargs: Any) -> T:
        body = partial(function, *args, **kwargs)
        for one in list(_all):
            if one.is_here and one.floor.free and not one.situation.observing:
                body = partial(one.floor.closed, body)
        return body()

    return run


def _forked() -> None:
    """A data loader's worker: its thread has the number of the one it comes from, but no device to replay on."""
    for interceptor in _all:
        interceptor._thread = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _parts(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The module and all inside it, by identity. Asks nothing of the person's classes, which may answer anything."""
    found, left = {id(module): module}, [module]
    while left:
        parts = vars(left.pop()).get("_modules") or {}
        for part in parts.values() if isinstance(parts, dict) else ():
            if isinstance(part, torch.nn.Module) and id(part) not in found:
                found[id(part)] = part
                left.append(part)
    return list(found.values())


def _has_own_code(region: Region) -> bool:
    """True if a refused function is left alone at once: one that does no work, or that warns, maybe of its caller."""
    refused = region.refused
    return refused is not None and (refused.reason is Reason.NO_WORK or region.observer.warns)


def _same_binding(one: Trampoline, other: Trampoline) -> bool:
    """True where a function taken over again, or defined again, is the one that was known: same code, and the very
    globals, closure and defaults.
    """
    a, b = one.original, other.original
    return (
        a.__globals__ is b.__globals__
        and a.__closure__ is b.__closure__
        and a.__defaults__ is b.__defaults__
        and a.__kwdefaults__ is b.__kwdefaults__
    )
