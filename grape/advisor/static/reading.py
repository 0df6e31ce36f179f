"""What reading a value tells of a name: ``x.mean().item()`` is said of a tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterable


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_READS = _words("item tolist")
_KEPT = _words("""
    sum mean max min amax amin std var norm abs prod median any all argmax argmin float int long squeeze flatten
""")
"""Methods of a tensor whose result is one, and that little else has which gives tensors."""
_ARRAYS = _words("""
    numpy pandas polars jax cupy tensorflow xarray dask sklearn scipy cv2 mlx array pyarrow numba tinygrad
""")
"""Packages whose objects are read by the same methods."""


def read_name(call: ast.Call) -> ast.Name | None:
    """`x` of ``x.item()``, ``x.mean().item()``, ``x.abs().max(0).tolist()``; None for what reads something else.

    ``out.loss.item()`` and ``metric.compute().item()`` tell nothing of `out` and `metric`.
    """
    func = call.func
    if not isinstance(func, ast.Attribute) or func.attr not in _READS or call.args or call.keywords:
        return None
    node = func.value
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _KEPT:
        node = node.func.value
    return node if isinstance(node, ast.Name) else None


def beside_arrays(nodes: Iterable[ast.AST]) -> bool:
    """True where a library is imported whose arrays are read as tensors are: then reading tells nothing."""
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if any(name.split(".")[0] in _ARRAYS for name in names):
            return True
    return False
