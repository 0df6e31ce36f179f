"""Looks a little at the calls of one module in the rest of a cell that nobody looks at any more.

A first run may be looked at for a part of its time only. Where what was seen until then shows an operator whose first
visit of a shape is slow, two questions are left: does the next shape cost as much, and how many come? One more call
with new shapes is traced, which costs less than such a visit, and the others are timed: two readings of a clock for
each call of that module, and a comparison for any other.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import update_wrapper
from threading import get_ident

import torch

from ...model.call import Args, Kwargs
from ...originals import perf_counter_ns
from ...tracing import busy, grape_works, is_watched, record, tensors_in
from ..regions.region import Region
from .trampoline import prune_traceback

_MOST = 4096
"""Calls that are timed."""


class CallsAfterwards:
    """Of a region over a module, on the thread that makes it. `start` puts a patch on `nn.Module.__call__`, `stop`
    takes it back; who holds a method that was bound before goes through `takes` and `call` as well. What is seen goes
    to the region's observer.
    """

    def __init__(self, region: Region) -> None:
        self._region = region
        self._module = region.root
        self._seen: set[tuple[tuple[int, ...], ...]] = set()
        self._thread, self._process = get_ident(), os.getpid()
        self._inside = False
        self._original: Callable[..., object] | None = None
        self._patch: object = None

    def start(self) -> None:
        """Look at calls from here on, unless somebody follows the code from call to call."""
        if self._original is not None or self._module is None or is_watched():
            return
        original = torch.nn.Module.__call__
        is_traced = torch.compiler.is_dynamo_compiling  # a constant for those who trace, who can read no more

        def __call__(module: torch.nn.Module, *args: object, **kwargs: object) -> object:
            if is_traced() or not self.takes(module):
                return original(module, *args, **kwargs)
            try:
                return self.call(original, module, args, kwargs)
            except BaseException as error:
                prune_traceback(error)
                raise

        update_wrapper(__call__, original)
        self._original, self._patch = original, __call__
        torch.nn.Module.__call__ = __call__  # type: ignore[method-assign]

    def stop(self) -> None:
        """Where somebody has put something of theirs over it, that stays, and what is below does nothing any more."""
        original, self._original = self._original, None
        if original is not None and torch.nn.Module.__call__ is self._patch:
            torch.nn.Module.__call__ = original  # type: ignore[method-assign]
        self._patch = self._module = None

    def takes(self, module: torch.nn.Module) -> bool:
        """True where a call of the module that comes now is looked at."""
        if module is not self._module or self._inside or get_ident() != self._thread:
            return False
        return self._original is not None and not torch.compiler.is_compiling() and os.getpid() == self._process

    def call(self, original: Callable[..., object], module: torch.nn.Module, args: Args, kwargs: Kwargs) -> object:
        """Run `original`, and look at the call where it brings new shapes. What it raises has Grape's frames in it."""
        self._inside = True
        try:
            return self._look(original, module, args, kwargs)
        finally:
            self._inside = False

    def _look(self, original: Callable[..., object], module: torch.nn.Module, args: Args, kwargs: Kwargs) -> object:
        observer = self._region.observer
        with grape_works():
            shapes = tuple(tuple(tensor.shape) for tensor in tensors_in((args, tuple(kwargs.values()))))
            known = shapes in self._seen or len(self._seen) >= _MOST
            traces = not known and not observer.traced_afterwards and self._may_trace()
        if known:
            return original(module, *args, **kwargs)
        self._seen.add(shapes)
        began = perf_counter_ns()
        if traces:
            context = self._region.context
            result, call, _ = record(
                context.tracer, context.backend.device, (), lambda: original(module, *args, **kwargs)
            )
            observer.traced_afterwards.append(call.trace)
        else:
            result = original(module, *args, **kwargs)
        observer.afterwards_ms.append((perf_counter_ns() - began) / 1e6)
        return result

    def _may_trace(self) -> bool:
        """True where no mode of the person's, and no profiler, would see the tracer."""
        modes = torch._C._len_torch_dispatch_stack() - self._region.context.tracer.on_stack
        return not modes and not torch._C._len_torch_function_stack() and not busy.profiles and not is_watched()
