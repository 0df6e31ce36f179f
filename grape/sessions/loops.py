"""Statements at the top of a cell or of a script, compiled so that the bodies of their loops can become regions."""

from __future__ import annotations

import ast
from types import CodeType

from .process import engine


def outlined_code(
    tree: ast.Module | ast.Interactive, filename: str, mode: str, flags: int, namespace: dict[str, object]
) -> CodeType | None:
    """The code of `tree`, to run in `namespace`; None where there is no loop, and where nothing may stand between."""
    if not any(isinstance(node, (ast.For, ast.While)) for node in ast.walk(tree)):
        return None
    from ..tracing import is_own_code, is_watched

    if not is_own_code(filename) or is_watched() or engine().interceptor.withdrawn:
        return None
    return engine().outliner.compile(tree, filename, mode, flags, namespace)
