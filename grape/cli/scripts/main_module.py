"""The module `__main__` of a script, and its statements: what Python makes of a file that it is given to run."""

from __future__ import annotations
import __future__

import ast
import builtins
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

from ...quiet import without_warnings

_FUTURES = 0
for _name in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _name).compiler_flag

Statement = tuple[ast.Module, types.CodeType, int]
"""The tree of one statement, its code, and the flags that it was compiled with."""


def become_main(path: Path, words: list[str], shown: str) -> dict[str, object]:
    """The namespace of a new `__main__`, whose file is `path`; arguments and the path of imports are the script's.

    Who starts workers by the file of `__main__` (multiprocessing, a loader of data) finds the script there.
    """
    file = os.path.abspath(path)
    module = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", file)
    vars(module).update(
        __file__=file, __loader__=loader, __builtins__=builtins, __cached__=None, __annotations__={}, __spec__=None
    )
    sys.modules["__main__"] = module
    sys.argv[:] = [shown, *words]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    return vars(module)


def statements(source: bytes, file: str) -> Iterator[Statement]:
    """The statements at the top of a script, each compiled when it is asked for.

    The whole file is compiled first: it has its syntax errors and warnings before anything runs, as for Python.
    """
    tree = compile(source, file, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    assert isinstance(tree, ast.Module)
    flags = compile(tree, file, "exec", dont_inherit=True).co_flags & _FUTURES
    body = tree.body[::-1]
    del tree
    first = True
    while body:
        one = body.pop()
        # A constant that stands alone does nothing, and compiled alone it would be a docstring.
        if first or not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)):
            part = ast.Module([one], [])
            with without_warnings():
                code = compile(part, file, "exec", flags, dont_inherit=True)
            yield part, code, flags
        first = False


def own_frames(tb: types.TracebackType | None, namespace: dict[str, object]) -> types.TracebackType | None:
    """`tb` from the first frame of the script's on; None where there is none."""
    while tb is not None and tb.tb_frame.f_globals is not namespace:
        tb = tb.tb_next
    return tb


def show_own_frames(namespace: dict[str, object]) -> None:
    """An exception is about to end the process: have whoever shows it, `sys.excepthook`, see the frames of the script
    only. An exception that did not come out of the script is shown whole.
    """
    hook: Callable[..., object] = sys.excepthook

    def shown(kind: type[BaseException], error: BaseException, tb: types.TracebackType | None) -> None:
        sys.excepthook = hook
        own = own_frames(tb, namespace)
        if own is not None or isinstance(error, (SyntaxError, KeyboardInterrupt)):
            error.__traceback__ = sys.last_traceback = tb = own
        hook(kind, error, tb)

    sys.excepthook = shown
