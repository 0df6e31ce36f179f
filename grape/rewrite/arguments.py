"""Adding an argument to a call, spaced as the others are."""

from __future__ import annotations

import libcst as cst

_TIGHT = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def keyword(call: cst.Call, name: str) -> cst.Arg | None:
    """The argument that is passed as ``name=``."""
    return next((arg for arg in call.args if arg.keyword is not None and arg.keyword.value == name), None)


def with_keyword(call: cst.Call, name: str, value: str) -> cst.Call:
    """The call with ``name=value`` behind its other arguments."""
    new = cst.Arg(value=cst.parse_expression(value), keyword=cst.Name(name), equal=_TIGHT)
    if not call.args:
        return call.with_changes(args=[new])
    *before, last = call.args
    between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if before and isinstance(before[-1].comma, cst.Comma):
        between = before[-1].comma
    new = new.with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
    last = last.with_changes(comma=between, whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*before, last, new])
