"""What CUDA graphs of compiled code ask of a stream, its device and torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import torch

from .. import profilers
from .code import Code


class Graph(Protocol):
    def replay(self) -> None: ...

    def reset(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What a stream knows and can do."""

    device: torch.device
    budget: int
    """Bytes of all graphs."""
    capture: Callable[[Callable[[], Any]], tuple[Graph, Any]]
    """Makes a graph of what a function launches; also what that gave. Raises RuntimeError where that cannot be."""
    is_here: Callable[[], bool]
    """False where another stream is current than the one that defers, or somebody captures."""
    addresses: Callable[[list[Any], Code], bytes | None]
    """Where static inputs lie, with their layouts, and how far moving ones are from where all of CUDA is content. None
    where one of them is no plain tensor, or where a moving one lies in memory that the code writes.
    """
    begins: Callable[[torch.Tensor], int]
    """Bytes from the last address that all of CUDA is content with."""
    timed: Callable[[Callable[[], Any]], tuple[Any, int]]
    """What a function gives, and the time until the device has done what it launches, which is waited for."""
    changes: Callable[[], int]
    """Another number once something changed how operators compute."""
    draws: Callable[[], int]
    """Another number once random numbers were drawn."""
    reserved: Callable[[], int]
    """Bytes that torch's allocator has of the device."""


def on_cuda(
    extension: ModuleType,
    device: torch.device,
    *,
    budget: int,
    capture: Callable[[Callable[[], Any]], tuple[Graph, Any]],
    changes: Callable[[], int],
) -> Process:
    """Of the stream that is current now."""
    raw, index = torch.cuda.current_stream(device).cuda_stream, device.index

    def is_here() -> bool:
        if torch._C._cuda_getCurrentRawStream(index) != raw or torch.cuda.is_current_stream_capturing():
            return False
        return sys.getprofile() is None and not profilers.are_told()

    def addresses(inputs: list[Any], code: Code) -> bytes | None:
        found: bytes | None = extension.addresses(inputs, code.static, code.moving, code.changed, index)
        return found

    return Process(
        device=device,
        budget=budget,
        capture=capture,
        is_here=is_here,
        addresses=addresses,
        begins=extension.begins,
        timed=_timed,
        changes=changes,
        draws=torch.cuda.default_generators[index].get_offset,
        reserved=lambda: torch.cuda.memory_reserved(device),
    )


def _timed(call: Callable[[], Any]) -> tuple[Any, int]:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    found = call()
    end.record()
    end.synchronize()
    return found, round(begin.elapsed_time(end) * 1e6)
