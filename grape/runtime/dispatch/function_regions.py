"""The functions of the person's that were taken over, and their regions."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...model import Position, Reason
from ...model.call import Args, Kwargs
from ...tracing import busy, grape_works
from ..regions.context import RegionContext
from ..regions.region import Region
from .active_region import ActiveRegion
from .candidates import candidates, last_line
from .frames import stays_as_written
from .interrupts import held
from .trampoline import Trampoline, written_code


@dataclass(frozen=True, slots=True)
class FunctionRegions:
    """Of one interceptor. `serves`: a call on this thread may be looked at or replayed. `stands_aside`: the one that
    comes now runs as written.
    """

    context: RegionContext
    active: ActiveRegion
    name_of: Callable[[str], str]
    serves: Callable[[], bool]
    stands_aside: Callable[[], bool]
    _functions: dict[types.CodeType, tuple[Region, Trampoline]] = field(default_factory=dict)
    _trampolines: weakref.WeakKeyDictionary[types.FunctionType, Trampoline] = field(
        default_factory=weakref.WeakKeyDictionary
    )

    @property
    def regions(self) -> list[Region]:
        return [region for region, _ in self._functions.values()]

    @property
    def codes(self) -> frozenset[types.CodeType]:
        """The code of the functions that are candidates now."""
        return frozenset(trampoline.code for trampoline in self._trampolines.values())

    def adopt(self, namespace: Mapping[str, object]) -> None:
        """Take over the functions in `namespace` that the person wrote, and methods of their classes."""
        for function in candidates(namespace):
            if function not in self._trampolines:
                self._take_over(function)

    def settle(self) -> None:
        """The cell is over: keep only what replays graphs."""
        for trampoline in list(self._trampolines.values()):
            known = self._functions.get(trampoline.code)
            if known is None or not known[0].entries:
                self._give_back(trampoline)

    def give_back_all(self) -> None:
        """Take every patch back. Regions stay."""
        for trampoline in list(self._trampolines.values()):
            self._give_back(trampoline)

    def release_abandoned(self, namespace: Mapping[str, object]) -> None:
        """Release the graphs of functions that the person has let go of, unless the last cell still used them."""
        defined = {written_code(function) for function in candidates(namespace)}
        for code, (region, trampoline) in list(self._functions.items()):
            if trampoline.target() is not None:
                continue
            for other in [other for other in self._trampolines.values() if other.code == code]:
                self._give_back(other)  # a twin that lives on, to be found again where it has a name
            if region.is_idle and code not in defined:
                region.release()
                del self._functions[code]

    def forget(self) -> None:
        """Forget every region; nothing is taken over any more."""
        self._functions.clear()

    def _take_over(self, function: types.FunctionType) -> None:
        known = self._functions.get(function.__code__)
        if known is not None and _has_own_code(known[0]):
            return
        if not self.context.observing and (known is None or not known[0].entries):
            return
        if stays_as_written(function):
            return

        def receive(args: Args, kwargs: Kwargs) -> object:
            since = self.context.attention.now() if self.context.observing else None
            trampoline.follow()
            if busy.now or not self.serves():
                return trampoline.original(*args, **kwargs)
            args, kwargs = trampoline.given(args, kwargs)
            if (not self.active.free and not self.active.repeats(trampoline, None)) or self.stands_aside():
                return trampoline.original(*args, **kwargs)
            result = self._call(trampoline, args, kwargs, since)
            if held.since is not None:
                held.come()
            return result

        trampoline = Trampoline(function, receive)
        code = trampoline.code
        if known is not None and _same_binding(known[1], trampoline):
            region = known[0]
            region.function = trampoline.original
        else:
            if known is not None:  # the same code with another closure or other defaults
                known[0].release()
            region = self._region(trampoline)
        self._functions[code] = (region, trampoline)
        self._trampolines[function] = trampoline
        trampoline.place()  # last: what Grape calls may be this very function

    def _region(self, trampoline: Trampoline) -> Region:
        code, original = trampoline.code, trampoline.original
        at = Position(
            file=self.name_of(code.co_filename), line=code.co_firstlineno, function=code.co_qualname, instruction=-1
        )
        return Region(self.context, original, original, code.co_qualname, at, last_line(code))

    def _give_back(self, trampoline: Trampoline) -> None:
        with grape_works():
            trampoline.undo()
            function = trampoline.target()
            if function is not None:
                self._trampolines.pop(function, None)

    def _call(self, trampoline: Trampoline, args: Args, kwargs: Kwargs, since: int | None) -> object:
        known = self._functions.get(trampoline.code)
        if known is None or known[1] is not trampoline:
            return trampoline.original(*args, **kwargs)
        region = known[0]
        try:
            return self.active.enter(region, args, kwargs, since)
        finally:
            if _has_own_code(region):
                self._give_back(trampoline)


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
