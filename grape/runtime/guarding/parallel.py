"""Modules that are spread over processes or devices: hooks, buckets and threads that no trace shows belong to them."""

from __future__ import annotations

import torch

from ...model import Position, Reason, Refused
from ...tracing import BESIDE_GROUP, process_group
from .guards import GuardSet

_PARALLEL = ("torch.distributed.", "torch.nn.parallel.")
"""Where the classes are defined: DataParallel, DistributedDataParallel, what `fully_shard` makes, DTensor."""


def refuse_parallel(guards: GuardSet, at: Position) -> Refused | None:
    """Why a region that can reach this takes part in parallel work, or a call that has just made a process group."""
    if process_group():
        return Refused.because(Reason.GROUP, at, what=BESIDE_GROUP)
    modules = [*([guards.root] if guards.root is not None else ()), *guards.modules]
    for value in (*modules, *(tensor for _, tensor in guards.leaves())):
        kind = _parallel_kind(value)
        if kind is not None:
            return Refused.because(Reason.PARALLEL, at, kind=kind.__name__)
    return None


def _parallel_kind(value: torch.nn.Module | torch.Tensor) -> type | None:
    return next((kind for kind in type(value).__mro__ if kind.__module__.startswith(_PARALLEL)), None)
