"""Evidence of cells that need a CUDA device, recorded without one.

The cell runs on torch's fake tensors, which have CUDA devices and no contents; the tracer records the operators that
the code really dispatches. What a device would have measured is put together from that trace: every computing operator
is one kernel of ``kernel-us`` microseconds, every operator keeps the host for ``launch-us``, a copy from the host
blocks it. Decisions are those of the runtime's own policy, and a region that runs other operators while
`torch.cuda.is_current_stream_capturing()` says yes is refused as the runtime refuses it.
"""

from __future__ import annotations

import contextlib
import linecache
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from grape.advisor import advise
from grape.model import (
    CellEvidence,
    CopyRecord,
    Decision,
    Event,
    Finding,
    Measured,
    Position,
    Reason,
    Refused,
    RegionEvidence,
    ShapeCount,
    Timeline,
    Trace,
)
from grape.runtime.accounts.policy import Estimate, capture_cost, decide
from grape.tracing import PositionFinder, Recorder, Tracer, record

from .corpus_cell import CorpusCell, linecached, statements

__all__ = ["record_cell", "simulated"]

DEVICE = torch.device("cuda:0")
_HOST_GB_PER_S = 10.0
_REPLAY_GAP_US = 1.2
_TRACED = (2, 3)


@dataclass(kw_only=True)
class _Observed:
    """One region while its cell runs."""

    name: str
    at: Position
    calls: int = 0
    traces: list[Trace] = field(default_factory=list)
    captured: Trace | None = None
    shapes: dict[tuple[tuple[str, tuple[int, ...]], ...], list[int]] = field(default_factory=dict)
    places: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    kept: list[torch.Tensor] = field(default_factory=list)
    """So that no address is used twice."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of the arguments that lie on the device."""

    def note(self, leaves: dict[str, torch.Tensor]) -> None:
        """Shapes, memory and device of the tensors among the arguments, by their paths."""
        shapes = tuple((path, tuple(leaf.shape)) for path, leaf in leaves.items())
        self.shapes.setdefault(shapes, [self.calls - 1, 0])[1] += 1
        for path, leaf in leaves.items():
            self.places.setdefault(path, set()).add((leaf.untyped_storage()._cdata, int(leaf.storage_offset())))
            if leaf.device.type != "cpu":
                self.sizes[path] = leaf.nbytes
            self.kept.append(leaf)


def record_cell(cell: CorpusCell) -> tuple[Finding, ...]:
    """What the advisor says about `cell`, had it run on a CUDA device."""
    return advise(evidence_of(cell))


def evidence_of(cell: CorpusCell) -> CellEvidence:
    """Run the cell on fake tensors, and put the evidence together."""
    files = {
        f"<ipython-input-corpus-{cell.name}-{part}>": name for part, name in (("setup", "In[1]"), ("cell", "In[2]"))
    }
    setup, main = files
    names = cell.headers.get("regions", "").split()
    space: dict[str, Any] = {"__name__": "__main__"}
    tracer = Tracer(PositionFinder(lambda filename: files.get(filename, filename)))
    outside = Recorder(DEVICE, limit=100_000)
    observed: dict[str, _Observed] = {}
    linecached(cell.source, main)
    try:
        with _fake_device():
            statements(cell.setup, setup, space)
            with _intercepted(space, names, tracer, outside, observed):
                tracer.enter()
                try:
                    tracer.listen(outside)
                    statements(cell.source, main, space)
                finally:
                    tracer.leave()
    finally:
        for filename in files:
            linecache.cache.pop(filename, None)
    times = {name: float(cell.headers.get(name, default)) for name, default in (("launch-us", "8"), ("kernel-us", "3"))}
    regions = tuple(_evidence(region, times["launch-us"], times["kernel-us"]) for region in observed.values())
    wall_ms = sum(region.before_ms.median_ms * region.calls for region in regions if region.before_ms)
    return CellEvidence(
        file="In[2]",
        source=cell.source,
        device="recorded",
        backend="cuda",
        wall_ms=wall_ms or 100.0,
        regions=regions,
        trace=outside.finish().trace,
        cuda=True,
        sources=(("In[1]", cell.setup),),
    )


@contextlib.contextmanager
def _fake_device() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        capturing = mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: False)
        moving = mock.patch.object(torch.nn.Module, "to", _moved)
        with capturing, moving, FakeTensorMode(allow_non_fake_inputs=True):
            yield


