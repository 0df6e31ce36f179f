"""`grape.graph`: a region without a notebook."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from threading import get_ident
from typing import Any, overload

import torch

from ..errors import UsageError
from ..model import Position, RegionEvidence
from ..options import budget_bytes
from ..streams import own_device
from ..streams import shared as streams
from ..tracing import PositionFinder, Tracer, process_group
from .accounts.memory import account
from .alias import Predictor
from .backends.cuda.backend import CudaBackend
from .backends.protocol import Backend
from .backends.reference.backend import ReferenceBackend
from .buffers.handed_out import watch_results
from .buffers.slots import SlotStore
from .dispatch.intercept import apart, observed_here
from .dispatch.interrupts import held, hold_off, let_through
from .dispatch.trampoline import prune_traceback
from .guarding.environment import is_transformed
from .regions.context import RegionContext
from .regions.region import Region


def make_backend(device: torch.device | None = None) -> Backend:
    """The backend for `device`: CUDA graphs on a CUDA device, the tape elsewhere. Default: the current device."""
    if device is None:
        device = torch.device("cuda", own_device()) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        return CudaBackend(device)
    if device.type == "cpu":
        return ReferenceBackend()
    raise UsageError(f"device '{device}' is not supported; use a CUDA device, or the CPU for the reference")


class GraphedFunction:
    """A callable that behaves as the function or module it wraps, and replays a graph where that is right.

    Calls are observed, captured and verified as under `%%grape`; `evidence()` tells what became of them. Calls from
    other threads than the first caller's run eagerly. The wrapped callable is available as `__wrapped__`.

    `results` is what graphs hold of that which it returns. A call that runs as written may return all of it.
    """

    def __init__(
        self,
        function: Callable[..., object],
        *,
        backend: Backend | None,
        tolerance: float,
        memory_budget: int | None = None,
        results: Callable[[object], object] | None = None,
        overlap: bool = True,
    ) -> None:
        if not callable(function):
            raise UsageError(f"grape.graph takes a function or a module, not {type(function).__name__}")
        functools.update_wrapper(self, function, updated=())
        if not hasattr(self, "__name__"):
            self.__name__ = type(function).__name__
        self.__wrapped__ = function
        self._tolerance = tolerance
        self._memory_budget = memory_budget
        self._overlap = overlap
        self._backend = backend
        self._results = results
        self._region: Region | None = None
        self._thread: int | None = None
        self._running = False
        self._unwatch: Callable[[], None] = lambda: None

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if self._thread is None:
            self._thread = get_ident()
        if self._running or get_ident() != self._thread or streams.serving or is_transformed() or process_group():
            return self.__wrapped__(*args, **kwargs)
        if self._region is None:
            self._region = self._make_region()
        context = self._region.context
        if context.backend.kind == "cuda" and torch.cuda.is_current_stream_capturing():
            return self.__wrapped__(*args, **kwargs)  # into somebody else's graph
        try:
            try:
                self._running = context.predictor.paused = True
                result = self._region.call(args, kwargs)
            finally:
                self._running = context.predictor.paused = False
            if held.since is not None:
                held.come(sys._getframe(1))
            return result
        except BaseException as error:
            prune_traceback(error)
            raise

    def __repr__(self) -> str:
        return f"<grape.graph of {self.__name__}: {self.state}>"

    @property
    def replays(self) -> int:
        """How many calls a graph served."""
        return self._region.replays if self._region is not None else 0

    @property
    def state(self) -> str:
        """What became of its calls so far, in words."""
        region = self._region
        if region is None:
            return "not called yet"
        calls = f"{region.calls:,} call" + ("" if region.calls == 1 else "s")
        if region.refused is not None:
            return f"{calls}, runs as written ({region.refused.code}: {region.refused.why})"
        graphs = len(region.entries)
        if not graphs:
            return f"{calls}, no graph yet"
        held = account(region.context, region)
        nbytes = held.device_bytes if held is not None else sum(entry.nbytes for entry in region.entries)
        return f"{calls}, {region.replays:,} replayed by {graphs:,} graph{'' if graphs == 1 else 's'}, {nbytes:,} bytes"

    def _make_region(self) -> Region:
        backend = self._backend or make_backend()
        tracer = Tracer(PositionFinder())
        store = SlotStore(backend)
        self._unwatch = watch_results(store)
        hold_off(self)
        context = RegionContext(
            backend=backend,
            store=store,
            predictor=Predictor(backend.device, tracer.positions),
            tracer=tracer,
            observing=True,
            aside=observed_here,
            profile=False,
            pairs=True,
            tolerance=self._tolerance,
            memory_budget=self._memory_budget,
            overlaps=self._overlap,
            comparing=self._results is not None,
            weighs=self._results is None,
            run=1,
        )
        function = self.__wrapped__
        code = getattr(function, "__code__", None)
        at = Position(
            file=code.co_filename if isinstance(code, types.CodeType) else "?",
            line=code.co_firstlineno if isinstance(code, types.CodeType) else 0,
            function=self.__name__,
        )
        called = function if self._results is None else _then(function, self._results)
        return Region(context, apart(called), function, self.__name__, at)

    def evidence(self) -> RegionEvidence | None:
        """The evidence of the calls so far; None before the first."""
        return self._region.evidence() if self._region is not None else None

    def release(self) -> None:
        """Give back every graph and all memory; later calls start to observe again."""
        if self._region is not None:
            context = self._region.context
            self._region.release()
            context.predictor.forget()
            self._unwatch()
            let_through(self)
            context.backend.close()
        self._region = None


def _then(function: Callable[..., object], after: Callable[[object], object]) -> Callable[..., object]:
    return lambda *args, **kwargs: after(function(*args, **kwargs))


@overload
def graph(
    function: Callable[..., object],
    *,
    device: torch.device | str | None = None,
    tolerance: float = 0.0,
    memory_budget: int | str | None = None,
    overlap: bool = True,
) -> GraphedFunction: ...


@overload
def graph(
    function: None = None,
    *,
    device: torch.device | str | None = None,
    tolerance: float = 0.0,
    memory_budget: int | str | None = None,
    overlap: bool = True,
) -> Callable[[Callable[..., object]], GraphedFunction]: ...


def graph(
    function: Callable[..., object] | None = None,
    *,
    device: torch.device | str | None = None,
    tolerance: float = 0.0,
    memory_budget: int | str | None = None,
    overlap: bool = True,
) -> GraphedFunction | Callable[[Callable[..., object]], GraphedFunction]:
    """Wrap a function or module so that repeated calls replay CUDA graphs; use it as a decorator or a call.

    `device` chooses the backend (default: the current CUDA device, else the CPU reference). `tolerance` is the largest
    absolute difference accepted from operators that PyTorch documents as non-deterministic. `memory_budget` is the most
    device memory that the graphs may hold, in bytes or as text (``"2GB"``): the least useful executables go first, and
    where not one fits the calls run eagerly. With `overlap`, operators that need nothing of each other run beside each
    other on the device where that was measured to be faster, in calls that record no gradients. Raises `UsageError` for
    something that is not callable, a device that is not supported, or a budget that is no size.
    """
    budget = budget_bytes(memory_budget)
    if function is None:
        return lambda wrapped: graph(wrapped, device=device, tolerance=tolerance, memory_budget=budget, overlap=overlap)
    backend = make_backend(torch.device(device)) if device is not None else None
    return GraphedFunction(function, backend=backend, tolerance=tolerance, memory_budget=budget, overlap=overlap)
