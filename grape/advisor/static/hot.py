"""Which lines of a source run again and again: loop bodies, and functions that are called in them."""

from __future__ import annotations

import ast

from ..code.parsed import last_name
from .kinds import Kinds

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_FEWEST = 2


class HotCode:
    """Loops and repeatedly called functions of one tree."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._called: set[ast.AST] = set()
        self._loops: dict[ast.AST, ast.AST | None] = {}
        calls = [node for node in kinds.nodes if isinstance(node, ast.Call)]
        for _ in range(4):
            before = len(self._called)
            for node in calls:
                if self.is_hot(node):
                    self._called.update(self._functions(node.func))
            if before == len(self._called):
                break
        self.nodes = tuple(
            node
            for node in kinds.nodes
            if (isinstance(node, ast.While) or self.is_hot(node)) and not self.is_rare(node)
        )
        """Everything that runs again and again, and not only now and then; of a `while` its test does."""

    def _functions(self, func: ast.expr) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        found = list(self._kinds.functions.get(last_name(func), ()))
        if self._kinds.of(func) == "module":
            found += self._kinds.functions.get("forward", ())
        return found

    def loop(self, node: ast.AST) -> ast.AST | None:
        """The innermost loop of the same function around `node`, None where there is none."""
        if node not in self._loops:
            self._loops[node] = self._found_loop(node)
        return self._loops[node]

    def _found_loop(self, node: ast.AST) -> ast.AST | None:
        for child, parent in self._kinds.above(node):
            if isinstance(parent, _FUNCTIONS) and child in parent.body:
                return None
            if isinstance(parent, ast.While) and (child in parent.body or child is parent.test):
                return parent
            if isinstance(parent, (ast.For, ast.AsyncFor)) and child in parent.body:
                return None if is_short(parent.iter) else parent
            if isinstance(parent, _COMPREHENSIONS) and child is not parent.generators[0]:
                return parent
        return None

    def is_hot(self, node: ast.AST) -> bool:
        """True in a loop, or in a function that is called in one."""
        return self.loop(node) is not None or self.is_called_often(self.function(node))

    def function(self, node: ast.AST) -> ast.AST | None:
        return next((parent for _, parent in self._kinds.above(node) if isinstance(parent, _FUNCTIONS)), None)

    def is_called_often(self, function: ast.AST | None) -> bool:
        """True for a function that is called in a loop, or by one that is."""
        return function in self._called

    def is_rare(self, node: ast.AST) -> bool:
        """True behind a test that holds only now and then: ``if step % 100 == 0:``, ``if DEBUG:``, an `except`."""
        for child, parent in self._kinds.above(node):
            if isinstance(parent, (*_LOOPS, *_FUNCTIONS)):
                return False
            if isinstance(parent, ast.ExceptHandler):
                return True
            if isinstance(parent, ast.If) and child in parent.body and self._is_plain(parent.test):
                return True
        return False

    def _is_plain(self, test: ast.expr) -> bool:
        """True for a test on Python values alone."""
        return not any(isinstance(node, ast.expr) and self._kinds.is_tensor(node) for node in ast.walk(test))


def is_short(iterable: ast.expr) -> bool:
    """A loop over a literal, or a range, of hardly any items."""
    if isinstance(iterable, (ast.List, ast.Tuple)):
        return len(iterable.elts) < _FEWEST
    if isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Name) and iterable.func.id == "range":
        last = iterable.args[-1] if len(iterable.args) == 1 else None
        return isinstance(last, ast.Constant) and isinstance(last.value, int) and last.value < _FEWEST
    return False
