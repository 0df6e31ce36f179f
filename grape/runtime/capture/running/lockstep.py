"""Runs the person's code a second time, for the capture, in step with the eager trace.

Every operator must be the one that the eager run dispatched, with the same scalars and views; the first difference
ends the capture (GR402 if only the capture differs). Values that the host reads are answered with what the value guards
found, and data that would come from the host is taken from the device copy made by the eager run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext

import torch

from ....model import OpRecord, Position
from ....model.call import Args, Kwargs
from ....tracing import (
    ANNOTATIONS,
    HOST_READS,
    Operator,
    OwnMode,
    PositionFinder,
    RecordedCall,
    Recorder,
    UnseenMode,
    contents_of,
    hides_memory,
    issue,
)
from ...backends.protocol import Branches

aten = torch.ops.aten


class Diverged(Exception):
    """The capture ran something else than the eager call. `expected` or `found` is None past the end of a trace."""

    def __init__(self, expected: OpRecord | None, found: OpRecord | None) -> None:
        names = [op.name if op is not None else "nothing" for op in (expected, found)]
        how = expected.difference(found) if expected is not None and found is not None and names[0] == names[1] else ""
        super().__init__(f"{names[0]}, {how}" if how else f"expected {names[0]}, found {names[1]}")
        self.expected = expected
        self.found = found


class Lockstep(OwnMode):
    """Checks every dispatched operator against the reference; `hidden` replaces arrivals that vary between calls.

    `redirected` gives for some operators, by ordinal, their `out=` form and the tensor that receives the result.
    """

    def __init__(
        self,
        reference: RecordedCall,
        recorder: Recorder,
        positions: PositionFinder,
        hidden: Mapping[int, torch.Tensor],
        redirected: Mapping[int, tuple[Callable[..., object], torch.Tensor]],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._reference = reference
        self._recorder = recorder
        self._positions = positions
        self._hidden = hidden
        self._redirected = redirected
        self._next = 0
        self._suspended = False
        self._contents: object = None
        self.branches: Branches | None = None
        """Where the capture has some: operators are issued in their lanes."""
        self.hides_memory = False
        """Some of them took or made what the trace, from which the lanes are, does not show."""

    def finish(self) -> RecordedCall:
        """The capture's own trace. Raises `Diverged` if the capture stopped short."""
        ops = self._reference.trace.ops
        if self._next != len(ops):
            raise Diverged(ops[self._next], None)
        return self._recorder.finish()

    def __torch_dispatch__(
        self, func: Operator, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):
            raise Diverged(None, None)  # none that was traced is captured
        if self._suspended or func.namespace == ANNOTATIONS:
            return issue(func, args, kwargs)
        with torch._C.DisableTorchFunction():
            return self._step(func, args, kwargs)

    def _step(self, func: Operator, args: Args, kwargs: Kwargs) -> object:
        reference = self._reference
        ops = reference.trace.ops
        expected = ops[self._next] if self._next < len(ops) else None
        before = self._recorder.before(func, args, kwargs)
        if expected is None or expected.args != before[0] or reference.functions[self._next] is not func:
            result = None
            found = self._recorder.after(before, func, args, kwargs, result, self._at(), 0)
            raise Diverged(expected, found)
        self._next += 1
        if self.branches is None:
            result = self._result(expected, func, args, kwargs)
        else:
            with self.branches.on_lane(expected.ordinal):
                result = self._result(expected, func, args, kwargs)
            self.branches.keep(expected.ordinal, result)
            self.hides_memory = self.hides_memory or hides_memory((args, tuple(kwargs.values()), result))
        at = (expected.user, expected.inner)
        found = self._recorder.after(before, func, args, kwargs, result, at, 0, self._contents)
        self._contents = None
        if found.signature() != expected.signature():
            raise Diverged(expected, found)
        return result

    def _at(self) -> tuple[Position | None, Position | None]:
        user, inner = self._positions.find(2)
        return (self._positions.at(user) if user else None, self._positions.at(inner) if inner else None)

    def _result(self, expected: OpRecord, func: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
        if func in HOST_READS:
            return self._reference.values[expected.ordinal]
        if expected.kind != "transfer-in":
            redirected = self._redirected.get(expected.ordinal)
            if redirected is None:
                return issue(func, args, kwargs)
            return issue(redirected[0], args, {**kwargs, "out": redirected[1]})
        hidden = self._hidden.get(expected.ordinal)
        arrived = hidden if hidden is not None else self._reference.arrivals[expected.ordinal]
        return args[0].copy_(arrived) if func is aten.copy_.default else arrived.clone()

    def constant(self, host: torch.Tensor) -> torch.Tensor:
        """A copy, on the device, of the tensor that the next operator of the reference made from Python values.

        `host` is that tensor on the CPU, as this run made it; its contents are compared with the reference's.
        """
        ops = self._reference.trace.ops
        expected = ops[self._next] if self._next < len(ops) else None
        if expected is None or expected.ordinal not in self._reference.arrivals:
            raise Diverged(expected, None)
        with self.outside():
            self._contents = contents_of(host)
            with self.branches.aside() if self.branches is not None else nullcontext():
                return self._reference.arrivals[expected.ordinal].clone()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Do not check what runs inside: it belongs to the capture, not to the person's code."""
        before, self._suspended = self._suspended, True
        try:
            yield
        finally:
            self._suspended = before


_MAKERS = frozenset({torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor})


class HostConstants(UnseenMode):
    """Tensors made on the device from Python values (``torch.tensor(0.0, device="cuda")``) inside a capture.

    They would need a copy from unpinned memory, which a capture refuses. The eager run made the same tensor; its copy
    on the device is used, after the values were compared (GR401).
    """

    def __init__(self, lockstep: Lockstep, device: torch.device) -> None:
        super().__init__()
        self._lockstep = lockstep
        self._device = device

    def __torch_function__(
        self, func: Callable[..., torch.Tensor], types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        kwargs = dict(kwargs or {})
        if func not in _MAKERS or any(isinstance(arg, torch.Tensor) for arg in args[func is torch.Tensor.new_tensor :]):
            return func(*args, **kwargs)
        wanted = kwargs.get("device")
        if wanted is None:
            wanted = args[0].device if func is torch.Tensor.new_tensor else torch.get_default_device()
        if torch.device(wanted).type != self._device.type:
            return func(*args, **kwargs)
        with self._lockstep.outside():
            host = func(*args, **{**kwargs, "device": "cpu"})
        made = self._lockstep.constant(host)
        if made.shape != host.shape or made.dtype != host.dtype:
            raise Diverged(None, None)
        return aten.lift_fresh(made).detach_() if not host.requires_grad else made
