"""Building blocks of generated code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import libcst as cst

from .facts.plain import FLOW
from .lines import marker


def flow(name: str) -> cst.Attribute:
    return cst.Attribute(cst.Name(FLOW), cst.Name(name))


def call(name: str, *arguments: cst.BaseExpression | str) -> cst.Call:
    """`_flow.name(arguments)`."""
    nodes = [cst.parse_expression(item) if isinstance(item, str) else item for item in arguments]
    return cst.Call(flow(name), [cst.Arg(node) for node in nodes])


def lambda_of(body: cst.BaseExpression, parameters: Sequence[str] = ()) -> cst.Lambda:
    return cst.Lambda(
        cst.Parameters([cst.Param(cst.Name(name)) for name in parameters]),
        body,
        whitespace_after_lambda=cst.SimpleWhitespace(" ") if parameters else cst.MaybeSentinel.DEFAULT,
    )


def tuple_of(items: Iterable[str]) -> str:
    """A tuple display of these expressions."""
    listed = list(items)
    return "(" + ", ".join(listed) + ("," if len(listed) == 1 else "") + ")"


def statement(code: str, lines: tuple[int, int]) -> cst.BaseStatement:
    """A generated statement of the construct on `lines`."""
    return cst.parse_statement(code).with_changes(leading_lines=[marker(*lines)])


def assign(names: Sequence[str], value: cst.BaseExpression, lines: tuple[int, int]) -> cst.SimpleStatementLine:
    """`a, b = value`; only the value where there are no names."""
    small: cst.BaseSmallStatement = cst.Expr(value)
    if names:
        target = cst.parse_expression(", ".join(names))
        assert isinstance(target, cst.BaseAssignTargetExpression)
        small = cst.Assign([cst.AssignTarget(target)], value)
    return cst.SimpleStatementLine([small], leading_lines=[marker(*lines)])


def block_of(suite: cst.BaseSuite | None, statements: Sequence[cst.BaseStatement]) -> cst.IndentedBlock:
    """A block with these statements, and the comments of `suite`."""
    body = list(statements) or [cst.SimpleStatementLine([cst.Pass()])]
    if isinstance(suite, cst.IndentedBlock):
        return suite.with_changes(body=body)
    return cst.IndentedBlock(body)


def function(name: str, parameters: Sequence[str], body: cst.IndentedBlock, lines: tuple[int, int]) -> cst.FunctionDef:
    return cst.FunctionDef(
        cst.Name(name),
        cst.Parameters([cst.Param(cst.Name(item)) for item in parameters]),
        body,
        leading_lines=[marker(*lines)],
    )
