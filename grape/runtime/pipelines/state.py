"""Tensors that a stage keeps from call to call, and lets go of while its stream still reads them.

The caller makes them, as the zeros that a recurrent state begins with, so their memory belongs to his stream. Where
the stage binds another tensor in their place, the allocator would give that memory to his next tensor at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from types import CellType, FunctionType, MethodType

import torch
from torch import nn

Place = tuple[Mapping[str, object], str] | CellType
_LEFT_OUT = frozenset({"_parameters", "_modules"})
"""Of a module: parameters are written in place, modules are visited by themselves."""


class State:
    """Of one stage: attributes and buffers of modules, names of a function's closure and its module."""

    def __init__(self, function: Callable[[object], object]) -> None:
        self._function = function
        self._places: list[Place] = []
        self._marked: dict[int, weakref.ref[torch.Tensor]] = {}

    def look(self) -> None:
        """Find the places at which tensors are kept now."""
        self._places = [place for place in _places_of(self._function) if any(True for _ in _tensors(_value(place)))]

    def mark(self, stream: torch.cuda.Stream) -> None:
        """Have the allocator keep the memory of what is found there until `stream` is done with it."""
        found: dict[int, weakref.ref[torch.Tensor]] = {}
        for place in self._places:
            for tensor in _tensors(_value(place)):
                known = self._marked.get(id(tensor))
                if known is None or known() is not tensor:
                    known = weakref.ref(tensor)
                    keep_for(tensor, stream)
                found[id(tensor)] = known
        self._marked = found


def keep_for(tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
    if tensor.is_cuda:
        tensor.record_stream(stream)


def _places_of(function: object) -> Iterator[Place]:
    if isinstance(function, nn.Module):
        for module in function.modules():
            yield from ((vars(module), name) for name in vars(module) if name not in _LEFT_OUT)
    elif isinstance(function, MethodType):
        yield from _places_of(function.__self__)
    elif isinstance(function, FunctionType):
        for cell in function.__closure__ or ():
            yield cell
            yield from _modules_in(_value(cell))
        for name in function.__code__.co_names:
            if name in function.__globals__:
                yield function.__globals__, name
                yield from _modules_in(function.__globals__[name])
    elif hasattr(function, "__dict__") and not isinstance(function, type):
        yield from ((vars(function), name) for name in vars(function))


def _modules_in(value: object) -> Iterator[Place]:
    for one in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(one, nn.Module):
            yield from _places_of(one)


def _value(place: Place) -> object:
    if isinstance(place, CellType):
        try:
            return place.cell_contents
        except ValueError:  # nothing is bound yet
            return None
    names, name = place
    return names.get(name)


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if not isinstance(value, nn.Parameter):
            yield value
    elif isinstance(value, (dict, list, tuple)):
        within = value.values() if isinstance(value, dict) else value
        yield from (one for one in within if isinstance(one, torch.Tensor))
