"""Modules of torch that take seconds to import, and that nobody should import to look into them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

Act = Callable[[ModuleType], None]


def when_imported(name: str, act: Act) -> Callable[[], None]:
    """Hand the module to `act`, now if it is there, else once it was imported; the result has nobody wait for it.

    Several may wait for one module: they are handed it in the order in which they came.
    """
    if name in sys.modules:
        act(sys.modules[name])
        return lambda: None
    _finder.acts.setdefault(name, []).append(act)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)

    def forget() -> None:
        waiting = _finder.acts.get(name, [])
        if act in waiting:
            waiting.remove(act)
        if not waiting:
            _finder.acts.pop(name, None)
        if not _finder.acts and _finder in sys.meta_path:
            sys.meta_path.remove(_finder)

    return forget


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self.acts: dict[str, list[Act]] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.acts:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        plain = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            plain(module)
            for act in list(self.acts.get(name, [])):
                act(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_finder = _Finder()
