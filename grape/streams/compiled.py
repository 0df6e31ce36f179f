"""Code that Inductor made hands pointers to kernels of its own, without an operator. What is pending is issued before
it runs, and nothing inside of it is deferred.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_MODULE = "torch._inductor.output_code"
Apart = Callable[[Callable[[], Any]], Any]


def watch(apart: Apart) -> Callable[[], None]:
    """Have `apart` run each call of compiled code, also of what is compiled later; the result undoes it."""
    patched: list[tuple[Any, Any]] = []

    def patch(module: ModuleType) -> None:
        made = module.CompiledFxGraph
        plain = made.__call__

        def call(self: Any, inputs: Sequence[Any]) -> Any:
            return apart(lambda: plain(self, inputs))

        made.__call__ = call
        patched.append((made, plain))

    finder = _Finder(patch)
    if _MODULE in sys.modules:
        patch(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, finder)

    def undo() -> None:
        finder.patch = None
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        for made, plain in patched:
            made.__call__ = plain

    return undo


class _Finder(MetaPathFinder):
    """Inductor takes seconds to import, so nobody does before there is something to compile."""

    def __init__(self, patch: Callable[[ModuleType], None]) -> None:
        self.patch: Callable[[ModuleType], None] | None = patch

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        plain = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            plain(module)
            if self.patch is not None:
                self.patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
