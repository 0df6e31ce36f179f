"""Code that Inductor made hands pointers to kernels of its own, without an operator. What is pending is issued before
it runs, and nothing inside of it is deferred. On a GPU it may be a CUDA graph as a whole (`graphs.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from ...tracing import when_imported

_MODULE = "torch._inductor.output_code"
Apart = Callable[[Callable[[], object]], object]
Run = Callable[[Any, list[Any], Callable[[Any, list[Any]], Any]], Any]
"""Of code, its inputs, and Inductor's own way to call it."""


def watch(apart: Apart, run: Run | None = None) -> Callable[[], None]:
    """Have `apart` run each call of compiled code, by `run` where there is one, also of what is compiled later; the
    result undoes it.
    """
    patched: list[tuple[Any, object]] = []

    def patch(module: ModuleType) -> None:
        made = module.CompiledFxGraph
        plain = made.__call__

        def call(self: object, inputs: list[Any]) -> object:
            return apart(lambda: plain(self, inputs) if run is None else run(self, inputs, plain))

        made.__call__ = call
        patched.append((made, plain))

    forget = when_imported(_MODULE, patch)

    def undo() -> None:
        forget()
        for made, plain in patched:
            made.__call__ = plain

    return undo
