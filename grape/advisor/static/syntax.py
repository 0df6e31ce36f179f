"""A source as a tree with its scopes, its functions and classes, and what it imports from frameworks."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..code.parsed import last_name
from .bindings import Kind
from .vocabulary import BATCHES, FRAMEWORKS, MASKING, NOT_TENSORS

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | None
"""A function, or None for the top level."""

_SHARED = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
"""Nodes without children, one object for all places."""


class Syntax:
    """One tree."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.parents: dict[ast.AST, ast.AST] = {}
        self.nodes = _walked(tree, self.parents)
        """All nodes of the tree in the order of `ast.walk`, without operators and contexts, which are shared."""
        self.roots = frozenset(_frameworks(self.nodes))
        self._scopes: dict[ast.AST, Scope] = {}
        self.functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        for node in self.nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self.functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
        self._layers = frozenset(
            alias.asname or alias.name
            for node in self.nodes
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.nn")
            for alias in node.names
            if alias.name[:1].isupper()
        )
        """Names imported from ``torch.nn`` itself: `Linear`, `Sequential`, ..."""

    @property
    def uses_tensors(self) -> bool:
        """False for code that imports none of the libraries whose values are tensors."""
        return bool(self.roots)

    def scope(self, node: ast.AST) -> Scope:
        """The innermost function around `node`; the decorators and defaults of a function lie outside of it."""
        if node not in self._scopes:
            self._scopes[node] = self._found_scope(node)
        return self._scopes[node]

    def _found_scope(self, node: ast.AST) -> Scope:
        for child, parent in self.above(node):
            if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and child in parent.body:
                return parent
            if isinstance(parent, ast.Lambda) and child is parent.body:
                return parent
        return None

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """`node` and its parent, that and its own parent, and so on outwards."""
        while (parent := self.parents.get(node)) is not None:
            yield node, parent
            node = parent

    def root_call(self, node: ast.expr) -> str | None:
        """The function's name where `node` calls something of a framework: ``torch.cat(...)`` is "cat"."""
        if not isinstance(node, ast.Call) or self.root(node.func) is None:
            return None
        return last_name(node.func)

    @staticmethod
    def binds(scope: Scope, name: str) -> bool:
        """True for a parameter: the name of the same spelling outside is another one."""
        if scope is None:
            return False
        given = scope.args
        return any(arg.arg == name for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs))

    def root(self, func: ast.expr) -> str | None:
        """The dotted name of a callable that belongs to a framework."""
        parts: list[str] = []
        node = func
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.roots:
            return None
        return ".".join([node.id, *reversed(parts)])

    def of_framework(self, node: ast.Call, root: str) -> Kind | None:
        last = root.rpartition(".")[2]
        if last in BATCHES:
            return "batches"
        if last == "Parameter":
            return "tensor"
        if last == "from_pretrained" or ("nn" in root.split(".") and last[:1].isupper()):
            return "module"
        if last[:1].isupper():
            return "module" if root.split(".")[0] in self.roots and "." not in root and last in self._layers else None
        if last in NOT_TENSORS or last.startswith("is_") or ".utils." in root or ".cuda." in root or ".optim" in root:
            return None
        return "mask" if last in MASKING or _is_bool(node) else "tensor"

    def is_module(self, node: ast.ClassDef) -> bool:
        for base in node.bases:
            root = self.root(base)
            if root is not None and root.rpartition(".")[2] == "Module":
                return True
            if isinstance(base, ast.Name) and base.id in self.classes and self.classes[base.id] is not node:
                return self.is_module(self.classes[base.id])
        return False


def _is_bool(call: ast.Call) -> bool:
    return any(
        keyword.arg == "dtype" and isinstance(keyword.value, ast.Attribute) and keyword.value.attr == "bool"
        for keyword in call.keywords
    )


def _walked(tree: ast.Module, parents: dict[ast.AST, ast.AST]) -> tuple[ast.AST, ...]:
    """The nodes below and with `tree`, breadth first; `parents` is filled. Several times as fast as `ast.walk`."""
    nodes: list[ast.AST] = [tree]
    for node in nodes:  # which grows
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                for item in value:
                    if isinstance(item, ast.AST) and not isinstance(item, _SHARED):
                        parents[item] = node
                        nodes.append(item)
            elif isinstance(value, ast.AST) and not isinstance(value, _SHARED):
                parents[value] = node
                nodes.append(value)
    return tuple(nodes)


def _frameworks(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names bound by imports of torch and of libraries around it."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in FRAMEWORKS:
                    yield alias.asname or alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FRAMEWORKS:
            for alias in node.names:
                yield alias.asname or alias.name
