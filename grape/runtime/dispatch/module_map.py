"""Values for modules, by identity, and the modules inside a module. Nothing is asked of the person's classes."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

import torch

T = TypeVar("T")

number_of = object.__hash__
"""Another for each object that lives. `id` is an audit event."""


class OfModules(Generic[T]):
    """Values for modules that live, by identity: two may be equal, and not every one has a hash."""

    def __init__(self) -> None:
        self.by_number: dict[int, tuple[weakref.ref[torch.nn.Module], T]] = {}

    def get(self, module: torch.nn.Module) -> T | None:
        found = self.by_number.get(number_of(module))
        return found[1] if found is not None and found[0]() is module else None

    def __setitem__(self, module: torch.nn.Module, value: T) -> None:
        known, number = self.by_number, number_of(module)

        def gone(reference: weakref.ref[torch.nn.Module]) -> None:
            found = known.get(number)
            if found is not None and found[0] is reference:
                del known[number]

        known[number] = weakref.ref(module, gone), value

    def items(self) -> list[tuple[torch.nn.Module, T]]:
        return [(module, value) for one, value in list(self.by_number.values()) if (module := one()) is not None]

    def values(self) -> list[T]:
        return [value for _, value in list(self.by_number.values())]

    def clear(self) -> None:
        self.by_number.clear()


def parts_of(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The module and all inside it, by identity. Asks nothing of the person's classes, which may answer anything."""
    found, left = {id(module): module}, [module]
    while left:
        parts = vars(left.pop()).get("_modules") or {}
        for part in parts.values() if isinstance(parts, dict) else ():
            if isinstance(part, torch.nn.Module) and id(part) not in found:
                found[id(part)] = part
                left.append(part)
    return list(found.values())
