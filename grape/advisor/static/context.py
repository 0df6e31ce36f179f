"""Shared by the rules of source alone: the inferred kinds, the hot code, and how a finding is made from a node."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from .hot import HotCode
from .kinds import Kinds

__all__ = ["Context", "StaticFinding", "shown"]

_LONGEST = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFinding:
    """A finding at `line` of one source. `subject` is the expression as it is written."""

    code: str
    line: int
    end_line: int
    subject: str
    message: str
    advice: str
    function: str
    kind: str
    """The callee ("tolist", "print", ...), where one code covers several things; else empty."""
    around: tuple[int, int]
    """First and last line of the loop, or else the function, that repeats it."""


class Context:
    """One tree, with what is known of it."""

    def __init__(self, kinds: Kinds, hot: HotCode) -> None:
        self.kinds = kinds
        self.hot = hot

    def model_calls(self) -> Iterator[ast.Call]:
        """The hot calls of modules and of the source's own functions."""
        for node in self.hot.nodes:
            if not isinstance(node, ast.Call) or self.kinds.root_call(node) is not None:
                continue
            own = isinstance(node.func, ast.Name) and node.func.id in self.kinds.functions
            if own or self.kinds.of(node.func) == "module":
                yield node

    def at(
        self, code: str, node: ast.expr | ast.stmt, subject: ast.AST | str, message: str, advice: str, kind: str = ""
    ) -> StaticFinding:
        """A finding at `node`; "{}" in the texts stands for `subject`."""
        text = subject if isinstance(subject, str) else shown(subject)
        function = self.hot.function(node)
        repeated = self.hot.loop(node) or function or node
        return StaticFinding(
            code=code,
            line=node.lineno,
            end_line=node.end_lineno or node.lineno,
            subject=text,
            message=message.replace("{}", text),
            advice=advice.replace("{}", text),
            function=getattr(function, "name", "<module>"),
            kind=kind,
            around=(getattr(repeated, "lineno", node.lineno), getattr(repeated, "end_lineno", None) or node.lineno),
        )


def shown(node: ast.AST) -> str:
    """The expression in one short line."""
    text = ast.unparse(node)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3].rstrip() + "..."
