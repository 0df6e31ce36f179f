"""Code objects for runs, and objects in the place of marks. Frames and positions are those of the person's code."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Sequence

from ..quiet import without_warnings
from ..rewrite.outlining import mark_of

on_code: list[Callable[[types.CodeType], None]] = []
"""Called with each code object that is made of statements of a cell."""


def compile_quietly(tree: ast.AST, filename: str, mode: str, flags: int) -> types.CodeType:
    """Compile source that has been compiled before: what there was to warn of has been said."""
    with without_warnings():
        code = compile(tree, filename, mode, flags, dont_inherit=True)  # type: ignore[call-overload]
    assert isinstance(code, types.CodeType)
    return code


def with_objects(code: types.CodeType, find: Callable[[str, int], object]) -> types.CodeType:
    """`code` with objects in the place of its marks; `find` takes a mark's kind and number."""
    constants: list[object] = []
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


def pure_code(
    statements: Sequence[ast.stmt],
    inputs: Sequence[str],
    constants: Sequence[str],
    outputs: Sequence[str],
    filename: str,
    flags: int,
    name: str,
) -> types.CodeType:
    """The statements as a function of `inputs`, in a closure over `constants`, that returns the tuple of `outputs`."""
    last = statements[-1]
    values: list[ast.expr] = [ast.Name(output, ast.Load()) for output in outputs]
    returned = ast.copy_location(ast.Return(ast.Tuple(values, ast.Load())), last)
    return _function_code(inputs, [*statements, returned], filename, flags, name, constants)


def _function_code(
    arguments: Sequence[str],
    body: Sequence[ast.stmt],
    filename: str,
    flags: int,
    name: str = "<module>",
    around: Sequence[str] = (),
) -> types.CodeType:
    inner = _definition(arguments, body, body[0])
    outer = ast.fix_missing_locations(ast.Module([_definition(around, [inner], body[0])], []))
    code = _nested(_nested(compile_quietly(outer, filename, "exec", flags)))
    made = code.replace(co_name=name.rpartition(".")[2], co_qualname=name)
    for look in on_code:
        look(made)
    return made


def _definition(arguments: Sequence[str], body: Sequence[ast.stmt], at: ast.stmt) -> ast.stmt:
    parameters = ast.arguments([], [ast.arg(name) for name in arguments], None, [], [], None, [])
    function = ast.FunctionDef("<run>", parameters, list(body), [])  # no name that the statements could mean
    if hasattr(function, "type_params"):
        function.type_params = []
    return ast.copy_location(function, at)


def _nested(code: types.CodeType) -> types.CodeType:
    return next(constant for constant in code.co_consts if isinstance(constant, types.CodeType))
