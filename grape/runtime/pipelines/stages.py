"""What `grape.pipeline` is given, cut into stages, each with its device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, pairwise

import torch
from torch import nn

from ...errors import UsageError

Function = Callable[[object], object]

MOST_STAGES = 4
"""Of a model, where nobody says how many: each needs a CUDA graph's worth of work."""


def stages_of(given: object, *, count: int | None, most: int | None) -> list[Function]:
    """The stages of a list or tuple of callables. An `nn.Sequential` is cut into `count`, else into `most` or fewer.

    Raises `UsageError` for anything else, and for what is empty.
    """
    if isinstance(given, nn.Sequential):
        return _cut(given, count, most or MOST_STAGES)
    if isinstance(given, nn.Module) and not isinstance(given, nn.ModuleList):
        raise UsageError(
            f"grape.pipeline cannot cut a {type(given).__name__} into stages: "
            "pass a list of them, as in grape.pipeline([model.encoder, model.decoder]), or an nn.Sequential"
        )
    if not isinstance(given, (list, tuple, nn.ModuleList)):
        raise UsageError(f"grape.pipeline takes a list of stages or an nn.Sequential, not a {type(given).__name__}")
    stages = list(given)
    if not stages:
        raise UsageError("grape.pipeline needs at least one stage")
    for number, stage in enumerate(stages):
        if not callable(stage):
            raise UsageError(f"stage {number} of the pipeline is a {type(stage).__name__}, which cannot be called")
    return stages


def _cut(model: nn.Sequential, count: int | None, most: int) -> list[Function]:
    """Consecutive layers, in parts with about as many parameters each."""
    hooks = (model._forward_hooks, model._forward_pre_hooks, model._backward_hooks, model._backward_pre_hooks)
    if type(model).forward is not nn.Sequential.forward or any(hooks):
        raise UsageError(
            f"grape.pipeline cannot cut this {type(model).__name__} into stages: it does more than call its layers one "
            "after the other; pass a list of stages"
        )
    layers = list(model)
    if not layers:
        raise UsageError("grape.pipeline needs at least one stage")
    sizes = [sum(one.numel() for one in layer.parameters()) for layer in layers]
    count = count or max(1, min(most, sum(size > 0 for size in sizes)))
    if count > len(layers):
        raise UsageError(f"an nn.Sequential of {len(layers)} layers cannot be cut into {count} stages")
    ends = _ends(sizes, count)
    parts = [layers[start:end] for start, end in pairwise([0, *ends])]
    return [part[0] if len(part) == 1 else nn.Sequential(*part).train(model.training) for part in parts]


def _ends(sizes: Sequence[int], count: int) -> list[int]:
    """Where each of `count` parts ends, none of them empty, so that they are as equal as can be."""
    least = max(1.0, 0.01 * sum(sizes) / len(sizes))  # a layer without parameters is work as well
    before = [0.0, *accumulate(size + least for size in sizes)]

    @cache
    def best(start: int, parts: int) -> tuple[float, tuple[int, ...]]:
        """The least sum of squares from `start` on, with the ends."""
        if parts == 1:
            return (before[-1] - before[start]) ** 2, (len(sizes),)
        found = []
        for end in range(len(sizes) - parts + 1, start, -1):
            cost, ends = best(end, parts - 1)
            found.append(((before[end] - before[start]) ** 2 + cost, (end, *ends)))
        return min(found, key=lambda one: one[0])

    return list(best(0, count)[1])


def check_depth(given: object) -> None:
    """Raises `UsageError` for what is no number of samples."""
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise UsageError(f"the depth of a pipeline is a number of samples, at least 1, not {given!r}")


def named_devices(given: object) -> list[torch.device]:
    """The devices that the person named. Raises `UsageError` for what is no list of devices that are there."""
    if not isinstance(given, (list, tuple)):
        raise UsageError(f"devices are a list with one for each stage, not '{given}'")
    found = []
    for one in given:
        try:
            found.append(_there(torch.device(one)))
        except (RuntimeError, TypeError) as error:
            raise UsageError(f"'{one}' is no device: {str(error).splitlines()[0]}") from None
    return found


def devices_of(stages: Sequence[Function], named: Sequence[torch.device] | None) -> list[torch.device]:
    """The device of each stage: the one that was named, else that of its parameters, else the current one."""
    if named is None:
        return [_own_device(stage) for stage in stages]
    if len(named) != len(stages):
        raise UsageError(f"{len(stages)} stages need as many devices, not {len(named)}")
    return list(named)


def _there(device: torch.device) -> torch.device:
    """`device` with its number."""
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise UsageError(f"device '{device}' is not supported; use CUDA devices, or the CPU")
    if not torch.cuda.is_available():
        raise UsageError(f"device '{device}' cannot be used: there is no CUDA device")
    index = torch.device(device).index if ":" in str(device) else torch.cuda.current_device()
    if index >= torch.cuda.device_count():
        raise UsageError(f"device '{device}' cannot be used: the last one is cuda:{torch.cuda.device_count() - 1}")
    return torch.device("cuda", index)


def _own_device(stage: Function) -> torch.device:
    if isinstance(stage, nn.Module):
        for tensor in (*stage.parameters(), *stage.buffers()):
            return _there(tensor.device)
    return _there(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
