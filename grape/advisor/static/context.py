"""Shared by what rules see in source alone: the inferred kinds, the hot code, and how a finding is made from a node."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..code.parsed import last_name
from ..code.source import has_remainder
from .hot import HotCode
from .kinds import Kinds

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

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds
        self.hot = HotCode(kinds)

    def model_calls(self) -> Iterator[ast.Call]:
        """The hot calls of modules and of the source's own functions."""
        for node in self.hot.nodes:
            if not isinstance(node, ast.Call) or self.kinds.root_call(node) is not None:
                continue
            own = isinstance(node.func, ast.Name) and node.func.id in self.kinds.functions
            if own or self.kinds.of(node.func) == "module":
                yield node

    def synchronizes(self, node: ast.AST) -> bool:
        """True for ``torch.cuda.synchronize()``."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return False
        return node.func.attr == "synchronize" and self.kinds.of(node.func) == "torch"

    def is_seldom(self, node: ast.AST) -> bool:
        """True where the code does it only every n-th time already: behind ``if i % n == 0``."""
        for child, parent in self.kinds.above(node):
            if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.While)):
                return False
            if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test and has_remainder(parent.test):
                return True
            if isinstance(parent, ast.BoolOp) and any(has_remainder(one) for one in parent.values if one is not child):
                return True
        return False

    def tests_above(self, node: ast.AST) -> Iterator[ast.expr]:
        """The tests of `if`, `while`, `assert` and ternaries around `node`, within its statement."""
        for _, parent in self.kinds.above(node):
            if isinstance(parent, (ast.If, ast.While, ast.Assert, ast.IfExp)):
                yield parent.test
            if isinstance(parent, ast.stmt):
                return

    def is_tested(self, node: ast.AST) -> bool:
        """True where the value only decides a branch: that is GR102."""
        return any(node in ast.walk(test) for test in self.tests_above(node))

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


InSource = Callable[[Context], Iterator[StaticFinding]]
"""What a rule sees in source alone: `in_source` of its file."""


def calls_backward(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Call) and last_name(n.func) in ("backward", "grad", "step") for n in ast.walk(node))


def shown(node: ast.AST) -> str:
    """The expression in one short line."""
    text = ast.unparse(node)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3].rstrip() + "..."
