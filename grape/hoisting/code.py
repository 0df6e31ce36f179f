"""Code objects for runs, and objects in the place of marks. Frames and positions are those of the person's code."""

from __future__ import annotations

import ast
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..rewrite.hoisting import mark_of

__all__ = ["compile_quietly", "eager_code", "pure_function", "with_objects"]

_NAME = "<module>"


def compile_quietly(tree: ast.AST, filename: str, mode: str, flags: int) -> types.CodeType:
    """Compile source that has been compiled before: what there was to warn of has been said."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = compile(tree, filename, mode, flags, dont_inherit=True)  # type: ignore[call-overload]
    assert isinstance(code, types.CodeType)
    return code


def with_objects(code: types.CodeType, find: Callable[[str, int], object]) -> types.CodeType:
    """`code` with objects in the place of its marks; `find` takes a mark's kind and number."""
    constants: list[Any] = []
    for constant in code.co_consts:
        mark = mark_of(constant)
        if mark is not None:
            constant = find(*mark)
        elif isinstance(constant, types.CodeType):
            constant = with_objects(constant, find)
        constants.append(constant)
    return code.replace(co_consts=tuple(constants))


def eager_code(statements: Sequence[ast.stmt], stores: Sequence[str], filename: str, flags: int) -> types.CodeType:
    """The statements as they run in the cell: every name is a global."""
    first = statements[0]
    body: list[ast.stmt] = list(statements)
    if stores:
        body.insert(0, ast.copy_location(ast.Global(list(stores)), first))
    return _function_code([], body, filename, flags)


def pure_function(
    statements: Sequence[ast.stmt],
    inputs: Sequence[str],
    outputs: Sequence[str],
    filename: str,
    flags: int,
    namespace: Mapping[str, Any],
) -> types.FunctionType:
    """The statements as a function of `inputs` that returns the tuple of `outputs`; other names are globals."""
    last = statements[-1]
    values: list[ast.expr] = [ast.Name(name, ast.Load()) for name in outputs]
    returned = ast.copy_location(ast.Return(ast.Tuple(values, ast.Load())), last)
    code = _function_code(inputs, [*statements, ast.fix_missing_locations(returned)], filename, flags)
    assert isinstance(namespace, dict)
    return types.FunctionType(code, namespace, _NAME)


def _function_code(arguments: Sequence[str], body: Sequence[ast.stmt], filename: str, flags: int) -> types.CodeType:
    first = body[0]
    parameters = ast.arguments([], [ast.arg(name) for name in arguments], None, [], [], None, [])
    function = ast.copy_location(ast.FunctionDef("run", parameters, list(body), []), first)
    if hasattr(function, "type_params"):
        function.type_params = []
    module = ast.fix_missing_locations(ast.Module([function], []))
    outer = compile_quietly(module, filename, "exec", flags)
    code = next(constant for constant in outer.co_consts if isinstance(constant, types.CodeType))
    return code.replace(co_name=_NAME, co_qualname=_NAME)
