"""`what_if`: every lever that applies, one after the other, on a copy of the module and of its arguments."""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..fixing.copies import randomness_kept
from ..model import Measured
from ..originals import monotonic, perf_counter
from ..profiling.timeline import wait_for
from ..quiet import without_warnings
from ..render.units import one_line
from .levers import LEVERS, Lever
from .results import apart, same
from .subject import Subject, copy_of, looks, tensors_in
from .table import Tried, WhatIf

BATCHES = 7
BATCH_S = 0.03
"""Calls are timed in batches of about so long, behind each of which the host waits for the GPU."""
LONG_S = 0.3
"""A call that takes longer is timed in fewer batches."""
WARM = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Results:
    """Of the first call of a copy, and of one behind `WARM` others. None where runs as written differ, and `why`."""

    first: list[Tensor] | None
    later: list[Tensor] | None
    why: str = ""


def what_if(
    module: nn.Module,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    name: str = "model",
    seconds: float = 90.0,
) -> WhatIf:
    """Measure what would make ``module(*args, **kwargs)`` faster: TF32, half precision, channels_last, `torch.compile`
    and others, each on a copy of the module with copies of the arguments, in turn with the call as written.

    Where the module trains and gradients are on, the backward pass of the sum of its results belongs to the call; else
    it runs without gradients. No lever is begun after `seconds`. Weights, buffers, arguments, random states and
    settings of torch are as before; hooks and other effects of the module's Python happen at each call. It needs memory
    for two more modules. `name` is what the module is called in the lines to write.

    Raises `UsageError` where the module or an argument cannot be copied, where the call as written fails, changes its
    arguments, or reaches the module that was copied.
    """
    if not isinstance(module, nn.Module):
        raise UsageError(f"what_if measures the call of an nn.Module, not of {type(module).__name__}")
    if isinstance(args, Tensor | Mapping | str):
        raise UsageError(f"what_if takes the arguments as a tuple, what_if(model, (x,)), not as {type(args).__name__}")
    if any(getattr(one, "_compiled_call_impl", None) is not None for one in module.modules()):
        raise UsageError("the module was compiled in place, which no copy is: measure it before `compile()`")
    given = dict(kwargs or {})
    subject = Subject(
        module=module,
        args=tuple(args),
        kwargs=given,
        device=_device(module, (args, given)),
        trains=module.training and torch.is_grad_enabled() and any(one.requires_grad for one in module.parameters()),
    )
    ends = monotonic() + seconds
    with without_warnings(), randomness_kept():
        return _measured(subject, name, ends)


def _measured(subject: Subject, name: str, ends: float) -> WhatIf:
    expected = _as_written(subject)
    plain = copy_of(subject)
    written = name if name.replace(".", "").isidentifier() else "model"
    try:
        samples = _Clock(plain, ends).samples()
    except Exception as error:
        raise UsageError(f"the call fails when it is repeated: {_said(error)}") from error
    rows = []
    for lever in LEVERS:
        row = Tried(name=lever.name, write=_written(lever, subject, written))
        reason = lever.hindrance(subject)
        if reason is None and monotonic() > ends:
            reason = "not tried: the time was up"
        rows.append(replace(row, failed=reason) if reason else _tried(lever, subject, plain, row, expected, ends))
        _let_go()
    return WhatIf(
        what=f"{name}(...)",
        device=torch.cuda.get_device_name(subject.device) if subject.device.type == "cuda" else "the CPU",
        trains=subject.trains,
        as_written=Tried(name="as written", write="", time=Measured.of(samples)),
        tried=tuple(rows),
    )


