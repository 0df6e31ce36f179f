"""Modules of torch that take seconds to import, and that nobody should import to look into them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


def when_imported(name: str, act: Callable[[ModuleType], None]) -> Callable[[], None]:
    """Hand the module to `act`, now if it is there, else once it was imported; the result has nobody wait for it."""
    finder = _Finder(name, act)
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, finder)

    def forget() -> None:
        finder.act = None
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    return forget


class _Finder(MetaPathFinder):
    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name = name
        self.act: Callable[[ModuleType], None] | None = act

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        plain = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            plain(module)
            if self.act is not None:
                self.act(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
