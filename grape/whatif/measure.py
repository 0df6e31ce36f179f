"""`what_if`: every lever that applies, one after the other, on a copy of the module and of its inputs."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..model import Measured
from ..quiet import without_warnings
from .levers import LEVERS, Lever
from .subject import Subject, copy_of
from .table import Tried, WhatIf

__all__ = ["what_if"]

BATCHES = 7
BATCH_S = 0.03
"""Calls are timed in batches of about so long, behind each of which the host waits for the GPU."""
WARM = 2


def what_if(
    module: nn.Module,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    name: str = "model",
    seconds: float = 90.0,
) -> WhatIf:
    """Measure what would make ``module(*args, **kwargs)`` faster: TF32, half precision, channels_last, `torch.compile`
    and others, each on a copy of the module with copies of the tensors.

    Where the module trains and gradients are on, the backward pass of the sum of its results belongs to the call. No
    lever is begun after `seconds`. Nothing of the person's changes: weights, buffers, inputs, random states and
    settings of torch are as before. It needs memory for one more module. `name` is what the module is called in the
    lines to write.

    Raises `UsageError` where the module cannot be copied, or its call as written fails.
    """
    if not isinstance(module, nn.Module):
        raise UsageError(f"what_if measures the call of an nn.Module, not of {type(module).__name__}")
    given = dict(kwargs or {})
    subject = Subject(
        module=module,
        args=tuple(args),
        kwargs=given,
        device=_device(module, (*args, *given.values())),
        trains=module.training and torch.is_grad_enabled() and any(one.requires_grad for one in module.parameters()),
    )
    ends = time.monotonic() + seconds
    with without_warnings():
        return _measured(subject, name, ends)


def _measured(subject: Subject, name: str, ends: float) -> WhatIf:
    plain = copy_of(subject)
    try:
        results = plain.seeded(0)
        draws = not _same(results, copy_of(subject).seeded(1))
        as_written = _timed(plain, Tried(name="as written", write=""))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"the call as it is fails: {type(error).__name__}: {error}") from error
    del plain
    expected = None if draws else results
    rows = []
    for lever in LEVERS:
        row = Tried(name=lever.name, write=_written(lever, subject, name))
        reason = lever.hindrance(subject)
        if reason is None and time.monotonic() > ends:
            reason = "not tried: the time was up"
        rows.append(_tried(lever, subject, row, expected) if reason is None else _failed(row, reason))
    return WhatIf(
        what=f"{name}(...)" if name.isidentifier() else name,
        device=torch.cuda.get_device_name(subject.device) if subject.device.type == "cuda" else "the CPU",
        trains=subject.trains,
        as_written=as_written,
        tried=tuple(rows),
    )


def _tried(lever: Lever, subject: Subject, row: Tried, expected: list[Tensor] | None) -> Tried:
    try:
        with lever.pull(copy_of(subject)) as pulled:
            return _timed(pulled, row, expected)
    except Exception as error:
        return _failed(row, f"failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:100]}")
    finally:
        gc.collect()


def _timed(subject: Subject, row: Tried, expected: list[Tensor] | None = None) -> Tried:
    cuda = subject.device.type == "cuda"
    began = time.perf_counter()
    results = subject.seeded(0)
    _wait(subject.device)
    ready_s = time.perf_counter() - began
    difference = None if expected is None else _difference(expected, results)
    del results
    for _ in range(WARM):
        subject.run()
    _wait(subject.device)
    if cuda:
        torch.cuda.reset_peak_memory_stats(subject.device)
    once = _batch_ms(subject, 1)
    calls = max(1, math.ceil(BATCH_S * 1e3 / max(once, 1e-3)))
    samples = [_batch_ms(subject, calls) for _ in range(BATCHES)]
    return Tried(
        name=row.name,
        write=row.write,
        time=Measured.of(samples),
        ready_s=ready_s,
        difference=difference,
        peak_bytes=torch.cuda.max_memory_allocated(subject.device) if cuda else None,
    )


def _batch_ms(subject: Subject, calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        subject.run()
    _wait(subject.device)
    return (time.perf_counter() - began) * 1e3 / calls


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(some) == len(others) and all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def _difference(expected: Sequence[Tensor], found: Sequence[Tensor]) -> float | None:
    """The largest, over the largest absolute value expected in that tensor."""
    if [one.shape for one in expected] != [one.shape for one in found]:
        return math.inf
    most = 0.0
    for one, other in zip(expected, found, strict=True):
        if one.numel():
            scale = max(one.abs().max().item(), torch.finfo(torch.float32).tiny) if one.is_floating_point() else 1.0
            apart = (one.double() - other.double()).abs().max().item() / scale
            most = max(most, math.inf if math.isnan(apart) else apart)
    return most


def _failed(row: Tried, reason: str) -> Tried:
    return Tried(name=row.name, write=row.write, failed=reason)


def _written(lever: Lever, subject: Subject, name: str) -> str:
    return lever.write.replace("{device}", subject.device.type).replace("model", name)


def _device(module: nn.Module, inputs: Sequence[object]) -> torch.device:
    tensors = [*module.parameters(), *module.buffers(), *(one for one in inputs if isinstance(one, Tensor))]
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        raise UsageError(f"the module and its inputs lie on several devices: {', '.join(sorted(map(str, devices)))}")
    return devices.pop() if devices else torch.device("cpu")