def _moved(module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """`Module.to` swaps the tensors inside of parameters, which fake tensors do not allow; this one replaces them.

    They need no gradients: autograd asks for a device guard, which there is none of without CUDA.
    """
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = torch.nn.Parameter(parameter.detach().to(device), False)
        for name, buffer in part._buffers.items():
            part._buffers[name] = buffer.to(device) if buffer is not None else None
    return module


@contextlib.contextmanager
def _intercepted(
    space: dict[str, Any], names: list[str], tracer: Tracer, outside: Recorder, observed: dict[str, _Observed]
) -> Iterator[None]:
    """Calls of the named functions and modules go through `_call` while the cell runs."""
    modules = {id(space[name]): name for name in names if isinstance(space[name], torch.nn.Module)}
    original = torch.nn.Module.__call__

    def call_module(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        name = modules.get(id(module))
        if name is None or tracer.recorder is not outside:
            return original(module, *args, **kwargs)
        user, _ = tracer.positions.find(1)
        assert user is not None
        known = f"{type(module).__name__} ({name})"
        region = observed.setdefault(known, _Observed(name=known, at=tracer.positions.at(user)))
        return _call(region, tracer, outside, lambda *a, **k: original(module, *a, **k), args, kwargs)

    for name in names:
        function = space[name]
        if not isinstance(function, torch.nn.Module):
            code = function.__code__
            at = Position(file="In[1]", line=code.co_firstlineno, function=function.__qualname__)
            region = observed.setdefault(name, _Observed(name=name, at=at))
            space[name] = _through(region, tracer, outside, function)
    with mock.patch.object(torch.nn.Module, "__call__", call_module):
        yield


def _through(region: _Observed, tracer: Tracer, outside: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return _call(region, tracer, outside, function, args, kwargs)

    return call


def _call(
    region: _Observed,
    tracer: Tracer,
    outside: Recorder,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    tracer.recorder = None  # not muted: that would switch the fake tensors off as well
    region.calls += 1
    leaves = dict(_leaves((args, kwargs), "args"))
    region.note(leaves)
    try:
        if region.calls not in _TRACED:
            return function(*args, **kwargs)
        result, call, _ = record(tracer, DEVICE, tuple(leaves.values()), lambda: function(*args, **kwargs))
        region.traces.append(call.trace)
        if region.calls == _TRACED[-1]:
            with mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: True):
                _, again, _ = record(tracer, DEVICE, tuple(leaves.values()), lambda: function(*args, **kwargs))
            region.captured = again.trace
        return result
    finally:
        tracer.listen(outside)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in nested containers, with their paths as the runtime writes them."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}[{key!r}]")


def simulated(trace: Trace, launch_us: float, kernel_us: float) -> Timeline:
    """The timeline of one eager call with these operators, in nanoseconds."""
    events: list[Event] = []
    host = device = 0.0
    for op in trace.ops:
        host += launch_us * (0.2 if op.kind in ("view", "host") else 1.0)
        if op.kind in ("view", "host"):
            continue
        begin = max(host, device)
        copied = sum(view.nbytes for view in op.tensors()) if op.kind.startswith("transfer") else 0
        duration = copied / _HOST_GB_PER_S / 1e3 + 2.0 if copied else kernel_us
        device = begin + duration
        events.append(
            Event(
                name="Memcpy HtoD (Pageable -> Device)" if copied else op.name,
                lane="device",
                category="memcpy" if copied else "kernel",
                start_ns=int(begin * 1e3),
                end_ns=int(device * 1e3),
                stream=7,
                bytes=copied,
            )
        )
        if copied:
            host = device
    return Timeline(events=tuple(events), wall_ns=int(max(host, device) * 1e3))


def _replayed(trace: Trace, kernel_us: float) -> Timeline:
    return simulated(trace, 0.0, kernel_us + _REPLAY_GAP_US)


def _evidence(region: _Observed, launch_us: float, kernel_us: float) -> RegionEvidence:
    trace = region.traces[-1]
    before = simulated(trace, launch_us, kernel_us)
    decision = decide(
        Estimate(
            shapes="",
            eager_ms=before.wall_ns / 1e6,
            busy_ms=before.gpu_busy_ns / 1e6,
            capture_ms=capture_cost(len(trace.ops)),
            seen=max(calls for _, calls in region.shapes.values()),
            earlier_runs=0,
        )
    )
    refused = _refused(region)
    replays = region.calls // 2 if refused is None and decision.action == "capture" else 0
    after = _replayed(trace, kernel_us) if replays else None
    return RegionEvidence(
        name=region.name,
        at=region.at,
        end_line=None,
        outcome="refused" if refused else "replayed" if replays else "observed",
        refused=refused,
        calls=region.calls,
        replays=replays,
        verified="identical" if replays else None,
        traces=tuple(region.traces),
        before=before,
        after=after,
        before_ms=_measured(before),
        after_ms=_measured(after) if after else None,
        shapes=tuple(ShapeCount(shapes=s, calls=calls, order=order) for s, (order, calls) in region.shapes.items()),
        copies=_copies(region, replays) if replays else (),
        decisions=_told(decision),
    )


def _measured(timeline: Timeline) -> Measured:
    ms = timeline.wall_ns / 1e6
    return Measured(median_ms=ms, q1_ms=ms * 0.99, q3_ms=ms * 1.01, n=30)


def _told(decision: Decision) -> tuple[Decision, ...]:
    return (decision,)


def _copies(region: _Observed, replays: int) -> tuple[CopyRecord, ...]:
    """Arguments on the device that were at another address each time."""
    return tuple(
        CopyRecord(argument=path, bytes=region.sizes[path], calls=replays)
        for path, places in region.places.items()
        if len(places) > 1 and path in region.sizes
    )


def _refused(region: _Observed) -> Refused | None:
    trace = region.traces[-1]
    if trace.needs_grad and not any("backward" in op.name for op in trace.ops):
        return Refused.because(Reason.NEEDS_GRADIENTS, more="")
    difference = trace.first_difference(region.captured) if region.captured is not None else None
    if difference is None:
        return None
    where = difference[0] or difference[1]
    names = [op.name if op is not None else "nothing" for op in difference]
    at = (where.user or where.inner) if where else None
    return Refused.because(Reason.DIVERGED, at, difference=f"expected {names[0]}, found {names[1]}")