def _as_written(subject: Subject) -> _Results:
    """What the call gives, and whether it gives that again. Raises `UsageError` for one that cannot be repeated."""
    before = [(one, one._version, one.grad) for one in subject.parts() if not one.is_inference()]
    copied = copy_of(subject)
    given = looks((copied.args, copied.kwargs))
    try:
        first, later = _observed(copied)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"the call as it is fails: {_said(error)}") from error
    if any(one._version != version or one.grad is not grad for one, version, grad in before):
        for one, _, grad in before:
            one.grad = grad
        raise UsageError("the call reaches the module that was copied, past its copy; nothing can be tried on copies")
    if looks((copied.args, copied.kwargs)) != given:
        raise UsageError("the call changes its arguments, as a cache that grows; calls of it cannot be compared")
    if not same(first, copy_of(subject).seeded(0)):
        return _Results(first=None, later=None, why="runs as written differ, too")
    if not same(first, copy_of(subject).seeded(1)):
        return _Results(first=None, later=None, why="draws random numbers")
    return _Results(first=first, later=later)


def _observed(subject: Subject) -> tuple[list[Tensor], list[Tensor]]:
    first = subject.seeded(0)
    for _ in range(WARM):
        subject.run()
    return first, subject.seeded(0)


def _tried(lever: Lever, subject: Subject, plain: Subject, row: Tried, expected: _Results, ends: float) -> Tried:
    try:
        with lever.pull(copy_of(subject)) as pulled:
            began = perf_counter()
            first = pulled.seeded(0)
            wait_for(subject.device)
            ready_s = perf_counter() - began
            for _ in range(WARM):
                pulled.run()
            difference, said = _compared(expected, first, pulled.seeded(0))
            with_it, without = _Clock(pulled, ends), _Clock(plain, ends)
            pairs = [(without.batch_ms(), with_it.batch_ms()) for _ in range(with_it.batches)]
        return replace(
            row,
            time=Measured.of([pair[1] for pair in pairs]),
            plain=Measured.of([pair[0] for pair in pairs]),
            ready_s=ready_s,
            difference=difference,
            results=said,
        )
    except Exception as error:
        return replace(row, failed=f"failed: {_said(error)}")


def _compared(expected: _Results, first: list[Tensor], later: list[Tensor]) -> tuple[float | None, str]:
    if expected.first is None or expected.later is None:
        return None, expected.why
    both = [apart(expected.first, first), apart(expected.later, later)]
    unequal = [one for one in both if one[0] is None]
    return unequal[0] if unequal else max(both, key=lambda one: one[0] or 0.0)


class _Clock:
    """Times batches of calls of one subject, as many as fit in `BATCH_S`."""

    def __init__(self, subject: Subject, ends: float) -> None:
        self._subject, self._calls = subject, 1
        once = self.batch_ms() / 1e3
        self._calls = max(1, math.ceil(BATCH_S / max(once, 1e-6)))
        late = monotonic() > ends
        self.batches = 1 if late else BATCHES if once < LONG_S else 3

    def batch_ms(self) -> float:
        """Milliseconds of a call."""
        began = perf_counter()
        for _ in range(self._calls):
            self._subject.run()
        wait_for(self._subject.device)
        return (perf_counter() - began) * 1e3 / self._calls

    def samples(self) -> list[float]:
        return [self.batch_ms() for _ in range(self.batches)]


def _let_go() -> None:
    """Of a copy: what is in cycles, what autocast has cast, and the allocator's memory."""
    gc.collect()
    torch.clear_autocast_cache()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(str(error))}"


def _written(lever: Lever, subject: Subject, name: str) -> str:
    return lever.write.replace("{device}", subject.device.type).replace("model", name)


def _device(module: nn.Module, inputs: object) -> torch.device:
    """Of the module, or of the inputs where it has no weights; tensors of the CPU may stand beside."""
    parts = [*module.parameters(), *module.buffers()]
    devices = {tensor.device for tensor in (*parts, *tensors_in(inputs))}
    others = devices - {torch.device("cpu")}
    if len(others) > 1:
        raise UsageError(f"the module and its inputs lie on several devices: {', '.join(sorted(map(str, others)))}")
    return others.pop() if others else torch.device("cpu")
