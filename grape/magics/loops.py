"""For the time of a cell under ``%%grape``, the shell compiles loops so that their bodies can become regions.

The compiler is the one place through which the code of a cell goes however it is run (as a cell, or by a magic below
the first line), and where code can get objects that no syntax tree holds: nothing is added to a namespace.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..failures import log_failure
from ..originals import perf_counter

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


class Stopwatch:
    """Adds up what its blocks take: Grape's own time before a cell's first statement. Blocks do not nest."""

    def __init__(self) -> None:
        self.ms = 0.0

    def __enter__(self) -> None:
        self._since = perf_counter()

    def __exit__(self, *error: object) -> None:
        self.ms += (perf_counter() - self._since) * 1e3


def outline_loops_of(shell: InteractiveShell, own: Stopwatch) -> Callable[[], None]:
    """Compile the cells of `shell` with their loops outlined, until the call that is returned. `own` takes the time."""
    compiler = shell.compile
    original = type(compiler)

    class OutliningCompiler(original):  # type: ignore[misc, valid-type]
        """The shell's compiler. Warnings and errors of a cell are those of its plain code, which is compiled first."""

        def __call__(self, source: object, filename: str, symbol: str, **options: object) -> object:
            code = super().__call__(source, filename, symbol, **options)
            if not isinstance(source, (ast.Module, ast.Interactive)):
                return code
            with own:
                return _outlined(shell, source, filename, symbol, self.flags) or code

    OutliningCompiler.__name__, OutliningCompiler.__qualname__ = original.__name__, original.__qualname__
    compiler.__class__ = OutliningCompiler

    def restore() -> None:
        if type(compiler) is OutliningCompiler:
            compiler.__class__ = original  # type: ignore[assignment]

    return restore


def _outlined(
    shell: InteractiveShell, tree: ast.Module | ast.Interactive, filename: str, symbol: str, flags: int
) -> object:
    """The code with loops outlined; None where there are none, before torch is imported, or where that fails."""
    if "torch" not in sys.modules or shell.user_global_ns is not shell.user_ns:
        return None
    try:
        from ..sessions import outlined_code

        return outlined_code(tree, filename, symbol, flags, shell.user_ns)
    except Exception:  # the cell runs as written
        log_failure("it outlined the loops of a cell")
        return None
